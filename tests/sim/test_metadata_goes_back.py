"""A metadata store that is older than its bookies is noticed; the right one never is refused.

With an older store goes the part of the journals that a backup takes: as it was at that moment.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from pulsark.limits import METADATA_MARK_SECONDS
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import LEDGER_ID_COUNTER
from pulsark.runtime import Runtime
from pulsark.storage.backup.journal_cut import cut_at, segments_in
from pulsark.storage.bookie.claims import OtherStoreError
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.fleet import BookieHome, open_fleet
from pulsark.storage.bookie.identity import IDENTITY_NAME
from pulsark.storage.bookie.journal_format import segment_name
from pulsark.storage.bookie.journal_settings import JournalSettings
from tests.sim.bookies import append_later
from tests.sim.disk import SURVIVALS, SimDisk, Survival
from tests.sim.metadata import SteppingStore
from tests.sim.simulation import Simulation

SEED = 20261122
HOMES = [BookieHome(f"/{place}/journal", f"/{place}/ledgers") for place in range(2)]
SETTINGS = JournalSettings(journal_max_size=4096)


async def fleet_of(store: MemoryMetadataStore, runtime: Runtime) -> dict[str, EmbeddedBookie]:
    """A start: each is a session of its own."""
    store.tree.branch()
    return await open_fleet(HOMES, SETTINGS, store, runtime)


@dataclass
class Told:
    """What bookies were asked for, and answered."""

    appends: dict[int, list[asyncio.Future[BaseException | None]]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)

    def there(self) -> set[int]:
        """Ledgers whose entry every bookie has acknowledged and nobody has let go."""
        return {
            ledger_id
            for ledger_id, appends in self.appends.items()
            if ledger_id not in self.gone and all(a.done() and not a.result() for a in appends)
        }


async def live(
    store: MemoryMetadataStore, runtime: Runtime, rounds: int = 8, told: Told | None = None
) -> None:
    """Ledgers come, are written, released and deleted; in between something else changes."""
    told = told or Told()
    rng = random.Random(SEED)
    bookies = await fleet_of(store, runtime)
    ledgers: list[int] = []
    for turn in range(rounds):
        ledger_id = await store.next_id(LEDGER_ID_COUNTER)
        ledgers.append(ledger_id)
        payload = bytes(rng.randint(0, 600))
        told.appends[ledger_id] = [
            append_later(bookie, ledger_id, 0, [payload]) for bookie in bookies.values()
        ]
        await store.put(f"/topics/{rng.randint(0, 3)}", b"%d" % turn)
        if turn % 3 == 2:
            gone = ledgers.pop(0)
            told.gone.add(gone)
            for bookie in bookies.values():
                await (bookie.delete(gone) if turn % 2 else bookie.release(gone, 0))
        await asyncio.sleep(rng.choice([0, 0.001, 0.01]))
    await asyncio.sleep(2 * METADATA_MARK_SECONDS)
    for bookie in bookies.values():
        await bookie.close()


async def start_and_stop(tree: MemoryTree, runtime: Runtime) -> None:
    for bookie in (await fleet_of(MemoryMetadataStore(tree), runtime)).values():
        await bookie.close()


@dataclass
class Copies:
    """Copies of the store from the moments after its changes."""

    tree: MemoryTree = field(default_factory=MemoryTree)
    taken: list[MemoryTree] = field(default_factory=list)

    def moment(self, what: str) -> None:
        if what.startswith("end"):
            self.taken.append(self.tree.copy())


def test_every_earlier_state_is_refused_and_nothing_is_removed() -> None:
    copies, disk = Copies(), SimDisk()
    with Simulation(SEED) as sim:
        sim.run(live(SteppingStore(copies.tree, copies.moment), sim.runtime(disk)))
    last = copies.tree.history.last_commit
    older = [copy for copy in copies.taken if copy.history.last_commit < last]
    assert len(older) > 8
    before = {path: disk.content(path) for path in disk.files()}
    for number, earlier in enumerate(older):
        with (
            Simulation(number) as sim,
            pytest.raises(OtherStoreError, match=r"went back|older state"),
        ):
            sim.run(start_and_stop(earlier, sim.runtime(disk)))
        assert {path: disk.content(path) for path in disk.files()} == before
    with Simulation(SEED) as sim:
        sim.run(start_and_stop(copies.tree, sim.runtime(disk)))


def test_a_store_that_is_another_one_is_refused() -> None:
    disk = SimDisk()
    with Simulation(SEED) as sim:
        sim.run(live(MemoryMetadataStore(), sim.runtime(disk), rounds=1))
    with Simulation(SEED) as sim, pytest.raises(OtherStoreError, match="belongs to the metadata"):
        sim.run(start_and_stop(MemoryTree(), sim.runtime(disk)))


def test_nor_is_an_earlier_state_accepted_that_was_started_often_enough() -> None:
    tree, disk = MemoryTree(), SimDisk()
    with Simulation(SEED) as sim:
        sim.run(live(MemoryMetadataStore(tree), sim.runtime(disk), rounds=2))
    earlier = tree.copy()
    with Simulation(SEED) as sim:
        sim.run(start_and_stop(tree, sim.runtime(disk)))
    for _ in range(5):
        with Simulation(SEED) as sim, pytest.raises(OtherStoreError, match="went back"):
            sim.run(start_and_stop(earlier, sim.runtime(disk)))


def crashed(step: int, survival: Survival) -> int:
    """A life that crashes before a step; then the same store is used. Steps without a crash."""
    tree, disk = MemoryTree(), SimDisk()
    disk.crash_at = step
    with Simulation(SEED) as sim:
        sim.run_until_crash(live(MemoryMetadataStore(tree), sim.runtime(disk), rounds=5))
    steps = disk.steps
    rng = random.Random(step)
    for _ in range(2):
        disk = disk.after_crash(survival, rng)
        with Simulation(step) as sim:
            sim.run(start_and_stop(tree, sim.runtime(disk)))
    return steps


@pytest.mark.parametrize("survival", SURVIVALS)
def test_the_right_store_is_never_refused_wherever_the_process_died(survival: Survival) -> None:
    steps = crashed(0, survival)
    assert steps > 40
    for step in range(1, steps):
        crashed(step, survival)


def test_an_acknowledged_entry_after_a_change_tells_of_it() -> None:
    """At every moment of a life: what was answered on a bookie after a change dates the store."""
    for stop_after in range(1, 12):
        tree, disk = MemoryTree(), SimDisk()

        async def main(runtime: Runtime, tree: MemoryTree, changes: int) -> MemoryTree:
            store = MemoryMetadataStore(tree)
            bookies = await fleet_of(store, runtime)
            ledger_id = await store.next_id(LEDGER_ID_COUNTER)
            for number in range(changes):
                earlier = tree.copy()
                await store.put("/topics/a", b"%d" % number)
                await asyncio.gather(
                    *(append_later(b, ledger_id, number, [b"entry"]) for b in bookies.values())
                )
            return earlier

        with Simulation(stop_after) as sim:
            earlier = sim.run(main(sim.runtime(disk), tree, stop_after))
        disk = disk.after_crash("none", random.Random(0))
        with Simulation(stop_after) as sim, pytest.raises(OtherStoreError):
            sim.run(start_and_stop(earlier, sim.runtime(disk)))


@dataclass
class Moments:
    """States of the store with the disk of the moment, and the ledgers that belong to them."""

    disk: SimDisk = field(default_factory=SimDisk)
    tree: MemoryTree = field(default_factory=MemoryTree)
    told: Told = field(default_factory=Told)
    taken: list[tuple[MemoryTree, SimDisk, set[int]]] = field(default_factory=list)

    def moment(self, what: str) -> None:
        if what.startswith("end of put /topics"):  # the bookies are in service
            disk = self.disk.survivor("all", random.Random(SEED))
            self.taken.append((self.tree.copy(), disk, self.told.there()))
        elif self.taken:
            # What went since then, and before the next change, went in that state.
            self.taken[-1][2].difference_update(self.told.gone)


def backup_of(mark: int, before: SimDisk, after: SimDisk) -> SimDisk | None:
    """Finished segments copied at one time and all files at a later one; cut at a mark.

    ``None`` if something was removed in between, as a backup finds out, too.
    """
    backup = SimDisk()
    for home in HOMES:
        backup.make_dirs(home.journal_dir)
        backup.make_dirs(home.ledger_dir)
        for number in segments_in(before, home.journal_dir)[:-1]:
            path = f"{home.journal_dir}/{segment_name(number)}"
            backup.edit(path, before.content(path))
        for number in segments_in(after, home.journal_dir):
            path = f"{home.journal_dir}/{segment_name(number)}"
            backup.edit(path, after.content(path))
        for directory in (home.journal_dir, home.ledger_dir):
            path = f"{directory}/{IDENTITY_NAME}"
            if path in after.files():
                backup.edit(path, after.content(path))
        cut = cut_at(backup, home.journal_dir, mark)
        if cut is None:
            return None
        for number in segments_in(backup, home.journal_dir):
            path = f"{home.journal_dir}/{segment_name(number)}"
            if number == cut.segment_id:
                backup.truncate(path, cut.size)
            elif number not in cut.older:
                backup.discard(path)
        for number, least in cut.older.items():
            path = f"{home.journal_dir}/{segment_name(number)}"
            if path not in backup.files() or backup.size(path) < least:
                return None
    return backup


ROUNDS = 24


async def start_of_backup(tree: MemoryTree, there: set[int], runtime: Runtime) -> None:
    for bookie in (await fleet_of(MemoryMetadataStore(tree), runtime)).values():
        assert not bookie.recovery.damaged
        assert not bookie.recovery.torn
        for ledger_id in there:
            assert len(await bookie.read(ledger_id, 0, 0, 1 << 20)) == 1
        await bookie.close()


def test_a_backup_has_the_journals_of_the_moment_of_its_metadata() -> None:
    moments, taken = Moments(), 0
    with Simulation(SEED) as sim:
        store = SteppingStore(moments.tree, moments.moment)
        sim.run(live(store, sim.runtime(moments.disk), ROUNDS, moments.told))
    found = moments.taken
    assert len(found) == ROUNDS
    for number, (tree, before, there) in enumerate(found):
        for later in {number, number + 1, number + 3, len(found) - 1}:
            if later >= len(found):
                continue
            backup = backup_of(tree.history.mark, before, found[later][1])
            if backup is None:
                continue
            with Simulation(number) as sim:
                sim.run(start_of_backup(tree.copy(), there, sim.runtime(backup)))
            taken += len(there) > 0
    assert taken > ROUNDS
