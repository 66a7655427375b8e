"""When a table process is started, and when one is given up."""

from __future__ import annotations

import asyncio
import gc
import io
import math
import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import uvloop

from pulsark.errors import ProcessEndedError, StorageError
from pulsark.storage.table.files.record import SealedLedger
from pulsark.storage.table.process import pipe
from pulsark.storage.table.process.process import (
    REPLY_SECONDS,
    Entries,
    TableProcess,
)
from pulsark.storage.table.process.restarts import PAUSE_SECONDS_MAX
from tests.sim.simulation import Simulation


class Worker:
    """A process without a program: it takes messages and answers each at once.

    After ``most`` messages it ends, or if it is ``stopped`` takes no more.
    """

    def __init__(self, most: float, *, stopped: bool) -> None:
        self.stdin, self.stdout = self, asyncio.StreamReader()
        self.returncode: int | None = None
        self.answer: dict[str, Any] = {"files": []}
        self.requests: list[str] = []
        self._left = most
        self._stopped = stopped
        if most == 0 and not stopped:
            self.kill()

    def write(self, message: bytes) -> None:
        request, _ = pipe.read(io.BytesIO(message)) or ({}, [])
        self.requests.append(" ".join([request.get("op", ""), request.get("for", "")]).strip())
        self._left -= 1
        if self._left < 0:
            if not self._stopped:
                self.kill()
        elif self.returncode is None:
            self.stdout.feed_data(pipe.encode(self.answer))

    async def drain(self) -> None:
        if self._left < 0 and self._stopped:
            await asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        self.returncode = 1
        self.stdout.feed_eof()

    async def wait(self) -> None:
        return


LOADED = 1
"""The messages after which a process has loaded what it needs."""


class Machine:
    """Starts workers as long as it can."""

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.workers: list[Worker] = []
        self.most = math.inf
        """The messages that each worker takes."""
        self.stopped = self.full = False
        self.answer: dict[str, Any] = {"files": []}

    async def start(self, *_: Any, **__: Any) -> Worker:
        if self.full:
            raise OSError(11, "Resource temporarily unavailable")
        self.starts.append(now())
        self.workers.append(Worker(self.most, stopped=self.stopped))
        self.workers[-1].answer = self.answer
        return self.workers[-1]

    async def fail(self, process: TableProcess, times: int) -> None:
        """Requests in a row whose processes end before they answer."""
        self.most = 0
        for _ in range(times):
            with pytest.raises(ProcessEndedError):
                await process.begin()
        self.most = math.inf


def now() -> float:
    return asyncio.get_running_loop().time()


async def pieces() -> AsyncIterator[Entries]:
    yield [(0, b"entry")]


async def sealed(process: TableProcess) -> None:
    await process.seal(pieces(), 0, 5, ["/root"], "n", 1 << 20, 1)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def run(scenario: Callable[[TableProcess, Machine], Awaitable[None]]) -> None:
        machine = Machine()
        monkeypatch.setattr(asyncio, "create_subprocess_exec", machine.start)

        async def main() -> None:
            await scenario(TableProcess(), machine)

        with Simulation() as sim:
            sim.run(main())

    return run


def test_processes_that_cannot_start_are_started_less_and_less_often(
    run: Callable[..., None],
) -> None:
    async def scenario(process: TableProcess, machine: Machine) -> None:
        await machine.fail(process, 15)
        pauses = [after - before for before, after in pairwise(machine.starts)]
        assert pauses == pytest.approx([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10])
        await process.begin()
        machine.workers[-1].kill()
        await process.begin()
        assert machine.starts[-1] == machine.starts[-2], "it had answered"

    run(scenario)


def test_who_asks_long_afterwards_waits_for_nothing(run: Callable[..., None]) -> None:
    async def scenario(process: TableProcess, machine: Machine) -> None:
        await machine.fail(process, 15)
        await asyncio.sleep(PAUSE_SECONDS_MAX - 2)
        begun = now()
        await process.begin()
        assert now() - begun == pytest.approx(2)

    run(scenario)


def test_who_waits_for_less_than_a_pause_comes_to_its_end_too(run: Callable[..., None]) -> None:
    async def scenario(process: TableProcess, machine: Machine) -> None:
        await machine.fail(process, 15)
        for waited in (4, 8):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sealed(process), 4)
            assert now() - machine.starts[-1] == pytest.approx(waited)
        await asyncio.wait_for(sealed(process), 4)

    run(scenario)


async def read(process: TableProcess, table: str) -> None:
    await process.read([f"/root/{table}"], SealedLedger(1, -1), 0, 0, 1)


async def broken(process: TableProcess, machine: Machine, table: str, times: int) -> None:
    """Reads of a table each of which ends a process."""
    for _ in range(times):
        machine.most = LOADED
        process._kill()
        with pytest.raises(ProcessEndedError):
            await read(process, table)
        machine.most = math.inf


def test_who_reads_another_table_than_one_that_ends_processes_waits_for_nothing(
    run: Callable[..., None],
) -> None:
    async def scenario(process: TableProcess, machine: Machine) -> None:
        await broken(process, machine, "bad", 15)
        waiting = asyncio.create_task(read(process, "bad"))
        await asyncio.sleep(0)
        begun = now()
        for _ in range(3):
            await read(process, "good")
        assert now() == begun
        await broken(process, machine, "worse", 1)
        await read(process, "good")
        assert now() == begun
        await waiting
        assert now() - begun == pytest.approx(PAUSE_SECONDS_MAX)
        await read(process, "bad")
        assert now() - begun == pytest.approx(PAUSE_SECONDS_MAX)

    run(scenario)


