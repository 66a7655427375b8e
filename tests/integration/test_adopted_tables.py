"""Topics whose tables know more than the metadata store that was put back."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.error import HTTPError

import pulsar
import pytest

from tests.support.python_client import connected
from tests.support.seal_contract import admin, tables
from tests.support.standalone import Standalone

TOPIC = "persistent://public/default/t"
PATH = "/admin/v2/persistent/public/default/t"


def publish(broker: Standalone, first: int, count: int) -> None:
    with connected(broker, operation_timeout_seconds=60) as client:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for i in range(first, first + count):
            producer.send(b"%d" % i)


def seal(broker: Standalone) -> None:
    try:
        admin(broker, "POST", f"{PATH}/seal")
    except HTTPError as error:
        raise AssertionError(error.read().decode()) from error


def received(broker: Standalone, name: str, count: int) -> list[int]:
    """What a subscription gets, acknowledged, in the order of the partition's messages."""
    with connected(broker, operation_timeout_seconds=60) as client:
        consumer = client.subscribe(TOPIC, name, initial_position=pulsar.InitialPosition.Earliest)
        found = []
        for _ in range(count):
            message = consumer.receive(60_000)
            found.append(int(message.data()))
            consumer.acknowledge(message)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)
    return found


@contextmanager
def adopting(data: Path, *args: str) -> Iterator[Standalone]:
    """A standalone that has adopted what it found.

    It adopts after it is ready, and unloads topics meanwhile. A message that is sent just then is
    sent again, and without deduplication it is stored twice.
    """
    with Standalone(data, *args, "--adopt", env={"PULSARK_logLevel": "INFO"}) as broker:
        broker.wait_for_log("topics' tables were compared")
        yield broker


def copy_store(broker: Standalone, to: Path) -> None:
    """The metadata store as it is now, of a standalone that runs."""
    with (
        closing(sqlite3.connect(broker.data_dir / "metadata.db")) as source,
        closing(sqlite3.connect(to)) as target,
    ):
        source.backup(target)


def put_back(older: Path, data: Path) -> None:
    for path in data.glob("metadata.db*"):
        path.unlink()
    shutil.copy(older, data / "metadata.db")


def repair(broker: Standalone, *flags: str) -> tuple[int, str]:
    words = ["tables", "repair", TOPIC, "--admin-url", broker.web_url, *flags]
    done = subprocess.run(
        [sys.executable, "-m", "pulsark", *words], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout or done.stderr


def grown(data: Path, older: Path, *args: str, sealed_before: bool) -> None:
    """Messages 0 to 9, then the older store is copied; 10 to 29 are sealed, and 30 to 34 not."""
    with Standalone(data, *args) as broker:
        publish(broker, 0, 10)
        assert sorted(received(broker, "half", 10)) == list(range(10))
        if sealed_before:
            seal(broker)
        copy_store(broker, older)
        publish(broker, 10, 10)
        seal(broker)
    with Standalone(data, *args) as broker:  # a start begins a ledger
        publish(broker, 20, 10)
        seal(broker)
        publish(broker, 30, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bookies", "sealed_before"),
    [
        ((), True),
        (("--bookies", "3"), False),
        pytest.param((), False, marks=pytest.mark.chaos),
        pytest.param(("--bookies", "3"), True, marks=pytest.mark.chaos),
    ],
)
def test_what_the_table_has_comes_back(
    tmp_path: Path, bookies: tuple[str, ...], *, sealed_before: bool
) -> None:
    """Of the ledger that was open at the time of the store, and of those that came later."""
    data, older = tmp_path / "data", tmp_path / "older.db"
    grown(data, older, *bookies, sealed_before=sealed_before)
    put_back(older, data)
    with adopting(data, *bookies) as broker:
        publish(broker, 35, 5)
        seal(broker)
        assert received(broker, "all", 40) == list(range(40))
        assert received(broker, "half", 30) == list(range(10, 40))
    with Standalone(data, *bookies) as broker:
        publish(broker, 40, 5)
        seal(broker)
        assert received(broker, "again", 45) == list(range(45))
        code, text = repair(broker)
        assert code == 0, text


def test_an_older_record_of_a_table_is_told_which_command_takes_the_table_up(
    tmp_path: Path,
) -> None:
    """Nothing else of the store is older, so that a start does not notice."""
    data, older = tmp_path / "data", tmp_path / "older.db"
    grown(data, older, sealed_before=True)
    with closing(sqlite3.connect(data / "metadata.db")) as store, store:
        store.execute("ATTACH ? AS older", (str(older),))
        store.execute("DELETE FROM node WHERE parent LIKE '/tables/%'")
        store.execute("INSERT INTO node SELECT * FROM older.node WHERE parent LIKE '/tables/%'")
    with Standalone(data) as broker:
        publish(broker, 35, 5)
        with pytest.raises(AssertionError, match=f"pulsark tables repair {TOPIC}"):
            seal(broker)
        with connected(broker, operation_timeout_seconds=60) as client:
            client.subscribe(TOPIC, "stuck", initial_position=pulsar.InitialPosition.Earliest)
            broker.wait_for_log(f"not known to be in the table of {TOPIC}")
        code, text = repair(broker)
        assert code == 0, text
        assert received(broker, "all", 40) == list(range(40))
        seal(broker)


@pytest.mark.slow
def test_what_neither_table_nor_bookies_have_is_given_up_and_consumers_go_on(
    tmp_path: Path,
) -> None:
    """An older store, and the directory of the table is gone as well."""
    data, older = tmp_path / "data", tmp_path / "older.db"
    grown(data, older, sealed_before=False)
    with Standalone(data) as broker:
        (directory,) = tables(broker)
    shutil.rmtree(directory)
    put_back(older, data)
    with adopting(data) as broker:
        publish(broker, 35, 5)
        assert repair(broker)[0] == 1
        code, text = repair(broker, "--give-up", "--json")
        assert code == 0, text
        assert json.loads(text)["entriesGivenUp"] == 20
        assert received(broker, "all", 5) == list(range(35, 40))
        seal(broker)
        assert received(broker, "half", 5) == list(range(35, 40))
