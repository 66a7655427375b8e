"""The cursor log over ledgers in memory: durability, order, failures, owners, memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyroaring import BitMap

from pulsark.errors import LedgerFencedError, OutcomeUnknownError, StorageError
from pulsark.metadata.changes import Change
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import ledger_path
from pulsark.metadata.store import ANY_VERSION
from pulsark.runtime import Runtime
from pulsark.storage.bookie.bookie import EntryRun
from pulsark.storage.cursor import bundle_cursors
from pulsark.storage.cursor import log as cursor_log
from pulsark.storage.cursor import records as cursor_records
from pulsark.storage.cursor.cursor import Cursor
from pulsark.storage.cursor.log import CursorLog, CursorLogConfig
from pulsark.storage.cursor.records import BATCH_BYTES, unpack
from pulsark.storage.ledger.metadata import LedgerConfig
from pulsark.wire.position import EARLIEST, Position
from tests.sim.disk import SimDisk
from tests.sim.metadata import paths_of
from tests.sim.simulation import Simulation
from tests.support.cursors import BUNDLE, Owner, TopicLedgers
from tests.support.ledgers import Writes
from tests.support.memory_bookie import MemoryBookie

P = Position
RECORD = f"/cursors/{BUNDLE}"


ALWAYS = 1 << 30


class FlakyStore(MemoryMetadataStore):
    """Writes of the bundle record fail to order: before they take effect, or after."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.fail_before = 0
        self.fail_after = 0
        self.before_record: Callable[[], Awaitable[None]] | None = None

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        if RECORD not in paths_of(changes):
            return await super().commit(changes)
        if self.before_record is not None:
            await self.before_record()
        if self.fail_before:
            self.fail_before -= 1
            raise OutcomeUnknownError("connection lost")
        versions = await super().commit(changes)
        if self.fail_after:
            self.fail_after -= 1
            raise OutcomeUnknownError("connection lost")
        return versions


@dataclass
class World:
    """What outlives processes, and the topic that all tests acknowledge."""

    sim: Simulation
    runtime: Runtime
    tree: MemoryTree = field(default_factory=MemoryTree)
    bookies: list[MemoryBookie] = field(default_factory=lambda: [MemoryBookie()])
    config: CursorLogConfig = field(default_factory=CursorLogConfig)
    ledgers: TopicLedgers = field(default_factory=lambda: TopicLedgers((10, 50), (12, 50)))
    answers: list[Any] = field(default_factory=list)

    @property
    def bookie(self) -> MemoryBookie:
        return self.bookies[0]

    def owner(self) -> Owner:
        store = FlakyStore(self.tree)
        return Owner(self.tree, self.bookies, self.runtime, self.config, store)

    async def open(self) -> CursorLog:
        """The next owner. The one before may be dead or not know."""
        return await self.owner().open()

    def record(self) -> dict[str, Any]:
        found = self.tree.get(RECORD)
        assert found is not None
        document: dict[str, Any] = json.loads(found.value)
        return document

    def answer(self, name: object) -> Callable[[BaseException | None], None]:
        """A ``done`` that notes ``name``, or ``(name, error's type)``."""

        def done(error: BaseException | None) -> None:
            self.answers.append(name if error is None else (name, type(error)))

        return done

    async def create(self, log: CursorLog, name: str = "s", topic: str = "t") -> Cursor:
        return await log.create(topic, name, EARLIEST, {}, self.ledgers)

    async def reload(self, name: str = "s", topic: str = "t") -> Cursor:
        return (await (await self.open()).cursors(topic, self.ledgers))[name]


@pytest.fixture
def world() -> Iterator[World]:
    with Simulation(1) as sim:
        yield World(sim, sim.runtime(SimDisk()))


