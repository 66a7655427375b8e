"""A ledger that others fence while its topic still has its owner, as BookKeeper's auto-recovery."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from pulsark.errors import LedgerFencedError, MetadataError, StorageError
from pulsark.metadata.changes import Check
from pulsark.metadata.guarded import GuardedMetadataStore
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.store import ABSENT
from pulsark.storage.ledger.manager import LedgerConfig, LedgerManager
from pulsark.storage.managed_ledger.config import ManagedLedgerConfig
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger
from tests.sim.simulation import Simulation
from tests.support.ledgers import Appends, Cluster, Writes, read_all, settle, simulate, turns

GUARD = "/guard"
PATH = "/managed-ledgers/t/n/persistent/x"
CONFIG = ManagedLedgerConfig(3, 3, 2)


@dataclass
class Owned:
    """A topic whose owner has a guard."""

    cluster: Cluster
    appends: Appends = field(default_factory=Appends)
    version: int = ABSENT
    lost: int = 0

    def manager(self) -> tuple[GuardedMetadataStore, LedgerManager]:
        store = MemoryMetadataStore(self.cluster.tree)
        ledgers = LedgerManager(store, self.cluster.bookies, self.cluster.runtime)
        guarded = GuardedMetadataStore(store, Check(GUARD, self.version), self._lost)
        return guarded, ledgers.over(guarded)

    def claim(self) -> None:
        """A new owner is there."""
        self.version = self.cluster.tree.put(GUARD, b"", self.version, None)

    async def open(self) -> ManagedLedger:
        self.claim()
        store, manager = self.manager()
        runtime = self.cluster.runtime
        return await ManagedLedger.open(PATH, manager, store, CONFIG, runtime, self.appends)

    def _lost(self) -> None:
        self.lost += 1


async def closed_by_others(cluster: Cluster, ledger_id: int) -> None:
    """Auto-recovery knows no guards."""
    await cluster.manager().recover(ledger_id)


@pytest.mark.parametrize("held", [0, 1, 2, 3])
def test_a_topic_goes_on_in_another_ledger_when_others_close_its_own(held: int) -> None:
    """``held``: so many bookies have not stored what is under way."""

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        owned = Owned(cluster)
        managed = await owned.open()
        managed.append(b"before", "before")
        await turns()
        for bookie in cluster.all[:held]:
            bookie.held = True
        managed.append(b"under way", "under way")
        await turns(3)
        closing = asyncio.create_task(closed_by_others(cluster, 0))
        await turns()
        for bookie in cluster.all:
            bookie.held = False
            bookie.release_held()
        await closing
        managed.append(b"after", "after")
        await settle(managed)
        assert owned.appends.failed == []
        assert owned.appends.contexts == ["before", "under way", "after"]
        assert [entry for _, entry in await read_all(managed)] == [
            b"before",
            b"under way",
            b"after",
        ]
        assert len(managed.record.ledgers) == 2
        assert not managed.is_fenced
        assert owned.lost == 0

    simulate(main)


def test_who_has_lost_the_topic_stops_when_its_ledger_is_fenced() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        owned = Owned(cluster)
        managed = await owned.open()
        managed.append(b"before", "before")
        await turns()
        owned.claim()
        await closed_by_others(cluster, 0)
        managed.append(b"after", "after")
        await settle(managed)
        assert [context for context, _ in owned.appends.failed] == ["after"]
        assert isinstance(owned.appends.failed[0][1], LedgerFencedError)
        assert managed.is_fenced
        assert owned.lost > 0
        assert sorted(cluster.tree.children("/ledgers")) == ["0"], "it made no ledger"

    simulate(main)


@pytest.mark.parametrize("longer", [False, True])
def test_closing_what_others_have_closed(longer: bool) -> None:
    """``longer``: they found an entry that was never confirmed."""

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        owned = Owned(cluster)
        managed = await owned.open()
        managed.append(b"before", "before")
        await turns()
        if longer:
            cluster.bookies["b1"].put(0, 1, b"found")
        await closed_by_others(cluster, 0)
        if longer:
            with pytest.raises(StorageError):
                await managed.close_ledger()
        else:
            await managed.close_ledger()
        await settle(managed)
        managed.append(b"after", "after")
        await settle(managed)
        found = [entry for _, entry in await read_all(managed)]
        assert found == [b"before", *([b"found"] if longer else []), b"after"]
        assert owned.appends.contexts == ["before", "after"]
        assert owned.appends.recovered == ([(0, 1, 1)] if longer else [])

    simulate(main)


def test_a_recovery_ends_when_the_topic_is_lost_meanwhile() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        owned = Owned(cluster)
        owned.claim()
        _, manager = owned.manager()
        writer = await manager.create(LedgerConfig(3, 3, 2), Writes())
        writer.append([b"a"])
        await turns()
        task = asyncio.create_task(manager.recover(0))
        while not cluster.bookies["b1"].is_fenced(0):
            await turns(1)
        owned.claim()
        with pytest.raises((LedgerFencedError, MetadataError)):
            await task
        assert not cluster.stored().is_closed

    simulate(main)
