"""Real processes whose metadata store and bookies do not belong together."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from tests.support.python_client import connected
from tests.support.standalone import Standalone


def publish(standalone: Standalone, topic: str, texts: list[str]) -> None:
    with connected(standalone) as client:
        producer = client.create_producer(topic)
        for text in texts:
            producer.send(text.encode())


def read(standalone: Standalone, topic: str) -> list[str]:
    with connected(standalone) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(60_000).data().decode())
        return found


def remove_metadata(data: Path) -> None:
    for path in data.glob("metadata.db*"):
        path.unlink()


def refusal(standalone: Standalone) -> str:
    with pytest.raises(RuntimeError) as caught:
        standalone.start()
    return str(caught.value)


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


SECRETS = [f"secret {n}" for n in range(20)]


def test_a_lost_metadata_store_shows_nobody_the_messages_of_others(tmp_path: Path) -> None:
    standalone = Standalone(tmp_path / "data").start()
    publish(standalone, "secret", SECRETS)
    standalone.kill()
    shutil.copytree(tmp_path / "data", tmp_path / "kept")
    remove_metadata(tmp_path / "data")
    assert "--adopt" in refusal(standalone)
    assert "Traceback" not in standalone.log_path.read_text()

    adopting = Standalone(tmp_path / "data", "--adopt")
    for ends in (adopting.kill, adopting.stop):
        adopting.start()
        publish(adopting, "new", ["hello"])
        ends()
    with Standalone(tmp_path / "data") as again:
        assert read(again, "new") == ["hello", "hello"]

    # With the right store, what others did meanwhile is behind ids that it never gave.
    for path in (tmp_path / "kept").glob("metadata.db*"):
        shutil.copy(path, tmp_path / "data" / path.name)
    assert "--adopt" in refusal(Standalone(tmp_path / "data"))
    with Standalone(tmp_path / "data", "--adopt") as right:
        assert read(right, "secret") == SECRETS
        publish(right, "secret", ["another"])
        assert read(right, "secret") == [*SECRETS, "another"]


def test_an_older_metadata_store_is_refused_at_every_start(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as standalone:
        publish(standalone, "a", ["one"])
        standalone.stop()
        shutil.copy(tmp_path / "data" / "metadata.db", tmp_path / "older.db")
    with Standalone(tmp_path / "data") as standalone:
        publish(standalone, "a", ["two"])
    remove_metadata(tmp_path / "data")
    shutil.copy(tmp_path / "older.db", tmp_path / "data" / "metadata.db")
    before = contents(tmp_path / "data" / "bookies")
    size = (tmp_path / "data" / "metadata.db").stat().st_size
    for _ in range(8):
        assert "went back" in refusal(standalone)
    assert contents(tmp_path / "data" / "bookies") == before
    assert (tmp_path / "data" / "metadata.db").stat().st_size == size


def test_a_bit_in_the_log_of_the_metadata_store(tmp_path: Path) -> None:
    standalone = Standalone(tmp_path / "data").start()
    for number in range(3):
        publish(standalone, f"t{number}", ["one"])
    standalone.kill()
    log = tmp_path / "data" / "metadata.db-wal"
    damaged = bytearray(log.read_bytes())
    damaged[len(damaged) // 2] ^= 8
    log.write_bytes(damaged)
    said = refusal(standalone)
    assert "metadata.db-wal is damaged" in said
    assert "pulsark restore" in said


def test_a_bit_in_the_metadata_store(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as standalone:
        publish(standalone, "t", ["one"])
    with closing(sqlite3.connect(tmp_path / "data" / "metadata.db", isolation_level=None)) as file:
        file.execute("UPDATE node SET value = replace(value, 'CLOSED', 'CLOSER')")
    said = refusal(standalone)
    assert "is damaged: /" in said
    assert "pulsark doctor" in said


@pytest.mark.parametrize("shared", ["journal", "ledgers"])
def test_no_two_processes_share_a_directory_of_a_bookie(tmp_path: Path, shared: str) -> None:
    def standalone(name: str) -> Standalone:
        own = {"journal": f"{name}-journal", "ledgers": f"{name}-ledgers", shared: "shared"}
        return Standalone(
            tmp_path / name,
            "--set",
            f"journalDirectories={tmp_path / own['journal']}",
            "--set",
            f"ledgerDirectories={tmp_path / own['ledgers']}",
        )

    with standalone("a") as first:
        publish(first, "of-a", ["a0"])
        assert "in use by another process" in refusal(standalone("b"))
        publish(first, "of-a", ["a1"])
    with standalone("a") as first:
        assert read(first, "of-a") == ["a0", "a1"]