def run(world: World, main: Callable[[World], Awaitable[None]]) -> None:
    async def body() -> None:
        await main(world)

    world.sim.run(body())


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_created_cursor_is_there_for_the_next_owner(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await log.create("t", "s", P(10, 4), {"k": "v"}, world.ledgers)
        assert cursor.durable
        assert cursor.trim_position == P(10, 4)
        assert log.subscriptions("t") == ["s"]
        again = await world.reload()
        assert again.mark_delete == P(10, 4)
        assert again.properties == {"k": "v"}
        assert again.identity == cursor.identity

    run(world, main)


def test_creating_twice_gives_one_cursor(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        one, two = await asyncio.gather(world.create(log), world.create(log))
        assert one is two
        assert await world.create(log) is one

    run(world, main)


def test_every_kind_of_change_survives(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        assert cursor.ack([(P(10, 0), None, None), (P(10, 7), None, None)]) == [0, 0]
        assert cursor.ack([(P(10, 9), [0b011], 3)]) == [2]
        assert cursor.ack_cumulative(P(10, 3), None)
        cursor.set_properties({"a": "b"})
        await log.sync()
        cursor = await world.reload()
        assert cursor.mark_delete == cursor.trim_position == P(10, 3)
        assert cursor.state.is_acked(P(10, 7))
        assert cursor.state.ack_set_of(P(10, 9)) == [0b011]
        assert cursor.properties == {"a": "b"}
        assert cursor.backlog() == 100 - 5

    run(world, main)


def test_a_seek_takes_back_what_was_acknowledged(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        cursor.ack_cumulative(P(12, 3))
        cursor.ack([(P(12, 9), None, None)])
        await log.sync()
        assert cursor.trim_position == P(12, 3)
        cursor.reset(P(10, 5), [0b10])
        assert cursor.trim_position == EARLIEST, "the seek may be lost"
        cursor.ack([(P(10, 6), None, None)])
        await log.sync()
        assert cursor.trim_position == P(10, 4)
        cursor = await world.reload()
        assert cursor.mark_delete == P(10, 4)
        assert cursor.state.ack_set_of(P(10, 5)) == [0b10]
        assert cursor.state.is_acked(P(10, 6))
        assert not cursor.state.is_acked(P(12, 9))

    run(world, main)


def test_done_waits_for_the_disk_and_keeps_the_order(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        world.bookie.held = True
        for entry_id in (5, 3, 4):
            cursor.ack([(P(10, entry_id), None, None)], world.answer(entry_id))
            await turns()
        cursor.ack([(P(10, 5), None, None)], world.answer("again"))
        await turns()
        assert world.answers == []
        assert cursor.state.is_acked(P(10, 5)), "memory is ahead"
        world.bookie.release_held(1)
        assert world.answers == [5]
        world.bookie.release_held()
        assert world.answers == [5, 3, 4, "again"]
        cursor.ack([(P(10, 5), None, None)], world.answer("nothing new"))
        assert len(world.answers) == 4, "never from inside the call"
        await turns()
        assert world.answers[-1] == "nothing new"

    run(world, main)


def test_what_happens_in_one_turn_is_one_append(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursors = [await world.create(log, str(i)) for i in range(3)]
        before = len(world.bookie.runs)
        for cursor in cursors:
            for entry_id in range(20, 0, -2):
                cursor.ack([(P(10, entry_id), None, None)], world.answer(cursor.name))
        await log.sync()
        assert len(world.bookie.runs) == before + 1
        (entry,) = world.bookie.runs[-1].payloads
        assert len(unpack(entry).records) == 3
        assert len(world.answers) == 30

    run(world, main)


def test_plain_acks_are_written_within_the_flush_interval(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        before = len(world.bookie.runs)
        cursor.ack([(P(10, 0), None, None)])
        cursor.ack([(P(10, 1), None, None)])
        await asyncio.sleep(0.9)
        assert len(world.bookie.runs) == before
        await asyncio.sleep(0.2)
        assert len(world.bookie.runs) == before + 1
        assert (await world.reload()).mark_delete == P(10, 1)

    run(world, main)


def test_many_plain_acks_are_written_sooner(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no turn of the loop has all of a second's acknowledgements to write."""
    monkeypatch.setattr(cursor_log, "UNTOLD_CHANGES_MAX", 10)

    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        runs = len(world.bookie.runs)
        for many in (11, 12):
            for entry_id in range(many - 1):
                cursor.ack([(P(10, 2 * entry_id + many % 2), None, None)])
            await turns()
            assert len(world.bookie.runs) == runs + many - 11
        assert (await world.reload()).backlog() == 100 - 21

    run(world, main)


def test_plain_acks_go_along_with_one_that_is_waited_for(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        one, two = await world.create(log, "1"), await world.create(log, "2")
        one.ack([(P(10, 0), None, None)])
        two.ack([(P(10, 0), None, None)], world.answer("two"))
        await turns()
        assert world.answers == ["two"]
        assert (await world.reload("1")).mark_delete == P(10, 0)

    run(world, main)


def test_closing_writes_what_is_left(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        cursor.ack([(P(10, 0), None, None)])
        await log.close()
        cursor.ack([(P(10, 1), None, None)], world.answer("late"))
        await turns()
        assert world.answers == [("late", StorageError)]
        assert (await world.reload()).mark_delete == P(10, 0)

    run(world, main)


def test_deleted_cursors_stay_away(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log, "gone")
        await world.create(log, "kept")
        await log.delete("t", "gone")
        cursor.ack([(P(10, 1), None, None)], world.answer("late"))
        await turns()
        assert world.answers == [("late", StorageError)]
        await log.delete("t", "never was")
        log = await world.open()
        assert log.subscriptions("t") == ["kept"]
        await log.delete("t", "kept")
        assert (await world.open()).subscriptions("t") == []

    run(world, main)


def test_a_cursor_created_again_knows_nothing(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        cursor.ack_cumulative(P(12, 3))
        await asyncio.gather(log.delete("t", "s"), turns(1))
        await world.create(log)
        assert (await world.reload()).mark_delete == EARLIEST

    run(world, main)


def test_a_topic_is_deleted_with_all_its_cursors(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        for topic in ("t", "u"):
            for name in ("1", "2"):
                await world.create(log, name, topic)
        await log.delete_topic("t")
        log = await world.open()
        assert log.subscriptions("t") == []
        await log.delete_topic("u")
        assert (await world.open()).subscriptions("u") == []

    run(world, main)


def test_what_a_seek_gave_back_is_not_trimmed_before_it_is_durably_acknowledged(
    world: World,
) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        cursor.ack_cumulative(P(12, 3))
        await log.sync()
        world.bookie.held = True
        cursor.ack_cumulative(P(12, 5), None, world.answer("before"))
        await turns()
        cursor.reset(P(10, 5), None, world.answer("seek"))
        await turns()
        cursor.ack_cumulative(P(12, 8), None, world.answer("after"))
        await turns()
        assert cursor.mark_delete == P(12, 8)
        assert cursor.trim_position == EARLIEST, "a crash may leave it where the seek put it"
        world.bookie.held = False
        world.bookie.release_held()
        assert world.answers == ["before", "seek", "after"]
        assert cursor.trim_position == P(12, 8)

    run(world, main)


def test_a_topic_unloaded_and_loaded_keeps_its_cursors(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        world.bookie.held = True
        cursor.ack([(P(10, 0), None, None)], world.answer("early"))
        await log.unload("t")
        cursor.ack([(P(10, 1), None, None)], world.answer("late"))
        await turns()
        assert world.answers == [("late", StorageError)]
        again = (await log.cursors("t", world.ledgers))["s"]
        assert again.mark_delete == P(10, 0)
        assert again.trim_position == EARLIEST, "not durable yet"
        world.bookie.held = False
        world.bookie.release_held()
        assert world.answers[-1] == "early"
        assert again.trim_position == P(10, 0)
        again.ack([(P(10, 1), None, None)], world.answer("new"))
        await log.sync()
        assert (await world.reload()).mark_delete == P(10, 1)

    run(world, main)


def test_a_cursor_without_a_log_answers_in_the_next_turn(world: World) -> None:
    async def main(world: World) -> None:
        cursor = Cursor.non_durable("r", P(10, 3), world.ledgers, world.runtime.clock)
        assert not cursor.durable
        cursor.ack([(P(10, 4), None, None), (P(10, 6), None, None)], world.answer("r"))
        assert world.answers == []
        await turns(1)
        assert world.answers == ["r"]
        assert cursor.mark_delete == P(10, 4)
        assert cursor.backlog() == 100 - 6

    run(world, main)


def test_times_of_the_last_acknowledgement(world: World) -> None:
    async def main(world: World) -> None:
        cursor = await world.create(await world.open())
        await asyncio.sleep(3)
        cursor.ack([(P(10, 0), None, None)])
        marked = cursor.last_mark_delete_ms
        assert marked == world.runtime.clock.now_ms()
        assert cursor.last_ack == world.runtime.clock.monotonic()
        await asyncio.sleep(3)
        cursor.ack([(P(10, 5), None, None)])
        assert cursor.last_ack == world.runtime.clock.monotonic()
        assert cursor.last_mark_delete_ms == marked

    run(world, main)


# -- rollover ----------------------------------------------------------------------------------


def test_the_log_is_replaced_when_it_has_grown(world: World) -> None:
    world.config = CursorLogConfig(roll_bytes=300)

    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        first = world.record()["ledgerId"]
        for i in range(100):
            cursor.ack([(P(10 + i // 50 * 2, i % 50), None, None)], world.answer(i))
            await turns(2)
        await log.sync()
        await turns(20)
        assert world.answers == list(range(100))
        record = world.record()
        assert record["ledgerId"] != first
        assert world.bookie.ledger_ids() == [record["ledgerId"]], "the others are deleted"
        assert world.tree.children("/ledgers") == [str(record["ledgerId"])]
        assert (await world.reload()).backlog() == 0

    run(world, main)


def test_a_log_that_is_longer_than_its_snapshot_can_be_made_short(world: World) -> None:
    world.config = CursorLogConfig(renew_bytes=300)

    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        first = world.record()["ledgerId"]
        await log.renew()
        assert world.record()["ledgerId"] == first, "it is short"
        for i in range(50):
            cursor.ack([(P(10, i), None, None)], world.answer(i))
            await turns(2)
        await log.renew()
        second = world.record()["ledgerId"]
        assert second != first
        assert len(world.bookie.entries(second)) < 10
        await log.renew()
        assert world.record()["ledgerId"] == second, "it was made short just now"
        assert (await world.reload()).mark_delete == P(10, 49)

    run(world, main)


def test_what_was_answered_is_there_at_every_moment_of_a_succession(world: World) -> None:
    world.config = CursorLogConfig(roll_bytes=300)

    async def main(world: World) -> None:
        log = await world.open()
        cursors = [await world.create(log, str(i)) for i in range(4)]
        stages = []
        for i in range(40):
            for cursor in cursors:
                cursor.ack([(P(10, i), None, None)], world.answer(i))
            await turns(1)
            stages.append((world.record()["ledgerId"], world.record()["doomed"]))
            promised = max(world.answers, default=-1)
            assert all(c.mark_delete.entry_id >= promised for c in await after_crash(world))
        assert world.answers[-1] > 30
        assert len({ledger for ledger, _ in stages}) > 3
        assert sum(bool(doomed) for _, doomed in stages) > 10, "most moments are within one"

    run(world, main)


async def after_crash(world: World) -> list[Cursor]:
    """The cursors as a new owner would find them now, without disturbing this one."""
    tree, bookie = copied(world)
    log = await Owner(tree, [bookie], world.runtime, world.config).open()
    return list((await log.cursors("t", world.ledgers)).values())


def copied(world: World) -> tuple[MemoryTree, MemoryBookie]:
    """The metadata and the bookie as they are now, apart from the living ones."""
    tree, bookie = world.tree.copy(), MemoryBookie()
    for ledger_id in world.bookie.ledger_ids():
        for entry_id, payload in world.bookie.entries(ledger_id).items():
            bookie.put(ledger_id, entry_id, payload)
    return tree, bookie


@pytest.mark.parametrize("size", [10, 2 * BATCH_BYTES])
def test_where_a_crash_tears_a_write_no_ack_is_there_without_what_was_set_before_it(
    world: World, size: int
) -> None:
    """Deduplication sets what it knows of producers, and then acknowledges up to there.

    Others fill the entry before, so that it ends at each place of the two in turn.
    """

    async def tear(world: World, filled: int) -> int:
        log = await world.open()
        other, cursor = await world.create(log, "other"), await world.create(log)
        first = len(world.bookie.entries(world.record()["ledgerId"]))
        other.set_properties({"fill": "o" * filled})
        cursor.set_properties({"reached": "0", "fill": "x" * size})
        cursor.ack_cumulative(P(10, 0), None)
        await log.sync()
        ledger_id = world.record()["ledgerId"]
        entries = world.bookie.entries(ledger_id)
        for end in range(first, len(entries)):
            after = World(world.sim, world.runtime, world.tree.copy(), [MemoryBookie()])
            for entry_id in range(end):
                after.bookie.put(ledger_id, entry_id, entries[entry_id])
            found = await after.reload()
            assert found.mark_delete == EARLIEST or found.properties["reached"] == "0"
        return len(entries) - first

    async def main(world: World) -> None:
        written = set()
        for filled in range(BATCH_BYTES - 100, BATCH_BYTES, 2):
            written.add(await tear(World(world.sim, world.runtime), filled))
        assert max(written) > 1

    run(world, main)


def test_a_large_cursor_is_written_in_entries_of_bounded_size(world: World) -> None:
    world.ledgers = TopicLedgers((10, 4_000_000))

    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        holes = BitMap(range(0, 4_000_000, 7))
        cursor.state.add_entries(10, BitMap.flip(holes, 0, 4_000_000))
        cursor.state._reborn = cursor.state.changed = True
        for entry_id in range(0, 70_000, 7):
            cursor.ack([(P(10, entry_id), [0b101 << entry_id % 100], 300)])
        await log.sync()
        log = await world.open()
        await world.create(log, "other")  # with a snapshot
        ledger_id = world.record()["ledgerId"]
        sizes = [len(entry) for entry in world.bookie.entries(ledger_id).values()]
        assert len(sizes) > 5
        assert max(sizes) < 2 * BATCH_BYTES
        again = await world.reload()
        assert again.state.acked == cursor.state.acked
        assert again.state.masks.ledgers == cursor.state.masks.ledgers

    run(world, main)


@pytest.mark.parametrize("large", [0, bundle_cursors.LARGE])
@pytest.mark.parametrize("change", ["delete", "unload", "reload", "delete unloaded", "create"])
def test_cursors_come_and_go_while_a_snapshot_is_written(
    world: World, change: str, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cursor takes several entries, so that the change comes between any two of them."""
    monkeypatch.setattr(bundle_cursors, "LARGE", large)
    monkeypatch.setattr(cursor_records, "RECORD_BYTES", 1)
    monkeypatch.setattr(cursor_records, "BATCH_BYTES", 1)
    world.ledgers = TopicLedgers(*((ledger_id, 3) for ledger_id in range(5)))
    acked = [P(ledger_id, 1) for ledger_id in range(5)]

    async def attempt(delay: int) -> bool:
        log = await world.open()
        await log.delete_topic("t")
        for name in ("a", "b", "c"):
            (await world.create(log, name)).ack([(p, None, None) for p in acked])
        await log.sync()
        if change == "delete unloaded":
            await log.unload("t")
        fail_ledger(world, world.record()["ledgerId"])
        creating = asyncio.create_task(log.create("u", str(delay), EARLIEST, {}, world.ledgers))
        await turns(delay)
        within = log._writer._successor is not None
        expected = {"a", "b", "c"}
        if change.startswith("delete"):
            await log.delete("t", "b")
            expected.remove("b")
        elif change == "create":
            (await world.create(log, "d")).ack([(p, None, None) for p in acked])
            expected.add("d")
        else:
            await log.unload("t")
        if change == "reload":
            (await log.cursors("t", world.ledgers))["c"].ack([(P(0, 0), None, None)])
        await log.sync()
        await creating
        await turns(60)
        recovered = await after_crash(world)
        assert {cursor.name for cursor in recovered} == expected
        assert all(cursor.state.is_acked(p) for cursor in recovered for p in acked)
        return within

    async def main(world: World) -> None:
        assert sum([await attempt(delay) for delay in range(60)]) > 10

    run(world, main)


# -- failures --------------------------------------------------------------------------------------


def test_a_ledger_that_fails_is_replaced_before_anybody_hears_of_it(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        first = world.record()["ledgerId"]
        fail_ledger(world, first)
        cursor.ack([(P(10, 0), None, None)], world.answer("ack"))
        await turns(30)
        assert world.answers == ["ack"]
        assert world.record()["ledgerId"] != first
        assert (await world.reload()).mark_delete == P(10, 0)

    run(world, main)


def fail_ledger(world: World, ledger_id: int) -> None:
    """Appends to this ledger fail from now on."""

    bookie = world.bookie
    store = bookie._store

    def failing(run: EntryRun, recovery: bool, reserve: bool) -> StorageError | None:
        if run.ledger_id == ledger_id and not recovery:
            return StorageError("I/O error")
        return store(run, recovery, reserve)

    bookie._store = failing  # type: ignore[method-assign]


def test_while_nothing_can_be_stored_acks_fail_and_are_stored_later(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        world.bookie.down = True
        cursor.ack([(P(10, 0), None, None)], world.answer(0))
        await turns(30)
        cursor.ack([(P(10, 2), None, None)], world.answer(2))
        await turns(30)
        assert world.answers == [(0, StorageError), (2, StorageError)]
        world.bookie.down = False
        cursor.ack([(P(10, 4), None, None)], world.answer(4))
        await turns(30)
        assert world.answers[-1] == 4
        again = await world.reload()
        assert [again.state.is_acked(P(10, i)) for i in range(5)] == [True, False] * 2 + [True]

    run(world, main)


def test_acks_wait_for_a_bookie_that_is_away(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        world.bookie.held = True
        cursor.ack([(P(10, 0), None, None)], world.answer(0))
        await turns(30)
        world.bookie.leave()
        cursor.ack([(P(10, 1), None, None)], world.answer(1))
        await asyncio.sleep(3)
        assert world.answers == []
        world.bookie.come_back()
        await turns(30)
        assert world.answers == [0, 1]
        assert (await world.reload()).mark_delete == P(10, 1)

    run(world, main)


def test_what_failed_is_written_again_without_being_asked(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        world.bookie.down = True
        cursor.ack([(P(10, 0), None, None)])
        await asyncio.sleep(20)
        world.bookie.down = False
        await asyncio.sleep(31)
        assert cursor.trim_position == P(10, 0)
        assert (await world.reload()).mark_delete == P(10, 0)

    run(world, main)


def test_a_cursor_that_could_not_be_created_is_not_there(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        await world.create(log, "other")
        world.bookie.down = True
        with pytest.raises(StorageError):
            await world.create(log)
        assert log.subscriptions("t") == ["other"]
        world.bookie.down = False
        await world.create(log, "third")
        assert (await world.open()).subscriptions("t") == ["other", "third"]

    run(world, main)


def test_nor_one_for_which_the_metadata_store_did_not_answer(world: World) -> None:
    async def main(world: World) -> None:
        owner = world.owner()
        log, store = await owner.open(), owner.metadata
        assert isinstance(store, FlakyStore)
        store.fail_before = ALWAYS
        with pytest.raises(StorageError, match="metadata store failed"):
            await world.create(log)
        assert log.subscriptions("t") == []
        store.fail_before = 0
        await world.create(log)
        assert (await world.open()).subscriptions("t") == ["s"]

    run(world, main)


def test_a_failed_successor_leaves_the_active_ledger_in_charge(world: World) -> None:
    world.config = CursorLogConfig(roll_bytes=60)

    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        first = world.record()["ledgerId"]
        for ledger_id in range(first + 1, first + 4):
            fail_ledger(world, ledger_id)
        for i in range(50):
            cursor.ack([(P(10, i), None, None)], world.answer(i))
            await turns(3)
            promised = max((a for a in world.answers), default=-1)
            (recovered,) = await after_crash(world)
            assert recovered.mark_delete.entry_id >= promised
        await turns(20)
        assert world.answers == list(range(50))
        assert world.record()["ledgerId"] > first + 3
        assert world.bookie.ledger_ids() == [world.record()["ledgerId"]]

    run(world, main)


def test_an_owner_that_lost_the_bundle_answers_nothing_any_more(world: World) -> None:
    async def main(world: World) -> None:
        old = await world.open()
        cursor = await world.create(old)
        cursor.ack([(P(10, 0), None, None)], world.answer("before"))
        await old.sync()
        again = await world.reload()
        cursor.ack([(P(10, 1), None, None)], world.answer("after"))
        await turns(10)
        assert world.answers == ["before", ("after", LedgerFencedError)]
        assert isinstance(old.failed, LedgerFencedError)
        with pytest.raises(LedgerFencedError):
            await world.create(old, "new")
        await old.close()
        assert again.mark_delete == P(10, 0)
        again.ack([(P(10, 1), None, None)], world.answer("successor"))
        await turns(30)
        assert world.answers[-1] == "successor"

    run(world, main)


def test_an_idle_owner_that_lost_the_bundle_cannot_begin(world: World) -> None:
    async def main(world: World) -> None:
        old = await world.open()
        new = await world.open()
        with pytest.raises(LedgerFencedError):
            await world.create(old, "old")
        await world.create(new, "new")
        assert (await world.open()).subscriptions("t") == ["new"]

    run(world, main)


def test_an_owner_that_loses_the_bundle_within_a_succession(world: World) -> None:
    """At every await of the old owner's rollover, a new owner opens."""

    async def attempt(world: World, delay: int) -> bool:
        owner = world.owner()
        old = await owner.open()
        cursor = await world.create(old, str(delay))
        store = owner.metadata
        assert isinstance(store, FlakyStore)
        world.bookie.down = True
        cursor.ack([(P(10, 0), None, None)])
        await old_failed(world, old)
        world.bookie.down = False
        world.answers.clear()
        cursor.ack([(P(10, 1), None, None)], world.answer("old"))
        await turns(delay)
        answered = list(world.answers)
        again = await world.reload(str(delay))
        if "old" in answered:
            assert again.state.is_acked(P(10, 1))
        again.ack([(P(10, 2), None, None)], world.answer("new"))
        await turns(40)
        assert "new" in world.answers
        cursor.ack([(P(10, 3), None, None)], world.answer("late"))
        await turns(40)
        assert ("late", LedgerFencedError) in world.answers
        final = await world.reload(str(delay))
        assert not final.state.is_acked(P(10, 3))
        for name, entry_id in (("old", 1), ("new", 2)):
            assert name not in world.answers or final.state.is_acked(P(10, entry_id))
        return "old" in answered

    async def main(world: World) -> None:
        outcomes = [await attempt(world, delay) for delay in range(30)]
        assert not outcomes[0]
        assert outcomes[-1]

    run(world, main)


async def old_failed(world: World, log: CursorLog) -> None:
    with pytest.raises(StorageError):
        await log.sync()


@pytest.mark.parametrize("after", [False, True])
def test_a_metadata_store_that_stutters(world: World, after: bool) -> None:
    """A write of the record fails, having taken effect or not; it is found out and repeated."""

    async def main(world: World) -> None:
        owner = world.owner()
        log = await owner.open()
        store = owner.metadata
        assert isinstance(store, FlakyStore)
        for count in range(1, 6):
            cursor = await world.create(log, str(count))
            world.bookie.down = True
            cursor.ack([(P(10, 0), None, None)])
            await old_failed(world, log)
            world.bookie.down = False
            if after:
                store.fail_after = count
            else:
                store.fail_before = count
            await log.sync()
            assert (await after_crash(world))[0].mark_delete == P(10, 0)
        assert log.failed is None

    run(world, main)


def test_an_owner_that_cannot_know_its_ledger_stops(world: World) -> None:
    async def main(world: World) -> None:
        owner = world.owner()
        log = await owner.open()
        store = owner.metadata
        assert isinstance(store, FlakyStore)
        cursor = await world.create(log)
        fail_ledger(world, world.record()["ledgerId"])
        writes = 0

        async def before_record() -> None:
            nonlocal writes
            writes += 1
            store.fail_before = int(writes > 1)

        store.before_record = before_record
        cursor.ack([(P(10, 0), None, None)], world.answer("ack"))
        await asyncio.sleep(10)
        assert world.answers == [("ack", LedgerFencedError)]
        assert log.failed is not None
        await world.reload()

    run(world, main)


def test_when_metadata_is_away_the_active_ledger_goes_on(world: World) -> None:
    world.config = CursorLogConfig(roll_bytes=100)

    async def main(world: World) -> None:
        owner = world.owner()
        log = await owner.open()
        cursor = await world.create(log)
        await turns(20)
        store = owner.metadata
        assert isinstance(store, FlakyStore)
        store.fail_before = 15
        for i in range(30):
            cursor.ack([(P(10, i), None, None)], world.answer(i))
            await asyncio.sleep(0.01)
        assert world.answers == list(range(30))
        await asyncio.sleep(10)
        for i in range(30, 50):
            cursor.ack([(P(10, i), None, None)], world.answer(i))
            await asyncio.sleep(0.5)
        assert world.answers == list(range(50))
        assert log.failed is None
        assert (await world.reload()).mark_delete == P(10, 49)

    run(world, main)


def test_a_ledger_that_was_left_half_filled_is_deleted_by_the_next_owner(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        cursor = await world.create(log)
        ledger_id = world.record()["ledgerId"]
        fail_ledger(world, ledger_id)
        cursor.ack([(P(10, 0), None, None)], world.answer("ack"))
        while not world.record()["doomed"]:
            await turns(1)
        log._writer._rollover.cancel()  # type: ignore[union-attr]
        await world.open()
        assert world.bookie.ledger_ids() == [ledger_id]
        assert world.answers == []

    run(world, main)


def test_a_ledger_that_resists_does_not_keep_the_others(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        await world.create(log)
        await log.close()
        manager, named = world.owner().manager, world.record()["ledgerId"]
        doomed = []
        for _ in range(3):
            writer = await manager.create(LedgerConfig(), Writes())
            writer.append([b"x"])
            await writer.close()
            doomed.append(writer.ledger_id)
        found = world.tree.get(ledger_path(doomed[0]))
        assert found is not None
        away = found.value.replace(b'"b1"', b'"away"')
        world.tree.put(ledger_path(doomed[0]), away, ANY_VERSION, None)
        record = json.dumps({**world.record(), "doomed": doomed}).encode()
        world.tree.put(RECORD, record, ANY_VERSION, None)
        log = await world.open()
        await turns(50)
        assert world.bookie.ledger_ids() == [named, doomed[0]]
        assert world.tree.children("/ledgers") == [str(named), str(doomed[0])]

    run(world, main)


def test_an_unreadable_ledger_is_an_error_and_never_an_empty_bundle(world: World) -> None:
    async def main(world: World) -> None:
        log = await world.open()
        await world.create(log)
        await log.close()
        ledger_id = world.record()["ledgerId"]
        entries = world.bookie.entries(ledger_id)
        for damage in (b"\xff\xff", b"\x08\x63"):
            kept = entries[0]
            world.bookie.put(ledger_id, 0, damage)
            with pytest.raises(StorageError):
                await world.open()
            world.bookie.put(ledger_id, 0, kept)
        world.bookie.corrupt(ledger_id, 0)
        with pytest.raises(StorageError):
            await world.open()

    run(world, main)
