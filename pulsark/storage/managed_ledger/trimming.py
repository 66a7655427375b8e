"""Ledgers leave a managed ledger: first its record, then the bookies.

A ledger that the record no longer lists stays in ``removing`` until every bookie was told.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from pulsark.errors import PulsarkError
from pulsark.storage.managed_ledger.deletion import delete_ledgers
from pulsark.tasks import unattended
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.managed_ledger.changes import Changes
    from pulsark.storage.managed_ledger.folding import Folding
    from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
    from pulsark.storage.managed_ledger.owned_record import OwnedRecord

log = logging.getLogger(__name__)

LEDGERS_A_TRIM = 1000
"""Ledgers that are deleted at a time."""

REMOVING_MAX = 10_000
"""Ledgers that may wait for bookies to be told; above it nothing more is trimmed."""


class Trimming:
    """That of one managed ledger. Bookies are not told yet of a removed ledger that
    ``is_used``."""

    def __init__(
        self,
        stored: OwnedRecord,
        manager: LedgerManager,
        changes: Changes,
        folding: Folding,
        is_used: Callable[[int], bool],
    ) -> None:
        self._stored = stored
        self._manager = manager
        self._changes = changes
        self._folding = folding
        self._is_used = is_used
        self._sweeper: asyncio.Task[None] | None = None

    async def trim(self, ledgers: Callable[[], Iterator[LedgerInfo]], before: Position) -> None:
        """Remove the closed ledgers that end before a position; they are gone when it returns.

        A bookie that cannot be told now is told later.
        """
        more = True
        while more:
            more = await self._changes.order(lambda: self._step(ledgers(), before), terminated=True)
            await self._sweep()
            more = more and len(self._stored.now.removing) < REMOVING_MAX

    async def _step(self, ledgers: Iterator[LedgerInfo], before: Position) -> bool:
        """One step; whether there is more to be removed."""
        record = self._stored.now
        most = min(REMOVING_MAX - len(record.removing), LEDGERS_A_TRIM)
        going = takewhile(lambda i: not i.open and _end(i) < before, ledgers)
        victims = list(islice(going, max(most, 0)))
        more = next(going, None) is not None
        if victims:
            after = record.with_trimmed(victims)
            await self._stored.save(after, self._stored.folded.behind(after.trimmed.ledger_id))
            if len(after.folded) < len(record.folded):
                await self._folding.sweep()
        return more

    def start_sweep(self) -> None:
        """Tell bookies of what was removed, if there is something to be told."""
        if self._stored.now.removing and self._sweeper is None:
            self._sweeper = unattended(self._sweep_aside(), f"{self._stored.path}: sweeping")

    async def stop(self) -> None:
        """Stop telling bookies."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])

    async def _sweep_aside(self) -> None:
        try:
            await self._sweep()
        except PulsarkError as e:
            log.warning("%s: cannot delete leftover files yet: %s", self._stored.path, e)
        finally:
            self._sweeper = None

    async def _sweep(self) -> None:
        """Remove the ledgers that are no longer part of the topic."""
        stored = self._stored
        if not stored.is_sure and stored.now.removing:
            await self._changes.order(stored.claim, terminated=True)
        removing = [i for i in stored.now.removing if not self._is_used(i)]
        gone = await delete_ledgers(removing, self._manager)
        if gone and self._changes.may_change(terminated=True):
            await self._changes.order(lambda: self._forget(gone), terminated=True)

    async def _forget(self, gone: set[int]) -> None:
        record = self._stored.now
        rest = tuple(i for i in record.removing if i not in gone)
        await self._stored.save(replace(record, removing=rest))


def _end(info: LedgerInfo) -> Position:
    return Position(info.ledger_id, info.entries - 1)
