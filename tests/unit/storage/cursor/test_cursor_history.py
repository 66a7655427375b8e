"""The history of cursors: at every past moment they were what they are said to have been."""

from __future__ import annotations

import asyncio
import random

import pytest

from pulsark.metadata.memory import MemoryTree
from pulsark.storage.cursor import history
from pulsark.storage.cursor.bundle_record import BundleState, FormerLedger
from pulsark.storage.cursor.cursor import Cursor
from pulsark.storage.cursor.history import HistoryLimits, NoHistoryError, ledger_at
from pulsark.storage.cursor.log import CursorLog, CursorLogConfig
from pulsark.storage.cursor.state import CursorState
from pulsark.wire.ack_set import words_of_mask
from pulsark.wire.position import EARLIEST, Position
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.cursors import Owner, TopicLedgers, contents
from tests.support.memory_bookie import MemoryBookie

LEDGERS = TopicLedgers((3, 30), (4, 0), (7, 30))
HOUR_MS = 3_600_000
State = dict[str, tuple[object, ...]]


def content(acked: object) -> tuple[object, ...]:
    """What is acknowledged, whatever the era."""
    return contents(acked)[1:]  # type: ignore[arg-type]


async def then(log: CursorLog, at_ms: int, topic: str = "t") -> State:
    """The cursors of a topic at a time, from history."""
    return {
        saved.identity.subscription: content(CursorState.of(saved.acked, LEDGERS))
        for saved in await log.cursors_at(topic, at_ms)
    }


class World:
    """Owners that follow each other, and what every moment was like."""

    def __init__(self, sim: Simulation, history: HistoryLimits) -> None:
        self.runtime = sim.runtime(SimDisk())
        self.tree = MemoryTree()
        self.bookie = MemoryBookie()
        self.config = CursorLogConfig(roll_bytes=400, roll_ratio=1.0, history=history)
        self.moments: list[tuple[int, State]] = []

    async def open(self) -> CursorLog:
        return await Owner(self.tree, [self.bookie], self.runtime, self.config).open()

    async def note(self, log: CursorLog, cursors: dict[str, Cursor]) -> None:
        await log.sync()
        now = self.runtime.clock.now_ms()
        self.moments.append((now, {name: content(c.state) for name, c in cursors.items()}))
        await asyncio.sleep(0.01)


def change(cursor: Cursor, rng: random.Random) -> None:
    position = rng.choice(LEDGERS.positions())
    dice = rng.random()
    if dice < 0.6:
        cursor.ack([(position, None, None)])
    elif dice < 0.8:
        cursor.ack([(position, words_of_mask(rng.randrange(1, 15)), 4)])
    elif dice < 0.9:
        cursor.ack_cumulative(position)
    else:
        cursor.reset(position)


@pytest.mark.parametrize("seed", range(5))
def test_every_moment_is_found_again(seed: int) -> None:
    with Simulation(seed) as sim:
        world = World(sim, HistoryLimits(HOUR_MS, 1 << 20))
        rng = random.Random(seed)

        async def main() -> None:
            for _ in range(3):  # owners, the next one after a crash
                log = await world.open()
                cursors = dict(await log.cursors("t", LEDGERS))
                await log.cursors("other", LEDGERS)
                for _ in range(60):
                    name = rng.choice("abc")
                    await log.create("other", name, EARLIEST, {}, LEDGERS)
                    if name not in cursors:
                        cursors[name] = await log.create("t", name, EARLIEST, {}, LEDGERS)
                    elif rng.random() < 0.05:
                        await log.delete("t", name)
                        del cursors[name]
                    else:
                        change(cursors[name], rng)
                    await world.note(log, cursors)
            log = await world.open()
            for at_ms, state in world.moments:
                assert await then(log, at_ms) == state

        sim.run(main())
        assert len(world.moments) == 180


