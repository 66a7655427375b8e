"""Bytes on the ports for HTTP that no client sends: heads, lengths, paths, and too many of all."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from tests.hostile.conftest import ATTACKED, CANARY
from tests.hostile.test_http import TENANT, open_socket, sent  # noqa: F401 - a fixture
from tests.support.secured import SUPER_USER, Secured, token

Open = Callable[[], socket.socket]
CLOSE = "Connection: close\r\n"
LOGIN = f"Authorization: Bearer {token(SUPER_USER)}\r\n"
PATH = "/admin/v2/clusters"
SMUGGLED = "/admin/v2/smuggled"


def request(*lines: str, method: str = "GET", path: str = PATH, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n" + "".join(f"{x}\r\n" for x in lines)
    return head.encode("latin-1") + b"\r\n" + body


def statuses(answer: bytes) -> list[int]:
    """Of all responses in it."""
    found = [line for line in answer.split(b"\r\n") if b"HTTP/1.1 " in line]
    return [int(line.rpartition(b"HTTP/1.1 ")[2][:3]) for line in found]


NEXT = f"GET {SMUGGLED} HTTP/1.1\r\nHost: localhost\r\n{LOGIN}{CLOSE}\r\n".encode()
CHUNKED = b"0\r\n\r\n" + NEXT
AMBIGUOUS = {
    "a length and chunks": (f"Content-Length: {len(CHUNKED)}", "Transfer-Encoding: chunked"),
    "chunks and a length": ("Transfer-Encoding: chunked", f"Content-Length: {len(CHUNKED)}"),
    "two lengths": ("Content-Length: 0", f"Content-Length: {len(CHUNKED)}"),
    "two lengths in one": (f"Content-Length: 0, {len(CHUNKED)}",),
    "a length below 0": ("Content-Length: -1",),
    "a length with a sign": ("Content-Length: +5",),
    "a length in hex": ("Content-Length: 0x5",),
    "a length of 1e5 digits": ("Content-Length: " + "9" * 10_000,),
    "a length of other digits": ("Content-Length: \xb2",),
    "chunks twice": ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    "chunks in chunks": ("Transfer-Encoding: chunked, chunked",),
    "another encoding": ("Transfer-Encoding: gzip, chunked",),
    "no encoding": ("Transfer-Encoding: xchunked",),
    "a space before the colon": ("Transfer-Encoding : chunked",),
    "a tab in a name": ("Transfer\tEncoding: chunked",),
    "NUL": ("X: a\0b",),
    "CR alone": ("X: a\rTransfer-Encoding: chunked",),
}


def test_a_line_that_goes_on_is_one_field(open_socket: Open) -> None:  # noqa: F811
    folded = request("X: y", " Transfer-Encoding: chunked", LOGIN.strip(), body=CHUNKED)
    assert statuses(sent(open_socket(), folded)) == [200, 400]


@pytest.mark.parametrize("lines", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_one_request_is_never_two(
    open_socket: Open,  # noqa: F811
    lines: tuple[str, ...],
) -> None:
    """What two readers may read in two ways is refused, and nothing after it is read."""
    bad = request(*lines, LOGIN.strip(), method="PUT", path=TENANT, body=CHUNKED)
    found = statuses(sent(open_socket(), bad))
    assert found in ([400], [411], [413], [501]), found


CHUNKS = {
    "a size that is none": b"x\r\n",
    "a size below 0": b"-1\r\n",
    "a size of 1e4 digits": b"f" * 10_000 + b"\r\n",
    "an extension without end": b"1;" + b"x" * 200_000,
    "a chunk that is longer": b"1\r\nabc\r\n0\r\n\r\n",
    "trailers without end": b"0\r\n" + b"X: y\r\n" * 50_000,
}


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS.keys())
def test_chunks_that_are_none(open_socket: Open, chunks: bytes) -> None:  # noqa: F811
    lines = ("Transfer-Encoding: chunked", "Content-Type: application/json", LOGIN.strip())
    bad = request(*lines, method="PUT", path=TENANT, body=chunks + NEXT)
    found = statuses(sent(open_socket(), bad))
    assert len(found) <= 1, "what came behind was read"
    assert found in ([], [400], [413], [431]), found


HEADS = {
    "1e4 fields": request(*(f"X-{n}: y" for n in range(10_000)), "Connection: close"),
    "a field of 1 MB": request("X: " + "y" * 1_000_000, "Connection: close"),
    "a name of 1 MB": request("x" * 1_000_000 + ": y", "Connection: close"),
    "a target of 1 MB": request("Connection: close", path="/" + "x" * 1_000_000),
    "a query of 60 kB": request("Connection: close", path=PATH + "?" + "a=1&" * 15_000),
    "1e4 empty lines": b"\r\n" * 10_000 + request("Connection: close"),
    "no host": b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
    "two hosts": request("Host: other", "Connection: close"),
    "another version": b"GET / HTTP/9.9\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "HTTP 0.9": b"GET /\r\n\r\n",
    "HTTP/2 at once": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an upgrade": request("Upgrade: h2c", "Connection: Upgrade, close", "HTTP2-Settings: AA"),
    "a web socket": request(
        "Upgrade: websocket", "Connection: Upgrade, close", "Sec-WebSocket-Key: x",
        "Sec-WebSocket-Version: 13",
    ),
    "another server's": request("Connection: close", path="http://169.254.169.254/latest"),
    "a secret": request(f"Authorization: Bearer {CANARY}", "Connection: close"),
}  # fmt: skip


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_heads_that_nobody_sends(open_socket: Open, head: bytes) -> None:  # noqa: F811
    answer = sent(open_socket(), head)
    found = statuses(answer)
    assert len(found) <= 1
    assert all(400 <= status < 500 for status in found), found
    assert CANARY.encode() not in answer


PATHS = (
    "/../../etc/passwd", "/admin/v2/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
    "/..%2f..%2fetc%2fpasswd", "/admin/v2/..%5c..%5cetc", "//etc/passwd", "/admin/v2//clusters",
    "/admin/v2/clusters/..", "/admin/v2/clusters/%2e%2e/tenants", "/admin/v2/clusters%00.json",
    "/admin/v2/clusters;jsessionid=1", "/ADMIN/V2/clusters", "/admin/v2/clusters%2f",
    "/docs/../admin/v2/clusters", "/metrics/../admin/v2/tenants", "/metrics%2f..%2fadmin/v2/x",
    "/metrics/", "/static/../../secret.key", "/%ff%fe", "/" + "a/" * 5000, "*", "",
)  # fmt: skip


def test_no_path_leads_elsewhere(open_socket: Open, broker: Secured) -> None:  # noqa: F811
    """None gets round the login, and with it there is nothing but what routes are for."""
    for path in PATHS:
        refused = statuses(sent(open_socket(), request("Connection: close", path=path)))
        allowed = [200] if path == "/metrics/" else []
        assert refused in ([400], [401], [404], [414], allowed), (path, refused)
        answer = sent(open_socket(), request(LOGIN.strip(), "Connection: close", path=path))
        assert b"root:" not in answer
        assert b"PRIVATE" not in answer
        assert all(status < 500 for status in statuses(answer)), (path, answer[:200])


def test_requests_that_nobody_waits_for(open_socket: Open) -> None:  # noqa: F811
    """A thousand in one piece, whose answers are not read; then they are not carried out."""
    connection = open_socket()
    connection.settimeout(1)
    many = request(LOGIN.strip(), path=f"/admin/v2/persistent/{ATTACKED}") * 1000
    try:
        connection.sendall(many)
    except TimeoutError:  # it is not read either
        pass
    finally:
        connection.close()


def test_bodies_that_come_a_byte_at_a_time(open_socket: Open) -> None:  # noqa: F811
    """Others are served, as after each test; and such a body is taken, if it comes to its end."""
    head = request(
        "Content-Type: application/json",
        "Content-Length: 33",
        LOGIN.strip(),
        "Connection: close",
        method="PUT",
        path="/admin/v2/tenants/slow",
    )
    slow = [open_socket() for _ in range(20)]
    for connection in slow:
        connection.sendall(head)
    for byte in b'{"allowedClusters":["standalone"]':
        for connection in slow[1:]:
            connection.sendall(bytes([byte]))
        slow[0].sendall(bytes([byte]))
        time.sleep(0.005)
    for connection in slow:
        assert statuses(sent(connection, b"")) == [400]
