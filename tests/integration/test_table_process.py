"""A real table process: it works, it dies, and another one takes its place."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.storage.table.files.record import DataFile, SealedLedger
from pulsark.storage.table.process.process import Entries, Priority, TableProcess
from tests.support.client_view import client_view
from tests.support.tables import entries


async def pieces(*lists: Entries) -> AsyncIterator[Entries]:
    for piece in lists:
        yield piece


async def failing(piece: Entries) -> AsyncIterator[Entries]:
    yield piece
    raise StorageError("no more")


def numbered(count: int) -> Entries:
    return list(enumerate(entries(count)))


async def sealed(
    process: TableProcess, root: Path, source: AsyncIterator[Entries], nonce: str = "n"
) -> list[DataFile]:
    return await process.seal(source, 0, 5, [str(root)], nonce, 1 << 20, 1)


def test_a_process_seals_and_reads_and_outlives_errors(tmp_path: Path) -> None:
    async def main() -> None:
        process = TableProcess()
        files = await sealed(process, tmp_path, pieces(numbered(50)))
        ledger = SealedLedger(5, 0, tuple(files))
        found = await process.read([str(tmp_path)], ledger, 7, 99, 1 << 20)
        assert [i for i, _ in found] == list(range(7, 50))
        assert [client_view(e) for _, e in found] == [client_view(e) for e in entries(50)[7:]]
        child = process._process
        with pytest.raises(CorruptEntryError):
            await sealed(process, tmp_path, pieces([(0, entries(1)[0][:-1] + b"~")]), "damaged")
        assert process._process is child, "an error that was answered costs no process"
        await process.close()
        with pytest.raises(StorageError):
            await sealed(process, tmp_path, pieces(numbered(1)), "closed")

    asyncio.run(main())


def test_a_process_that_was_killed_fails_a_request_and_the_next_one_works(tmp_path: Path) -> None:
    async def main() -> None:
        process = TableProcess()
        await sealed(process, tmp_path, pieces(numbered(3)), "first")

        async def fatal() -> AsyncIterator[Entries]:
            yield numbered(1)
            assert process._process is not None
            os.kill(process._process.pid, signal.SIGKILL)
            await process._process.wait()

        with pytest.raises(StorageError, match="ended"):
            await sealed(process, tmp_path, fatal(), "second")
        with pytest.raises(StorageError, match="no more"):
            await sealed(process, tmp_path, failing(numbered(1)), "third")
        assert len(await sealed(process, tmp_path, pieces(numbered(3)), "fourth")) == 1
        await process.close()

    asyncio.run(main())


def test_a_reader_that_leaves_does_not_cost_others_the_process(tmp_path: Path) -> None:
    async def main() -> None:
        process = TableProcess()
        files = await sealed(process, tmp_path, pieces(numbered(50)))
        child = process._process
        ledger = SealedLedger(5, 0, tuple(files))

        async def read(first: int) -> list[int]:
            found = await process.read([str(tmp_path)], ledger, first, first + 2, 1 << 20)
            return [number for number, _ in found]

        readers = [asyncio.create_task(read(first)) for first in range(20)]
        await asyncio.sleep(0)
        for leaving in readers[::2]:
            leaving.cancel()
        found = await asyncio.gather(*readers, return_exceptions=True)
        assert found[1::2] == [[first, first + 1, first + 2] for first in range(1, 20, 2)]
        assert all(isinstance(each, asyncio.CancelledError) for each in found[::2])
        assert process._process is child
        leaving = asyncio.create_task(read(0))
        await asyncio.sleep(0)
        leaving.cancel()
        await process.close()
        with pytest.raises(StorageError):
            await read(0)

    asyncio.run(main())


NICEST = 19
"""There is no room above it: where these tests run at it, so does everything they start."""


@pytest.mark.parametrize(
    ("priority", "niceness", "policy"),
    [
        ("patient", 10, os.SCHED_IDLE),
        ("normal", 10, os.SCHED_OTHER),
        ("urgent", 0, os.SCHED_OTHER),
    ],
)
def test_sealing_waits_for_the_processor_and_readers_do_not(
    tmp_path: Path, priority: Priority, niceness: int, policy: int
) -> None:
    async def main() -> None:
        process = TableProcess()
        process.priority = priority
        await sealed(process, tmp_path, pieces(numbered(1)))
        assert process._process is not None
        pid = process._process.pid
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(niceness + own, NICEST)
        assert os.sched_getscheduler(pid) == policy
        assert os.getsid(pid) == os.getsid(0), "else these say nothing about this process and it"
        assert os.getpgid(pid) == pid, "an interrupt of the terminal is not for it"
        await process.close()

    asyncio.run(main())
