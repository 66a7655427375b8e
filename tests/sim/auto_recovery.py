"""BookKeeper's auto-recovery, beside writers of which it knows nothing.

It closes ledgers that are written, and has no guard. It gives a bookie's place in an ensemble to
another one, which has copies by then: in every ensemble of a closed ledger, and in every one but
the last of an open ledger.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from pulsark.errors import MetadataError, StorageError
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.runtime import Runtime
from pulsark.storage.ledger import decisions
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.ledger.metadata import LedgerMetadata
from pulsark.storage.ledger.store import MetadataLedgerStore
from tests.sim.ledger_ends import WatchedTree
from tests.sim.links import LinkedBookie
from tests.support.memory_bookie import MemoryBookie


class AutoRecovery:
    """One that does what comes to its mind."""

    def __init__(
        self,
        tree: WatchedTree,
        bookies: Mapping[str, MemoryBookie],
        links: Mapping[str, LinkedBookie],
        runtime: Runtime,
        rng: random.Random,
    ) -> None:
        self._tree = tree
        self._bookies = bookies
        store = MemoryMetadataStore(tree)
        self._store = MetadataLedgerStore(store)
        self._manager = LedgerManager(store, links, runtime)
        self._rng = rng

    async def run(self) -> None:
        """Close or repair some ledger. It may fail, and then somebody else comes."""
        ids = [int(name) for name in self._tree.children("/ledgers")]
        if not ids:
            return
        ledger_id = self._rng.choice(ids[-2:])
        try:
            if self._rng.random() < 0.2:
                await self._manager.recover(ledger_id)
                return
            changed = [each for each in ids if await self._is_changed(each)]
            await self._repair(self._rng.choice(changed or [ledger_id]))
        except (StorageError, MetadataError):
            pass

    async def _is_changed(self, ledger_id: int) -> bool:
        """Whether a ledger is open and has earlier ensembles."""
        stored = await self._store.get(ledger_id)
        if stored is None or stored.metadata.is_closed:
            return False
        return len(stored.metadata.ensembles) > 1

    async def _repair(self, ledger_id: int) -> None:
        stored = await self._store.get(ledger_id)
        if stored is None:
            return
        metadata = stored.metadata
        fixed = metadata.ensembles if metadata.is_closed else metadata.ensembles[:-1]
        if not fixed:
            return
        ensemble = self._rng.choice(fixed)
        lost = self._rng.choice(ensemble.bookies)
        was = self._tree.repaired.get((ledger_id, ensemble.first_entry_id), set())
        others = sorted(self._bookies.keys() - set(ensemble.bookies) - was)
        if not others:
            return
        copy = self._rng.choice(others)
        if not self._copied(metadata, ensemble.first_entry_id, lost, copy):
            return
        self._tree.repaired.setdefault((ledger_id, ensemble.first_entry_id), set()).add(lost)
        await self._store.update(
            stored, decisions.replace_lost(ensemble.first_entry_id, lost, copy)
        )

    def _copied(self, metadata: LedgerMetadata, first: int, lost: str, copy: str) -> bool:
        """Whether another bookie has all that one is to have of an ensemble."""
        ensemble, end = metadata.ensemble_at(first)
        last = min(end, metadata.last_entry_id) if metadata.is_closed else end
        for entry_id in range(first, last + 1):
            holders = metadata.holders(ensemble, entry_id)
            if lost not in holders:
                continue
            found = [self._bookies[n].entries(metadata.ledger_id) for n in holders]
            entries = [each[entry_id] for each in found if entry_id in each]
            if not entries:
                return False
            self._bookies[copy].put(metadata.ledger_id, entry_id, entries[0])
        return True
