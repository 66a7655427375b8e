"""The journal of a bookie: group commit of records to segment files.

Records that arrive while a group is on its way to the disk make up the next group. No record
waits for a timer: when the disk is idle, a group is what one turn of the loop collected.

What the disk's errors mean:

* No space while writing: what the group left in the file is cut off again, its records fail,
  and later ones are tried anew. Records that may use the reserve are tried once more alone.
* Anything else, and any error of a sync: what is on the disk is unknown. The journal stops;
  trying the sync again could "succeed" without the data. Only a restart finds out.
"""

from __future__ import annotations

import asyncio
import errno
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.errors import StorageError, StorageFullError
from pulsark.runtime import Done, Piece, Runtime, run_in_worker
from pulsark.storage.bookie.journal_format import (
    GROUP_HEAD_SIZE,
    RecordHead,
    SegmentHead,
    Snapshot,
    encode_record,
    segment_name,
)
from pulsark.storage.bookie.reached_note import Reached
from pulsark.storage.bookie.segment_writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.storage.bookie.journal_settings import JournalSettings
    from pulsark.storage.bookie.reached_note import ReachedNote

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
SPACE_CHECK_BYTES = 16 << 20
SPACE_CHECK_SECONDS = 1.0
SPACE_RETRY_SECONDS = 0.1
LAST_PART = 4
"""The last quarter of the reserve is for fences, recoveries, deletions and what follows them."""
ROLL_EARLY_PART = 8
"""On a full disk a segment ends early once it has this part of its size."""


class JournalRecord:
    """A record on its way. ``offset`` is its place in the segment once it is durable."""

    __slots__ = (
        "count",
        "done",
        "error",
        "first",
        "kind",
        "ledger_id",
        "meta",
        "offset",
        "payloads",
        "reserve",
        "size",
        "total",
        "value",
    )

    def __init__(
        self,
        kind: int,
        ledger_id: int,
        first: int,
        value: int,
        payloads: Sequence[Piece],
        reserve: bool,
        done: Done,
        total: int = -1,
    ) -> None:
        self.kind = kind
        self.ledger_id = ledger_id
        self.first = first
        self.value = value
        self.total = total
        self.count = len(payloads)
        self.payloads = payloads
        self.reserve = reserve
        self.done = done
        self.error: BaseException | None = None
        self.offset = 0
        self.meta, self.size = encode_record(kind, ledger_id, first, value, payloads, total)

    @classmethod
    def received(
        cls, head: RecordHead, meta: bytes, payloads: list[Piece], reserve: bool, done: Done
    ) -> JournalRecord:
        """A record of another process, as ``received_record`` found it."""
        record = cls.__new__(cls)
        record.kind = head.kind
        record.ledger_id = head.ledger_id
        record.first = head.first
        record.value = head.value
        record.total = head.total
        record.count = head.entries
        record.payloads = payloads
        record.reserve = reserve
        record.done = done
        record.error = None
        record.offset = 0
        record.meta, record.size = meta, head.size
        return record


@dataclass(frozen=True, slots=True)
class WrittenGroup:
    """What the worker says after a group."""

    segment_id: int
    epoch: int
    segment_size: int
    space: tuple[int, int] | None
    """``(free, total)`` if it was asked for."""


