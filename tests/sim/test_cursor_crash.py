"""The owner of a bundle crashes before every disk step and metadata write of a scripted run.

The cursors lie on a real embedded bookie over a simulated disk. After each crash a new owner
opens them: each must be exactly as it was at some moment that is not before its last answered
operation. So no answered acknowledgement is lost, no mark-delete position goes back behind an
answer, and nothing that was not acknowledged is skipped. And what a cursor ever said may be trimmed
is acknowledged after the crash, too: it may be gone. Properties that an acknowledgement rests on,
as those of deduplication, are there with it, however many entries of the log both take.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pulsark.errors import StorageError
from pulsark.metadata.memory import MemoryTree
from pulsark.runtime import Done
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.cursor import bundle_cursors
from pulsark.storage.cursor import log_writer as cursor_log_writer
from pulsark.storage.cursor import records as cursor_records
from pulsark.storage.cursor.cursor import Cursor
from pulsark.storage.cursor.history import HistoryLimits
from pulsark.storage.cursor.log import CursorLog, CursorLogConfig
from pulsark.storage.cursor.log_ledger import CommitGroup, CursorLedger
from pulsark.storage.cursor.log_writer import CursorLogWriter
from pulsark.wire.ack_set import words_of_mask
from pulsark.wire.position import EARLIEST, Position
from tests.sim.crashes import recover_each
from tests.sim.disk import SURVIVALS, SimDisk, Survival
from tests.sim.metadata import SteppingStore
from tests.sim.simulation import Simulation
from tests.support.cursors import Owner, TopicLedgers, contents

P = Position

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = 120
SETTINGS = JournalSettings(
    journal_max_size=20_000, checkpoint_bytes=8000, compact_bytes=600, compact_below=0.4
)
CONFIG = CursorLogConfig(
    roll_bytes=400, roll_ratio=1.0, history=HistoryLimits(age_ms=3_600_000, size=3000)
)
LEDGERS = TopicLedgers((3, 20), (4, 0), (7, 15), (9, 20))
NAMES = [("t", "a"), ("t", "b"), ("u", "a")]
BATCH = 4


@pytest.fixture(autouse=True)
def _small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small cursor is cut as a large one is, so that crashes and changes come in between.

    Some of them count as large at rest.
    """
    monkeypatch.setattr(bundle_cursors, "LARGE", 3)
    monkeypatch.setattr(cursor_records, "RECORD_BYTES", 1)
    monkeypatch.setattr(cursor_records, "BATCH_BYTES", 60)


@dataclass
class Life:
    """One cursor from its creation to its deletion."""

    history: list[tuple[object, ...]]
    """What it was after each operation; shared by all moments, only grows."""
    properties: list[int]
    """The number in its properties after each operation, which only rises."""
    length: int = 1
    created: bool = False
    answered: int = 0
    """Index in ``history`` of the last operation that was answered."""
    delete_asked: bool = False
    deleted: bool = False
    cursor: Cursor | None = None
    """The object that stands for it now."""
    trimmable: dict[int, Position] = field(default_factory=dict)
    """By era, up to where it ever said that entries may be trimmed."""

    @classmethod
    def of(cls, cursor: Cursor) -> Life:
        """The life of a cursor that exists."""
        return cls([contents(cursor.state)], [number_of(cursor)], created=True)

    def copy(self) -> Life:
        return replace(self, cursor=None, trimmable=dict(self.trimmable))

    def note_trimmable(self) -> None:
        """Somebody who trims asks now."""
        if self.cursor is not None:
            era, position = self.cursor.state.era, self.cursor.trim_position
            self.trimmable[era] = max(position, self.trimmable.get(era, EARLIEST))

    def trimmed(self, era: int) -> Position:
        """What may be gone, and was not asked for again by a seek up to ``era``."""
        return max((p for e, p in self.trimmable.items() if e >= era), default=EARLIEST)


@dataclass
class Promises:
    """Cursors by topic, name and id, as far as the run has come."""

    lives: dict[tuple[str, str, int], Life] = field(default_factory=dict)

    def copy(self) -> Promises:
        return Promises({key: life.copy() for key, life in self.lives.items()})

    def note_trimmable(self) -> None:
        """Somebody who trims asks all cursors now."""
        for life in self.lives.values():
            life.note_trimmable()


