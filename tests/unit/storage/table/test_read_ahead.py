"""Blocks of sealed entries: read once, before they are asked for, and shared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pulsark.errors import StorageError
from pulsark.storage.table.process.block_cache import ENTRY_OVERHEAD_BYTES, Entries
from pulsark.storage.table.read_ahead import KEPT_SECONDS, ReadAhead
from tests.sim.simulation import Simulation

END = 99


class Ledger:
    """A hundred entries of ten bytes, in blocks of ten, each a second away."""

    def __init__(self) -> None:
        self.loads: list[int] = []
        self.failures: list[Exception] = []

    async def load(self, first: int) -> Entries:
        self.loads.append(first)
        await asyncio.sleep(1)
        if self.failures:
            raise self.failures.pop()
        end = min(first - first % 10 + 10, END + 1)
        return [(i, b"%010d" % i) for i in range(first, end)]

    async def read(
        self, ahead: ReadAhead, first: int, last: int = END, max_bytes: int = 1 << 20
    ) -> list[int]:
        found = await ahead.read("/t", 5, first, last, max_bytes, END, self.load)
        assert all(entry == b"%010d" % i for i, entry in found)
        return [i for i, _ in found]


Test = Callable[[], Coroutine[Any, Any, None]]


def simulated(test: Test) -> Callable[[], None]:
    def run() -> None:
        with Simulation() as sim:
            sim.run(test())

    run.__name__ = test.__name__
    return run


@simulated
async def test_who_reads_in_order_waits_once() -> None:
    ahead, ledger = ReadAhead(), Ledger()
    time = asyncio.get_running_loop().time
    began, place = time(), 0
    while place <= END:
        found = await ledger.read(ahead, place)
        place = found[-1] + 1
        await asyncio.sleep(1)  # so long the reader is busy with what it got
    assert time() - began < 12
    assert ledger.loads == list(range(0, 100, 10))


@simulated
async def test_limits_of_a_read_do_not_cost_a_block() -> None:
    ahead, ledger = ReadAhead(), Ledger()
    assert await ledger.read(ahead, 0, last=2) == [0, 1, 2]
    assert await ledger.read(ahead, 3, max_bytes=25) == [3, 4, 5]
    assert await ledger.read(ahead, 6, max_bytes=0) == [6]
    assert await ledger.read(ahead, 7) == [7, 8, 9]
    await asyncio.sleep(9)
    assert ledger.loads == [0, 10, 20, 30]


@simulated
async def test_readers_of_two_ledgers_take_turns() -> None:
    ahead, one, two = ReadAhead(), Ledger(), Ledger()

    async def other(first: int) -> Entries:
        return await ahead.read("/t", 6, first, END, 1 << 20, END, two.load)

    await asyncio.gather(one.read(ahead, 0), other(0))
    await asyncio.sleep(9)
    assert one.loads[:2] == two.loads[:2] == [0, 10]
    assert len(one.loads) + len(two.loads) <= 6, "only the one that was the last goes on alone"


@simulated
async def test_a_look_at_one_entry_loads_nothing_ahead() -> None:
    ahead, ledger = ReadAhead(), Ledger()
    assert await ledger.read(ahead, 42, last=42) == [42]
    await asyncio.sleep(5)
    assert ledger.loads == [42]


@simulated
async def test_readers_of_one_place_share_blocks() -> None:
    ahead, ledger = ReadAhead(), Ledger()

    async def all_of_it() -> None:
        place = 0
        while place <= END:
            place = (await ledger.read(ahead, place))[-1] + 1

    await asyncio.gather(all_of_it(), all_of_it(), all_of_it())
    assert ledger.loads.count(0) <= 3
    assert sorted(set(ledger.loads)) == list(range(0, 100, 10))
    assert len(ledger.loads) <= 12


@simulated
async def test_a_block_that_failed_on_its_way_is_asked_for_again() -> None:
    ahead, ledger = ReadAhead(), Ledger()
    await ledger.read(ahead, 0)
    ledger.failures = [StorageError("the table process ended")]
    assert await ledger.read(ahead, 10) == list(range(10, 20))
    await asyncio.sleep(5)
    ledger.failures = [StorageError("no root has it"), StorageError("no root has it")]
    ahead.forget("/t")
    with pytest.raises(StorageError, match="no root"):
        await ledger.read(ahead, 30)


@simulated
async def test_what_is_kept_is_bounded_and_can_be_forgotten() -> None:
    block = 10 * (10 + ENTRY_OVERHEAD_BYTES)
    ahead, ledger = ReadAhead(max_bytes=3 * block), Ledger()
    place = 0
    while place <= END:
        place = (await ledger.read(ahead, place))[-1] + 1
    await ledger.read(ahead, 95)
    assert ledger.loads == list(range(0, 100, 10)), "the newest blocks are kept"
    await ledger.read(ahead, 5, last=5)
    assert ledger.loads[-1] == 5, "the oldest are not"
    ahead.forget("/t", {7})
    await ledger.read(ahead, 95)
    assert ledger.loads[-1] == 5
    ahead.forget("/t", {5})
    await ledger.read(ahead, 95)
    assert ledger.loads[-1] == 95
    ahead.close()


@simulated
async def test_what_nobody_reads_any_more_is_not_kept() -> None:
    ahead, ledger = ReadAhead(), Ledger()
    await ledger.read(ahead, 40, last=40)
    await ledger.read(ahead, 90, last=90)
    for _ in range(4):
        await asyncio.sleep(KEPT_SECONDS - 1)
        await ledger.read(ahead, 90, last=90)
    assert ledger.loads == [40, 90], "it is kept for whoever goes on reading it"
    assert list(ahead._blocks) == [(("/t", 5), 90)]
    await asyncio.sleep(2 * KEPT_SECONDS)
    assert not ahead._blocks
    await ledger.read(ahead, 90, last=90)
    assert ledger.loads == [40, 90, 90]
    ahead.close()


@simulated
async def test_what_is_being_read_while_it_is_forgotten_is_not_kept() -> None:
    ahead, ledger = ReadAhead(), Ledger()
    reading = asyncio.create_task(ledger.read(ahead, 20))
    await asyncio.sleep(0.5)
    ahead.forget("/t", {5})
    assert await reading == list(range(20, 30)), "who asked before is answered"
    await ledger.read(ahead, 20)
    assert ledger.loads == [20, 20]


@simulated
async def test_a_reader_that_is_cancelled_as_its_block_is_forgotten_ends() -> None:
    ahead, ledger = ReadAhead(), Ledger()
    await ledger.read(ahead, 0)
    reading = asyncio.create_task(ledger.read(ahead, 10))
    await asyncio.sleep(0.5)
    ahead.forget("/t")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
