"""What a bookie does beside its work: checkpoints of its index, and garbage of its journal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.storage.bookie.index import MARK_LEDGER
from pulsark.storage.bookie.journal_format import Kind
from pulsark.storage.bookie.journal_gc import SegmentCollector, collect_all
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from pulsark.runtime import Runtime, Worker
    from pulsark.storage.bookie.index_checkpoint import Checkpointer
    from pulsark.storage.bookie.journal import JournalRecord


class Upkeep:
    """The upkeep of one bookie, in one task and one thread, which starts with the first work."""

    def __init__(
        self, checkpointer: Checkpointer, collector: SegmentCollector, runtime: Runtime
    ) -> None:
        self.checkpointer = checkpointer
        self.must_collect = False
        """There may be segments that no ledger needs."""
        self.segment_id = 0
        """The segment that is being written."""
        self._collector = collector
        self._runtime = runtime
        self._thread: Worker | None = None
        self._task: asyncio.Task[None] | None = None

    def began(self, segment_id: int) -> None:
        """A segment was begun. Those before it may be emptied now."""
        self.must_collect = self.segment_id > 0
        self.segment_id = segment_id

    def recorded(self, record: JournalRecord) -> None:
        """A record without entries is durable. It may leave a segment without a use."""
        if record.kind == Kind.SEGMENT_REMOVED:
            self.checkpointer.removing.add(record.first)
        elif record.kind in (Kind.RELEASE, Kind.DELETE) and record.ledger_id != MARK_LEDGER:
            self.must_collect = True

    def start_if_due(self) -> None:
        """Begin, if there is something to do and nothing is being done."""
        if self._task is None and (self.must_collect or self.checkpointer.due):
            self._task = unattended(self._run(), "upkeep of the journal")

    async def collect_through(self, segment_id: int) -> None:
        """Empty all segments up to this one, as far as that is possible; returns then."""
        self._collector.must_go_through = max(segment_id, self._collector.must_go_through)
        self.must_collect = True
        self.start_if_due()
        while self._task is not None:
            await asyncio.wait([self._task])
            await asyncio.sleep(0)

    async def cancel(self) -> None:
        """Leave what is being done; it is done after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def at_close(self) -> None:
        """Make the next start quicker, if that is worth it."""
        if self.checkpointer.worth_at_close:
            await self.checkpointer.write(self._worker())

    def close(self) -> None:
        """End the thread, and close files."""
        if self._thread is not None:
            self._thread.close()
        self._collector.close()

    async def _run(self) -> None:
        worker = self._worker()
        try:
            while self.checkpointer.due or self.must_collect:
                if self.checkpointer.due:
                    await self.checkpointer.write(worker)
                if self.must_collect:
                    self.must_collect = False
                    await collect_all(self._collector, lambda: self.segment_id, worker)
        finally:
            self._task = None

    def _worker(self) -> Worker:
        if self._thread is None:
            self._thread = self._runtime.new_worker("bookie-upkeep")
        return self._thread