class Script:
    """A random but repeatable run of everything that cursors can do."""

    def __init__(self, promises: Promises, rng: random.Random) -> None:
        self.promises = promises
        self.rng = rng
        self.log: CursorLog
        self.cursors: dict[tuple[str, str], Cursor] = {}
        self.errors = 0
        self.loading: set[str] = set()
        """Topics whose former cursors stand for nothing, and whose new ones are on their way."""

    async def run(self, log: CursorLog, rounds: int) -> None:
        self.log = log
        for topic in ("t", "u"):
            await self.load(topic)
        for _ in range(rounds):
            await asyncio.gather(*(self.step() for _ in range(self.rng.randint(1, 5))))

    async def load(self, topic: str) -> None:
        self.loading.add(topic)
        found = await self.log.cursors(topic, LEDGERS)
        self.loading.remove(topic)
        for name, cursor in found.items():
            self.cursors[topic, name] = cursor
            key = (topic, name, cursor.identity.cursor_id)
            if key not in self.promises.lives:
                self.promises.lives[key] = Life(
                    [contents(cursor.state)], [number_of(cursor)], created=True
                )
            self.promises.lives[key].cursor = cursor

    async def step(self) -> None:
        key = self.rng.choice(NAMES)
        if key[0] in self.loading:
            return
        cursor = self.cursors.get(key)
        dice = self.rng.random()
        if cursor is None:
            await self.create(*key)
        elif dice < 0.03:
            await self.delete(*key, cursor)
        elif dice < 0.06:
            self.loading.add(key[0])
            await self.log.unload(key[0])
            await self.load(key[0])
        elif dice < 0.10:
            await asyncio.sleep(self.rng.random() * 2)
        else:
            self.change(cursor, dice)
            if dice < 0.4:
                await asyncio.sleep(0.001)

    async def create(self, topic: str, name: str) -> None:
        try:
            cursor = await self.log.create(topic, name, EARLIEST, {}, LEDGERS)
        except StorageError:
            self.errors += 1
            return
        key = (topic, name, cursor.identity.cursor_id)
        self.cursors[topic, name] = cursor
        if key not in self.promises.lives:
            self.promises.lives[key] = Life(
                [contents(cursor.state)], [number_of(cursor)], created=True
            )
        self.promises.lives[key].cursor = cursor

    async def delete(self, topic: str, name: str, cursor: Cursor) -> None:
        life = self.life(cursor)
        life.delete_asked, life.cursor = True, None
        del self.cursors[topic, name]
        try:
            await self.log.delete(topic, name)
        except StorageError:
            self.errors += 1
            return
        life.deleted = True

    def change(self, cursor: Cursor, dice: float) -> None:
        rng = self.rng
        life = self.life(cursor)
        index = life.length
        if rng.random() < 0.5:  # as deduplication does before it acknowledges what it has seen
            cursor.set_properties({"number": str(index), "names": "x" * rng.choice((1, 100))})
        done = self.answer(life, index) if rng.random() < 0.6 else None
        position = rng.choice(LEDGERS.positions())
        mask = words_of_mask(rng.getrandbits(BATCH) | 1 << rng.randrange(BATCH))
        if dice < 0.6:
            near = cursor.state.next_unacked(cursor.mark_delete)
            position = rng.choice([position, near, P(near.ledger_id, near.entry_id + 1)])
            cursor.ack([(position, None, None)], done)
        elif dice < 0.8:
            cursor.ack(
                [(position, mask, BATCH), (rng.choice(LEDGERS.positions()), None, None)], done
            )
        elif dice < 0.88:
            cursor.ack_cumulative(cursor.state.next_unacked(cursor.mark_delete), mask, done, BATCH)
        elif dice < 0.93:
            cursor.ack_cumulative(position, None, done)
        else:
            cursor.reset(position, mask if rng.random() < 0.3 else None, done)
        life.history.append(contents(cursor.state))
        life.properties.append(number_of(cursor))
        life.length = index + 1

    def life(self, cursor: Cursor) -> Life:
        topic, name = cursor.identity.topic_id, cursor.identity.subscription
        return self.promises.lives[topic, name, cursor.identity.cursor_id]

    def answer(self, life: Life, index: int) -> Done:
        def done(error: BaseException | None) -> None:
            if error is None:
                assert index > life.answered, "answers keep the order of the operations"
                life.answered = index
            else:
                assert isinstance(error, StorageError)
                self.errors += 1

        return done


