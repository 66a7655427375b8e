"""Topics with very many cursors: what is done to all of them is done in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pulsark.storage.cursor.bundle_cursors import PIECE_BYTES, CursorTable, Replay
from pulsark.storage.cursor.records import CursorIdentity, pack, pack_snapshot_end, snapshot_records
from pulsark.storage.cursor.state import AckedSet
from pulsark.wire.position import Position
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.cursors import TopicLedgers

CURSORS = 400
PROPERTY = "x" * 4096
STEPS = CURSORS * len(PROPERTY) // PIECE_BYTES
LEDGERS = TopicLedgers((10, 50), (12, 50))


class NoSink:
    def changed(self, cursor: Any, done: Any) -> None:
        raise AssertionError("nothing changes")


def stored(topic: str = "t", cursors: int = CURSORS) -> CursorTable:
    replay = Replay()
    records = (
        record
        for number in range(cursors)
        for record in snapshot_records(
            CursorIdentity(number, topic, f"s{number}", 0),
            {"p": PROPERTY},
            AckedSet(Position(10, number % 50)),
        )
    )
    for entry in pack(records, 0):
        replay.read(entry)
    replay.read(pack_snapshot_end(cursors, 0))
    return replay.table()


async def steps_of(work: Awaitable[Any]) -> tuple[Any, int]:
    """Do something, and count the turns that others had meanwhile."""
    task = asyncio.ensure_future(work)
    steps = 0
    while not task.done():
        steps += 1
        await asyncio.sleep(0)
    return task.result(), steps


def run(main: Callable[[Simulation], Awaitable[None]]) -> None:
    with Simulation(1) as sim:

        async def body() -> None:
            await main(sim)

        sim.run(body())


def load(table: CursorTable, sim: Simulation, topic: str = "t") -> Awaitable[list[Any]]:
    return table.load(topic, LEDGERS, sim.runtime(SimDisk()).clock, NoSink())


def test_they_are_loaded_and_packed_in_steps() -> None:
    async def main(sim: Simulation) -> None:
        table = stored()
        cursors, steps = await steps_of(load(table, sim))
        assert [cursor.name for cursor in cursors] == [f"s{n}" for n in range(CURSORS)]
        assert all(cursor.properties == {"p": PROPERTY} for cursor in cursors)
        assert cursors[7].mark_delete == Position(10, 7)
        assert steps >= STEPS
        table.unload("t")
        _, steps = await steps_of(table.pack("t"))
        assert steps >= CURSORS // 64
        again, steps = await steps_of(load(table, sim))
        assert [cursor.identity for cursor in again] == [cursor.identity for cursor in cursors]
        assert steps >= CURSORS // 64

    run(main)


def test_few_take_one_step() -> None:
    async def main(sim: Simulation) -> None:
        table = stored(cursors=1)
        with pytest.raises(StopIteration):
            load(table, sim).__await__().send(None)  # type: ignore[attr-defined]
        assert table.loaded("t") is not None

    run(main)


def test_one_that_is_deleted_while_they_are_loaded_is_gone() -> None:
    async def main(sim: Simulation) -> None:
        table = stored()
        loading = asyncio.ensure_future(load(table, sim))
        for _ in range(3):
            await asyncio.sleep(0)
        assert table.remove("t", "s0") == 0
        names = [cursor.name for cursor in await loading]
        assert names == [f"s{n}" for n in range(1, CURSORS)]

    run(main)


@pytest.mark.parametrize("after", [0, 1, CURSORS // 2, CURSORS - 1])
def test_a_snapshot_has_all_of_them_whenever_they_are_unloaded_or_loaded(after: int) -> None:
    async def main(sim: Simulation) -> None:
        table = stored()
        found = []
        for number, record in enumerate(table.records()):
            found.append(record.identity.subscription)
            if number == after:
                await load(table, sim)
            if number == after + 10:
                table.unload("t")
                await table.pack("t")
        assert sorted(found) == sorted(f"s{n}" for n in range(CURSORS))

    run(main)


def test_a_topic_is_removed_in_steps() -> None:
    async def main(sim: Simulation) -> None:
        table = stored()

        async def remove() -> list[int]:
            return [one async for ids in table.remove_topic("t") for one in ids]

        ids, steps = await steps_of(remove())
        assert ids == list(range(CURSORS))
        assert steps >= STEPS
        assert table.is_empty

    run(main)
