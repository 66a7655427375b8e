"""A managed ledger on three bookies: crashed at every step of disks and metadata, recovered.

After each crash a new owner opens the topic. It must have every entry that was confirmed, with
its bytes and its id, and nothing that was never appended; ids are not used again; all copies
of a closed ledger are alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pulsark.errors import LedgerFencedError, NoSuchEntryError, NoSuchLedgerError, StorageError
from pulsark.metadata.changes import Change
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import ledger_path
from pulsark.runtime import Done, Runtime
from pulsark.storage.bookie.bookie import Bookie, EntryRun
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.ledger import recovery
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.ledger.metadata import decode_ledger_metadata
from pulsark.storage.ledger.writer import LedgerWriter
from pulsark.storage.managed_ledger.last_ledger import LastLedger
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerConfig
from pulsark.storage.managed_ledger.states import State
from pulsark.wire.position import EARLIEST, Position
from tests.sim.deep import deep
from tests.sim.disk import SURVIVALS, SimDisk, Survival
from tests.sim.loop import SimulatedCrash
from tests.sim.simulation import Simulation
from tests.support.ledgers import Appends, read_all

SEED = int(os.environ.get("SEED", "1"))
PATH = "/managed-ledgers/t/n/persistent/x"
CONFIG = ManagedLedgerConfig(3, 3, 2, max_entries=9, min_age_ms=0)
NAMES = ("b1", "b2", "b3")


class CrashingStore(MemoryMetadataStore):
    """Durable metadata whose writes are steps of the disk: before and after each is a crash."""

    def __init__(self, tree: MemoryTree, disk: SimDisk) -> None:
        super().__init__(tree)
        self._disk = disk

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        path = changes[-1].path
        self._disk._step("before commit", path)
        versions = await super().commit(changes)
        self._disk._step("after commit", path)
        return versions

    async def next_id(self, path: str) -> int:
        number = await super().next_id(path)
        self._disk._step("after next_id", path)
        return number


@dataclass
class World:
    """What outlives processes: disks, the metadata, and the memory of the checker."""

    disk: SimDisk = field(default_factory=SimDisk)
    tree: MemoryTree = field(default_factory=MemoryTree)
    appended: set[bytes] = field(default_factory=set)
    confirmed: dict[Position, bytes] = field(default_factory=dict)

    async def bookies(self, runtime: Runtime) -> dict[str, EmbeddedBookie]:
        return {
            name: await EmbeddedBookie.open(
                name, f"/{name}/journal", f"/{name}/ledgers", JournalSettings(), runtime
            )
            for name in NAMES
        }

    async def owner(
        self, bookies: dict[str, EmbeddedBookie], runtime: Runtime
    ) -> tuple[ManagedLedger, Appends]:
        store = CrashingStore(self.tree, self.disk)
        appends = Appends(confirmed=self.confirmed)
        manager = LedgerManager(store, bookies, runtime)
        opened = await ManagedLedger.open(PATH, manager, store, CONFIG, runtime, appends)
        return opened, appends


async def script(world: World, runtime: Runtime, life: int, rounds: int) -> None:
    """One life of the process: append, roll over, trim a little, close now and then."""
    rng = random.Random(SEED * 100 + life)
    managed, _ = await world.owner(await world.bookies(runtime), runtime)
    for turn in range(rounds):
        for n in range(rng.randint(1, 4)):
            entry = b"%d/%d/%d" % (life, turn, n) + b"." * rng.randint(0, 300)
            world.appended.add(entry)
            managed.append(entry, n)
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.002]))
    await asyncio.sleep(0.05)
    if rng.random() < 0.5:
        await managed.close()


async def check(world: World, runtime: Runtime) -> None:
    """Open as the next owner, and hold everything against what was confirmed."""
    bookies = await world.bookies(runtime)
    unclosed = await known_confirmed(world, bookies)
    managed, appends = await world.owner(bookies, runtime)
    found = dict(await read_all(managed))
    missing = {p: e for p, e in world.confirmed.items() if found.get(p) != e}
    assert not missing, f"confirmed, and lost or changed: {missing}"
    assert set(found.values()) <= world.appended
    assert len(set(found.values())) == len(found), "an entry is there twice"
    assert managed.entries == len(found)
    await check_copies(managed, bookies, unclosed)
    # Life goes on, under ids that were never used.
    before = max(found, default=EARLIEST)
    world.appended.add(b"afterwards")
    managed.append(b"afterwards", None)
    await asyncio.sleep(0.1)
    assert managed.last_confirmed > before
    assert found.get(managed.last_confirmed) is None
    assert appends.failed == []
    assert (await managed.read(managed.last_confirmed, 1, 1))[0][1] == b"afterwards"
    del world.confirmed[managed.last_confirmed]


async def known_confirmed(world: World, bookies: dict[str, EmbeddedBookie]) -> dict[int, int]:
    """Of each ledger that is to be recovered: the highest LAC that a bookie knows."""
    store, found = MemoryMetadataStore(world.tree), {}
    for ledger_id in {ledger for bookie in bookies.values() for ledger in bookie._index.ledgers}:
        stored = await store.get(ledger_path(ledger_id)) if ledger_id >= 0 else None
        if stored and not decode_ledger_metadata(ledger_id, stored.value).is_closed:
            tails = [await bookie.tail(ledger_id, fence=False) for bookie in bookies.values()]
            found[ledger_id] = max(tail.last_confirmed for tail in tails)
    return found


async def check_copies(
    managed: ManagedLedger, bookies: dict[str, EmbeddedBookie], unclosed: dict[int, int]
) -> None:
    """Copies are alike; what recovery found above the LAC is on every bookie of the ensemble."""
    for info in managed.ledgers():
        contents: dict[int, list[bytes]] = {}
        for bookie in bookies.values():
            for entry_id, payload in await held(bookie, info.ledger_id, info.entries - 1):
                contents.setdefault(entry_id, []).append(payload)
        assert sorted(contents) == list(range(info.entries))
        confirmed = unclosed.get(info.ledger_id, info.entries)
        for entry_id, copies in contents.items():
            everywhere = entry_id > confirmed
            assert len(copies) >= (CONFIG.write_quorum if everywhere else CONFIG.ack_quorum)
            assert len(set(copies)) == 1, "copies differ"


async def held(bookie: Bookie, ledger_id: int, last: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    with contextlib.suppress(NoSuchEntryError, NoSuchLedgerError):
        while (first := found[-1][0] + 1 if found else 0) <= last:
            found += await bookie.read(ledger_id, first, last, 1 << 20)
    return found


def live_until(step: int, survival: Survival, rounds: int = 14) -> int:
    """Run a life that crashes before ``step``, then check; the number of steps without crash."""
    world = World()
    world.disk.crash_at = step
    with Simulation(SEED) as sim:
        crashed = sim.run_until_crash(script(world, sim.runtime(world.disk), 1, rounds))
        steps = world.disk.steps
    assert crashed == (step > 0)
    rng = random.Random(f"{SEED}/{step}/{survival}")
    world.disk = world.disk.after_crash(survival, rng)
    # The recovery dies, too, somewhere.
    world.disk.crash_at = rng.randint(1, 60)
    with Simulation(step) as sim:
        if sim.run_until_crash(check(world, sim.runtime(world.disk))):
            world.disk = world.disk.after_crash(survival, rng)
            with Simulation(step) as second:
                second.run(check(world, second.runtime(world.disk)))
    return steps


BLOCKS = 12


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_crash_at_any_step_loses_nothing_confirmed(block: int) -> None:
    steps = live_until(0, "all")
    assert steps > 100
    for step in range(1 + block, steps, BLOCKS):
        for survival in SURVIVALS:
            live_until(step, survival)


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0, *(deep(turn) for turn in range(1, len(SURVIVALS)))])
def test_a_crash_at_any_step_of_a_longer_run_loses_nothing_confirmed(turn: int) -> None:
    """What survives is another thing at each step, and all turns together have all of them."""
    for step in range(1, live_until(0, "all", 60)):
        live_until(step, SURVIVALS[(step + turn) % len(SURVIVALS)], 60)


# One bookie of three dies, the process lives.


class DyingDisk(SimDisk):
    """Every write fails from a step on."""

    def __init__(self, dies_at: int) -> None:
        super().__init__()
        self.dies_at = dies_at

    def _step(self, kind: str, path: str) -> None:
        if self.dies_at and self.steps + 1 >= self.dies_at:
            self.write_errno = self.sync_errno = errno.EIO
        super()._step(kind, path)


async def lose_one(sim: Simulation, disks: dict[str, SimDisk]) -> tuple[Appends, list[bytes]]:
    runtimes = {name: sim.runtime(disk) for name, disk in disks.items()}
    bookies = {
        name: await EmbeddedBookie.open(name, "/j", "/l", JournalSettings(), runtimes[name])
        for name in NAMES
    }
    tree, appends, appended = MemoryTree(), Appends(), []
    store = MemoryMetadataStore(tree)
    manager = LedgerManager(store, bookies, runtimes["b1"])
    managed = await ManagedLedger.open(PATH, manager, store, CONFIG, runtimes["b1"], appends)
    rng = random.Random(SEED)
    for turn in range(20):
        entry = b"%d" % turn + b"." * rng.randint(0, 300)
        appended.append(entry)
        managed.append(entry, turn)
        await asyncio.sleep(rng.choice([0, 0.001, 0.002]))
    await asyncio.sleep(0.1)
    # The process dies, and comes back without the bookie that was lost.
    left = {name: bookie for name, bookie in bookies.items() if name != "b2"}
    store = MemoryMetadataStore(tree)
    manager = LedgerManager(store, left, runtimes["b1"])
    again = await ManagedLedger.open(PATH, manager, store, CONFIG, runtimes["b1"], Appends())
    found = [entry for _, entry in await read_all(again)]
    again.append(b"afterwards", None)
    await asyncio.sleep(0.1)
    assert (await again.read(again.last_confirmed, 1, 1))[0][1] == b"afterwards"
    assert found == appended
    return appends, appended


@pytest.mark.feature("F70")
def test_one_of_three_bookies_may_die_at_any_step_and_nobody_notices() -> None:
    disks = {name: SimDisk() for name in NAMES}
    with Simulation(SEED) as sim:
        sim.run(lose_one(sim, disks))
    steps = disks["b2"].steps
    with Simulation(SEED) as sim:
        quiet = {name: SimDisk() for name in NAMES}
        sim.run(start_only(sim, quiet))
    first = quiet["b2"].steps + 1
    assert steps - first > 10
    for step in range(first, steps + 1):
        disks = {name: DyingDisk(step if name == "b2" else 0) for name in NAMES}
        with Simulation(step) as sim:
            appends, appended = sim.run(lose_one(sim, disks))
        assert appends.failed == []
        assert list(appends.confirmed.values()) == appended


async def start_only(sim: Simulation, disks: dict[str, SimDisk]) -> None:
    for name, disk in disks.items():
        await EmbeddedBookie.open(name, "/j", "/l", JournalSettings(), sim.runtime(disk))


# Two owners at once.


@pytest.mark.feature("F73")
@pytest.mark.parametrize("seed", range(25))
def test_an_owner_that_was_replaced_confirms_nothing_that_its_successor_does_not_have(
    seed: int,
) -> None:
    with Simulation(seed) as sim:
        sim.run(replaced(sim, seed))


async def replaced(sim: Simulation, seed: int) -> None:
    world, rng = World(), random.Random(seed)
    runtime = sim.runtime(world.disk)
    bookies = await world.bookies(runtime)
    old, old_appends = await world.owner(bookies, runtime)

    async def append_for_ever() -> None:
        for number in range(200):
            old.append(b"%d" % number, number)
            await asyncio.sleep(rng.choice([0, 0.0005, 0.002]))

    writing = asyncio.ensure_future(append_for_ever())
    await asyncio.sleep(rng.uniform(0, 0.08))
    world.confirmed = {}
    new, appends = await world.owner(bookies, runtime)
    found = dict(await read_all(new))
    await writing
    await asyncio.sleep(0.1)
    assert {p: e for p, e in old_appends.confirmed.items() if found.get(p) != e} == {}
    assert len(old_appends.contexts) + len(old_appends.failed) == 200
    new.append(b"new", None)
    await asyncio.sleep(0.1)
    old.append(b"old", None)
    await asyncio.sleep(0.1)
    assert old.is_fenced
    assert isinstance(old_appends.failed[-1][1], LedgerFencedError)
    assert [e for _, e in await read_all(new)] == [*found.values(), b"new"]
    assert appends.failed == []


# Planted bugs: each must be found by the crash test above.


def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    right = EmbeddedBookie.append

    def append(self: EmbeddedBookie, run: EntryRun, done: Done, **kwargs: bool) -> None:
        right(self, run, lambda error: None, **kwargs)
        asyncio.get_running_loop().call_soon(done, None)

    patch.setattr(EmbeddedBookie, "append", append)


def cut_at_the_last_known_lac(patch: pytest.MonkeyPatch) -> None:
    async def read_on(self: Any, entry_id: int) -> list[bytes]:
        return []

    patch.setattr(recovery._Recovery, "_read_on", read_on)


def close_with_an_ack_quorum(patch: pytest.MonkeyPatch) -> None:
    """Recovery does not wait for the last copy of what it writes again."""
    right = LedgerWriter.drained

    async def drained(self: LedgerWriter, *, everywhere: bool = False) -> None:
        await right(self)

    patch.setattr(LedgerWriter, "drained", drained)


def confirm_one_too_many(patch: pytest.MonkeyPatch) -> None:
    right = LedgerWriter._quorum_confirmed
    patch.setattr(
        LedgerWriter, "_quorum_confirmed", lambda self: min(right(self) + 1, self.last_pushed)
    )


def use_ids_again(patch: pytest.MonkeyPatch) -> None:
    """The last ledger is written on after a restart, at the end that its bookies know."""
    right = LastLedger.recover_unclosed

    async def reuse(self: LastLedger) -> list[tuple[int, int, int]]:
        found, stored = await right(self), self._stored
        if self.life.state is State.LOADING and stored.now.ledgers:
            last = stored.now.ledgers[-1]
            stored.now = stored.now.with_ledger(last._replace(entries=last.entries - 1))
            stored.on_saved()
        return found

    patch.setattr(LastLedger, "recover_unclosed", reuse)


@pytest.mark.parametrize(
    "plant",
    [
        acknowledge_before_the_sync,
        cut_at_the_last_known_lac,
        close_with_an_ack_quorum,
        confirm_one_too_many,
        use_ids_again,
    ],
)
def test_the_checker_finds_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = live_until(0, "all")
    plant(monkeypatch)
    for step in range(1, steps):
        try:
            live_until(step, "none")
        except (AssertionError, StorageError, SimulatedCrash):
            return
    pytest.fail("a crash at every step, and nothing noticed")
