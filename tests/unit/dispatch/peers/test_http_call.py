"""One request to another broker: what comes of it when that broker does not do its part."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trustme

from pulsark.dispatch.peers.http_call import (
    PeerBrokeOffError,
    PeerGoneError,
    PeerSlowError,
    Request,
    UnsendableError,
    answered,
)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
GET = Request("GET", "/x?y=%20", [], b"")


async def ask(
    serve: Serve,
    request: Request = GET,
    *,
    seconds: float = 30.0,
    server_tls: ssl.SSLContext | None = None,
    tls: ssl.SSLContext | None = None,
    most: int = 1000,
) -> tuple[int, bytes]:
    """Ask a server that does this."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_tls)
    port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}" if server_tls is None else f"https://localhost:{port}"
    try:
        async with answered(url, request, seconds, tls) as answer:
            return answer.status, await answer.read(most)
    finally:
        server.close()


def saying(text: bytes) -> Serve:
    """A server that answers so, whatever it is asked, and ends the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(text)
        writer.close()

    return serve


def test_a_request_goes_whole_and_an_answer_comes_back() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        seen.append(await reader.readexactly(3))
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")

    request = Request("PUT", "/x", [(b"content-type", b"text/plain")], b"abc")
    assert asyncio.run(ask(serve, request)) == (201, b"abc")
    assert seen[0].startswith(b"PUT /x HTTP/1.1\r\n")
    assert b"content-length: 3\r\n" in seen[0].lower()
    assert seen[1] == b"abc"


@pytest.mark.parametrize(
    "request_",
    [
        Request("GET", "/a b", [], b""),
        Request("GET", "/\u00e9", [], b""),
        Request("GET", "/x", [(b"user-agent", b"a\nb")], b""),
        Request("GET", "/x", [(b"user agent", b"a")], b""),
        Request("G T", "/x", [], b""),
    ],
)
def test_what_http_cannot_carry_is_sent_to_nobody(request_: Request) -> None:
    with pytest.raises(UnsendableError, match="cannot be sent on"):
        asyncio.run(ask(saying(b"HTTP/1.1 204 No Content\r\n\r\n"), request_))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    ],
)
def test_an_answer_that_is_none_or_not_whole(text: bytes) -> None:
    with pytest.raises(PeerBrokeOffError):
        asyncio.run(ask(saying(text)))


@pytest.mark.parametrize(
    "text", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nConnection: close\r\n"]
)
def test_a_broker_that_dies_before_it_answers_is_said_to_have_gone(text: bytes) -> None:
    with pytest.raises(PeerBrokeOffError, match=r"^the connection ended before the answer did$"):
        asyncio.run(ask(saying(text)))


def test_an_answer_that_is_too_long() -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" + bytes(10)
    assert asyncio.run(ask(saying(whole), most=10)) == (200, bytes(10))
    with pytest.raises(PeerBrokeOffError):
        asyncio.run(ask(saying(whole), most=9))


def test_an_answer_that_stops() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        await reader.read()

    with pytest.raises(PeerSlowError):
        asyncio.run(ask(serve, seconds=0.2))


def test_nobody_is_there() -> None:
    async def ask_nobody() -> None:
        server = await asyncio.start_server(saying(b""), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        async with answered(f"http://127.0.0.1:{port}", GET, 30.0, None):
            pass

    with pytest.raises(PeerGoneError):
        asyncio.run(ask_nobody())


def test_over_tls_the_certificate_is_looked_at(tmp_path: Path) -> None:
    authority, another = trustme.CA(), trustme.CA()
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(server_tls)
    serve = saying(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
    contexts = []
    for each in (authority, another):
        path = tmp_path / f"{id(each)}.pem"
        each.cert_pem.write_to_path(str(path))
        contexts.append(ssl.create_default_context(cafile=str(path)))
    assert asyncio.run(ask(serve, server_tls=server_tls, tls=contexts[0])) == (200, b"a")
    with pytest.raises(PeerGoneError):
        asyncio.run(ask(serve, server_tls=server_tls, tls=contexts[1]))