def number_of(cursor: Cursor) -> int:
    return int(cursor.properties.get("number", "0"))


async def check(log: CursorLog, promises: Promises) -> None:
    """What the new owner finds is what was promised."""
    found: dict[tuple[str, str, int], tuple[object, ...]] = {}
    numbers: dict[tuple[str, str, int], int] = {}
    for topic in ("t", "u"):
        for name, cursor in (await log.cursors(topic, LEDGERS)).items():
            found[topic, name, cursor.identity.cursor_id] = contents(cursor.state)
            numbers[topic, name, cursor.identity.cursor_id] = number_of(cursor)
    for key, life in promises.lives.items():
        if key not in found:
            assert life.delete_asked or not life.created, f"{key} is lost"
            continue
        assert not life.deleted, f"{key} is back"
        possible = life.history[life.answered : life.length]
        assert found[key] in possible, (
            f"{key} was answered at {life.answered}: {life.history[life.answered]}, "
            f"came to {life.history[life.length - 1]}, and is {found[key]}"
        )
        least = min(
            number
            for number, each in zip(life.properties[life.answered :], possible, strict=False)
            if each == found[key]
        )
        assert least <= numbers[key] <= life.properties[life.length - 1], (
            f"{key} has acknowledged what rests on {least}, and knows {numbers[key]}"
        )
        era, mark_delete, *_ = found[key]
        assert isinstance(era, int)
        assert isinstance(mark_delete, Position)
        trimmed = life.trimmed(era)
        assert mark_delete >= trimmed, (
            f"{key} said that entries up to {trimmed} may go, and is at {mark_delete} again"
        )


@dataclass(frozen=True)
class Moment:
    """What a crash would leave, and what had been answered by then."""

    step: str
    survival: Survival
    disk: SimDisk
    tree: MemoryTree
    promises: Promises


