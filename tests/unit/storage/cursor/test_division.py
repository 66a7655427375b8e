"""The cursors of a bundle become those of its parts: all of them, as they were, and their past."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from pulsark.errors import BadVersionError
from pulsark.metadata.memory import MemoryTree
from pulsark.metadata.paths import cursors_path
from pulsark.storage.cursor.cursor import Cursor
from pulsark.storage.cursor.division import DividedCursors, Part
from pulsark.storage.cursor.history import HistoryLimits, NoHistoryError
from pulsark.storage.cursor.log import CursorLog, CursorLogConfig
from pulsark.storage.cursor.state import CursorState
from pulsark.wire.position import EARLIEST, Position
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.cursors import BUNDLE, Owner, TopicLedgers, contents
from tests.support.memory_bookie import MemoryBookie

LEDGERS = TopicLedgers((3, 30), (7, 30))
HOUR_MS = 3_600_000
FIRST, SECOND = "public/default/0x00000000_0x80000000", "public/default/0x80000000_0xffffffff"
QUARTERS = ["public/default/0x80000000_0xc0000000", "public/default/0xc0000000_0xffffffff"]


class World:
    def __init__(self, sim: Simulation, history: HistoryLimits) -> None:
        self.runtime = sim.runtime(SimDisk())
        self.tree = MemoryTree()
        self.bookie = MemoryBookie()
        self.config = CursorLogConfig(roll_bytes=400, history=history)

    @property
    def now_ms(self) -> int:
        return self.runtime.clock.now_ms()

    def owner(self) -> Owner:
        return Owner(self.tree, [self.bookie], self.runtime, self.config)

    async def open(self, bundle: str = BUNDLE) -> CursorLog:
        return await self.owner().open(bundle)

    async def divided(self, log: CursorLog, *parts: Part) -> DividedCursors:
        """Written, and not committed."""
        await log.close()
        return await log.divide(parts, self.owner().metadata, self.runtime)

    async def split(self, log: CursorLog, *parts: Part) -> None:
        divided = await self.divided(log, *parts)
        metadata = self.owner().metadata
        await metadata.commit(await divided.changes(metadata, self.config, self.runtime))

    def ledgers(self) -> set[int]:
        return {int(child) for child in self.tree.children("/ledgers")}


def run(main: Callable[[World], Awaitable[None]], history: HistoryLimits, seed: int = 0) -> None:
    with Simulation(seed) as sim:

        async def body() -> None:
            await main(World(sim, history))

        sim.run(body())


def state(cursors: dict[str, Cursor]) -> dict[str, object]:
    return {n: (c.properties, contents(c.state), c.identity.created_ms) for n, c in cursors.items()}


async def then(log: CursorLog, topic: str, at_ms: int) -> dict[str, object]:
    """Acknowledgements at a time."""
    return {
        saved.identity.subscription: contents(CursorState.of(saved.acked, LEDGERS))[1:]
        for saved in await log.cursors_at(topic, at_ms)
    }


@pytest.mark.parametrize("seed", range(20))
def test_each_cursor_is_in_its_part_as_it_was(seed: int) -> None:
    async def main(world: World) -> None:
        rng = random.Random(seed)
        log = await world.open()
        topics = [f"t{number}" for number in range(rng.randrange(8))]
        for topic in topics:
            for name in "abc"[: rng.randrange(4)]:
                cursor = await log.create(topic, name, EARLIEST, {"of": topic}, LEDGERS)
                for _ in range(rng.randrange(20)):
                    cursor.ack([(rng.choice(LEDGERS.positions()), None, None)])
        before = {topic: state(await log.cursors(topic, LEDGERS)) for topic in topics}
        for topic in topics:
            if rng.random() < 0.5:
                await log.unload(topic)
        places = {topic: rng.choice(("first", "second", "unknown")) for topic in topics}
        elsewhere = {p: {t for t in topics if places[t] == p} for p in ("first", "second")}
        parts = Part(FIRST, elsewhere["second"]), Part(SECOND, elsewhere["first"])
        await world.split(log, *parts)
        assert world.tree.get(cursors_path(BUNDLE)) is None
        for bundle, place in ((FIRST, "first"), (SECOND, "second")):
            part = await world.open(bundle)
            for topic in topics:
                there = places[topic] in (place, "unknown")
                assert state(await part.cursors(topic, LEDGERS)) == (before[topic] if there else {})
            await part.create("new", "s", EARLIEST, {}, LEDGERS)
            again = await world.open(bundle)
            assert again.subscriptions("new") == ["s"]
            assert [again.subscriptions(t) for t in topics] == [
                part.subscriptions(t) for t in topics
            ]

    run(main, HistoryLimits(), seed)


def test_who_stops_before_the_commit_leaves_nothing_behind() -> None:
    async def main(world: World) -> None:
        log = await world.open()
        (await log.create("t", "s", EARLIEST, {}, LEDGERS)).ack([(Position(3, 0), None, None)])
        await log.sync()
        before = world.ledgers()
        divided = await world.divided(log, Part(FIRST, ()), Part(SECOND, ()))
        assert len(world.ledgers()) == len(before) + 2
        again = await world.open()
        assert (await again.cursors("t", LEDGERS))["s"].state.mark_delete == Position(3, 0)
        assert world.ledgers() == before
        metadata = world.owner().metadata
        changes = await divided.changes(metadata, world.config, world.runtime)
        await again.create("t", "more", EARLIEST, {}, LEDGERS)
        with pytest.raises(BadVersionError):
            await metadata.commit(changes)

    run(main, HistoryLimits())


def test_what_was_useless_before_is_deleted_after_it() -> None:
    async def main(world: World) -> None:
        log = await world.open()
        await log.create("t", "s", EARLIEST, {}, LEDGERS)
        old = world.ledgers()
        await world.split(log, Part(FIRST, ()), Part(SECOND, ()))
        await world.open(SECOND)
        assert old < world.ledgers(), "the first one does it"
        await world.open(FIRST)
        assert not old & world.ledgers()
        assert len(world.ledgers()) == 2

    run(main, HistoryLimits())


async def rolled(log: CursorLog, cursor: Cursor) -> None:
    """So much happens that there is a new ledger, and the one before becomes history."""
    for position in LEDGERS.positions():
        cursor.ack([(position, None, None)])
        await log.sync()
    await asyncio.sleep(0.1)


def test_the_past_of_the_whole_is_that_of_its_parts_and_of_their_parts() -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await log.create("t", "s", EARLIEST, {}, LEDGERS)
        moments = []
        for number in range(5):
            cursor.ack([(Position(3, number), None, None)])
            await log.sync()
            moments.append((world.now_ms, await then(log, "t", world.now_ms)))
            await asyncio.sleep(1)
        await world.split(log, Part(FIRST, ()), Part(SECOND, ()))
        second = await world.open(SECOND)
        await rolled(second, (await second.cursors("t", LEDGERS))["s"])
        await world.split(second, *(Part(quarter, ()) for quarter in QUARTERS))
        for bundle in (FIRST, *QUARTERS):
            part = await world.open(bundle)
            await part.create("t", "more", EARLIEST, {}, LEDGERS)
            for at_ms, known in moments:
                assert await then(part, "t", at_ms) == known
            assert part.known_since <= moments[0][0]

    run(main, HistoryLimits(HOUR_MS, 1 << 20))


def test_only_the_first_part_deletes_the_past() -> None:
    async def main(world: World) -> None:
        log = await world.open()
        await log.create("t", "s", EARLIEST, {}, LEDGERS)
        (old,) = world.ledgers()
        at_ms = world.now_ms
        await asyncio.sleep(1)
        await world.split(log, Part(FIRST, ()), Part(SECOND, ()))
        first, second = await world.open(FIRST), await world.open(SECOND)
        for part, is_there in ((second, True), (first, False)):
            cursor = (await part.cursors("t", LEDGERS))["s"]
            while part.known_since <= at_ms:
                await rolled(part, cursor)
                cursor.reset(Position(3, 0))
            await asyncio.sleep(1)
            assert (old in world.ledgers()) == is_there
            with pytest.raises(NoHistoryError):
                await then(part, "t", at_ms)

    run(main, HistoryLimits(HOUR_MS, 2000))


def test_a_past_that_another_part_deleted_is_not_known() -> None:
    async def main(world: World) -> None:
        log = await world.open()
        await log.create("t", "s", EARLIEST, {}, LEDGERS)
        at_ms = world.now_ms
        await asyncio.sleep(1)
        await world.split(log, Part(FIRST, ()), Part(SECOND, ()))
        first = await world.open(FIRST)
        cursor = (await first.cursors("t", LEDGERS))["s"]
        while first.known_since <= at_ms:
            await rolled(first, cursor)
            cursor.reset(Position(3, 0))
        await asyncio.sleep(1)
        with pytest.raises(NoHistoryError):
            await then(await world.open(SECOND), "t", at_ms)

    run(main, HistoryLimits(HOUR_MS, 2000))
