"""Jobs on the tables of a real process, and what official clients find afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from pulsark.admin_client.client import AdminClient
from pulsark.jobs.catalog import job
from pulsark.jobs.runner import run_program
from tests.support.python_client import connect, table_view
from tests.support.standalone import Standalone

SETTINGS = {
    "PULSARK_sealEnabled": "true",
    "PULSARK_sealFreshnessSeconds": "1",
    "PULSARK_managedLedgerMaxEntriesPerLedger": "20",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "PULSARK_tableVacuumRetentionHours": "0",
    "PULSARK_brokerDeleteInactiveTopicsEnabled": "false",
}
WAIT_SECONDS = 60.0
WAIT_MS = 10_000


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("broker") / "data", env=SETTINGS) as process:
        yield process


@pytest.fixture
def client(standalone: Standalone) -> Iterator[pulsar.Client]:
    client = connect(standalone)
    yield client
    client.close()


def run(
    capsys: pytest.CaptureFixture[str], standalone: Standalone, name: str, *words: str
) -> dict[str, Any]:
    """The summary of a job that was done."""
    where = ["--service-url", standalone.service_url, "--admin-url", standalone.web_url]
    code = run_program(job(name), [*words, *where])
    said = capsys.readouterr()
    assert code == 0, said
    found: dict[str, Any] = json.loads(said.out.splitlines()[-1])
    return found


def are_sealed(admin: AdminClient, topic: str, closed: list[dict[str, Any]]) -> bool:
    """Whether all that these ledgers have is in the table."""
    path = topic.replace("://", "/")
    found = admin.get(f"/{path}/tableFiles")["partitions"]
    rows = {
        ledger["ledgerId"]: sum(file["rows"] for file in ledger["files"])
        for partition in found
        for ledger in partition["ledgers"]
    }
    return all(rows.get(part["ledgerId"]) == part["entries"] for part in closed)


def eventually(what: Any) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not what():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def ledgers(admin: AdminClient, topic: str) -> list[dict[str, Any]]:
    path = topic.replace("://", "/")
    found: list[dict[str, Any]] = admin.get(f"/{path}/segments")["partitions"][0]["ledgers"]
    return found


@pytest.mark.feature("F51", "F53")
def test_retention_is_applied_to_the_table_and_earliest_follows(
    standalone: Standalone, client: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = AdminClient(standalone.web_url)
    admin.call("PUT", "/namespaces/public/tables")
    forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    admin.call("POST", "/namespaces/public/tables/tableRetention", forever)
    topic = "persistent://public/tables/kept"
    producer = client.create_producer(topic, batching_enabled=False)
    ids: list[Any] = []
    closed: list[dict[str, Any]] = []
    while len(closed) < 2:
        ids += [producer.send(str(len(ids) + number).encode()) for number in range(10)]
        closed = [part for part in ledgers(admin, topic) if not part["open"]]
    eventually(lambda: are_sealed(admin, topic, closed))
    found = run(capsys, standalone, "apply_retention", "--namespace", "public/tables")
    assert (found["topics"], found["ledgers"], found["rows"]) == (1, 0, 0)
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    path = "/persistent/public/tables/kept/tableRetention"
    admin.call("POST", path, nothing)
    assert admin.get(f"{path}?applied=true") == nothing
    assert admin.get("/namespaces/public/tables/tableRetention") == forever
    would = run(capsys, standalone, "apply_retention", "--topic", topic, "--dry-run")
    assert would["ledgers"] == len(closed)
    assert would["rows"] == sum(part["entries"] for part in closed)
    done = run(capsys, standalone, "apply_retention", "--topic", topic)
    assert {**done, "seconds": 0} == {**would, "seconds": 0, "dryRun": False}
    assert run(capsys, standalone, "apply_retention", "--topic", topic)["rows"] == 0
    (left,) = ledgers(admin, topic)
    assert left["open"]
    ids.append(producer.send(str(len(ids)).encode()))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    first = next(number for number, i in enumerate(ids) if i.ledger_id() == left["ledgerId"])
    assert reader.read_next(WAIT_MS).data() == str(first).encode()
    reader.close()


@pytest.mark.feature("F91")
def test_a_compacted_topic_for_clients(
    standalone: Standalone, client: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = "persistent://public/default/compacted-by-a-job"
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(30):
        producer.send(str(number).encode(), partition_key=f"k{number % 10}")
    producer.send(b"", partition_key="k3")
    found = run(capsys, standalone, "compact_topic", "--topic", topic)
    assert (found["topics"], found["partitions"], found["removed"]) == (1, 1, 22)
    again = run(capsys, standalone, "compact_topic", "--topic", topic)
    assert again["removed"] == 0
    producer.send(b"new", partition_key="k4")
    expected = {f"k{number}": str(20 + number) for number in range(10) if number != 3}
    assert table_view(standalone, topic) == {**expected, "k4": "new"}
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    values = []
    while reader.has_message_available():
        values.append(reader.read_next(WAIT_MS).data())
    assert values == [*(str(20 + n).encode() for n in range(10) if n != 3), b"new"]
    reader.close()