class Journal:
    """Writes groups. The owner applies them to the index when ``on_written`` is called."""

    def __init__(
        self,
        directory: str,
        instance_id: bytes,
        next_segment_id: int,
        settings: JournalSettings,
        runtime: Runtime,
        take_snapshot: Callable[[], Snapshot],
        max_ledger_id: Callable[[], int],
        on_written: Callable[[WrittenGroup, list[JournalRecord]], None],
        on_stopped: Callable[[StorageError], None],
        note: ReachedNote | None = None,
    ) -> None:
        self._note = note
        self._directory = directory
        self._instance_id = instance_id
        self._next_segment_id = next_segment_id
        self._settings = settings
        self._runtime = runtime
        self._take_snapshot = take_snapshot
        self._max_ledger_id = max_ledger_id
        self._on_written = on_written
        self._on_stopped = on_stopped
        self._loop = asyncio.get_running_loop()
        self._worker = runtime.new_worker("journal")
        self._writer: SegmentWriter | None = None
        self._pending: deque[JournalRecord] = deque()
        self._rider: JournalRecord | None = None
        self._rider_due = False
        self._riding: JournalRecord | None = None
        """The one that went with the group that is on its way."""
        self._in_flight: list[JournalRecord] = []
        self._scheduled = False
        self._idle: asyncio.Future[None] | None = None
        self._must_roll = False
        self._begun: WrittenGroup | None = None
        """A segment that the worker began and the owner has not heard of."""
        self._segment_limit = 0
        self._room = 0
        """Bytes that may still be accepted without touching the reserve."""
        self._reserve = 0
        """Free bytes that ``_room`` leaves."""
        self._unchecked = 0
        """Bytes written since the free space was looked at."""
        self._checked_at = -math.inf
        """Monotonic time of that look."""
        self.failed: StorageError | None = None
        """Set once, when the journal has stopped for good."""
        self.pending_bytes = 0
        """Bytes accepted and not yet durable."""

    # On the loop.

    async def start(self) -> WrittenGroup:
        """Begin the first segment; raises ``OSError``."""
        snapshot = self._take_snapshot()
        written = await run_in_worker(self._worker, lambda: self._start_segment(snapshot))
        assert written.space is not None
        self._segment_limit = self._settings.segment_limit(written.space[1])
        self._note_space(written.space)
        return written

    def refuses(self, size: int, reserve: bool, *, last: bool = False) -> StorageError | None:
        """Why a record of this size cannot be taken now, if so. Counts it if it can.

        ``last``: it may use the last part of the reserve, too, which is kept for what frees space.
        """
        if self.failed is not None:
            return self.failed
        if self._room < size and not last:
            left = self._reserve // LAST_PART if reserve else self._reserve
            if self._room + self._reserve - left < size:
                if self._runtime.clock.monotonic() >= self._checked_at + SPACE_RETRY_SECONDS:
                    self.look_for_room()
                return StorageFullError("the journal's disk is full: only its reserve is left")
        self._room -= size
        return None

    def add(self, record: JournalRecord) -> None:
        """Put a record into the next group. ``record.error`` set: it only keeps its turn."""
        self._pending.append(record)
        if record.error is None:
            self.pending_bytes += record.size
        if not self._scheduled and not self._in_flight:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def ride(self, record: JournalRecord) -> None:
        """Let a record go ahead of the next group, in place of an earlier one that still waits.

        It causes no group, so it costs no sync. ``flush_rider`` does. When there is no room for
        its group it hears so, and goes ahead of the next one, unless a later one has come.
        """
        self._rider = record

    def flush_rider(self) -> None:
        """Let what waits for a group have one of its own, if none comes of itself."""
        if self._rider is None:
            return
        self._rider_due = True
        if not self._scheduled and not self._in_flight:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Start the group that the disk waits for, if there is one. Else it has its turn."""
        if self._scheduled:
            self._flush()

    def roll_if_low(self) -> None:
        """On a full disk, begin a new segment with the next group.

        Only whole segments give space back, and the one that is written never does.
        """
        if self._writer is not None and self._room <= 0:
            self._must_roll |= self._writer.size > self._segment_limit // ROLL_EARLY_PART

    def roll(self) -> None:
        """Begin a new segment with the next group."""
        self._must_roll = True

    async def drain(self) -> None:
        """Wait until nothing is pending."""
        while self._pending or self._in_flight or self._rider_due:
            if self._idle is None:
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)

    def close(self) -> None:
        """Stop the worker; what is pending fails. ``drain`` first to let it finish."""
        if self.failed is None:
            self.failed = StorageError("the bookie is closed")
        self._worker.close()
        if self._writer is not None:
            self._note_reached(at_close=True)
            self._writer.close()
            self._writer = None
        if not self._in_flight:
            self._flush()

    def _flush(self) -> None:
        self._scheduled = False
        group = self._in_flight = self._next_group()
        if not group:
            self._become_idle()
            return
        size = sum(r.size for r in group if r.error is None)
        if size == 0 or self.failed is not None:
            self._loop.call_soon(self._finish, None, self.failed)
        else:
            self._submit(size)

    def _submit(self, size: int) -> None:
        snapshot = None
        assert self._writer is not None
        grown = self._writer.size + GROUP_HEAD_SIZE + size
        if self._must_roll or grown > self._segment_limit:
            snapshot = self._take_snapshot()
        check = (
            snapshot is not None
            or self._unchecked >= min(SPACE_CHECK_BYTES, self._room // 2)
            or self._runtime.clock.monotonic() >= self._checked_at + SPACE_CHECK_SECONDS
        )
        group, highest = self._in_flight, self._max_ledger_id()
        self._worker.submit(
            lambda: self._write(group, size, highest, snapshot, check), self._finish
        )

    def _next_group(self) -> list[JournalRecord]:
        pending, self._riding = self._pending, None
        if self._rider is not None and (pending or self._rider_due):
            record = self._riding = self._rider
            self._rider, self._rider_due = None, False
            record.error = self.refuses(record.size, record.reserve, last=True)
            if record.error is None:
                self.pending_bytes += record.size
            pending.appendleft(record)
        if self.pending_bytes <= self._settings.max_group_bytes:
            group = list(pending)
            pending.clear()
            return group
        group, size = [], 0
        while pending:
            size += pending[0].size
            if size > self._settings.max_group_bytes and group:
                break
            group.append(pending.popleft())
        return group

    def _finish(self, written: WrittenGroup | None, error: BaseException | None) -> None:
        group = self._in_flight
        if self._begun is not None:
            # Whatever became of the group: the segment is there, and later ones list it.
            begun, self._begun, self._must_roll = self._begun, None, False
            self._on_written(begun, [])
        if isinstance(error, StorageFullError):
            if self._retry_with_reserve(group, error):
                return
        elif error is not None:
            self._stop(error)
        for record in group:
            if record.error is None:
                self.pending_bytes -= record.size
                record.error = error and self._error_for(error)
        if written is not None:
            self._unchecked += sum(r.size for r in group)
            if written.space is not None:
                self._note_space(written.space)
            self._on_written(written, group)
        if isinstance(error, StorageFullError):
            self._ride_again()
        self._flush()  # the disk goes on while the callbacks run
        for record in group:
            self._answer(record)

    def _answer(self, record: JournalRecord) -> None:
        try:
            record.done(record.error)
        except Exception as e:  # noqa: BLE001
            # A bug of one caller; those behind it in the group wait for their answers.
            self._loop.call_exception_handler(
                {"message": f"append to ledger {record.ledger_id}", "exception": e}
            )

    def _ride_again(self) -> None:
        lost = self._riding
        if lost is not None and self._rider is None:
            self._rider = JournalRecord(
                lost.kind,
                lost.ledger_id,
                lost.first,
                lost.value,
                lost.payloads,
                lost.reserve,
                lost.done,
                lost.total,
            )

    def _error_for(self, error: BaseException) -> BaseException:
        return self.failed if self.failed is not None else error

    def _retry_with_reserve(self, group: list[JournalRecord], error: StorageFullError) -> bool:
        """Try a group again without the records that must not use the reserve."""
        self._room = 0
        self._checked_at = -math.inf
        trying = [r for r in group if r.error is None]
        entitled = [r for r in trying if r.reserve]
        if not entitled or len(entitled) == len(trying):
            return False
        for record in trying:
            if not record.reserve:
                record.error = error
                self.pending_bytes -= record.size
        self._submit(sum(r.size for r in entitled))
        return True

    def _stop(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed = StorageError(f"the journal has stopped: {error}")
            self.failed.__cause__ = error
            self._on_stopped(self.failed)

    def _become_idle(self) -> None:
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def _note_space(self, space: tuple[int, int]) -> None:
        free, total = space
        self._reserve = self._settings.reserve(total)
        self._room = free - self._reserve - self.pending_bytes
        self._unchecked = 0
        self._checked_at = self._runtime.clock.monotonic()

    def look_for_room(self) -> None:
        """Look at the free space again: there may be more."""
        self._checked_at = self._runtime.clock.monotonic()

        def done(space: tuple[int, int] | None, error: BaseException | None) -> None:
            if space is not None:
                self._note_space(space)

        self._worker.submit(lambda: self._runtime.disk.space(self._directory), done)

    # In the worker.

    def _start_segment(self, snapshot: Snapshot) -> WrittenGroup:
        segment_id = self._next_segment_id
        head = SegmentHead(
            segment_id,
            self._runtime.rng.getrandbits(64),
            self._instance_id,
            self._runtime.clock.now_ms(),
        )
        path = f"{self._directory}/{segment_name(segment_id)}"
        writer = SegmentWriter(self._runtime.disk, path, head, snapshot)
        self._next_segment_id += 1
        if self._writer is not None:
            self._writer.close()
        self._writer = writer
        space = self._runtime.disk.space(self._directory)
        return WrittenGroup(segment_id, head.epoch, writer.size, space)

    def _write(
        self,
        group: list[JournalRecord],
        size: int,
        max_ledger_id: int,
        snapshot: Snapshot | None,
        check: bool,
    ) -> WrittenGroup:
        try:
            if snapshot is not None:
                self._begun = self._start_segment(snapshot)
        except OSError as e:
            if e.errno in FULL_ERRNOS:
                raise StorageFullError("no space for a new journal segment") from e
            raise
        writer = self._writer
        assert writer is not None
        metas: list[bytes] = []
        pieces: list[Piece] = [b""]
        offset = writer.size + GROUP_HEAD_SIZE
        for record in group:
            if record.error is None:
                record.offset = offset
                offset += record.size
                metas.append(record.meta)
                pieces.append(record.meta)
                pieces.extend(record.payloads)
        try:
            writer.write(metas, pieces, size, max_ledger_id)
        except OSError as e:
            if e.errno not in FULL_ERRNOS:
                raise
            writer.cut()
            raise StorageFullError("no space left for the journal") from e
        writer.sync(size)
        self._note_reached()
        space = self._runtime.disk.space(self._directory) if check else None
        return WrittenGroup(writer.segment_id, writer.epoch, writer.size, space)

    def _note_reached(self, *, at_close: bool = False) -> None:
        writer = self._writer
        if self._note is None or writer is None:
            return
        reached = Reached(writer.segment_id, writer.epoch, writer.size)
        if at_close:
            self._note.end(reached)
        else:
            self._note.grew(reached)
