"""HTTP/1.1 to one server of etcd: requests one after the other, or one whose answer goes on.

h11 implements the protocol; it is installed because uvicorn needs it.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import h11

from pulsark.http_answer import HttpAnswer

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Sequence

    from pulsark.metadata.etcd.address import Server

ANSWER_BYTES_MAX: Final = 16 << 20
"""A page of the longest names is a tenth of it."""

_PIECE_BYTES: Final = 64 << 10
_IDLE_SECONDS: Final = 10
"""A connection on which nothing comes is tried after this time, and three times more."""


class BrokenError(Exception):
    """The connection is of no use any more; what was asked may have been done."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered to a request."""

    status: int
    body: bytes


class Connection:
    """See ``open``. One request at a time; after an error or a cancellation it is ``close``d."""

    def __init__(
        self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server = server
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self._host = str(server).partition("://")[2].encode()

    @classmethod
    async def open(
        cls, server: Server, tls: ssl.SSLContext | None, name: str, seconds: float
    ) -> Connection:
        """Connect. ``OSError`` or ``TimeoutError``: nobody is there."""
        context, server_name = (tls, name or server.host) if server.tls else (None, None)
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(
                server.host, server.port, ssl=context, server_hostname=server_name,
                limit=_PIECE_BYTES,
            )  # fmt: skip
        _notice_the_dead(writer.get_extra_info("socket"))
        return cls(server, reader, writer)

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent, as far as is known."""
        return (
            self._http.our_state is h11.IDLE
            and not self._reader.at_eof()
            and not self._writer.is_closing()
        )

    def close(self) -> None:
        """Close it at once."""
        self._writer.transport.abort()

    async def ask(
        self, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, seconds: float
    ) -> Answer:
        """Send a request and return its answer. ``BrokenError``."""
        whole = False
        try:
            async with asyncio.timeout(seconds):
                answer = await self._begin(path, headers, body)
                found = await answer.read(ANSWER_BYTES_MAX)
            whole = True
        except TimeoutError:
            raise BrokenError(f"it has not answered for {seconds:g} s") from None
        finally:
            if not whole:
                self.close()
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            self.close()
        return Answer(answer.status, found)

    async def lines(
        self, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Send a request; the lines of its answer as they come. ``BrokenError``.

        The answer has to begin in time, and a line must not be too long.
        """
        try:
            try:
                async with asyncio.timeout(seconds):
                    answer = await self._begin(path, headers, body)
            except TimeoutError:
                raise BrokenError(f"it has not answered for {seconds:g} s") from None
            if answer.status != 200:
                raise BrokenError(f"it answers with status {answer.status}")
            rest = bytearray()
            async for piece in answer.pieces():
                rest += piece
                if b"\n" in piece:
                    *whole, last = bytes(rest).split(b"\n")
                    rest = bytearray(last)
                    for line in whole:
                        yield line
                elif len(rest) > ANSWER_BYTES_MAX:
                    raise BrokenError(f"a line of its answer has more than {ANSWER_BYTES_MAX}")
        finally:
            self.close()

    async def _begin(
        self, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> HttpAnswer:
        head = [(b"host", self._host), (b"content-length", b"%d" % len(body)), *headers]
        request = h11.Request(method="POST", target=path, headers=head)
        try:
            self._writer.write(self._http.send(request) or b"")
            self._writer.write(self._http.send(h11.Data(data=body)) or b"")
            self._http.send(h11.EndOfMessage())
            await self._writer.drain()
        except OSError as error:
            raise BrokenError(str(error)) from None
        answer = HttpAnswer(self._http, lambda: self._reader.read(_PIECE_BYTES), BrokenError)
        await answer.begin()
        return answer


def _notice_the_dead(sock: socket.socket | None) -> None:
    """Let the kernel ask now and then whether the other machine is there."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, number in (("KEEPIDLE", _IDLE_SECONDS), ("KEEPINTVL", 3), ("KEEPCNT", 3)):
        if hasattr(socket, f"TCP_{option}"):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}"), number)
