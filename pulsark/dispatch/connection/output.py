"""What goes to one client: bytes that wait for its socket, and whether it reads them.

Bytes are collected and written once a turn of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.limits import (
    FRAME_OVERHEAD_BYTES,
    UNREAD_OUTPUT_BYTES_COUNTED,
    UNREAD_OUTPUT_BYTES_MAX,
)
from pulsark.wire.frames import encode_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from pulsark.dispatch.output_buffer import OutputBuffer
    from pulsark.wire import pulsar_pb2 as pb


class Output:
    """The sending half of one connection."""

    def __init__(
        self,
        transport: asyncio.Transport,
        max_message_size: int,
        buffer: OutputBuffer,
        on_write: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        """``buffer`` counts what waits for all clients.

        ``on_write`` is called after each write to a client that lags.

        ``on_room`` is called when messages may follow again, after too many waited for one turn.
        """
        self.closed = False
        self.lags = False
        """Whether too much waits for the client to send it messages."""
        self._is_behind = False
        """Whether enough waits to count in the total of all connections."""
        self._counted = 0
        """What is counted there of this client."""
        self._buffer = buffer
        self._transport = transport
        self._on_write = on_write
        self._on_room = on_room
        self._frame_bytes_max = max_message_size + FRAME_OVERHEAD_BYTES
        self._unread_max = 2 * UNREAD_OUTPUT_BYTES_MAX + max_message_size
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._message_bytes = 0
        self._has_room = True
        """Whether messages may follow in this turn."""
        self._flush_scheduled = False
        self._large_answer = asyncio.Lock()
        self._caught_up: asyncio.Future[None] | None = None
        transport.set_write_buffer_limits(high=UNREAD_OUTPUT_BYTES_COUNTED)

    def send(self, command: pb.BaseCommand) -> None:
        """Queue a command."""
        if not self.closed:
            self.write(encode_command(command))

    def send_frame(self, pieces: Sequence[bytes]) -> None:
        """Queue a frame that is encoded already.

        Raises ``ClientError`` if it is too large: clients close the connection on such a frame.
        """
        size = sum(map(len, pieces))
        if size > self._frame_bytes_max:
            raise ClientError(
                ServerError.NotAllowedError,
                f"The answer has {size} bytes, and a frame may have {self._frame_bytes_max}; ask "
                "for less, such as with a narrower pattern, or raise maxMessageSize",
            )
        if not self.closed:
            for piece in pieces:
                self.write(piece)

    def write(self, data: bytes) -> None:
        """Queue bytes for the socket; they leave in this turn of the event loop."""
        self._pieces.append(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def write_message(self, head: bytes, data: bytes) -> bool:
        """Queue a message. Whether others may follow before ``on_room`` is called."""
        pieces = self._pieces  # ``write``, of which each message would have the cost of a call
        pieces.append(head)
        pieces.append(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)
        self._message_bytes += len(data)
        self._has_room = self._message_bytes <= UNREAD_OUTPUT_BYTES_MAX and not self._buffer.is_full
        return self._has_room

    def write_now(self, data: bytes) -> None:
        """Queue bytes and flush."""
        self._pieces.append(data)
        self.flush()

    def flush(self) -> None:
        """Give the socket what is queued, without waiting for the end of this turn."""
        self._flush_scheduled = False
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._transport.writelines(pieces)
            if self._is_behind:
                self._count()
            if self.lags:
                self._on_write()
        if self._message_bytes:
            had_room, self._has_room = self._has_room, True
            self._message_bytes = 0
            if not had_room:
                self._on_room()

    @property
    def takes_answers(self) -> bool:
        """Whether the client reads at all: more than its messages and one large one waits."""
        return self._transport.get_write_buffer_size() <= self._unread_max

    @property
    def is_in_large_answer(self) -> bool:
        """Whether a large answer is being built, or not read yet."""
        return self._large_answer.locked()

    def fall_behind(self) -> None:
        """The socket does not take everything."""
        self._is_behind = True
        self._count()

    def _count(self) -> None:
        waits = self._transport.get_write_buffer_size()
        self._buffer.change(waits - self._counted)
        self._counted = waits
        if not self.lags and (waits > UNREAD_OUTPUT_BYTES_MAX or self._buffer.is_full):
            self.lags = True
            if waits > UNREAD_OUTPUT_BYTES_MAX:  # go on before the socket runs empty
                self._transport.set_write_buffer_limits(high=UNREAD_OUTPUT_BYTES_MAX)

    def _discount(self) -> None:
        self._is_behind = False
        self._buffer.change(-self._counted)
        self._counted = 0

    def catch_up(self) -> None:
        """The socket took what waited for the client."""
        self.lags = False
        self._discount()
        self._transport.set_write_buffer_limits(high=UNREAD_OUTPUT_BYTES_COUNTED)
        if self._caught_up is not None and not self._caught_up.done():
            self._caught_up.set_result(None)

    @contextlib.asynccontextmanager
    async def large_answer(self) -> AsyncIterator[None]:
        """Around a request whose answer may be large: the next one waits until it was read."""
        async with self._large_answer:
            yield
            self.flush()
            if self.lags and not self.closed:
                self._caught_up = self._loop.create_future()
                await self._caught_up

    def close(self) -> None:
        """Take nothing more. What is queued may still be flushed."""
        self.closed = True
        self._on_write = self._on_room = _ignore

    def drop(self) -> None:
        """Forget what is queued: the socket is closed."""
        self._pieces.clear()
        self._discount()


def _ignore() -> None:
    """The client is gone."""
