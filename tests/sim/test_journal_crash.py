"""The bookie crashes before every disk step of a scripted run, in three ways each.

After each crash it recovers, and is held to what it had answered: acknowledged entries are
there with their bytes, fences hold, released is sealed, deleted is gone, and nothing exists
that was never sent. A crash must never look like damage either.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from pulsark.errors import (
    EntrySealedError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
    StorageFullError,
)
from pulsark.storage.bookie.bookie import EntryRun
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.index import BookieIndex
from pulsark.storage.bookie.index_checkpoint import CHECKPOINT_NAME
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.bookie.segment_writer import SegmentWriter
from tests.sim.crashes import recover_each
from tests.sim.deep import deep
from tests.sim.disk import SURVIVALS, SimDisk, Survival
from tests.sim.simulation import Simulation

T = TypeVar("T")

SETTINGS = JournalSettings(
    journal_max_size=6000,
    checkpoint_bytes=4000,
    compact_bytes=600,
    compact_below=0.4,
    max_group_bytes=3000,
    copy_bytes=200,
    ledgers_a_turn=1,
)
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else [1, deep(2)]
LEDGERS = 8
ROUNDS = 70
PROMPT = 0.8
"""Most groups are durable before a checkpoint has gone through its slices."""
CHECKPOINT = f"/b/ledgers/{CHECKPOINT_NAME}"


@dataclass
class Promises:
    """What was asked of the bookie, and what it answered."""

    sent: dict[tuple[int, int], bytes] = field(default_factory=dict)
    acked: set[tuple[int, int]] = field(default_factory=set)
    fenced: set[int] = field(default_factory=set)
    asked_release: dict[int, int] = field(default_factory=dict)
    released: dict[int, int] = field(default_factory=dict)
    asked_delete: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    lac: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Promises:
        return replace(
            self,
            sent=dict(self.sent),
            acked=set(self.acked),
            fenced=set(self.fenced),
            asked_release=dict(self.asked_release),
            released=dict(self.released),
            asked_delete=set(self.asked_delete),
            deleted=set(self.deleted),
            lac=dict(self.lac),
        )


async def open_bookie(sim: Simulation, disk: SimDisk) -> EmbeddedBookie:
    return await EmbeddedBookie.open("b", "/b/journal", "/b/ledgers", SETTINGS, sim.runtime(disk))


class Script:
    """A random but repeatable run: appends by live writers, fences, releases, deletes."""

    def __init__(self, promises: Promises, rng: random.Random) -> None:
        self.promises = promises
        self.rng = rng
        self.next_entry: dict[int, int] = {}
        self.next_ledger = 0
        self.open: list[int] = []

    async def run(self, bookie: EmbeddedBookie, rounds: int) -> None:
        for _ in range(rounds):
            await asyncio.gather(*(self.step(bookie) for _ in range(self.rng.randint(1, 4))))

    async def step(self, bookie: EmbeddedBookie) -> None:
        while len(self.open) < LEDGERS:
            self.open.append(self.next_ledger)
            self.next_ledger += 1
        ledger_id = self.rng.choice(self.open)
        dice = self.rng.random()
        if dice < 0.76:
            await self.append(bookie, ledger_id)
        elif dice < 0.82:
            await self.fence(bookie, ledger_id)
        elif dice < 0.88:
            await self.release(bookie, ledger_id)
        else:
            await self.delete(bookie, ledger_id)

    async def append(self, bookie: EmbeddedBookie, ledger_id: int) -> None:
        first = self.next_entry.get(ledger_id, 0)
        count = self.rng.randint(1, 4)
        self.next_entry[ledger_id] = first + count
        payloads = [
            b"%d:%d/" % (ledger_id, first + n) * self.rng.randint(1, 60) for n in range(count)
        ]
        ids = [(ledger_id, first + n) for n in range(count)]
        self.promises.sent.update(zip(ids, payloads, strict=True))
        future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        run = EntryRun(ledger_id, first, first - 1, payloads)
        bookie.append(run, future.set_result)
        error = await future
        if error is None:
            self.promises.acked.update(ids)
            self.promises.lac[ledger_id] = max(first - 1, self.promises.lac.get(ledger_id, -1))
        else:
            assert isinstance(error, StorageError)

    async def fence(self, bookie: EmbeddedBookie, ledger_id: int) -> None:
        if ledger_id in self.open and self.rng.random() < 0.5:
            self.open.remove(ledger_id)
        with contextlib.suppress(StorageFullError):
            await bookie.tail(ledger_id, fence=True)
            self.promises.fenced.add(ledger_id)

    async def release(self, bookie: EmbeddedBookie, ledger_id: int) -> None:
        through = self.rng.randint(0, self.next_entry.get(ledger_id, 0))
        asked, given = self.promises.asked_release, self.promises.released
        asked[ledger_id] = max(through, asked.get(ledger_id, -1))
        with contextlib.suppress(StorageFullError):
            await bookie.release(ledger_id, through)
            given[ledger_id] = max(through, given.get(ledger_id, -1))

    async def delete(self, bookie: EmbeddedBookie, ledger_id: int) -> None:
        if self.rng.random() < 0.5:
            known = {ledger for ledger, _ in self.promises.sent}
            ledger_id = min(known - self.promises.asked_delete, default=ledger_id)
        if ledger_id in self.open:
            self.open.remove(ledger_id)
        self.promises.asked_delete.add(ledger_id)
        with contextlib.suppress(StorageFullError):
            await bookie.delete(ledger_id)
            self.promises.deleted.add(ledger_id)

    async def delete_half(self, bookie: EmbeddedBookie) -> None:
        """So many ledgers that segments go; the others must not go with them."""
        known = sorted({ledger for ledger, _ in self.promises.sent} - self.promises.asked_delete)
        for ledger_id in self.rng.sample(known, len(known) // 2):
            self.promises.asked_delete.add(ledger_id)
            await bookie.delete(ledger_id)
            self.promises.deleted.add(ledger_id)


async def check(bookie: EmbeddedBookie, promises: Promises) -> None:
    """Everything that was answered still holds."""
    report = bookie.recovery
    assert not report.damaged, str(report)
    assert not report.corrupt_entries
    assert not report.unknown_files
    for ledger_id in {ledger for ledger, _ in promises.sent}:
        held = await read_all(bookie, ledger_id, promises)
        for (ledger, entry_id), payload in promises.sent.items():
            if ledger == ledger_id:
                check_entry(promises, (ledger, entry_id), payload, held)
        if ledger_id not in promises.asked_delete:
            tail = await bookie.tail(ledger_id, fence=False)
            assert tail.last_confirmed >= promises.lac.get(ledger_id, -1)
            acked = max((e for ledger, e in promises.acked if ledger == ledger_id), default=-1)
            assert tail.last_entry_id >= acked
    check_counts(bookie._index)
    for ledger_id in promises.fenced - promises.asked_delete:
        with pytest.raises(LedgerFencedError):
            await settled(bookie, EntryRun(ledger_id, 10_000, -1, [b"zombie"]))


def check_counts(index: BookieIndex) -> None:
    """What the collector goes by is what the index holds."""
    pointed = Counter(s.segment_id for state in index.ledgers.values() for s in state.extents())
    assert {n: s.extents for n, s in index.segments.items()} == {
        n: pointed[n] for n in index.segments
    }


def check_entry(
    promises: Promises, key: tuple[int, int], payload: bytes, held: dict[int, bytes] | None
) -> None:
    ledger_id, entry_id = key
    if held is None:
        assert ledger_id in promises.asked_delete or not any(
            ledger == ledger_id for ledger, _ in promises.acked
        )
        return
    assert ledger_id not in promises.deleted
    if entry_id in held:
        assert held[entry_id] == payload
    else:
        may_be_released = entry_id <= promises.asked_release.get(ledger_id, -1)
        assert key not in promises.acked or may_be_released
    assert entry_id > promises.released.get(ledger_id, -1) or entry_id not in held


async def read_all(
    bookie: EmbeddedBookie, ledger_id: int, promises: Promises
) -> dict[int, bytes] | None:
    """Entries held by the bookie; ``None`` if it does not know the ledger."""
    first = 0
    while True:
        try:
            held = dict(await bookie.read(ledger_id, first, 1 << 40, 1 << 30))
        except EntrySealedError:
            assert first <= promises.asked_release.get(ledger_id, -1)
            first += 1
        except NoSuchEntryError:
            return {}
        except NoSuchLedgerError:
            return None
        else:
            assert {(ledger_id, e) for e in held} <= set(promises.sent)
            return held


async def settled(bookie: EmbeddedBookie, run: EntryRun) -> None:
    future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    bookie.append(run, future.set_result)
    error = await future
    if error is not None:
        raise error


@dataclass(frozen=True)
class Moment:
    """The disk as a crash before one step would leave it, and what had been answered by then."""

    step: str
    survival: Survival
    disk: SimDisk
    promises: Promises


def moments(seed: int, others: Callable[[SimDisk], None] = lambda disk: None) -> list[Moment]:
    """One run of the script (two lives of the bookie), with a crash at every step.

    ``others``: what somebody else does to the disk before a step of the script.
    """
    disk, promises, rng = SimDisk(), Promises(), random.Random(seed)
    found: list[Moment] = []
    alone = True

    def keep() -> None:
        if not alone:
            others(disk)
        step = f"{disk.steps + 1} after {disk.trace[-1] if disk.trace else 'nothing'}"
        now = promises.copy()
        for survival in SURVIVALS:
            found.append(Moment(step, survival, disk.survivor(survival, rng), now))

    disk.before_step = keep
    script = Script(promises, random.Random(seed))
    with Simulation(seed, prompt=PROMPT) as sim:

        async def life(rounds: int) -> None:
            nonlocal alone
            bookie = await open_bookie(sim, disk)
            alone = False
            await script.run(bookie, rounds)
            alone, disk.capacity = True, None
            await bookie.close()

        sim.run(life(ROUNDS))
        sim.run(life(ROUNDS // 4))
    keep()
    return found


def recovered(seed: int, disk: SimDisk, promises: Promises) -> None:
    """Recover, check, go on working, restart, check again."""
    if random.Random(disk.used()).random() < 0.4 and CHECKPOINT in disk.files():
        disk.discard(CHECKPOINT)
    with Simulation(seed, prompt=PROMPT) as sim:

        async def main() -> None:
            bookie = await open_bookie(sim, disk)
            await check(bookie, promises)
            script = Script(promises, random.Random(seed))
            script.next_ledger = 1000
            await script.run(bookie, 3)
            await script.delete_half(bookie)
            await bookie.close()
            bookie = await open_bookie(sim, disk)
            await check(bookie, promises)
            await bookie.close()

        sim.run(main())


@pytest.mark.feature("F76")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_before_any_step_loses_nothing(seed: int) -> None:
    found = moments(seed)
    recover_each(seed, found, lambda _, m: recovered(seed, m.disk, m.promises.copy()))
    steps = {word for moment in found for word in moment.step.split()}
    assert {"create", "write", "sync", "rename", "unlink", "mkdir"} <= steps
    assert len(found) > 600


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_while_the_disk_is_full_now_and_then_loses_nothing(seed: int) -> None:
    """Somebody else takes the room in between two steps, and gives it back."""
    rng = random.Random(seed)
    full = 0

    def others(disk: SimDisk) -> None:
        nonlocal full
        if rng.random() < 0.2:
            disk.capacity = rng.choice((None, disk.used() + rng.randint(0, 1500)))
            full += disk.capacity is not None

    found = moments(seed, others)
    assert full > 10

    def started(number: int, moment: Moment) -> None:
        moment.disk.capacity = None
        recovered(number, moment.disk, moment.promises.copy())

    recover_each(seed, found, started, every=3)


def power_fails_after_a_kill_and_a_start(seed: int) -> int:
    """How many kills there were."""
    rng = random.Random(seed)
    killed = [moment for moment in moments(seed) if moment.survival == "all"]
    for moment in killed[seed % 3 :: 3]:
        disk = moment.disk
        with Simulation(seed) as sim:
            bookie = sim.run(open_bookie(sim, disk))
            sim.run(check(bookie, moment.promises))
        disk = disk.after_crash(rng.choice(["none", "random"]), rng)
        try:
            recovered(seed, disk, moment.promises.copy())
        except BaseException:
            print(f"killed before step {moment.step}, then started, then the power failed")
            raise
    return len(killed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_failure_after_a_kill_and_a_start_loses_nothing(seed: int) -> None:
    """What the start believed of the page cache is there when the page cache is not."""
    print(f"SEED={seed}")
    assert power_fails_after_a_kill_and_a_start(seed) > 200


def one_sync_fails(seed: int) -> None:
    rng = random.Random(seed)
    for at in range(2, 40):
        disk, promises = SimDisk(), Promises()
        script = Script(promises, random.Random(seed))
        with Simulation(seed) as sim:
            bookie = sim.run(open_bookie(sim, disk))
            disk.before_step = fail_one_sync(disk, disk.steps + at)
            with contextlib.suppress(StorageError):
                sim.run(script.run(bookie, 40))
            assert bookie.failed is not None
        # The operator starts the process again, and the power fails: before that, or after it.
        disk = disk.after_crash(rng.choice(SURVIVALS), rng)
        with Simulation(seed) as sim:
            bookie = sim.run(open_bookie(sim, disk))
            sim.run(check(bookie, promises))
        recovered(seed, disk.after_crash("none", rng), promises)


def a_segment_that_was_not_synced_is_believed(seed: int) -> None:
    """The sync of a new segment fails, and a kill comes before its file is removed."""
    rng = random.Random(seed)
    disk, promises = SimDisk(), Promises()
    with Simulation(seed) as sim:
        bookie = sim.run(open_bookie(sim, disk))
        sim.run(Script(promises, random.Random(seed)).run(bookie, 5))
        disk = disk.after_crash("all", rng)

    def before_step() -> None:
        if re.fullmatch(r"\d+ create .*journal", "".join(disk.trace[-3:-2])):
            disk.before_step = lambda: None  # the next step is the first sync of the segment
            disk.faulty, disk.sync_errno_once = "/b/journal", errno.EIO
            disk.crash_at = disk.steps + 2

    disk.before_step = before_step
    with Simulation(seed) as sim:
        assert sim.run_until_crash(open_bookie(sim, disk))
    disk = disk.after_crash("all", rng)
    with Simulation(seed) as sim:
        sim.run(check(sim.run(open_bookie(sim, disk)), promises))
    recovered(seed, disk.after_crash("none", rng), promises)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_segment_whose_first_sync_failed_is_written_again_with_its_head(seed: int) -> None:
    a_segment_that_was_not_synced_is_believed(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_failed_sync_ends_the_journal_and_loses_nothing(seed: int) -> None:
    print(f"SEED={seed}")
    one_sync_fails(seed)


def fail_one_sync(disk: SimDisk, step: int) -> Callable[[], None]:
    def before_step() -> None:
        if disk.steps == step:
            disk.faulty, disk.sync_errno_once = "/b/journal", errno.EIO

    return before_step


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_in_recovery_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    print(f"SEED={seed}")
    for moment in moments(seed)[2::7]:
        disk = moment.disk
        for again in range(2):
            disk.crash_at = disk.steps + rng.randint(1, 12)
            with Simulation(seed + again) as sim:
                sim.run_until_crash(open_bookie(sim, disk))
            disk = disk.after_crash("random", rng)
        try:
            recovered(seed, disk, moment.promises.copy())
        except BaseException:
            print(f"crash before step {moment.step}, then two in recovery")
            raise


# Planted bugs.


def sync_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    """The second sync succeeds, without the data."""
    right = SegmentWriter.sync

    def sync(self: SegmentWriter, size: int) -> None:
        try:
            right(self, size)
        except OSError:
            right(self, size)

    patch.setattr(SegmentWriter, "sync", sync)


def the_page_cache_is_believed(patch: pytest.MonkeyPatch) -> None:
    """The last group is taken for durable because it can be read."""
    patch.setattr(SimDisk, "write_again", lambda *_: None)


def the_last_group_is_only_synced(patch: pytest.MonkeyPatch) -> None:
    """After a failed sync that is not enough: the pages are clean."""

    def write_again(self: SimDisk, path: str, start: int) -> None:
        self._sync(path, self._inode(path))

    patch.setattr(SimDisk, "write_again", write_again)


@pytest.mark.parametrize(
    ("plant", "run"),
    [
        (sync_is_tried_again, one_sync_fails),
        (the_page_cache_is_believed, power_fails_after_a_kill_and_a_start),
        (the_last_group_is_only_synced, one_sync_fails),
    ],
)
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    run: Callable[[int], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run(1)
