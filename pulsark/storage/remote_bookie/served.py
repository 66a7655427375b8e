"""The bookie's side of one connection.

The server owns all tasks: when a connection ends, a release or a fence goes on, and only its answer
is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from pulsark.errors import ProtocolError, StorageError
from pulsark.storage.bookie.journal import JournalRecord
from pulsark.storage.bookie.journal_format import (
    BadRecordError,
    Kind,
    decode_record_head,
    received_record,
)
from pulsark.storage.remote_bookie.limits import (
    BOOKIE_CALLS_MAX,
    BOOKIE_HELLO_BYTES_MAX,
    BOOKIE_READ_BYTES_MAX,
    BOOKIE_UNANSWERED_BYTES_MAX,
)
from pulsark.storage.remote_bookie.messages import (
    Hello,
    decode_hello,
    decode_ledger,
    decode_place,
    decode_range,
    decode_release,
    encode_entries,
    encode_error,
    encode_excerpt,
    encode_ledger,
    encode_tail,
)
from pulsark.storage.remote_bookie.protocol import Flag, Frame, FrameReader, FrameType, frame_head
from pulsark.storage.remote_bookie.shared_memory import peer_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from pulsark.runtime import Piece
    from pulsark.storage.bookie.embedded import EmbeddedBookie
    from pulsark.storage.bookie.journal_format import RecordHead

    Answer = Coroutine[Any, Any, Sequence[bytes]]

log = logging.getLogger(__name__)

HELLO_SECONDS: Final = 10.0


class ServedConnection(asyncio.Protocol):
    """Created by ``BookieServer`` for each connection."""

    def __init__(
        self,
        bookie: EmbeddedBookie,
        hello: Hello,
        start: Callable[[Coroutine[Any, Any, None]], object],
        ended: Callable[[ServedConnection], None],
    ) -> None:
        """``start`` runs a coroutine to its end even if the connection closes."""
        self._bookie = bookie
        self._hello = hello
        self._start = start
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(BOOKIE_HELLO_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._greeted = False
        self._memory: memoryview | None = None
        """What the broker shares, for as long as a record of it is on its way."""
        self._hello_due: asyncio.TimerHandle | None = None
        self._paused = False
        self._calls = 0
        self._unanswered_bytes = 0
        self._added = self._told = 0
        """Numbers of the last durable add, and of the last acknowledged one."""
        self._telling = False

    def close(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._hello_due = self._loop.call_later(HELLO_SECONDS, self.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._memory = None
        if self._hello_due is not None:
            self._hello_due.cancel()
        self._ended(self)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                if self._greeted:
                    self._take(frame)
                else:
                    self._greet(frame)
        except (ProtocolError, BadRecordError) as e:
            log.warning("bookie %s: closing a broker's connection: %s", self._bookie.bookie_id, e)
            self._write(FrameType.ERROR, 0, (encode_error(StorageError(str(e))),))
            if self._transport is not None:
                self._transport.close()
        self._bookie.flush()

    def _greet(self, frame: Frame) -> None:
        if frame.kind != FrameType.HELLO:
            raise ProtocolError(f"a frame of type {frame.kind} before the hello")
        asked = decode_hello(frame.body)
        wrong = asked.mismatch(self._hello)
        if wrong:
            raise ProtocolError(wrong)
        connection = self._transport and self._transport.get_extra_info("socket")
        if asked.memoryBytes and connection:
            self._memory = peer_memory(connection, asked.memoryFd, asked.memoryBytes)
        self._greeted = True
        if self._hello_due is not None:
            self._hello_due.cancel()
        self._reader.body_bytes_max = self._hello.bodyBytesMax
        shared = asked.memoryBytes if self._memory is not None else 0
        hello = replace(self._hello, memoryBytes=shared)
        self._write(FrameType.HELLO, frame.number, (hello.encode(),))

    def _take(self, frame: Frame) -> None:
        if frame.kind == FrameType.ADD:
            self._add(frame)
        elif frame.kind == FrameType.MARK:
            self._bookie.note_mark(decode_ledger(frame.body))
        else:
            answer = self._answer_to(frame)
            self._calls += 1
            self._start(self._serve(frame.number, answer))
            self._hold()

    def _add(self, frame: Frame) -> None:
        if frame.flags & Flag.MEMORY:
            head, meta, payloads = self._in_memory(frame)
        else:
            head, meta, payloads = received_record(frame.pieces)
        if head.kind != Kind.ENTRIES or head.entries < 1 or min(head.ledger_id, head.first) < 0:
            raise ProtocolError("an add without a run of entries")
        self._unanswered_bytes += head.size
        done = partial(self._was_added, frame.number, head.size)
        reserve = bool(frame.flags & Flag.RESERVE)
        record = JournalRecord.received(head, meta, payloads, reserve, done)
        self._bookie.add(record, recovery=bool(frame.flags & Flag.RECOVERY))
        self._hold()

    def _in_memory(self, frame: Frame) -> tuple[RecordHead, bytes, list[Piece]]:
        place, pieces = decode_place(frame.pieces)
        memory = self._memory
        end = place + decode_record_head(pieces[0], 0).body_size
        if memory is None or place < 0 or end > len(memory):
            raise ProtocolError("an add with payloads where no memory is shared")
        return received_record((*pieces, memory[place:end]))

    def _was_added(self, number: int, size: int, error: BaseException | None) -> None:
        self._unanswered_bytes -= size
        self._hold()
        if error is not None:
            self._tell()
            self._write(FrameType.ERROR, number, (encode_error(error),))
            return
        self._added = number
        if not self._telling:
            # The adds of a group become durable in one turn of the loop: one answer for all.
            self._telling = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        if self._added > self._told:
            self._told = self._added
            self._write(FrameType.ADDED, self._told, ())

    def _answer_to(self, frame: Frame) -> Answer:
        bookie, body = self._bookie, frame.body
        if frame.kind == FrameType.TAIL:
            return _tail(bookie, decode_ledger(body), fence=bool(frame.flags & Flag.FENCE))
        if frame.kind == FrameType.READ:
            return _read(bookie, *decode_range(body))
        if frame.kind == FrameType.EXCERPT:
            return _excerpt(bookie, *decode_range(body)[:3])
        if frame.kind == FrameType.RELEASE:
            return _nothing(bookie.release(*decode_release(body)))
        if frame.kind == FrameType.DELETE:
            return _nothing(bookie.delete(decode_ledger(body)))
        if frame.kind == FrameType.RECYCLE:
            return _recycle(bookie)
        raise ProtocolError(f"a frame of type {frame.kind} is not a request")

    async def _serve(self, number: int, answer: Answer) -> None:
        try:
            pieces = await answer
        except StorageError as e:
            self._tell()
            self._write(FrameType.ERROR, number, (encode_error(e),))
        except Exception as e:  # a defect; whoever asked must not wait for the end of its time
            log.exception(
                "bookie %s: a request failed with an unexpected error", self._bookie.bookie_id
            )
            self._tell()
            error = StorageError(f"a defect of the bookie: {type(e).__name__}: {e}")
            self._write(FrameType.ERROR, number, (encode_error(error),))
        else:
            self._tell()
            self._write(FrameType.ANSWER, number, pieces)
        finally:
            self._calls -= 1
            self._hold()

    def _write(self, kind: FrameType, number: int, pieces: Sequence[bytes]) -> None:
        if self._transport is not None:
            head = frame_head(kind, number, sum(map(len, pieces)))
            self._transport.writelines([head, *pieces])

    def _hold(self) -> None:
        full = (
            self._calls >= BOOKIE_CALLS_MAX or self._unanswered_bytes >= BOOKIE_UNANSWERED_BYTES_MAX
        )
        if full != self._paused and self._transport is not None:
            self._paused = full
            if full:
                self._transport.pause_reading()
            elif not self._transport.is_closing():
                self._transport.resume_reading()


async def _tail(bookie: EmbeddedBookie, ledger_id: int, *, fence: bool) -> Sequence[bytes]:
    return (encode_tail(await bookie.tail(ledger_id, fence=fence)),)


async def _read(
    bookie: EmbeddedBookie, ledger_id: int, first: int, last: int, max_bytes: int
) -> Sequence[bytes]:
    return encode_entries(
        await bookie.read(ledger_id, first, last, min(max_bytes, BOOKIE_READ_BYTES_MAX))
    )


async def _excerpt(
    bookie: EmbeddedBookie, ledger_id: int, first: int, last: int
) -> Sequence[bytes]:
    return (encode_excerpt(await bookie.excerpt(ledger_id, first, last)),)


async def _nothing(work: Coroutine[Any, Any, None]) -> Sequence[bytes]:
    await work
    return ()


async def _recycle(bookie: EmbeddedBookie) -> Sequence[bytes]:
    return (encode_ledger(await bookie.recycle()),)
