"""A bookie in this process: a journal, an index, and reads from the journal's segments.

All state changes happen on the event loop and in the order of the journal. A fence takes hold
in memory before it is durable, so that no append slips in behind it; everything else takes
effect when it is durable.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial

from pulsark.errors import (
    ConfigError,
    CorruptEntryError,
    EntrySealedError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
)
from pulsark.limits import JOURNAL_END_SECONDS, METADATA_MARK_SECONDS
from pulsark.runtime import Done, Runtime, Worker, run_in_worker
from pulsark.storage.bookie import EntryRun, LedgerTail
from pulsark.storage.bookie_index import (
    MARK_LEDGER,
    BookieIndex,
    LedgerState,
    SegmentState,
    Stretch,
)
from pulsark.storage.bookie_index_checkpoint import Place
from pulsark.storage.bookie_index_checkpointer import Checkpointer
from pulsark.storage.embedded_bookie_identity import (
    Commission,
    Identity,
    check_identity,
    commission,
)
from pulsark.storage.journal import Journal, JournalRecord, WrittenGroup
from pulsark.storage.journal_excerpt import EXCERPT_BYTES, JournalExcerpt
from pulsark.storage.journal_format import Kind
from pulsark.storage.journal_gc import SegmentCollector, collect_all
from pulsark.storage.journal_recovery import RecoveredJournal, RecoveryReport, recover_journal
from pulsark.storage.journal_settings import JournalSettings
from pulsark.storage.segment_reader import EntryRead, read_entries
from pulsark.storage.segment_scan import UnknownVersionError
from pulsark.storage.segment_window import SegmentFiles

log = logging.getLogger(__name__)


class EmbeddedBookie:
    """Implements ``bookie.Bookie``. Make one with ``open``."""

    def __init__(
        self,
        identity: Identity,
        journal_dir: str,
        ledger_dir: str,
        settings: JournalSettings,
        runtime: Runtime,
        recovered: RecoveredJournal,
    ) -> None:
        self._identity = identity
        self._journal_dir = journal_dir
        self._runtime = runtime
        self._index: BookieIndex = recovered.index
        self.recovery: RecoveryReport = recovered.report
        """What the last start found."""
        self._deleting: set[int] = set()
        self._in_doubt_through = self._index.max_ledger_id if self._index.damaged else -1
        self._removing: set[int] = set()
        """Segments whose removal is durable while their file may still be there."""
        self._segment_id = 0
        """The segment that is being written."""
        self._files = SegmentFiles(runtime.disk, journal_dir)
        self._reader = runtime.new_worker("bookie-read")
        self._upkeep_worker: Worker | None = None
        self._upkeep: asyncio.Task[None] | None = None
        self._must_collect = False
        self._closing = False
        self._mark_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self._end_is_open = False
        """Whether the journal ends with a group that a reader could not miss if it rotted."""
        self._groups = 0
        """Groups written, to see whether there were more."""
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
        )
        self._listeners: list[Callable[[StorageError], None]] = []
        self._checkpointer = Checkpointer(
            self._index, ledger_dir, identity.instance_id, self._removing, settings, runtime
        )
        self._collector = SegmentCollector(
            self._index,
            journal_dir,
            settings,
            runtime,
            self._copy_entries,
            lambda segment_id: self._write(Kind.SEGMENT_REMOVED, -1, segment_id),
            self._segment_removed,
        )

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
        """Recover the journal and begin a new segment.

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
            bookie = cls(
                commissioned.identity, journal_dir, ledger_dir, settings, runtime, recovered
            )
            try:
                await bookie._begin()
                if not commissioned.in_service:
                    await run_in_worker(
                        worker, lambda: commission(runtime.disk, commissioned.identity, ledger_dir)
                    )
            except BaseException:
                bookie._stop()
                raise
        except OSError as e:
            raise StorageError(f"bookie {bookie_id} cannot start: {e}") from e
        finally:
            worker.close()
        return bookie

    async def _begin(self) -> None:
        written = await self._journal.start()
        self._note_segment(written)
        place = Place(written.segment_id, written.segment_size)
        self._checkpointer.journal_grew(place, self.recovery.bytes_read, self.recovery.records)

    async def close(self) -> None:
        """Finish what is pending, then stop. Reads end too."""
        self._closing = True
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait([self._upkeep])
        await self._journal.drain()
        self._flush_mark()
        await self._journal.drain()
        self._close_end()
        await self._journal.drain()
        if self._checkpointer.worth_at_close and self._journal.failed is None:
            await self._checkpointer.write(self._worker_for_upkeep())
        self._stop()

    def _stop(self) -> None:
        self._closing = True
        for timer in (self._mark_timer, self._end_timer):
            if timer is not None:
                timer.cancel()
        self._journal.close()
        self._reader.close()
        if self._upkeep_worker is not None:
            self._upkeep_worker.close()
        self._files.close()
        self._collector.close()

    @property
    def instance_id(self) -> bytes:
        """Chosen at random when the directories were made: a wiped bookie has another."""
        return self._identity.instance_id

    @property
    def bookie_id(self) -> str:
        return self._identity.bookie_id

    @property
    def pending_bytes(self) -> int:
        """Bytes accepted and not yet durable, for the back-pressure of whoever appends."""
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
            "bookie %s takes no writes until it is restarted, because nobody knows what of the "
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
        if self._closing:
            return
        record = JournalRecord(Kind.RELEASE, MARK_LEDGER, mark, -1, (), True, lambda error: None)
        self._journal.ride(record)
        if self._mark_timer is None:
            loop = asyncio.get_running_loop()
            self._mark_timer = loop.call_later(METADATA_MARK_SECONDS, self._flush_mark)

    def _flush_mark(self) -> None:
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        self._journal.flush_rider()

    # The end of the journal.

    def _look_at_end(self, groups: int) -> None:
        """Close the end if nothing came since there were so many groups."""
        self._end_timer = None
        if self._groups == groups:
            self._close_end()
        elif self._end_is_open and not self._closing:
            self._watch_end()

    def _watch_end(self) -> None:
        loop = asyncio.get_running_loop()
        self._end_timer = loop.call_later(JOURNAL_END_SECONDS, self._look_at_end, self._groups)

    def _close_end(self) -> None:
        """Write a small group that says what is known, so that the last one has one behind it.

        If that rots, nothing is lost; and if the one before it rots, it is not a torn tail.
        """
        if self._end_is_open and self.failed is None:
            mark = self._index.mark
            record = JournalRecord(
                Kind.RELEASE, MARK_LEDGER, mark, -1, (), True, lambda error: None
            )
            record.error = self._journal.refuses(record.size, True)
            self._journal.add(record)

    # Writes.

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
        record.error = self._refusal(run.ledger_id, recovery)
        if record.error is None:
            record.error = self._journal.refuses(record.size, reserve)
        self._journal.add(record)

    def flush(self) -> None:
        self._journal.flush()

    def _refusal(self, ledger_id: int, recovery: bool) -> StorageError | None:
        state = self._index.ledgers.get(ledger_id)
        if state is not None and state.fenced and not recovery:
            return LedgerFencedError(f"ledger {ledger_id} is fenced")
        if ledger_id in self._deleting or ledger_id in self._index.tombstones:
            return NoSuchLedgerError(f"ledger {ledger_id} was deleted")
        if ledger_id <= self._in_doubt_through and not recovery:
            return LedgerFencedError(
                f"ledger {ledger_id} may have been fenced in a damaged part of the journal"
            )
        return None

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
        through, index = self._segment_id, self._index
        self._journal.roll()
        # With a record that says what is known already the next segment begins.
        if index.ledgers:
            ledger_id, state = next(iter(index.ledgers.items()))
            await self._write(Kind.RELEASE, ledger_id, state.released)
        elif index.tombstones:
            await self._write(Kind.DELETE, next(iter(index.tombstones)))
        else:
            through -= 1
        self._collector.must_go_through = max(through, self._collector.must_go_through)
        self._must_collect = True
        if self._upkeep is None:
            self._upkeep = asyncio.get_running_loop().create_task(self._run_upkeep())
        while self._upkeep is not None:
            await asyncio.wait([self._upkeep])
            await asyncio.sleep(0)
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
        record.error = self._journal.refuses(record.size, True)
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
            self._apply_state(r, segment_id)
        self._checkpointer.journal_grew(Place(segment_id, written.segment_size), size, len(group))
        self._groups += 1
        self._end_is_open = any(record.ledger_id != MARK_LEDGER for record in group)
        if self._end_is_open and self._end_timer is None and not self._closing:
            self._watch_end()
        due = self._must_collect or self._checkpointer.due
        if due and self._upkeep is None and not self._closing:
            self._upkeep = asyncio.get_running_loop().create_task(self._run_upkeep())

    def _apply_state(self, record: JournalRecord, segment_id: int) -> None:
        index = self._index
        if record.kind == Kind.FENCE:
            index.fence(record.ledger_id)
        elif record.kind == Kind.RELEASE:
            index.release(record.ledger_id, record.first)
            self._must_collect = self._must_collect or record.ledger_id != MARK_LEDGER
        elif record.kind == Kind.DELETE:
            index.delete(record.ledger_id, segment_id)
            self._must_collect = True
        elif record.kind == Kind.SEGMENT_REMOVED:
            index.segment_removed(record.first)
            self._removing.add(record.first)

    def _note_segment(self, written: WrittenGroup) -> None:
        segment = self._index.segments.get(written.segment_id)
        if segment is None:
            segment = SegmentState(written.segment_id, written.epoch, 0)
            self._index.segments[written.segment_id] = segment
            self._must_collect = self._segment_id > 0
            self._segment_id = written.segment_id
        segment.size = written.segment_size

    # Upkeep: checkpoints and garbage.

    def _worker_for_upkeep(self) -> Worker:
        if self._upkeep_worker is None:
            self._upkeep_worker = self._runtime.new_worker("bookie-upkeep")
        return self._upkeep_worker

    async def _run_upkeep(self) -> None:
        worker = self._worker_for_upkeep()
        try:
            while self._checkpointer.due or self._must_collect:
                if self._checkpointer.due:
                    await self._checkpointer.write(worker)
                if self._must_collect:
                    self._must_collect = False
                    await collect_all(self._collector, lambda: self._segment_id, worker)
        finally:
            self._upkeep = None

    async def _copy_entries(self, state: LedgerState, first: int, payloads: list[bytes]) -> bool:
        """Append entries again, ahead of any tombstone: the order of the journal decides."""
        ledger_id = state.ledger_id
        if self._index.ledgers.get(ledger_id) is not state or ledger_id in self._deleting:
            return False
        await self._write(Kind.ENTRIES, ledger_id, first, payloads)
        return True

    async def _segment_removed(self, segment_id: int) -> None:
        """The file is unlinked: no reader keeps it open."""
        self._removing.discard(segment_id)
        self._journal.look_for_room()
        await run_in_worker(self._reader, lambda: self._files.drop(segment_id))

    # Reads.

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        if self._closing:
            raise StorageError(f"bookie {self.bookie_id} is closed")
        for attempt in range(2):
            stretches = self._look_up(ledger_id, first_entry_id, last_entry_id, max_bytes)
            epochs = self._index.epochs(stretches)
            job = partial(read_entries, self._files, epochs, ledger_id, stretches, max_bytes)
            try:
                result = await run_in_worker(self._reader, job)
            except FileNotFoundError:
                # The segment was collected since the look-up; its entries live elsewhere now.
                if attempt:
                    raise CorruptEntryError(
                        f"entry {ledger_id}:{first_entry_id} is in a segment that is missing"
                    ) from None
                continue
            except OSError as e:
                raise StorageError(f"ledger {ledger_id} cannot be read: {e}") from e
            return self._answer(ledger_id, first_entry_id, result)
        raise AssertionError("unreachable")

    def excerpt(self, ledger_id: int, first: int, last: int) -> JournalExcerpt | None:
        try:
            found = self._look_up(ledger_id, first, last, EXCERPT_BYTES)
        except StorageError:
            return None
        run: list[Stretch] = []
        for stretch in found:
            if stretch.first != first:
                break
            run.append(stretch)
            first = stretch.last + 1
        if not run:
            return None
        directory = os.path.abspath(self._journal_dir)
        return JournalExcerpt(directory, ledger_id, self._index.epochs(run), run)

    def _look_up(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[Stretch]:
        """The stretches to read, or the reason why there are none."""
        state = self._index.ledgers.get(ledger_id)
        if state is None:
            if ledger_id not in self._index.tombstones:
                self._check_doubt(ledger_id, first)
            raise NoSuchLedgerError(f"ledger {ledger_id} is not on bookie {self.bookie_id}")
        if first <= state.released:
            raise EntrySealedError(
                f"entry {ledger_id}:{first} was released; so were all to {state.released}"
            )
        stretches: list[Stretch] = []
        size, expected = 0, first
        in_doubt = self._index.in_doubt(ledger_id)
        for stretch in self._index.locate(ledger_id, first, last):
            if in_doubt and stretch.first != expected:
                break  # what is missing in between may have been lost
            stretches.append(stretch)
            expected = stretch.last + 1
            size += stretch.size
            if size >= max_bytes + stretch.size:
                break
        if not stretches:
            self._check_doubt(ledger_id, first)
            raise NoSuchEntryError(
                f"ledger {ledger_id} has no entries in [{first}, {last}] on {self.bookie_id}"
            )
        return stretches

    def _check_doubt(self, ledger_id: int, entry_id: int) -> None:
        if self._index.in_doubt(ledger_id):
            raise CorruptEntryError(
                f"entry {ledger_id}:{entry_id} may have been in a damaged part of the journal; "
                "stop this process, and pulsark doctor --data-dir DIR says how to go on"
            )

    def _answer(self, ledger_id: int, first: int, result: EntryRead) -> list[tuple[int, bytes]]:
        if not result.entries:
            raise CorruptEntryError(
                f"entry {ledger_id}:{result.corrupt if result.corrupt is not None else first} "
                f"fails its checksum on {self.bookie_id}"
            )
        return result.entries


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
