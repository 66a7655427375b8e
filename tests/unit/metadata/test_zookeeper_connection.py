"""What this project changes of kazoo's sockets, and of its thread."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import Exists, GetChildren, Sync
from kazoo.protocol.states import KeeperState

from pulsark.metadata.zookeeper.connection import SEND_BYTES, Connection
from pulsark.metadata.zookeeper.sockets import ReadAhead, wait_for
from tests.support.certificates import Authority


def test_what_tls_has_read_ahead_is_ready(tmp_path: Path) -> None:
    """Two answers may be in one record; the network has nothing more to make the socket ready."""
    authority = Authority(tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*authority.issue("localhost"))
    trusting = ssl.create_default_context(cafile=str(authority.trust))
    ours, theirs = socket.socketpair()
    waker, waking = socket.socketpair()
    accepted: list[ssl.SSLSocket] = []
    accepting = threading.Thread(
        target=lambda: accepted.append(serving.wrap_socket(theirs, server_side=True))
    )
    accepting.start()
    plain = trusting.wrap_socket(ours, server_hostname="localhost")
    client = ReadAhead(plain)
    accepting.join()
    accepted[0].sendall(b"onetwo")
    assert plain.recv(1) == b"o"  # what TLS has is ready, too
    assert wait_for([client, waker], [], 0)[0] == [client]
    assert client.recv(2) == b"ne"
    assert wait_for([client, waker], [], 0)[0] == [client]
    waking.sendall(b"x")
    assert wait_for([client, waker], [], 5)[0] == [client, waker]
    assert client.recv(3) == b"two"
    assert wait_for([client], [], 0)[0] == []
    for each in (client, accepted[0], waker, waking):
        each.close()


def test_a_socket_that_ends_is_ready_for_all() -> None:
    ours, theirs = socket.socketpair()
    client = ReadAhead(ours)
    assert wait_for([client], [client], 5) == ([], [client])
    theirs.sendall(b"last")
    theirs.close()
    assert wait_for([client], [client], 5) == ([client], [client])
    assert (client.recv(9), client.pending(), client.recv(9)) == (b"last", 0, b"")
    client.close()


class Served:
    """A connection without kazoo's thread, whose steps the test does."""

    def __init__(self, stack: ExitStack) -> None:
        self.outcomes: list[tuple[Any, BaseException | None, int]] = []
        self.hops: list[Any] = []
        self.next_turn: list[Any] = []
        self.connection = Connection("127.0.0.1:1", 10.0, self, self)  # type: ignore[arg-type]
        self.inner = self.connection._client._connection
        ours, self.server = socket.socketpair()
        self.inner._read_sock, self.inner._write_sock = socket.socketpair()
        self.inner._socket = ReadAhead(ours)
        for each in (ours, self.server, self.inner._read_sock, self.inner._write_sock):
            stack.enter_context(each)
        ours.setblocking(False)
        self.inner._xid = 0
        self.connection._client._state = KeeperState.CONNECTED

    def call_soon(self, call: Any) -> None:
        self.next_turn.append(call)

    def turn(self) -> None:
        """The loop goes on."""
        calls, self.next_turn = self.next_turn, []
        for call in calls:
            call()

    def call_soon_threadsafe(self, call: Any) -> None:
        self.hops.append(call)

    def ask(self, request: Any) -> None:
        self.connection.submit(request, lambda *outcome: self.outcomes.append(outcome))

    @property
    def wakes(self) -> int:
        """How often the thread was woken since it looked last."""
        try:
            return len(self.inner._read_sock.recv(100, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return 0

    def sent(self) -> list[tuple[int, int]]:
        """Number and type of each request that the server has got."""
        try:
            data = self.server.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        found = []
        while data:
            length, number, kind = struct.unpack_from(">iii", data)
            found.append((number, kind))
            data = data[4 + length :]
        return found


@pytest.fixture
def served() -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(stack)


def answer(number: int, body: bytes = b"", error: int = 0) -> bytes:
    return struct.pack(">iiqi", 16 + len(body), number, 70 + number, error) + body


def path_of(name: str) -> bytes:
    return struct.pack(">i", len(name)) + name.encode()


def test_requests_that_are_made_together_are_sent_together(served: Served) -> None:
    requests = [GetChildren("/a", None), Sync("/b"), Exists("/c", None)]
    for request in requests:
        served.ask(request)
    assert served.wakes == 0
    served.turn()
    assert served.wakes == 1
    served.inner._send_request(5.0, 5.0)
    assert served.wakes == 0
    assert served.sent() == [(1 + i, request.type) for i, request in enumerate(requests)]
    served.ask(Sync("/d"))
    served.turn()
    served.ask(Sync("/e"))
    served.turn()
    assert served.wakes == 1
    served.inner._send_request(5.0, 5.0)
    assert served.sent() == [(4, Sync.type), (5, Sync.type)]
    served.inner._write_sock.send(b"\0")  # as kazoo itself does, with nothing to send
    served.inner._send_request(5.0, 5.0)
    assert (served.sent(), served.wakes) == ([], 0)


def test_answers_are_read_between_very_many_requests(served: Served) -> None:
    for _ in range(3):
        served.ask(Sync("/" + "x" * (SEND_BYTES // 2)))
    served.turn()
    served.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * SEND_BYTES)
    got: list[bytes] = []
    reading = threading.Thread(target=lambda: got.append(read_all(served.server, 3)))
    reading.start()
    served.inner._send_request(5.0, 5.0)
    assert served.wakes == 1
    assert len(served.connection._client._pending) == 2
    served.inner._send_request(5.0, 5.0)
    reading.join()
    assert served.wakes == 0
    assert len(got[0]) > 3 * (SEND_BYTES // 2)


def read_all(server: socket.socket, count: int) -> bytes:
    found = b""
    for _ in range(count):
        head = server.recv(4, socket.MSG_WAITALL)
        found += server.recv(int.from_bytes(head), socket.MSG_WAITALL)
    return found


def test_answers_that_came_together_are_one_hop_to_the_loop(served: Served) -> None:
    for name in "abc":
        served.ask(Sync(f"/{name}"))
    served.turn()
    served.inner._send_request(5.0, 5.0)
    whole = answer(1, path_of("/a")) + answer(2, error=-101) + answer(3, path_of("/c"))
    served.server.sendall(whole[:-3])
    threading.Timer(0.0, served.server.sendall, (whole[-3:],)).start()
    served.inner._read_socket(5.0)
    assert not served.outcomes
    assert len(served.hops) == 1
    served.hops[0]()
    assert [zxid for _, _, zxid in served.outcomes] == [71, 72, 73]
    first, second, third = [error for _, error, _ in served.outcomes]
    assert first is third is None
    assert isinstance(second, NoNodeError)
    assert not served.connection._client._pending


def test_an_ended_session_refuses(served: Served) -> None:
    served.connection._client._state = KeeperState.CLOSED
    served.ask(Sync("/a"))
    served.hops.pop()()
    assert served.outcomes[0][1] is not None
    assert served.wakes == 0