def test_changes_tell_what_happened() -> None:
    with Simulation(1) as sim:
        world = World(sim, HistoryLimits(HOUR_MS, 1 << 20))

        async def main() -> None:
            log = await world.open()
            cursor = await log.create("t", "s", EARLIEST, {}, LEDGERS)
            await world.note(log, {})
            cursor.ack([(Position(3, 0), None, None), (Position(3, 5), None, None)])
            await world.note(log, {})
            cursor.set_properties({"a": "b"})
            await world.note(log, {})
            cursor.reset(Position(7, 0))
            await world.note(log, {})
            await log.delete("t", "s")
            found = [c async for c in log.changes("t")]
            assert [(c.kind, c.mark_delete, c.acked_entries) for c in found] == [
                ("known", EARLIEST, 0),  # its creation began the first ledger
                ("acknowledged", Position(3, 0), 1),
                ("properties", Position(3, 0), 0),
                ("seek", Position(7, -1), 0),
                ("deleted", Position(7, -1), 0),
            ]
            assert [c.time_ms for c in found] == sorted(c.time_ms for c in found)

        sim.run(main())


def test_history_is_bounded() -> None:
    with Simulation(1) as sim:
        world = World(sim, HistoryLimits(HOUR_MS, 3000))
        rng = random.Random(1)

        async def main() -> None:
            log = await world.open()
            cursors = {"s": await log.create("t", "s", EARLIEST, {}, LEDGERS)}
            for _ in range(400):
                change(cursors["s"], rng)
                await world.note(log, cursors)
            known = log.known_since
            assert known is not None
            assert world.moments[0][0] < known < world.moments[-1][0]
            for at_ms, state in world.moments:
                if at_ms >= known:
                    assert await then(log, at_ms) == state
                else:
                    with pytest.raises(NoHistoryError):
                        await then(log, at_ms)
            with pytest.raises(NoHistoryError):
                await then(log, world.moments[-1][0] + HOUR_MS)
            # What history does not need is gone from the bookie.
            assert len(world.bookie.ledger_ids()) < 12

        sim.run(main())


def test_a_long_history_is_replayed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsark.storage.cursor.history.HISTORY_BYTES_PER_TURN", 1)
    with Simulation(1) as sim:
        world = World(sim, HistoryLimits(HOUR_MS, 1 << 30))
        world.config = CursorLogConfig(roll_bytes=1 << 30, history=HistoryLimits(HOUR_MS, 1 << 30))

        async def main() -> None:
            log = await world.open()
            cursor = await log.create("t", "s", EARLIEST, {}, LEDGERS)
            for entry_id in range(1, 21):
                cursor.ack([(Position(3, entry_id), None, None)])
                await log.sync()
            unpacked: list[bytes] = []
            unpack = history.unpack
            monkeypatch.setattr(
                history, "unpack", lambda entry: [unpacked.append(entry), unpack(entry)][1]
            )
            asking = asyncio.create_task(then(log, world.runtime.clock.now_ms()))
            most = 0
            while not asking.done():
                before = len(unpacked)
                await asyncio.sleep(0)
                most = max(most, len(unpacked) - before)
            assert "s" in await asking
            assert len(unpacked) >= 20
            assert most <= 1

        sim.run(main())


def test_without_history_nothing_is_kept() -> None:
    with Simulation(1) as sim:
        world = World(sim, HistoryLimits())

        async def main() -> None:
            log = await world.open()
            cursors = {"s": await log.create("t", "s", EARLIEST, {}, LEDGERS)}
            rng = random.Random(1)
            for _ in range(100):
                change(cursors["s"], rng)
                await world.note(log, cursors)
            with pytest.raises(NoHistoryError):
                await then(log, world.moments[0][0])

        sim.run(main())


def former(ledger_id: int, since: int, until: int, size: int = 10) -> FormerLedger:
    return FormerLedger(ledger_id, since, until, size)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (HistoryLimits(1000, 1000), [1, 2, 3]),
        (HistoryLimits(1000, 29), [2, 3]),
        (HistoryLimits(1000, 9), []),
        (HistoryLimits(150, 1000), [3]),
        (HistoryLimits(0, 1000), []),
    ],
)
def test_the_newest_within_the_limits_are_kept(limits: HistoryLimits, kept: list[int]) -> None:
    history = [former(1, 0, 100), former(2, 100, 200), former(3, 200, 300)]
    assert [x.ledger_id for x in limits.kept(history, 350)] == kept


def test_the_ledger_of_a_moment() -> None:
    state = BundleState(1, 9, (), 300, (former(1, 100, 200), former(2, 200, 300)))
    assert [ledger_at(state, t) for t in (100, 199, 200, 299, 300, 10**9)] == [1, 1, 2, 2, 9, 9]
    with pytest.raises(NoHistoryError):
        ledger_at(state, 99)
    assert BundleState.from_json(state.to_json()) == state
