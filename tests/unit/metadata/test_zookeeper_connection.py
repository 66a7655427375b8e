"""What this project changes of kazoo's sockets."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

from pulsark.metadata.zookeeper.connection import _Handler
from tests.support.certificates import Authority


def test_what_tls_has_read_ahead_is_ready(tmp_path: Path) -> None:
    """Two answers may be in one record; the network has nothing more to make the socket ready."""
    authority = Authority(tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*authority.issue("localhost"))
    trusting = ssl.create_default_context(cafile=str(authority.trust))
    handler = _Handler(lambda *_: None, trusting)
    ours, theirs = socket.socketpair()
    waker, waking = socket.socketpair()
    accepted: list[ssl.SSLSocket] = []
    accepting = threading.Thread(
        target=lambda: accepted.append(serving.wrap_socket(theirs, server_side=True))
    )
    accepting.start()
    client = trusting.wrap_socket(ours, server_hostname="localhost")
    accepting.join()
    accepted[0].sendall(b"onetwo")
    assert client.recv(3) == b"one"
    assert handler.select([client, waker], [], [], 0)[0] == [client]
    waking.sendall(b"x")
    assert set(handler.select([client, waker], [], [], 5)[0]) == {client, waker}
    assert client.recv(3) == b"two"
    assert handler.select([client], [], [], 0)[0] == []
    for each in (client, accepted[0], waker, waking):
        each.close()