def moments(seed: int) -> list[Moment]:
    """Two owners, one after the other, with a crash at every step."""
    disk, tree = SimDisk(), MemoryTree()
    promises, rng = Promises(), random.Random(seed)
    found: list[Moment] = []

    def keep(step: str, survivals: tuple[Survival, ...]) -> None:
        promises.note_trimmable()
        now = promises.copy()
        for survival in survivals:
            found.append(Moment(step, survival, disk.survivor(survival, rng), tree.copy(), now))

    def disk_step() -> None:
        after = disk.trace[-1] if disk.trace else "nothing"
        keep(f"disk step {disk.steps + 1} after {after}", SURVIVALS)

    def metadata_step(step: str) -> None:
        keep(step, ("random",))

    disk.before_step = disk_step
    with Simulation(seed) as sim:
        runtime = sim.runtime(disk)

        async def two_owners() -> None:
            bookie = await EmbeddedBookie.open("b", "/b/journal", "/b/ledgers", SETTINGS, runtime)
            for rounds, orderly in ((ROUNDS, False), (ROUNDS // 3, True)):
                store = SteppingStore(tree, metadata_step)
                log = await Owner(tree, [bookie], runtime, CONFIG, store).open()
                await check(log, promises)
                await Script(promises, random.Random(seed + rounds)).run(log, rounds)
                if orderly:
                    await log.close()
            await bookie.close()

        sim.run(two_owners())
    return found


def recovered(seed: int, moment: Moment, rounds: int = 4) -> None:
    """Recover, check, go on working, take over again, check again."""
    promises = moment.promises.copy()
    with Simulation(seed) as sim:
        runtime = sim.runtime(moment.disk)

        async def main() -> None:
            bookie = await EmbeddedBookie.open("b", "/b/journal", "/b/ledgers", SETTINGS, runtime)
            log = await Owner(moment.tree, [bookie], runtime, CONFIG).open()
            await check(log, promises)
            script = Script(Promises(), random.Random(seed))
            await script.run(log, rounds)
            await log.sync()
            assert script.errors == 0
            await check(await Owner(moment.tree, [bookie], runtime, CONFIG).open(), script.promises)
            await bookie.close()

        sim.run(main())


def explore(seed: int, every: int = 1) -> int:
    """Recover from every moment, or each ``every``-th; the number of moments."""
    return recover_each(seed, moments(seed), lambda _, moment: recovered(seed, moment), every)


@pytest.mark.feature("F72")
def test_a_crash_before_any_step_loses_no_answered_acknowledgement() -> None:
    assert explore(SEED) > 400


@pytest.mark.parametrize("seed", range(SEED + 1, SEED + 5))
def test_other_runs(seed: int) -> None:
    explore(seed, every=7)


def test_crashes_while_recovering() -> None:
    rng = random.Random(SEED)
    print(f"SEED={SEED}")
    for moment in moments(SEED)[::17]:
        disk, tree = moment.disk, moment.tree
        for again in range(2):
            disk.crash_at = disk.steps + rng.randint(1, 25)
            with Simulation(SEED + again) as sim:
                runtime = sim.runtime(disk)

                async def start(tree: MemoryTree = tree, runtime: Any = runtime) -> None:
                    bookie = await EmbeddedBookie.open(
                        "b", "/b/journal", "/b/ledgers", SETTINGS, runtime
                    )
                    log = await Owner(tree, [bookie], runtime, CONFIG).open()
                    await log.create("v", "new", EARLIEST, {}, LEDGERS)

                sim.run_until_crash(start())
            disk = disk.after_crash("random", rng)
        try:
            recovered(SEED, replace(moment, disk=disk))
        except BaseException:
            print(f"crash before {moment.step}, then two in recovery")
            raise


# -- planted bugs: each must be caught -------------------------------------------------------------


def answer_at_once(patch: pytest.MonkeyPatch) -> None:
    """``done`` is called before anything is on the disk."""
    submit = CursorLogWriter.submit

    def hasty(self: CursorLogWriter, records: Any, dones: list[Done], marks: Any) -> None:
        submit(self, records, [], marks)
        for done in dones:
            done(None)

    patch.setattr(CursorLogWriter, "submit", hasty)


def answer_at_the_first_ledger(patch: pytest.MonkeyPatch) -> None:
    """Within a rollover, one of the two ledgers is taken for enough."""
    init = CommitGroup.__init__

    def impatient(self: CommitGroup, dones: Any, marks: Any, waits: int) -> None:
        init(self, dones, marks, waits)

    release = CommitGroup.release

    def first(self: CommitGroup) -> None:
        self.waits = 1
        release(self)

    patch.setattr(CommitGroup, "__init__", impatient)
    patch.setattr(CommitGroup, "release", first)


def enthrone_before_the_snapshot_is_durable(patch: pytest.MonkeyPatch) -> None:
    """The record names a ledger whose snapshot may be lost."""

    async def confirmed(self: CursorLedger, entry_id: int) -> None:
        await asyncio.sleep(0)

    patch.setattr(CursorLedger, "confirmed", confirmed)


def snapshot_alone(patch: pytest.MonkeyPatch) -> None:
    """Groups of the time of a rollover go to the active ledger only."""
    write = CursorLogWriter._write

    def only_active(self: CursorLogWriter, records: Any, group: CommitGroup) -> None:
        successor = self._successor
        if self._active is not None:
            self._successor = None
        write(self, records, group)
        self._successor = successor

    patch.setattr(CursorLogWriter, "_write", only_active)


def read_position_is_mark_delete(patch: pytest.MonkeyPatch) -> None:
    """What is stored as mark-delete is the last entry that was acknowledged at all."""
    take = cursor_log_writer.pack

    def ahead(records: Any, time_ms: int) -> Any:
        records = list(records)
        for record in records:
            if record.HasField("acks") and len(record.acks.ledgers):
                record.acks.entry_id += 1
        return take(records, time_ms)

    patch.setattr(cursor_log_writer, "pack", ahead)


@pytest.mark.parametrize(
    "plant",
    [
        answer_at_once,
        answer_at_the_first_ledger,
        enthrone_before_the_snapshot_is_durable,
        snapshot_alone,
        read_position_is_mark_delete,
    ],
)
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, StorageError)):
        explore_several()


def explore_several() -> None:
    for seed in range(SEED, SEED + 5):
        explore(seed)
