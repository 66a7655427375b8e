"""One HTTP request to another broker: sent whole, its answer streamed.

h11 implements the protocol; it is installed because uvicorn needs it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import h11

from pulsark.errors import PulsarkError
from pulsark.http_answer import HttpAnswer
from pulsark.limits import HTTP_HEAD_BYTES_MAX, HTTP_PIECE_BYTES

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator


CONNECT_SECONDS = 5.0


class PeerError(PulsarkError):
    """A call to a broker failed."""


class UnsendableError(PeerError):
    """The request is none that HTTP/1.1 can carry; nobody got it."""


class PeerGoneError(PeerError):
    """The broker cannot be reached: it did not get the request."""


class PeerBrokeOffError(PeerError):
    """The broker may have got the request; its outcome is unknown."""


class PeerSlowError(PeerBrokeOffError):
    """The broker did not answer in time."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to another broker."""

    method: str
    target: str
    headers: list[tuple[bytes, bytes]]
    body: bytes


@asynccontextmanager
async def answered(
    url: str, request: Request, seconds: float, tls: ssl.SSLContext | None
) -> AsyncIterator[HttpAnswer]:
    """Send a request; ``PeerError``. The connection closes with this context."""
    parts = urlsplit(url)
    head = _head(request, parts.netloc)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    context = tls if parts.scheme == "https" else None
    try:
        async with asyncio.timeout(min(CONNECT_SECONDS, seconds)):
            reader, writer = await asyncio.open_connection(
                parts.hostname, port, ssl=context, limit=HTTP_PIECE_BYTES
            )
    except (OSError, TimeoutError) as error:
        raise PeerGoneError(str(error) or type(error).__name__) from None

    async def receive() -> bytes:
        try:
            async with asyncio.timeout(seconds):
                return await reader.read(HTTP_PIECE_BYTES)
        except TimeoutError:
            raise PeerSlowError(f"it sent nothing for {seconds:g} s") from None

    try:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HTTP_HEAD_BYTES_MAX)
        answer = HttpAnswer(connection, receive, PeerBrokeOffError)
        await _send(connection, writer, head, request.body, seconds)
        await answer.begin()
        yield answer
    finally:
        writer.transport.abort()


def _head(request: Request, host: str) -> h11.Request:
    """``UnsendableError``: servers take more characters in a client's request than h11 sends."""
    headers = [
        (b"host", host.encode()),
        (b"content-length", str(len(request.body)).encode()),
        (b"connection", b"close"),
        *request.headers,
    ]
    try:
        return h11.Request(method=request.method, target=request.target, headers=headers)
    except (h11.LocalProtocolError, UnicodeEncodeError) as error:
        raise UnsendableError(f"it cannot be sent on to another broker: {error}") from None


async def _send(
    connection: h11.Connection,
    writer: asyncio.StreamWriter,
    head: h11.Request,
    body: bytes,
    seconds: float,
) -> None:
    writer.write(connection.send(head) or b"")
    if body:
        writer.write(connection.send(h11.Data(data=body)) or b"")
    connection.send(h11.EndOfMessage())
    try:
        async with asyncio.timeout(seconds):
            await writer.drain()
    except TimeoutError:
        raise PeerSlowError(f"it accepted no request for {seconds:g} s") from None
    except OSError as error:
        raise PeerBrokeOffError(str(error)) from None