def test_all_wait_if_processes_end_whatever_is_read(run: Callable[..., None]) -> None:
    async def scenario(process: TableProcess, machine: Machine) -> None:
        for number in range(15):
            await broken(process, machine, str(number), 1)
        pauses = [after - before for before, after in pairwise(machine.starts)]
        assert pauses == pytest.approx([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10])

    run(scenario)


def test_it_closes_while_readers_wait_for_a_start(run: Callable[..., None]) -> None:
    async def scenario(process: TableProcess, machine: Machine) -> None:
        await machine.fail(process, 15)
        readers = [asyncio.create_task(process.begin()) for _ in range(3)]
        await asyncio.sleep(1)
        begun = now()
        await process.close()
        found = await asyncio.gather(*readers, return_exceptions=True)
        assert now() == begun
        assert [str(error) for error in found] == ["the broker is closing"] * 3
        assert len(machine.starts) == 15

    run(scenario)


def test_that_no_process_can_be_made_is_no_failure_of_the_request(
    run: Callable[..., None],
) -> None:
    async def scenario(process: TableProcess, machine: Machine) -> None:
        machine.full = True
        for _ in range(20):
            with pytest.raises(StorageError, match="temporarily unavailable") as found:
                await sealed(process)
            assert found.type is StorageError
        machine.full = False
        await sealed(process)
        assert now() == 0

    run(scenario)


def test_one_that_takes_no_more_entries_is_killed(run: Callable[..., None]) -> None:
    async def scenario(process: TableProcess, machine: Machine) -> None:
        machine.most, machine.stopped = LOADED, True
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * REPLY_SECONDS):
                with pytest.raises(ProcessEndedError):
                    await sealed(process)
        assert now() == pytest.approx(REPLY_SECONDS)
        assert machine.workers[-1].returncode is not None
        machine.most, machine.stopped = math.inf, False
        await sealed(process)

    run(scenario)


def test_one_that_ends_while_it_loads_ends_for_no_reason_of_the_request(
    run: Callable[..., None],
) -> None:
    async def scenario(process: TableProcess, machine: Machine) -> None:
        machine.most = 0
        for number in range(4):
            with pytest.raises(StorageError, match="before it was ready") as found:
                await (read(process, "t") if number % 2 else sealed(process))
            assert found.type is StorageError
        assert len(machine.starts) == 4
        assert now() > 0, "all the same it is started less and less often"
        machine.most = math.inf
        await sealed(process)
        process._kill()
        machine.most = LOADED
        with pytest.raises(ProcessEndedError):
            await sealed(process)

    run(scenario)


def test_one_that_cannot_load_what_a_request_takes_does_not_get_the_request(
    run: Callable[..., None],
) -> None:
    """It would say that a defect kept it from sealing these entries, and they are sound."""

    async def scenario(process: TableProcess, machine: Machine) -> None:
        why = "libarrow.so: failed to map segment from shared object"
        machine.answer = {"error": "StorageError", "message": why}
        for _ in range(3):
            with pytest.raises(StorageError, match="failed to map segment") as found:
                await sealed(process)
            assert found.type is StorageError
            assert machine.workers[-1].returncode is not None
        assert now() == 1, "it is started less and less often"
        machine.answer = {"files": []}
        await sealed(process)

    run(scenario)


def test_one_that_did_something_else_loads_what_sealing_takes_before_its_time_counts(
    run: Callable[..., None],
) -> None:
    async def scenario(process: TableProcess, machine: Machine) -> None:
        await read(process, "t")
        had: list[list[str]] = []

        def cpu_seconds(_: object) -> float:
            had.append(list(machine.workers[0].requests))
            return 0.0

        process.cpu_seconds = cpu_seconds
        await process.seal(pieces(), 0, 5, ["/root"], "n", 1 << 20, 1, cpu_seconds_max=1.0)
        assert had[0] == ["begin read", "read", "begin seal"]
        assert len(machine.workers) == 1

    run(scenario)


def test_one_whose_loading_is_broken_off_answers_no_later_request(
    run: Callable[..., None],
) -> None:
    async def scenario(process: TableProcess, machine: Machine) -> None:
        machine.most, machine.stopped = 0, True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sealed(process), 1)
        assert machine.workers[-1].returncode is not None
        machine.most = math.inf
        await sealed(process)

    run(scenario)


def all_free() -> list[int]:
    """Every descriptor that this process may still have."""
    taken = []
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    return taken


@pytest.mark.parametrize("free", range(1, 8))
def test_none_of_the_last_descriptors_is_lost_where_they_are_too_few(free: int) -> None:
    # uvloop forgets those that it had when it finds no more, and readers ask again and again.
    async def main() -> None:
        process, taken = TableProcess(), list[int]()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        gc.collect()  # what other tests have left gives none back meanwhile
        try:
            taken = [os.open(os.devnull, os.O_RDONLY)]
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 30, hard))
            taken += all_free()
            for _ in range(free):
                os.close(taken.pop())
            for _ in range(3):
                with pytest.raises(StorageError):
                    await process.begin()
            gc.collect()
            left = all_free()
            taken += left
        finally:
            for each in taken:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(left) >= free
        await process.close()

    uvloop.run(main())
