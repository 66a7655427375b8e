"""One connection from a broker to a bookie process.

Adds are answered in order, so they wait in a queue; other requests wait by number. When the
connection ends, every unanswered request fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from pulsark.errors import BookieAwayError, ProtocolError, StorageError
from pulsark.storage.remote_bookie.limits import (
    BOOKIE_HELLO_BYTES_MAX,
    BOOKIE_MEMORY_ADD_BYTES_MIN,
)
from pulsark.storage.remote_bookie.messages import (
    Hello,
    decode_error,
    decode_hello,
    encode_place,
)
from pulsark.storage.remote_bookie.protocol import Flag, FrameReader, FrameType, frame_head
from pulsark.storage.remote_bookie.shared_memory import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.runtime import Done, Piece

log = logging.getLogger(__name__)


class _Add(NamedTuple):
    number: int
    done: Done
    size: int
    sent_at: float
    in_memory: bool


class _Call(NamedTuple):
    answer: asyncio.Future[bytes]
    until: float


class Channel(asyncio.Protocol):
    """Created by ``Link``, which names the expected bookie and is told when the channel ends."""

    def __init__(
        self,
        expected: Hello,
        add_seconds: float,
        ended: Callable[[Channel, StorageError], None],
        memory_bytes: int,
    ) -> None:
        """The channel fails if the bookie does not answer an add for ``add_seconds``.

        ``memory_bytes``: to share with the bookie, if it can; 0 for none.
        """
        self._expected = expected
        self._add_seconds = add_seconds
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[Hello] = self._loop.create_future()
        """The bookie's hello, or the error instead."""
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(BOOKIE_HELLO_BYTES_MAX)
        self._out: list[Piece] = []
        self._memory_bytes = memory_bytes
        self._memory: SharedMemory | None = None
        self._flushing = False
        self._number = 0
        self._adds: deque[_Add] = deque()
        self._calls: dict[int, _Call] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._call_watch: asyncio.TimerHandle | None = None
        self.error: StorageError | None = None
        """Why the connection has ended or is ending."""
        self.pending_bytes = 0
        """Bytes of unanswered adds."""

    def add(
        self, meta: bytes, payloads: Sequence[Piece], size: int, flags: int, done: Done
    ) -> None:
        """Send a record of ``size`` bytes in all; ``done`` as for ``Bookie.append``."""
        place, in_payloads = None, size - len(meta)
        if self._memory is not None and in_payloads >= BOOKIE_MEMORY_ADD_BYTES_MIN:
            place = self._memory.put(payloads, in_payloads)
        if place is None:
            number = self._send(FrameType.ADD, (meta, *payloads), size, flags)
        else:
            body = encode_place(place) + meta
            number = self._send(FrameType.ADD, (body,), len(body), flags | Flag.MEMORY)
        self._adds.append(_Add(number, done, size, self._loop.time(), place is not None))
        self.pending_bytes += size
        if self._watch is None:
            self._watch = self._loop.call_later(self._add_seconds, self._look)

    async def call(self, kind: FrameType, body: bytes, flags: int, until: float) -> bytes:
        """Send a request; returns the answer's body. ``StorageError`` if it fails at either end.

        ``TimeoutError`` if there is no answer ``until`` then, by the loop's clock.
        """
        if self.error is not None:
            raise self.error
        number = self._send(kind, (body,), len(body), flags)
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._calls[number] = _Call(future, until)
        if self._call_watch is None:
            self._call_watch = self._loop.call_at(until, self._look_at_calls)
        try:
            return await future
        finally:
            self._calls.pop(number, None)

    def tell(self, kind: FrameType, body: bytes) -> None:
        """Send a message that has no answer."""
        self._send(kind, (body,), len(body), 0)

    def flush(self) -> None:
        """Send now what would wait for the end of this turn of the loop."""
        if self._out and self._transport is not None:
            out, self._out = self._out, []
            self._transport.writelines(out)

    def fail(self, error: StorageError) -> None:
        """End the connection at once."""
        if self.error is None:
            self.error = error
        if self._transport is not None:
            self._transport.abort()

    def _send(self, kind: FrameType, pieces: Sequence[Piece], size: int, flags: int) -> int:
        self._number += 1
        self._out.append(frame_head(kind, self._number, size, flags))
        self._out.extend(pieces)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_turn)
        return self._number

    def _flush_turn(self) -> None:
        self._flushing = False
        self.flush()

    def _look(self) -> None:
        """Fail if the oldest add is overdue; otherwise look again when it will be."""
        self._watch = None
        if not self._adds:
            return
        due = self._adds[0].sent_at + self._add_seconds
        if self._loop.time() >= due:
            self.fail(
                StorageError(
                    f"bookie {self._expected.bookieId} did not answer for {self._add_seconds:g} s"
                )
            )
        else:
            self._watch = self._loop.call_at(due, self._look)

    def _look_at_calls(self) -> None:
        """Give up requests that are overdue: one timer for all, since nearly all are answered."""
        now = self._loop.time()
        for call in self._calls.values():
            if call.until <= now and not call.answer.done():
                call.answer.set_exception(TimeoutError())
        left = [call.until for call in self._calls.values() if call.until > now]
        self._call_watch = self._loop.call_at(min(left), self._look_at_calls) if left else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        hello = self._expected
        if self._memory_bytes:
            try:
                self._memory = SharedMemory(self._memory_bytes)
            except OSError as e:
                log.warning("bookie %s: no memory to share: %s", hello.bookieId, e)
            else:
                hello = replace(hello, memoryBytes=self._memory.size, memoryFd=self._memory.fd)
        self.tell(FrameType.HELLO, hello.encode())
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._take(frame.kind, frame.number, frame.body)
        except ProtocolError as e:
            # What it had read before may be stored: the same as when the connection ends by itself.
            self.fail(BookieAwayError(f"bookie {self._expected.bookieId}: {e}"))

    def connection_lost(self, exc: Exception | None) -> None:
        error = self.error
        if error is None:
            reason = f": {exc}" if exc else ""
            name = self._expected.bookieId
            error = self.error = BookieAwayError(f"the connection to bookie {name} ended{reason}")
        self._transport = None
        self._out.clear()
        self._keep_memory(0)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._call_watch is not None:
            self._call_watch.cancel()
            self._call_watch = None
        if not self.greeted.done():
            self.greeted.set_exception(error)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.answer.done():
                call.answer.set_exception(error)
        # First the link: a writer that appends when its add fails must not use this channel.
        self._ended(self, error)
        while self._adds:
            self._answer(self._adds.popleft(), error)

    def _take(self, kind: int, number: int, body: bytes) -> None:
        if not self.greeted.done():
            self._greet(kind, body)
        elif kind == FrameType.ADDED:
            while self._adds and self._adds[0].number <= number:
                self._answer(self._adds.popleft(), None)
        elif kind == FrameType.ANSWER:
            call = self._calls.get(number)
            if call is not None and not call.answer.done():
                call.answer.set_result(body)
        elif kind == FrameType.ERROR:
            if self._adds and self._adds[0].number == number:
                self._answer(self._adds.popleft(), decode_error(body))
                return
            call = self._calls.get(number)
            if call is not None and not call.answer.done():
                call.answer.set_exception(decode_error(body))
        else:
            raise ProtocolError(f"a frame of type {kind} is not an answer")

    def _greet(self, kind: int, body: bytes) -> None:
        if kind == FrameType.ERROR:
            raise ProtocolError(str(decode_error(body)))
        if kind != FrameType.HELLO:
            raise ProtocolError(f"a frame of type {kind} before the hello")
        hello = decode_hello(body)
        wrong = self._expected.mismatch(hello)
        if wrong:
            raise ProtocolError(wrong)
        # The request bounds the size of its answer. From here on the bookie is trusted.
        self._reader.body_bytes_max = hello.bodyBytesMax
        self._keep_memory(hello.memoryBytes)
        self.greeted.set_result(hello)

    def _keep_memory(self, size: int) -> None:
        """Only if the bookie has all of it."""
        if self._memory is not None and size != self._memory.size:
            self._memory.close()
            self._memory = None

    def _answer(self, add: _Add, error: StorageError | None) -> None:
        self.pending_bytes -= add.size
        if add.in_memory and self._memory is not None:
            self._memory.give_back()
        try:
            add.done(error)
        except Exception as e:  # noqa: BLE001
            # One caller's bug must not keep others from their answers.
            self._loop.call_exception_handler({"message": "append", "exception": e})
