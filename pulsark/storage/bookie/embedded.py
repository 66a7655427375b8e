"""A bookie in this process: a journal, an index, and reads from the journal's segments.

All state changes happen on the event loop and in the order of the journal. A fence takes hold
in memory before it is durable, so that no append slips in behind it; everything else takes
effect when it is durable.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.errors import (
    ConfigError,
    LedgerFencedError,
    NoSuchLedgerError,
    StorageError,
)
from pulsark.runtime import Done, Runtime, run_in_worker
from pulsark.storage.bookie.bookie import EntryRun, LedgerTail
from pulsark.storage.bookie.entry_reads import EntryReads
from pulsark.storage.bookie.identity import (
    Commission,
    check_identity,
    commission,
)
from pulsark.storage.bookie.index import (
    BookieIndex,
    IndexedLedger,
    SegmentState,
)
from pulsark.storage.bookie.index_checkpoint import Checkpointer, JournalOffset
from pulsark.storage.bookie.journal import Journal, JournalRecord, WrittenGroup
from pulsark.storage.bookie.journal_end import JournalEnd
from pulsark.storage.bookie.journal_format import Kind
from pulsark.storage.bookie.journal_gc import SegmentCollector
from pulsark.storage.bookie.journal_recovery import (
    RecoveredJournal,
    RecoveryReport,
    recover_journal,
)
from pulsark.storage.bookie.reached_note import ReachedNote
from pulsark.storage.bookie.segment_scan import UnknownVersionError
from pulsark.storage.bookie.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from pulsark.storage.bookie.journal_excerpt import JournalExcerpt
    from pulsark.storage.bookie.journal_settings import JournalSettings

log = logging.getLogger(__name__)


class EmbeddedBookie:
    """Implements ``bookie.Bookie``. Make one with ``open``."""

    is_away = False
    """It is in this process."""

    def __init__(
        self,
        commissioned: Commission,
        journal_dir: str,
        ledger_dir: str,
        settings: JournalSettings,
        runtime: Runtime,
        recovered: RecoveredJournal,
    ) -> None:
        identity = self._identity = commissioned.identity
        self.bookie_id = identity.bookie_id
        self._in_service = commissioned.in_service
        self._journal_dir = journal_dir
        self._ledger_dir = ledger_dir
        self._runtime = runtime
        self._index: BookieIndex = recovered.index
        self.recovery: RecoveryReport = recovered.report
        """What the last start found."""
        self._deleting: set[int] = set()
        self._in_doubt_through = self._index.max_ledger_id if self._index.damaged else -1
        self._reads = EntryReads(identity.bookie_id, journal_dir, self._index, runtime)
        self._closing = False
        self._journal = Journal(
            journal_dir,
            identity.instance_id,
            recovered.next_segment_id,
            settings,
            runtime,
            self._index.snapshot,
            lambda: self._index.max_ledger_id,
            self._on_written,
            self._on_stopped,
            ReachedNote(runtime.disk, runtime.clock, ledger_dir, identity.instance_id),
        )
        self._listeners: list[Callable[[StorageError], None]] = []
        self._end = JournalEnd(self._journal, self._index)
        checkpointer = Checkpointer(
            self._index, ledger_dir, identity.instance_id, settings, runtime
        )
        collector = SegmentCollector(
            self._index,
            journal_dir,
            settings,
            runtime,
            self._copy_entries,
            lambda segment_id: self._write(Kind.SEGMENT_REMOVED, -1, segment_id),
            self._segment_removed,
        )
        self._upkeep = Upkeep(checkpointer, collector, runtime)

    @classmethod
    async def open(
        cls,
        bookie_id: str,
        journal_dir: str,
        ledger_dir: str,
        settings: JournalSettings,
        runtime: Runtime,
        store_id: str = "",
    ) -> EmbeddedBookie:
        """``recovered``, and ``begin``."""
        bookie = await cls.recovered(
            bookie_id, journal_dir, ledger_dir, settings, runtime, store_id
        )
        await bookie.begin()
        return bookie

    @classmethod
    async def recovered(
        cls,
        bookie_id: str,
        journal_dir: str,
        ledger_dir: str,
        settings: JournalSettings,
        runtime: Runtime,
        store_id: str = "",
    ) -> EmbeddedBookie:
        """Recover the journal. Until ``begin`` nothing is added to it, and nothing can be read.

        ``store_id`` is the identity of the metadata store that it is a bookie of from now on.
        Raises ``ConfigError`` when the directories are not this bookie's, ``StorageError`` when
        the disk fails.
        """
        worker = runtime.new_worker("bookie-open")
        try:
            commissioned, recovered = await run_in_worker(
                worker, lambda: _recover(bookie_id, journal_dir, ledger_dir, runtime, store_id)
            )
            report = recovered.report
            harmed = report.damaged or report.corrupt_entries
            level = logging.ERROR if harmed else logging.INFO
            todo = "; pulsark doctor --data-dir DIR says what to do" if harmed else ""
            log.log(level, "bookie %s: %s%s", bookie_id, report, todo)
            return cls(commissioned, journal_dir, ledger_dir, settings, runtime, recovered)
        except OSError as e:
            raise StorageError(f"bookie {bookie_id} cannot start: {e}") from e
        finally:
            worker.close()

    async def begin(self) -> None:
        """Begin a new segment, and be in service. ``StorageError`` if the disk fails."""
        try:
            written = await self._journal.start()
            self._note_segment(written)
            reached = JournalOffset(written.segment_id, written.segment_size)
            checkpointer = self._upkeep.checkpointer
            checkpointer.journal_grew(reached, self.recovery.bytes_read, self.recovery.records)
            if not self._in_service:
                disk, ledger_dir = self._runtime.disk, self._ledger_dir
                await run_in_worker(
                    self._reads.worker, lambda: commission(disk, self._identity, ledger_dir)
                )
        except BaseException as e:
            self.leave()
            if isinstance(e, OSError):
                raise StorageError(f"bookie {self.bookie_id} cannot start: {e}") from e
            raise

    async def close(self) -> None:
        """Finish what is pending, then stop. Reads end too."""
        self._closing = self._reads.is_closed = self._end.is_closing = True
        await self._upkeep.cancel()
        await self._journal.drain()
        self._end.flush_mark()
        await self._journal.drain()
        self._end.close()
        await self._journal.drain()
        if self._journal.failed is None:
            await self._upkeep.at_close()
        self.leave()

    def leave(self) -> None:
        """Stop without a trace: of a bookie that has not begun the directories stay as they are."""
        self._closing = True
        self._end.stop()
        self._journal.close()
        self._reads.close()
        self._upkeep.close()

    @property
    def instance_id(self) -> bytes:
        """Chosen at random when the directories were made: a wiped bookie has another."""
        return self._identity.instance_id

    @property
    def pending_bytes(self) -> int:
        """Bytes accepted and not yet durable, for the back-pressure on callers that append."""
        return self._journal.pending_bytes

    @property
    def failed(self) -> StorageError | None:
        """Why this bookie has stopped taking writes for good, if it has."""
        return self._journal.failed

    def when_failed(self, listener: Callable[[StorageError], None]) -> None:
        """Call it once, when the disk has failed and nothing can be written any more."""
        self._listeners.append(listener)

    def _on_stopped(self, error: StorageError) -> None:
        log.error(
            "bookie %s takes no writes until it is restarted, because it is unknown what of the "
            "last ones is on the disk of %s: %s",
            self.bookie_id,
            self._journal_dir,
            error,
        )
        for listener in self._listeners:
            listener(error)

    # The metadata store's mark.

    @property
    def mark(self) -> int:
        """The newest mark of the metadata store that is durable here."""
        return self._index.mark

    @property
    def max_ledger_id(self) -> int:
        """Highest ledger id seen in the whole life of the journal."""
        return self._index.max_ledger_id

    def note_mark(self, mark: int) -> None:
        """Keep a mark of the metadata store, ahead of everything that is asked for from now on.

        It goes with the next group of the journal, or alone if there is none for a while. So
        what the journal holds never comes from a later state of the metadata than its mark.
        """
        self._end.note_mark(mark)

    def append(
        self, run: EntryRun, done: Done, *, recovery: bool = False, reserve: bool = False
    ) -> None:
        record = JournalRecord(
            Kind.ENTRIES,
            run.ledger_id,
            run.first_entry_id,
            run.last_confirmed,
            run.payloads,
            reserve,
            done,
            run.confirmed_bytes,
        )
        # As in ``add``: a call less for each run of a broker in this process.
        record.error = self._refusal(record, recovery)
        self._journal.add(record)

    def add(self, record: JournalRecord, *, recovery: bool) -> None:
        """``append`` of a run that is a record already."""
        record.error = self._refusal(record, recovery)
        self._journal.add(record)

    async def ready(self) -> None:
        """It always is."""

    def flush(self) -> None:
        self._journal.flush()

    def _refusal(self, record: JournalRecord, recovery: bool) -> StorageError | None:
        """Why it cannot be taken now, if so. What is taken counts in the journal's room."""
        ledger_id = record.ledger_id
        state = self._index.ledgers.get(ledger_id)
        if state is not None and state.fenced and not recovery:
            return LedgerFencedError(f"ledger {ledger_id} is fenced")
        if ledger_id in self._deleting or ledger_id in self._index.tombstones:
            return NoSuchLedgerError(f"ledger {ledger_id} was deleted")
        if ledger_id <= self._in_doubt_through and not recovery:
            return LedgerFencedError(
                f"ledger {ledger_id} may have been fenced in a damaged part of the journal"
            )
        return self._journal.refuses(record.size, record.reserve, last=recovery)

    async def tail(self, ledger_id: int, *, fence: bool) -> LedgerTail:
        if fence and ledger_id not in self._index.tombstones:
            self._index.state(ledger_id).fenced = True
            await self._write(Kind.FENCE, ledger_id)
        state = self._index.ledgers.get(ledger_id)
        if state is None:
            return LedgerTail(-1, -1)
        return LedgerTail(state.last_confirmed, state.last_entry, state.confirmed_bytes)

    async def release(self, ledger_id: int, through_entry_id: int) -> None:
        self._journal.roll_if_low()
        await self._write(Kind.RELEASE, ledger_id, through_entry_id)

    async def delete(self, ledger_id: int) -> None:
        self._deleting.add(ledger_id)
        self._journal.roll_if_low()
        try:
            await self._write(Kind.DELETE, ledger_id)
        finally:
            self._deleting.discard(ledger_id)

    async def recycle(self) -> int:
        through, index = self._upkeep.segment_id, self._index
        self._journal.roll()
        # With a record that says what is known already the next segment begins.
        if index.ledgers:
            ledger_id, state = next(iter(index.ledgers.items()))
            await self._write(Kind.RELEASE, ledger_id, state.released)
        elif index.tombstones:
            await self._write(Kind.DELETE, next(iter(index.tombstones)))
        else:
            through -= 1
        await self._upkeep.collect_through(through)
        return sum(segment_id <= through for segment_id in self._index.segments)

    async def _write(
        self, kind: Kind, ledger_id: int, first: int = 0, payloads: Sequence[bytes] = ()
    ) -> None:
        """Wait for a record of the bookie's own to be durable and applied."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(None)

        record = JournalRecord(kind, ledger_id, first, -1, payloads, True, done)
        record.error = self._journal.refuses(record.size, True, last=True)
        self._journal.add(record)
        await future

    def _on_written(self, written: WrittenGroup, group: list[JournalRecord]) -> None:
        """A group is durable: apply it, in order."""
        self._note_segment(written)
        size = 0
        index, segment_id = self._index, written.segment_id
        for r in group:
            if r.error is not None:
                continue
            size += r.size
            if r.kind == Kind.ENTRIES:
                index.add(
                    r.ledger_id, r.first, r.count, r.value, segment_id, r.offset, r.size, r.total
                )
                continue
            index.apply(r.kind, r.ledger_id, r.first, segment_id)
            self._upkeep.recorded(r)
        self._upkeep.checkpointer.journal_grew(
            JournalOffset(segment_id, written.segment_size), size, len(group)
        )
        self._end.grew(group)
        if not self._closing:
            self._upkeep.start_if_due()

    def _note_segment(self, written: WrittenGroup) -> None:
        segment = self._index.segments.get(written.segment_id)
        if segment is None:
            segment = SegmentState(written.segment_id, written.epoch, 0)
            self._index.segments[written.segment_id] = segment
            self._upkeep.began(written.segment_id)
        segment.size = written.segment_size

    async def _copy_entries(self, state: IndexedLedger, first: int, payloads: list[bytes]) -> bool:
        """Append entries again, ahead of any tombstone: the order of the journal decides."""
        ledger_id = state.ledger_id
        if self._index.ledgers.get(ledger_id) is not state or ledger_id in self._deleting:
            return False
        await self._write(Kind.ENTRIES, ledger_id, first, payloads)
        return True

    async def _segment_removed(self, segment_id: int) -> None:
        """The file is unlinked: no reader keeps it open."""
        self._upkeep.checkpointer.removing.discard(segment_id)
        self._journal.look_for_room()
        await self._reads.forget(segment_id)

    def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, max_bytes: int
    ) -> Coroutine[Any, Any, list[tuple[int, bytes]]]:
        return self._reads.read(ledger_id, first_entry_id, last_entry_id, max_bytes)

    async def excerpt(self, ledger_id: int, first: int, last: int) -> JournalExcerpt | None:
        return self._reads.excerpt(ledger_id, first, last)


def _recover(
    bookie_id: str, journal_dir: str, ledger_dir: str, runtime: Runtime, store_id: str
) -> tuple[Commission, RecoveredJournal]:
    commissioned = check_identity(runtime, bookie_id, journal_dir, ledger_dir, store_id)
    identity = commissioned.identity
    try:
        recovered = recover_journal(runtime.disk, journal_dir, ledger_dir, identity.instance_id)
    except UnknownVersionError as e:
        raise ConfigError(f"the journal of bookie {bookie_id} is from a later version: {e}") from e
    found = recovered.instance_id
    if found is not None and found != identity.instance_id:
        raise ConfigError(f"the segments in {journal_dir} belong to another bookie ({found.hex()})")
    if not commissioned.in_service and recovered.index.ledgers:
        raise ConfigError(
            f"{ledger_dir} is new but {journal_dir} holds ledgers of bookie {bookie_id}: "
            "mount the right ledger directory"
        )
    return commissioned, recovered
