"""One connection to a bookie.

The answer to an add has no number but its ledger and entry, and so has that to a read. Adds of one
ledger are answered in their order, except that refusals may come early; equal reads are answered
alike. When the connection ends, every unanswered request fails.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from pulsark.errors import (
    BookieAwayError,
    LedgerFencedError,
    ProtocolError,
    StorageError,
    StorageFullError,
)
from pulsark.storage.bookkeeper.limits import (
    ANSWER_BYTES_MAX,
    ANSWER_OVERHEAD,
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_ENTRIES_MAX,
)
from pulsark.wire.bookkeeper.answers import (
    Added,
    AddRefused,
    AnswerReader,
    BatchAnswer,
    Code,
    ReadAnswer,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.runtime import Done
    from pulsark.storage.bookkeeper.limits import ClientSettings
    from pulsark.wire.bookkeeper.requests import AddFrames

_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", None)

STALL_SECONDS: Final = 0.5
"""A timer that is later than this was called by a loop that stood still. The answer may be there,
so the bookie gets as long again. Else a process that was stopped would give up all bookies at once.
"""


class _Run:
    """An add of consecutive entries that is not answered in full."""

    __slots__ = (
        "buffers",
        "count",
        "done",
        "due",
        "error",
        "is_told",
        "last",
        "next",
        "refused",
        "size",
    )

    def __init__(self, first: int, count: int, frames: AddFrames, done: Done) -> None:
        self.next = first
        """The entry whose good answer comes next."""
        self.last = first + count - 1
        self.count = count
        self.buffers = frames.buffers
        self.size = frames.size
        self.due = math.inf
        """It has no time before it is sent: others may have much to do before it."""
        self.done = done
        self.refused: set[int] = set()
        self.error: StorageError | None = None
        self.is_told = False
        """Whether ``done`` was called. One that is answered may wait for those before it."""

    @property
    def is_answered(self) -> bool:
        return self.next > self.last

    def confirm(self, entry_id: int) -> None:
        """All up to this entry are stored, but those refused."""
        self.next = entry_id + 1
        while self.refused and self.next in self.refused:
            self.next += 1

    def refuse(self, entry_id: int, error: StorageError) -> None:
        self.refused.add(entry_id)
        self.error = self.error or error
        while self.next in self.refused:
            self.next += 1


class _Read:
    """A read of an entry or of several that is not answered, whether its caller waits or not."""

    __slots__ = ("due", "future", "is_answered")

    def __init__(self, future: asyncio.Future[ReadAnswer | BatchAnswer], due: float) -> None:
        self.future = future
        self.due = due
        self.is_answered = False


class Channel(asyncio.Protocol):
    """Created by a ``Link``, which is told when it ends."""

    def __init__(
        self,
        bookie_id: str,
        settings: ClientSettings,
        ended: Callable[[Channel, StorageError], None],
    ) -> None:
        self._bookie_id = bookie_id
        self._settings = settings
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = AnswerReader(
            max(settings.frame_bytes_max + ANSWER_OVERHEAD, ANSWER_BYTES_MAX)
        )
        self._out: list[bytes] = []
        self._flushing = False
        self._runs: dict[int, deque[_Run]] = {}
        """Of each ledger, in the order of the adds."""
        self._order: deque[_Run] = deque()
        """Of all, in the order of the adds; those answered are taken out when they come first."""
        self._held: deque[_Run] = deque()
        """Those that are not sent yet."""
        self._sent_bytes = 0
        self._sent_entries = 0
        self._reads: dict[tuple[int, int], deque[_Read]] = {}
        self._batches: dict[int, _Read] = {}
        self._asked: deque[_Read] = deque()
        """All reads, in the order in which they were sent; see ``_order``."""
        self._number = 0
        self._watch: asyncio.TimerHandle | None = None
        self._read_watch: asyncio.TimerHandle | None = None
        self.error: StorageError | None = None
        """Why the connection has ended or is ending."""
        self.pending_bytes = 0
        """Bytes of adds that are not answered."""

    def add(self, ledger_id: int, first: int, count: int, frames: AddFrames, done: Done) -> None:
        """Send entries; ``done`` as for ``Bookie.append``. There is no more of them than a bookie
        takes at once, or they wait here until it has answered others."""
        run = _Run(first, count, frames, done)
        runs = self._runs.get(ledger_id)
        if runs is None:
            runs = self._runs[ledger_id] = deque()
        runs.append(run)
        self._order.append(run)
        self.pending_bytes += run.size
        if self._held or not self._has_room_for(run):
            self._held.append(run)
        else:
            self._send_run(run)

    async def drained(self, ledger_id: int) -> None:
        """Wait until what was added to a ledger so far is answered, whatever the answers are."""
        runs = self._runs.get(ledger_id)
        if not runs:
            return
        run, answered = runs[-1], self._loop.create_future()
        done = run.done

        def after(error: BaseException | None) -> None:
            if not answered.done():
                answered.set_result(None)
            done(error)

        run.done = after
        await answered

    async def read(self, ledger_id: int, entry_id: int, request: bytes) -> ReadAnswer:
        """Send a read of an entry. ``StorageError`` if the connection ends before the answer."""
        read = self._new_read()
        # It stays there until it is answered, also if the caller goes: answers have no numbers.
        self._reads.setdefault((ledger_id, entry_id), deque()).append(read)
        self._send(request)
        return cast("ReadAnswer", await read.future)

    async def read_batch(self, request: Callable[[int], bytes]) -> BatchAnswer:
        """The same for a batch read, from the number that it gets."""
        read = self._new_read()
        self._number += 1
        self._batches[self._number] = read
        self._send(request(self._number))
        return cast("BatchAnswer", await read.future)

    def _new_read(self) -> _Read:
        """Its caller may go, maybe to another bookie: one that is silent is given up all the same.

        One timer for all: a task that waits with one of its own costs as much as the read.
        """
        if self.error is not None:
            raise self.error
        read = _Read(self._loop.create_future(), self._loop.time() + self._settings.read_seconds)
        self._asked.append(read)
        if self._read_watch is None:
            self._read_watch = self._loop.call_at(read.due, self._look_at_reads)
        return read

    def flush(self) -> None:
        """Send now what would wait for the end of this turn of the loop."""
        if self._out and self._transport is not None:
            out, self._out = self._out, []
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)

    def fail(self, error: StorageError) -> None:
        """End the connection at once."""
        if self.error is None:
            self.error = error
        if self._transport is not None:
            self._transport.abort()

    def _has_room_for(self, run: _Run) -> bool:
        return not self._sent_entries or (
            self._sent_entries + run.count <= IN_FLIGHT_ENTRIES_MAX
            and self._sent_bytes + run.size <= IN_FLIGHT_BYTES_MAX
        )

    def _send_run(self, run: _Run) -> None:
        self._sent_entries += run.count
        self._sent_bytes += run.size
        self._out += run.buffers
        run.buffers = []
        run.due = self._loop.time() + self._settings.add_seconds
        if self._watch is None:
            self._watch = self._loop.call_at(run.due, self._look)
        self._flush_later()

    def _send(self, request: bytes) -> None:
        self._out.append(request)
        self._flush_later()

    def _flush_later(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flushing = False
        self.flush()

    def _look(self, again: bool = False) -> None:
        """Fail if the oldest add is overdue; otherwise look again when it will be.

        It has been sent: there is room for the first that is held once none before it waits.
        """
        self._watch = None
        order = self._order
        while order and order[0].is_answered:
            order.popleft()
        if not order:
            return
        late = self._loop.time() - order[0].due
        if late < 0:
            self._watch = self._loop.call_at(order[0].due, self._look)
        elif late > STALL_SECONDS and not again:
            self._watch = self._loop.call_later(STALL_SECONDS, self._look, True)
        else:
            self.fail(self._silent(self._settings.add_seconds))

    def _look_at_reads(self, again: bool = False) -> None:
        """The same for reads."""
        self._read_watch = None
        if not self._asked:
            return
        late = self._loop.time() - self._asked[0].due
        if late < 0:
            self._read_watch = self._loop.call_at(self._asked[0].due, self._look_at_reads)
        elif late > STALL_SECONDS and not again:
            self._read_watch = self._loop.call_later(STALL_SECONDS, self._look_at_reads, True)
        else:
            self.fail(self._silent(self._settings.read_seconds))

    def _silent(self, seconds: float) -> StorageError:
        return StorageError(f"bookie {self._bookie_id} did not answer for {seconds:g} s")

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and _USER_TIMEOUT is not None and sock.family != socket.AF_UNIX:
            milliseconds = int(1000 * self._settings.add_seconds)
            sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, milliseconds)

    def data_received(self, data: bytes) -> None:
        try:
            for answer in self._reader.feed(data):
                if isinstance(answer, Added):
                    self._added(answer)
                elif isinstance(answer, AddRefused):
                    self._refused(answer)
                elif isinstance(answer, ReadAnswer):
                    self._read(answer)
                else:
                    self._batch(answer)
        except ProtocolError as e:
            self.fail(StorageError(f"bookie {self._bookie_id}: {e}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.error is None:
            reason = f": {exc}" if exc else ""
            self.error = BookieAwayError(
                f"the connection to bookie {self._bookie_id} ended{reason}"
            )
        error = self.error
        self._transport = None
        self._out.clear()
        self._held.clear()
        for watch in (self._watch, self._read_watch):
            if watch is not None:
                watch.cancel()
        self._watch = self._read_watch = None
        asked, self._asked = self._asked, deque()
        self._reads.clear()
        self._batches.clear()
        for read in asked:
            if not read.future.done():
                read.future.set_exception(error)
        # First the link: a writer that appends when its add fails must not use this channel.
        self._ended(self, error)
        self._runs.clear()
        while self._order:
            run = self._order.popleft()
            if not run.is_told:
                self._complete(run, run.error if run.is_answered else error)

    # answers

    def _added(self, answer: Added) -> None:
        runs = self._runs.get(answer.ledger_id)
        first, last = answer.first, answer.last
        while runs:
            run = runs[0]
            if first != run.next:
                break
            run.confirm(min(last, run.last))
            if not run.is_answered:
                return
            first = run.next if run.refused else run.last + 1
            self._take_answered(answer.ledger_id, runs)
            if first > last:
                return
            runs = self._runs.get(answer.ledger_id)
        raise ProtocolError(f"entry {answer.ledger_id}:{first} was confirmed out of order")

    def _refused(self, answer: AddRefused) -> None:
        runs = self._runs.get(answer.ledger_id, ())
        entry_id = answer.entry_id
        for run in runs:
            if run.next <= entry_id <= run.last and entry_id not in run.refused:
                run.refuse(entry_id, self._refusal(answer))
                self._take_answered(answer.ledger_id, self._runs[answer.ledger_id])
                return
        raise ProtocolError(f"entry {answer.ledger_id}:{entry_id} was not sent, and was refused")

    def _refusal(self, answer: AddRefused) -> StorageError:
        ledger_id, code = answer.ledger_id, answer.code
        if code == Code.FENCED:
            return LedgerFencedError(f"ledger {ledger_id} is fenced at bookie {self._bookie_id}")
        if code == Code.READ_ONLY:
            return StorageFullError(f"bookie {self._bookie_id} takes no entries: it is read-only")
        return refusal(self._bookie_id, f"an entry of ledger {ledger_id}", code)

    def _take_answered(self, ledger_id: int, runs: deque[_Run]) -> None:
        """Complete what is answered in full, in the order of the adds."""
        while runs and runs[0].is_answered:
            run = runs.popleft()
            if not runs:
                del self._runs[ledger_id]
            self._sent_entries -= run.count
            self._sent_bytes -= run.size
            self._complete(run, run.error)
        while self._order and self._order[0].is_answered:
            self._order.popleft()
        while self._held and self._has_room_for(self._held[0]):
            self._send_run(self._held.popleft())

    def _complete(self, run: _Run, error: StorageError | None) -> None:
        self.pending_bytes -= run.size
        run.is_told = True
        try:
            run.done(error)
        except Exception as e:  # noqa: BLE001
            # One caller's bug must not keep others from their answers.
            self._loop.call_exception_handler({"message": "append", "exception": e})

    def _read(self, answer: ReadAnswer) -> None:
        key = answer.ledger_id, answer.entry_id
        waiting = self._reads.get(key)
        if not waiting:
            raise ProtocolError(f"entry {key[0]}:{key[1]} was not asked for")
        read = waiting.popleft()
        if not waiting:
            del self._reads[key]
        self._answered(read, answer)

    def _batch(self, answer: BatchAnswer) -> None:
        read = self._batches.pop(answer.request_id, None)
        if read is None:
            raise ProtocolError(f"batch {answer.request_id} was not asked for")
        self._answered(read, answer)

    def _answered(self, read: _Read, answer: ReadAnswer | BatchAnswer) -> None:
        read.is_answered = True
        while self._asked and self._asked[0].is_answered:
            self._asked.popleft()
        if not read.future.done():
            read.future.set_result(answer)


def refusal(bookie_id: str, what: str, code: int) -> StorageError:
    """What a code means that says nothing about the entry."""
    meaning = {
        Code.BAD_REQUEST: "it could not be understood, or failed there",
        Code.IO_ERROR: "its disk failed",
        Code.UNAUTHORIZED: "the ledger has another password, or a login is needed",
        Code.BAD_VERSION: "it does not speak version 2 of the protocol",
        Code.TOO_MANY_REQUESTS: "it has too much to do",
        Code.UNKNOWN_STATE: "it does not know what it had before a crash",
    }.get(cast("Code", code), f"code {code}")
    return StorageError(f"bookie {bookie_id} refused {what}: {meaning}")
