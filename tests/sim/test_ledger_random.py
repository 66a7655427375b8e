"""A topic's ledgers on several bookies, under owners that die, are cut off and come back.

Each seed draws the number of bookies, the quorums, the weather on the links, whether owners have a
guard, and what happens when. Beside them auto-recovery repairs ledgers and closes those that are
written; or owners seal what is confirmed, and bookies forget it once they hear of that. A bookie
may be slow while all else is quick. At the end everything heals, and one more owner opens the
topic.

* What anybody ever confirmed is there, under its id, and nothing that was not appended.
* An owner that was replaced confirms nothing that its successor does not have.
* What a writer counts is on bookies that are named for it.
* What recovery found above the last confirmed entry is on every bookie of its ensemble.
* No ledger is closed at an end behind which its writer may yet confirm something; none that is
  closed changes (``ledger_ends``).
* All copies of an entry are alike; whoever opens the topic sees the same.
* Once all is well, the topic can be opened and appended to within half a minute.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from pulsark.errors import MetadataError, NoSuchEntryError, StorageError
from pulsark.metadata.changes import Check
from pulsark.metadata.guarded import GuardedMetadataStore
from pulsark.metadata.paths import ledger_path
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.runtime import Runtime
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.ledger.metadata import LedgerMetadata, LedgerState, decode_ledger_metadata
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerConfig
from pulsark.wire.position import Position
from tests.sim.auto_recovery import AutoRecovery
from tests.sim.disk import SimDisk
from tests.sim.ledger_ends import WatchedTree
from tests.sim.links import LinkedBookie, LinkedStore, Weather
from tests.sim.simulation import Simulation
from tests.support.ledgers import Appends, read_all
from tests.support.memory_bookie import MemoryBookie

PATH = "/managed-ledgers/t/n/persistent/x"
FIRST_SEED = int(os.environ.get("SEED", "1"))
SEEDS = int(os.environ.get("SEEDS", "300"))
GROUPS = 6
HEALED_SECONDS = 30.0


class Table:
    """What was sealed: the truth, whatever bookies still have."""

    def __init__(self) -> None:
        self.entries: dict[int, list[bytes]] = {}

    def get(self, position: Position) -> bytes | None:
        """Return a sealed entry."""
        sealed = self.entries.get(position.ledger_id, [])
        return sealed[position.entry_id] if position.entry_id < len(sealed) else None

    async def read_of(
        self, owner: str, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        found = list(enumerate(self.entries.get(ledger_id, [])))[first : last + 1]
        if not found:
            raise NoSuchEntryError(f"{ledger_id}:{first} is not sealed")
        return found

    async def sealed_through(self, owner: str, ledger_id: int) -> int:
        return len(self.entries.get(ledger_id, [])) - 1


@dataclass
class Owner:
    """One process that has opened the topic, or tries to."""

    number: int
    links: dict[str, LinkedBookie]
    store: LinkedStore
    view: MetadataStore
    """Of the store: with a guard, if there is one."""
    appends: Appends = field(default_factory=Appends)
    manager: LedgerManager | None = None
    life: asyncio.Task[None] | None = None
    releases: list[asyncio.Task[None]] = field(default_factory=list)

    def die(self) -> None:
        """Hear nothing and say nothing from now on; what was said is on its way."""
        self.store.dead = True
        for link in self.links.values():
            link.dead = True
        for task in (self.life, *self.releases):
            if task is not None:
                task.cancel()


class World:
    """Bookies, metadata, owners, and what must be true of them."""

    def __init__(self, sim: Simulation, seed: int) -> None:
        self.rng = random.Random(f"ledgers/{seed}")
        self.runtime: Runtime = sim.runtime(SimDisk())
        self.weather = Weather.drawn(self.rng)
        count = self.rng.choice((3, 3, 4, 5, 6))
        self.bookies = {f"b{n}": MemoryBookie(f"b{n}") for n in range(1, count + 1)}
        self.tree = WatchedTree(self.bookies)
        size = self.rng.choice((3, 3, count))
        self.config = ManagedLedgerConfig(
            size,
            self.rng.choice((2, 3)),
            2,
            max_entries=self.rng.choice((5, 20, 500)),
            min_age_ms=0,
        )
        self.owners: list[Owner] = []
        self.guard = ABSENT if self.rng.random() < 0.5 else None
        self.others: set[asyncio.Task[None]] = set()
        self.table = Table()
        self.seals = self.rng.random() < 0.4
        self.slow: dict[str, float] = {}
        """Seconds that each message to a bookie, and from it, takes beyond the weather."""
        self.appended: set[bytes] = set()

    def new_owner(self) -> Owner:
        links = {name: LinkedBookie(b, self.weather) for name, b in self.bookies.items()}
        for name, seconds in self.slow.items():
            links[name].slow_seconds = seconds
        store = LinkedStore(self.tree, self.weather)
        view: MetadataStore = store
        if self.guard is not None:
            self.guard = self.tree.put("/guard", b"%d" % len(self.owners), self.guard, None)
            view = GuardedMetadataStore(store, Check("/guard", self.guard), lambda: None)
        owner = Owner(len(self.owners), links, store, view)
        self.owners.append(owner)
        return owner

    async def open(self, owner: Owner) -> ManagedLedger:
        manager = owner.manager = LedgerManager(owner.view, owner.links, self.runtime, self.table)
        return await ManagedLedger.open(
            PATH, manager, owner.view, self.config, self.runtime, owner.appends
        )

    # -- what happens ------------------------------------------------------------------------

    async def run(self) -> None:
        owner = self._begin(self.new_owner())
        for _ in range(self.rng.randint(3, 9)):
            await asyncio.sleep(self.rng.uniform(0, 0.15))
            event = self.rng.randrange(9)
            if event == 0:
                owner.die()
                owner = self._begin(self.new_owner())
            elif event == 1:  # two that both believe the topic is theirs
                owner = self._begin(self.new_owner())
            elif event == 2:
                self._cut(self.rng.choice(self.owners))
            elif event == 3:
                for other in self.owners:
                    self._mend(other)
            elif event == 4:
                bookie = self.rng.choice(list(self.bookies.values()))
                bookie.down = not bookie.down
            elif event == 8:
                self._slow_down()
            elif event >= 6 and not self.seals:
                self._others_come()
            else:
                bookie = self.rng.choice(list(self.bookies.values()))
                bookie.read_only = not bookie.read_only
        await self._heal_and_check()

    def _slow_down(self) -> None:
        """One copy of each entry comes late, or no longer does."""
        name = self.rng.choice(list(self.bookies))
        self.slow = {} if self.slow else {name: self.rng.choice((0.02, 0.2, 1.0))}
        for owner in self.owners:
            for each, link in owner.links.items():
                link.slow_seconds = self.slow.get(each, 0.0)

    def _seal(self, owner: Owner) -> None:
        """Put what an owner has confirmed of one ledger into the table, and let bookies forget it.

        Some do not hear of it.
        """
        positions, manager = owner.appends.confirmed, owner.manager
        assert manager is not None
        ledger_id = self.rng.choice(list(positions)).ledger_id
        sealed = self.table.entries.setdefault(ledger_id, [])
        for _ in range(self.rng.randint(1, 30)):
            entry = positions.get(Position(ledger_id, len(sealed)))
            if entry is None:
                break
            sealed.append(entry)
        if not sealed:
            return

        async def release() -> None:
            with suppress(StorageError, MetadataError):
                await manager.release(ledger_id, len(sealed) - 1)

        owner.releases.append(asyncio.ensure_future(release()))

    def _others_come(self) -> None:
        """Auto-recovery looks at the ledgers, a few times."""
        links = {name: LinkedBookie(b, self.weather) for name, b in self.bookies.items()}
        others = AutoRecovery(self.tree, self.bookies, links, self.runtime, self.rng)

        async def life() -> None:
            for _ in range(self.rng.randint(1, 20)):
                await others.run()
                await asyncio.sleep(self.rng.uniform(0, 0.02))

        self.others.add(asyncio.ensure_future(life()))

    def _begin(self, owner: Owner) -> Owner:
        owner.life = asyncio.ensure_future(self._live(owner))
        return owner

    async def _live(self, owner: Owner) -> None:
        """Append until death; open again when that fails."""
        number = 0
        managed: ManagedLedger | None = None
        while number < 400:
            if managed is None or managed.is_fenced:
                if managed is not None:
                    return  # somebody else has it
                try:
                    managed = await self.open(owner)
                except (StorageError, MetadataError):
                    await asyncio.sleep(0.01)
                    continue
            for _ in range(self.rng.choice((1, 1, 3))):
                entry = b"%d/%d" % (owner.number, number)
                number += 1
                self.appended.add(entry)
                managed.append(entry, entry)
            self._check_slots(managed)
            if self.seals and owner.appends.confirmed and self.rng.random() < 0.05:
                self._seal(owner)
            if self.rng.random() < 0.01:
                with suppress(StorageError, MetadataError):
                    await managed.close_ledger()
            await asyncio.sleep(self.rng.choice((0, 0, 0.001, 0.01)))

    def _cut(self, owner: Owner) -> None:
        for link in self.rng.sample(list(owner.links.values()), self.rng.randint(1, 3)):
            link.cut = True

    def _mend(self, owner: Owner) -> None:
        for link in owner.links.values():
            link.cut = False

    # -- what must be true -------------------------------------------------------------------

    async def _heal_and_check(self) -> None:
        alone = self.rng.random() < 0.5
        for owner in self.owners:
            assert owner.life is not None
            owner.life.cancel()  # nobody opens the topic any more, and some go on writing to it
            if alone or self.rng.random() < 0.5:
                owner.die()
            self._mend(owner)
        lives = [owner.life for owner in self.owners if owner.life is not None]
        await asyncio.wait(lives)
        for life in lives:
            if not life.cancelled():
                life.result()
        for bookie in self.bookies.values():
            bookie.down = bookie.read_only = False
        self.weather.clear()
        if self.slow:
            self._slow_down()
        await asyncio.gather(*self.others)
        if alone:
            await asyncio.sleep(1)  # what the dead had sent has arrived
        known = self._last_confirmed() if alone else {}
        last = self.new_owner()
        async with asyncio.timeout(HEALED_SECONDS):
            managed = await self.open(last)
            self._check_recovered(known)
            found = dict(await read_all(managed))
            await asyncio.sleep(1)  # whoever was replaced, and what was on its way, had its time
            managed.append(b"afterwards", None)
            while b"afterwards" not in last.appends.confirmed.values():
                assert not last.appends.failed, last.appends.failed
                await asyncio.sleep(0.01)
        assert not self.tree.broken, self.tree.broken
        for owner in self.owners:
            for position, entry in owner.appends.confirmed.items():
                if entry != b"afterwards":
                    assert found.get(position) == entry, f"{position} of owner {owner.number}"
        assert set(found.values()) <= self.appended
        assert len(set(found.values())) == len(found), "an entry is there twice"
        self._check_copies(found)
        again = dict(await read_all(await self.open(self.new_owner())))
        assert {p: e for p, e in again.items() if e != b"afterwards"} == found

    def _check_slots(self, managed: ManagedLedger) -> None:
        """What a writer counts is on bookies that whoever recovers the ledger will ask."""
        writer = managed._last.writer
        if writer is None or writer.error is not None or writer._striped:
            return
        found = self.tree.get(ledger_path(writer.ledger_id))
        assert found is not None
        stored = decode_ledger_metadata(writer.ledger_id, found.value)
        if stored.state is not LedgerState.OPEN:
            return
        first = writer.metadata.ensembles[-1].first_entry_id
        for slot in writer._slots:
            if slot.failed or slot.confirmed < first:
                continue
            name = slot.bookie.bookie_id
            assert name in stored.ensembles[-1].bookies, f"{stored}: {name} counts"
            held = self.bookies[name].entries(writer.ledger_id)
            sealed = len(self.table.entries.get(writer.ledger_id, []))
            begin = max(first, sealed)
            missing = [e for e in range(begin, slot.confirmed + 1) if e not in held]
            assert not missing, f"{name} counts for {missing} of ledger {writer.ledger_id}"

    def _ledgers(self) -> dict[int, LedgerMetadata]:
        found = {}
        for name in self.tree.children("/ledgers"):
            value = self.tree.get(ledger_path(int(name)))
            if value is not None:
                found[int(name)] = decode_ledger_metadata(int(name), value.value)
        return found

    def _last_confirmed(self) -> dict[int, int]:
        """Of ledgers that are not closed: the highest entry that any bookie knows as confirmed."""
        return {
            ledger_id: max(b._ledgers[ledger_id].last_confirmed
                           for b in self.bookies.values() if ledger_id in b._ledgers)
            for ledger_id, metadata in self._ledgers().items()
            if not metadata.is_closed and any(
                ledger_id in b._ledgers for b in self.bookies.values())
        }  # fmt: skip

    def _check_recovered(self, known: dict[int, int]) -> None:
        """The last recovery met no fault: what it found above the LAC is everywhere."""
        for ledger_id, metadata in self._ledgers().items():
            if ledger_id not in known or not metadata.is_closed:
                continue
            sealed = len(self.table.entries.get(ledger_id, []))
            begin = max(known[ledger_id] + 1, sealed)
            for entry_id in range(begin, metadata.last_entry_id + 1):
                ensemble, _ = metadata.ensemble_at(entry_id)
                for name in metadata.holders(ensemble, entry_id):
                    held = self.bookies[name].entries(ledger_id)
                    assert entry_id in held, f"{ledger_id}:{entry_id} is not on {name}"

    def _check_copies(self, found: dict[Position, bytes]) -> None:
        for (ledger_id, entry_id), entry in found.items():
            if (sealed := self.table.get(Position(ledger_id, entry_id))) is not None:
                assert sealed == entry, f"{ledger_id}:{entry_id} is sealed as {sealed!r}"
                continue
            held = [b.entries(ledger_id).get(entry_id) for b in self.bookies.values()]
            copies = [copy for copy in held if copy is not None]
            assert len(copies) >= self.config.ack_quorum, f"{ledger_id}:{entry_id}: {len(copies)}"
            assert set(copies) == {entry}, f"{ledger_id}:{entry_id} has different copies"


@pytest.mark.feature("F70", "F73")
@pytest.mark.parametrize("group", range(GROUPS))
def test_what_was_confirmed_is_there_whoever_owned_the_topic(group: int) -> None:
    for seed in range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS):
        with Simulation(seed) as sim:
            sim.run(World(sim, seed).run())
