"""Requests to a table process, without the process."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from typing import Any

import pytest

from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.bookie.index import Extent
from pulsark.storage.bookie.journal_excerpt import JournalExcerpt
from pulsark.storage.table.files import seal as seal_module
from pulsark.storage.table.files.record import DataFile, SealedLedger
from pulsark.storage.table.process import pipe
from pulsark.storage.table.process.process import encode_piece
from pulsark.storage.table.process.worker import TableWorker, take_place
from tests.sim.disk import SimDisk
from tests.support.client_view import client_view
from tests.support.tables import entries

ROOTS = ["/one/t"]
SEAL = {
    "op": "seal", "partition": 0, "ledgerId": 5, "directories": ROOTS, "nonce": "n",
    "targetBytes": 1 << 20, "rootsNeeded": 1, "values": ValueSchemas().encode().decode(),
}  # fmt: skip


def sent(pieces: list[Any], *, end: bool = True) -> io.BytesIO:
    encoded = [encode_piece(piece) for piece in pieces]
    return io.BytesIO(b"".join(encoded) + (pipe.encode({"op": "end"}) if end else b""))


def numbered(count: int) -> list[tuple[int, bytes]]:
    return list(enumerate(entries(count)))


def read_request(files: list[DataFile], first: int) -> dict[str, Any]:
    ledger = SealedLedger(5, 0, tuple(files)).encode().decode()
    return {
        "op": "read", "directories": ROOTS, "ledger": ledger, "first": first, "last": 99,
        "maxBytes": 1 << 20,
    }  # fmt: skip


def test_what_was_sealed_in_pieces_is_read() -> None:
    worker, originals = TableWorker(SimDisk()), numbered(10)
    stream = sent([originals[:4], originals[4:], []])
    reply, _ = worker.answer(SEAL, stream)
    assert stream.read() == b""
    files = [DataFile.from_json(file) for file in reply["files"]]
    reply, found = worker.answer(read_request(files, 3), io.BytesIO())
    assert reply == {}
    assert [i for i, _ in found] == list(range(3, 10))
    assert [client_view(e) for _, e in found] == [client_view(e) for _, e in originals[3:]]


def test_errors_are_replies_and_the_rest_of_the_request_is_passed_over() -> None:
    disk = SimDisk()
    worker = TableWorker(disk)
    damaged = [(0, entries(1)[0][:-1] + b"~"), *numbered(3)[1:]]
    stream = sent([damaged, numbered(5)])
    assert worker.answer(SEAL, stream)[0]["error"] == "CorruptEntryError"
    assert stream.read() == b""
    assert worker.answer(SEAL, sent([numbered(2)], end=False))[0]["error"] == "StorageError"
    nowhere = JournalExcerpt("/journal", 5, {1: 2}, [Extent(0, 3, 1, 64, 500, 500)])
    stream = sent([nowhere, nowhere, numbered(5)])
    assert worker.answer(SEAL, stream)[0]["error"] == "UnreadableExcerptError"
    assert stream.read() == b""
    disk.capacity = disk.used() + 10
    assert worker.answer(SEAL, sent([numbered(2)]))[0]["error"] == "StorageFullError"
    assert worker.answer({"op": "dance"}, io.BytesIO())[0]["error"] == "StorageError"
    assert worker.answer(read_request([], 0), io.BytesIO())[0]["error"] == "NoSuchEntryError"
    assert disk.files() == ()


def test_a_defect_is_a_reply_too(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = TableWorker(SimDisk())

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(seal_module, "seal", broken)
    stream = sent([numbered(3), numbered(5)])
    reply, _ = worker.answer(SEAL, stream)
    assert reply["error"] == "UnsealableError"
    assert "ZeroDivisionError('a defect')" in reply["message"]
    assert stream.read() == b""
    assert worker.answer({"op": "check"}, io.BytesIO())[0]["error"] == "StorageError"
    monkeypatch.undo()
    assert "files" in worker.answer(SEAL, sent([numbered(3)]))[0]


def test_what_is_sealed_as_sent_is_read_byte_for_byte() -> None:
    worker, originals = TableWorker(SimDisk()), numbered(10)
    reply, _ = worker.answer({**SEAL, "asSent": True}, sent([originals]))
    files = [DataFile.from_json(file) for file in reply["files"]]
    assert worker.answer(read_request(files, 0), io.BytesIO())[1] == originals


@pytest.mark.parametrize("missing", [1, 5, 20, 30])
def test_a_stream_that_ends_is_the_end(missing: int) -> None:
    whole = pipe.encode({"op": "entries"}, [(7, b"abc"), (8, b"")])
    assert pipe.read(io.BytesIO(whole)) == ({"op": "entries"}, [(7, b"abc"), (8, b"")])
    assert pipe.read(io.BytesIO(whole[:-missing])) is None


@pytest.mark.parametrize("missing", ["nice", "sched_setscheduler"])
def test_a_sandbox_without_priorities_has_table_processes(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refused(*_: Any) -> None:
        asked.append(missing)
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(os, missing, refused)
    take_place("patient")
    assert asked == [missing]


LOADED = """
import sys
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.table.process.worker import TableWorker
from tests.support.tables import entries
from tests.sim.disk import SimDisk
from tests.unit.storage.table.test_worker import SEAL, numbered, sent

worker = TableWorker(SimDisk())
worker.answer({"op": "begin", "for": "seal"}, sent([]))
before = set(sys.modules)
reply, _ = worker.answer(SEAL, sent([numbered(2)]))
assert reply["files"], reply
print(*sorted(set(sys.modules) - before))
"""


def test_the_first_topic_does_not_pay_for_what_sealing_loads() -> None:
    """Half a second of a processor, and a topic that takes more than it explains is set apart."""
    found = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == []
