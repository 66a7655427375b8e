"""A cursor with very many holes: what it takes on disk, and how much work a change is.

``benchmarks/cursor_holes.py`` measures the same with five million holes and a real disk.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from pyroaring import BitMap

from pulsark.metadata.memory import MemoryTree
from pulsark.storage.cursor import records as cursor_records
from pulsark.storage.cursor.cursor import Cursor
from pulsark.storage.cursor.log import CursorLog, CursorLogConfig
from pulsark.storage.cursor.records import BATCH_BYTES
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo, LedgerList
from pulsark.wire.position import EARLIEST, Position
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.cursors import Owner, contents
from tests.support.memory_bookie import MemoryBookie

HOLES = 100_000
BYTES_A_HOLE = (8 << 20) / 5_000_000
LEDGER_ENTRIES = 50_000
MORE = 3000
NO_SNAPSHOTS = 1 << 30


class Ledgers:
    """Full ledgers of a topic."""

    def __init__(self, entries: int) -> None:
        ledgers = range(entries // LEDGER_ENTRIES)
        self._list = LedgerList(LedgerInfo(i, LEDGER_ENTRIES, 0, 0) for i in ledgers)
        self.last_confirmed = self._list.last()

    def next_position(self, position: Position) -> Position:
        return self._list.after(position)

    def entries_between(self, after: Position, last: Position) -> int:
        return self._list.between(after, last)

    def position_at(self, index: int) -> Position:
        return self._list.at(index)


class World:
    """A topic, and what outlives the owners of its cursors."""

    def __init__(self, sim: Simulation, pattern: str) -> None:
        self.sim = sim
        self.rng = random.Random(pattern)
        self.entries = (100 if pattern == "one of a hundred" else 2) * HOLES
        self.ledgers = Ledgers(self.entries)
        if pattern == "every second":
            self.acked = list(range(1, self.entries, 2))
        else:
            self.acked = self.rng.sample(range(1, self.entries), HOLES)
        self.bookie = MemoryBookie()
        self._tree = MemoryTree()

    async def open(self) -> CursorLog:
        config = CursorLogConfig(roll_bytes=NO_SNAPSHOTS)
        runtime = self.sim.runtime(SimDisk())
        return await Owner(self._tree, [self.bookie], runtime, config).open()

    async def reload(self) -> Cursor:
        return (await (await self.open()).cursors("t", self.ledgers))["s"]

    async def with_holes(self) -> tuple[CursorLog, Cursor]:
        """A cursor right after a snapshot of all its holes."""
        log = await self.open()
        cursor = await log.create("t", "s", EARLIEST, {}, self.ledgers)
        cursor.ack([(position_of(place), None, None) for place in self.acked])
        await log.close()
        log = await self.open()
        cursor = (await log.cursors("t", self.ledgers))["s"]
        assert cursor.state.count == HOLES
        await log.create("t", "other", EARLIEST, {}, self.ledgers)
        return log, cursor

    def stored(self) -> list[int]:
        """Bytes of the entries of the newest ledger."""
        entries = self.bookie.entries(self.bookie.ledger_ids()[-1])
        return [len(entry) for entry in entries.values()]


def position_of(place: int) -> Position:
    return Position(place // LEDGER_ENTRIES, place % LEDGER_ENTRIES)


@pytest.fixture(params=["every second", "half at random", "one of a hundred"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with Simulation(1) as sim:
        yield World(sim, request.param)


def test_five_million_holes_take_less_than_8_mib(world: World) -> None:
    """In entries that hold the event loop for a moment each."""

    async def main() -> None:
        _, cursor = await world.with_holes()
        stored = world.stored()
        assert sum(stored) < BYTES_A_HOLE * HOLES
        assert max(stored) < 3 * BATCH_BYTES
        assert contents((await world.reload()).state) == contents(cursor.state)

    world.sim.run(main())


def test_an_acknowledgement_writes_itself_and_none_of_the_holes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = []
    encode_entries = cursor_records.encode_entries

    def counting(entries: BitMap) -> bytes:
        encoded.append(len(entries))
        return encode_entries(entries)

    async def main() -> None:
        log, cursor = await world.with_holes()
        runs, size = len(world.bookie.runs), sum(world.stored())
        monkeypatch.setattr(cursor_records, "encode_entries", counting)
        for number in range(MORE):
            position = position_of(world.rng.randrange(1, world.entries))
            cursor.ack([(position, [0b1011] if number % 4 == 0 else None, 4)])
        await log.sync()
        assert 0 < sum(encoded) <= MORE
        assert len(world.bookie.runs) == runs + 1
        assert sum(world.stored()) - size < 50 * MORE
        assert contents((await world.reload()).state) == contents(cursor.state)

    world.sim.run(main())
