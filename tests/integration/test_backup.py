"""A backup of a standalone that runs has everything that was acknowledged before it began."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pulsar
import pytest

from tests.support.hurried import HURRIED
from tests.support.python_client import connect, connected
from tests.support.several_brokers import wait_for
from tests.support.standalone import Standalone

SEALING = {
    **HURRIED,
    "PULSARK_sealFreshnessSeconds": "1",
    "PULSARK_managedLedgerMaxEntriesPerLedger": "200",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "PULSARK_journalMaxSizeMB": "4",
}


def pulsark(*words: object, code: int = 0) -> str:
    """What it says; with ``--json`` without how far it is, which stands apart."""
    done = subprocess.run(
        [sys.executable, "-m", "pulsark", *map(str, words)],
        text=True,
        capture_output=True,
        timeout=60,
    )
    said = done.stderr + done.stdout
    assert done.returncode == code, said
    assert "Traceback" not in said
    return done.stdout if "--json" in words else said


class Publisher:
    """Publishes numbers to topics, one after the other, until it is stopped."""

    def __init__(self, standalone: Standalone, topics: list[str]) -> None:
        self.acknowledged: dict[str, list[int]] = {topic: [] for topic in topics}
        self._standalone = standalone
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[topic]) for topic in topics]
        for thread in self._threads:
            thread.start()

    def _run(self, topic: str) -> None:
        client = connect(self._standalone)
        producer = client.create_producer(topic)
        number = 0
        while not self._stop.is_set():
            producer.send(b"%d " % number + bytes(500))
            self.acknowledged[topic].append(number)
            number += 1
        client.close()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def read(standalone: Standalone, topic: str) -> list[int]:
    with connected(standalone) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(60_000).data().split()[0]))
        return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bookies", "times"),
    [
        pytest.param(1, 4, marks=pytest.mark.chaos),
        (3, 2),
        pytest.param(3, 4, marks=pytest.mark.chaos),
    ],
)
def test_backups_while_messages_are_published(tmp_path: Path, bookies: int, times: int) -> None:
    flags = ("--bookies", str(bookies))
    original = Standalone(tmp_path / "data", *flags, env=SEALING).start()
    publisher = Publisher(original, ["a", "b"])
    try:
        backups = []
        for number in range(times):
            time.sleep(1.5)
            if number == times - 1:
                wait_for(lambda: any((tmp_path / "data").rglob("*.parquet")), 60)
            before = {topic: len(done) for topic, done in publisher.acknowledged.items()}
            target = tmp_path / f"backup-{number}"
            said = pulsark("backup", target, "--data-dir", tmp_path / "data", "--json")
            backups.append((target, before))
            assert json.loads(said)["missing"] == []
    finally:
        publisher.stop()
        original.kill()

    for number, (target, before) in enumerate(backups):
        data = tmp_path / f"restored-{number}"
        pulsark("restore", target, "--data-dir", data)
        with Standalone(data, *flags, env=SEALING) as restored:
            for topic, count in before.items():
                found = read(restored, topic)
                assert found == list(range(len(found)))
                assert len(found) >= count
            with connected(restored) as client:
                client.create_producer("a").send(b"-1")
            assert read(restored, "a")[-1] == -1
            log = restored.log_path.read_text()
        assert "ERROR" not in log, log
        assert "DAMAGED" not in log, log
    assert list((tmp_path / f"restored-{times - 1}").rglob("*.parquet"))


def test_a_backup_without_the_bookie_in_the_middle(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", "--bookies", "3") as original, connected(original) as client:
        producer = client.create_producer("t")
        for number in range(10):
            producer.send(b"%d" % number)
    shutil.rmtree(tmp_path / "data" / "bookies" / "bookie-2")
    said = pulsark("backup", tmp_path / "backup", "--data-dir", tmp_path / "data", code=1)
    assert "bookie-2 was not there" in said
    said = pulsark("restore", tmp_path / "backup", "--data-dir", tmp_path / "restored")
    assert said.endswith(f"{tmp_path}/restored --bookies 3\n")
    with Standalone(tmp_path / "restored", "--bookies", "3") as restored:
        assert read(restored, "t") == list(range(10))


def test_what_a_backup_has_the_original_may_delete(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", env=SEALING) as original:
        with connected(original) as client:
            producer = client.create_producer("t")
            for number in range(300):
                producer.send(b"%d" % number)
        pulsark("backup", tmp_path / "backup", "--data-dir", tmp_path / "data")
    shutil.rmtree(tmp_path / "data")
    # At the same place: nothing of the original is there any more.
    pulsark("restore", tmp_path / "backup", "--data-dir", tmp_path / "data")
    with Standalone(tmp_path / "data", env=SEALING) as restored:
        assert read(restored, "t") == list(range(300))
    assert "Nothing is wrong here." in pulsark("doctor", "--data-dir", tmp_path / "data")


def test_a_backup_is_not_put_over_what_may_be_newer(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data"):
        pulsark("backup", tmp_path / "backup", "--data-dir", tmp_path / "data")
    for _ in range(2):
        said = pulsark("restore", tmp_path / "backup", "--data-dir", tmp_path / "data", code=1)
        assert "empty directory" in said
        (tmp_path / "data" / "metadata.db").unlink(missing_ok=True)  # nor over its bookies alone
    # By hand: the store of the backup with bookies that have gone on.
    with Standalone(tmp_path / "other") as other, connected(other) as client:
        producer = client.create_producer("t")
        pulsark("backup", tmp_path / "early", "--data-dir", tmp_path / "other")
        producer.send(b"later")
        client.create_producer("u").send(b"later")
    for path in (tmp_path / "other").glob("metadata.db*"):
        path.unlink()
    shutil.copy(tmp_path / "early" / "metadata.db", tmp_path / "other" / "metadata.db")
    with pytest.raises(RuntimeError, match="went back"):
        Standalone(tmp_path / "other").start()


def test_half_a_backup_is_none(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as standalone, connected(standalone) as client:
        producer = client.create_producer("t")
        for _ in range(40):
            producer.send(bytes(1 << 20))
        words = ["backup", str(tmp_path / "half"), "--data-dir", str(tmp_path / "data")]
        slow = subprocess.Popen([sys.executable, "-m", "pulsark", *words])
        deadline = time.monotonic() + 60
        while not list((tmp_path / "half").rglob("*.journal")):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        slow.kill()
        slow.wait()
        (tmp_path / "half" / "backup.json").unlink(missing_ok=True)  # it may have been too quick
    said = pulsark("restore", tmp_path / "half", "--data-dir", tmp_path / "new", code=1)
    assert "no complete backup" in said
    assert not (tmp_path / "new" / "metadata.db").exists()


def test_a_damaged_backup_is_noticed(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as standalone, connected(standalone) as client:
        client.create_producer("t").send(b"one")
        pulsark("backup", tmp_path / "backup", "--data-dir", tmp_path / "data")
    segment = next((tmp_path / "backup").rglob("*.journal"))
    damaged = bytearray(segment.read_bytes())
    damaged[-1] ^= 1
    segment.write_bytes(damaged)
    said = pulsark("restore", tmp_path / "backup", "--data-dir", tmp_path / "new", code=1)
    assert "not as it was written" in said
    with pytest.raises(RuntimeError):
        Standalone(tmp_path / "new").start()
