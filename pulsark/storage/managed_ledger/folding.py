"""Folding a managed ledger's closed ledgers: its record stays small, however long it lives.

Of the ledgers in the record the newest stay there. As soon as there are twice ``SMALL_RUN``, a run
of that length is folded; of twice as many small runs as make a large one, the older half become
one. A record that is longer, because it was written before there were runs, is folded in large
ones at once.

A run is written before the record names it, and deleted after the record does so no more.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import takewhile
from typing import TYPE_CHECKING

from pulsark.errors import BadVersionError, LedgerFencedError, MetadataError, StorageError
from pulsark.metadata.paths import ledger_runs_path
from pulsark.storage.managed_ledger import ledger_runs
from pulsark.storage.managed_ledger.ledger_runs import (
    FoldedLedgers,
    LedgerInfo,
    LedgerRun,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.runtime import Clock
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.managed_ledger.owned_record import OwnedRecord
    from pulsark.storage.managed_ledger.record import ManagedLedgerRecord

log = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
LOOKS_A_TURN = 16


class Folding:
    """The folding of one managed ledger, which calls it while nothing else changes."""

    def __init__(self, stored: OwnedRecord, manager: LedgerManager, clock: Clock) -> None:
        self._stored = stored
        self._manager = manager
        self._clock = clock
        self._not_before = 0.0

    @property
    def is_due(self) -> bool:
        """Whether there is something to fold."""
        if self._clock.monotonic() < self._not_before:
            return False
        record = self._stored.now
        return _foldable(record) > 0 or _joinable(record) is not None

    async def run(self) -> None:
        """One step. If the store fails it is tried again later; ``LedgerFencedError``."""
        try:
            await self._step()
        except LedgerFencedError:
            raise
        except (MetadataError, StorageError) as error:
            self._not_before = self._clock.monotonic() + RETRY_SECONDS
            log.warning("%s: cannot fold its list of ledgers yet: %s", self._stored.path, error)

    async def _step(self) -> None:
        stored, record = self._stored, self._stored.now
        count = _foldable(record)
        if count:
            infos = record.ledgers[:count]
            run = LedgerRun.of(infos)
            line = run.line(settled=await self._is_settled(infos))
            runs, after = (*stored.folded.runs, run), record.with_folded(count, line)
        else:
            first, number = _joinable(record) or (0, 0)
            lines, all_runs = record.folded[first : first + number], stored.folded.runs
            run = all_runs[first].joined(all_runs[first + 1 : first + number])
            # What was not sealed yet when it was folded most likely is by now.
            pairs = zip(all_runs[first : first + number], lines, strict=True)
            left = [info for one, its in pairs if not its.settled for info in one.infos()]
            line = run.line(settled=not left or await self._is_settled(left))
            runs = (*all_runs[:first], run, *all_runs[first + number :])
            after = record.with_joined(first, number, line)
        await stored.metadata.put(line.path(record.topic_id), run.encode())
        await stored.save(after, FoldedLedgers(runs))
        await self.sweep()

    async def _is_settled(self, infos: Sequence[LedgerInfo]) -> bool:
        """Whether all is in the table, and no bookie keeps any of it."""
        manager = self._manager
        for number, info in enumerate(infos, 1):
            if number % LOOKS_A_TURN == 0:
                await asyncio.sleep(0)
            if await manager.sealed_through(info.ledger_id) < info.entries - 1:
                return False
        for start in range(0, len(infos), LOOKS_A_TURN):
            told = await asyncio.gather(
                *[
                    manager.release(info.ledger_id, info.entries - 1)
                    for info in infos[start : start + LOOKS_A_TURN]
                ],
                return_exceptions=True,
            )
            if any(isinstance(answer, BaseException) for answer in told):
                return False
        return True

    async def sweep(self) -> None:
        """Delete the documents of runs that the record does not name."""
        stored, record = self._stored, self._stored.now
        named = {line.name for line in record.folded}
        parent = ledger_runs_path(record.topic_id)
        for name in await stored.metadata.children(parent):
            if name not in named:
                try:
                    await stored.metadata.delete(f"{parent}/{name}")
                except BadVersionError:
                    continue  # gone already


def _foldable(record: ManagedLedgerRecord) -> int:
    """How many ledgers at the beginning become a run now."""
    small, large = ledger_runs.SMALL_RUN, ledger_runs.LARGE_RUN
    if len(record.ledgers) < 2 * small:
        return 0
    closed = len(list(takewhile(lambda info: not info.open, record.ledgers[:large])))
    most = min(closed, len(record.ledgers) - small)
    return large if most >= large else small if most >= small else 0


def _joinable(record: ManagedLedgerRecord) -> tuple[int, int] | None:
    """Which small runs become a large one now: the first, and their number."""
    small, large = ledger_runs.SMALL_RUN, ledger_runs.LARGE_RUN
    lines, number = record.folded, large // small
    end = len(lines)
    first = end
    while first > 0 and lines[first - 1].ledgers < large:
        first -= 1
    return (first, number) if end - first >= 2 * number else None
