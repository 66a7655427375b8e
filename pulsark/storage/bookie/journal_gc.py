"""Removing segments of the journal that nothing needs any more.

A segment goes when no entry in the index lies in it: all were deleted by tombstone, released to
the table, or copied forward. What the segment said of its ledgers' state is repeated at the
head of every later segment. The removal itself is a record, durable before the file goes, so
that a file that is missing without one is known to be a loss.

A damaged segment may have held anything of the ledgers of its time. It stays, as evidence and
for repair, until the last of those ledgers is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from pulsark.errors import StorageError
from pulsark.runtime import Runtime, Worker, run_in_worker
from pulsark.storage.bookie.accepted_loss import SUFFIX
from pulsark.storage.bookie.index import BookieIndex, Extent, IndexedLedger, SegmentState
from pulsark.storage.bookie.journal_format import segment_name
from pulsark.storage.bookie.segment_reader import read_entries
from pulsark.storage.bookie.segment_window import SegmentFiles

if TYPE_CHECKING:
    from pulsark.storage.bookie.journal_settings import JournalSettings

log = logging.getLogger(__name__)

CopyEntries = Callable[[IndexedLedger, int, list[bytes]], Awaitable[bool]]
"""Appends entries again if the ledger still wants them; false if it was deleted meanwhile."""


class SegmentCollector:
    """Looks for segments to remove, and empties and removes them one at a time."""

    def __init__(
        self,
        index: BookieIndex,
        journal_dir: str,
        settings: JournalSettings,
        runtime: Runtime,
        copy_entries: CopyEntries,
        record_removal: Callable[[int], Awaitable[None]],
        removed: Callable[[int], Awaitable[None]],
    ) -> None:
        self._index = index
        self._settings = settings
        self._disk = runtime.disk
        self._files = SegmentFiles(runtime.disk, journal_dir)
        self._copy_entries = copy_entries
        self._record_removal = record_removal
        self._removed = removed
        self.must_go_through = -1
        """Segments up to this one are to be emptied whatever is live in them."""
        self._unreadable: set[int] = set()
        """Segments that could not be emptied because entries in them are corrupt."""

    def candidate(self, current: int) -> SegmentState | None:
        """A segment to remove now, other than the current one; those without entries first."""
        closed = [
            s
            for s in self._index.segments.values()
            if s.segment_id != current and s.segment_id not in self._unreadable
        ]
        for segment in sorted(closed, key=lambda s: s.extents):
            if segment.damaged and self._damage_matters(segment):
                continue
            if segment.extents == 0 or self._mostly_dead(segment):
                return segment
        return None

    def _mostly_dead(self, segment: SegmentState) -> bool:
        if segment.damaged:
            return False
        if segment.segment_id <= self.must_go_through:
            return True
        settings = self._settings
        # Where segments are small, one that is full is not small beside them: it would be
        # copied into the next one, and that into the one after it, for ever.
        few = min(settings.compact_bytes, settings.journal_max_size // 4)
        return segment.live < max(few, settings.compact_below * segment.size)

    def _damage_matters(self, segment: SegmentState) -> bool:
        return any(0 <= ledger_id <= segment.damage_bound for ledger_id in self._index.ledgers)

    async def collect(self, segment: SegmentState, worker: Worker) -> None:
        """Empty and remove one segment. Raises ``StorageError`` when the journal fails."""
        if segment.extents and not await self._empty(segment, worker):
            return
        segment_id = segment.segment_id
        await self._record_removal(segment_id)
        self._files.drop(segment_id)
        path = self._files.path(segment_id)
        try:
            await run_in_worker(worker, lambda: self._disk.remove(f"{path}{SUFFIX}"))
            await run_in_worker(worker, lambda: self._disk.remove(path))
        except OSError as e:
            # The next start finds the record of the removal and tries again.
            log.warning("cannot delete journal segment %s: %s", path, e)
            return
        await self._removed(segment_id)

    def close(self) -> None:
        """Close files."""
        self._files.close()

    async def _empty(self, segment: SegmentState, worker: Worker) -> bool:
        """Copy all entries of a segment forward; false if some cannot be read."""
        for turn, ledger_id in enumerate(list(self._index.ledgers)):
            if turn and turn % self._settings.ledgers_a_turn == 0:
                await asyncio.sleep(0)
            state = self._index.ledgers.get(ledger_id)
            if state is None or state.words is None:
                continue
            if segment.segment_id not in state.words[2::4]:
                continue
            here = [s for s in state.extents() if s.segment_id == segment.segment_id]
            for extent in here:
                if not await self._copy(state, extent, worker):
                    self._unreadable.add(segment.segment_id)
                    return False
        return segment.extents == 0

    async def _copy(self, state: IndexedLedger, extent: Extent, worker: Worker) -> bool:
        first = extent.first
        while first <= extent.last:
            rest = [extent._replace(first=first)]
            job = partial(
                read_entries,
                self._files,
                self._index.epochs(rest),
                state.ledger_id,
                rest,
                self._settings.copy_bytes,
            )
            try:
                read = await run_in_worker(worker, job)
            except OSError as e:
                log.error("journal segment %s: %s", segment_name(extent.segment_id), e)
                return False
            if not read.entries:
                log.error(
                    "entry %d:%d in %s is corrupt: keeping the segment",
                    state.ledger_id,
                    first,
                    segment_name(extent.segment_id),
                )
                return False
            if not await self._copy_entries(state, first, [p for _, p in read.entries]):
                return True
            first = read.entries[-1][0] + 1
        return True


async def collect_all(
    collector: SegmentCollector, current: Callable[[], int], worker: Worker
) -> None:
    """Remove segments until there is none to remove, or the journal takes no more."""
    tried: set[int] = set()
    while (segment := collector.candidate(current())) is not None:
        if segment.segment_id in tried:
            return
        tried.add(segment.segment_id)
        try:
            await collector.collect(segment, worker)
        except StorageError as e:
            log.warning(
                "cannot compact journal segment %s: %s", segment_name(segment.segment_id), e
            )
            return
