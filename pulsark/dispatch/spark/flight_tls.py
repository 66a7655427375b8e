"""One Flight client over TLS: the handshake, and copying to and from the Flight server.

One thread copies both directions, because OpenSSL's connections are not for two threads at once.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import TYPE_CHECKING

from pulsark.dispatch.spark.flight_buffers import CopyBuffer
from pulsark.limits import FLIGHT_COPY_BYTES_MAX
from pulsark.security.limits import TLS_HANDSHAKE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    Heard = Callable[[memoryview], None]

HELLO = b"\x16\x03"
"""What every client over TLS sends first: a record of a handshake, of any version."""

_Wait = tuple[socket.socket, int]
_STEPS = 16


def shake_hands(client: ssl.SSLSocket) -> None:
    """``OSError`` if the handshake fails, takes too long or does not ask for HTTP/2."""
    client.settimeout(TLS_HANDSHAKE_SECONDS)
    client.do_handshake()
    if client.selected_alpn_protocol() != "h2":
        raise OSError("the client does not speak HTTP/2")


def copy(client: ssl.SSLSocket, server: socket.socket, heard: Heard, answered: Heard) -> None:
    """Copy both directions until one side ends.

    ``heard`` gets what the client sends before the server does, and may raise ``OSError``;
    ``answered`` gets what the server sends.
    """
    client.setblocking(False)
    server.setblocking(False)
    up = _Direction(client, server, heard, CopyBuffer())
    down = _Direction(server, client, answered, CopyBuffer(FLIGHT_COPY_BYTES_MAX))
    with contextlib.suppress(EOFError, OSError):
        while True:
            waits = [up.steps(), down.steps()]
            if None not in waits:
                _wait([wait for wait in waits if wait is not None])
    with contextlib.suppress(OSError, ValueError):
        client.unwrap()


class _Direction:
    def __init__(
        self, source: socket.socket, target: socket.socket, heard: Heard, buffer: CopyBuffer
    ) -> None:
        self._source = source
        self._target = target
        self._heard = heard
        self._buffer = buffer
        self._rest = buffer.view[:0]

    def steps(self) -> _Wait | None:
        """Copy a little; returns what has to be waited for. ``EOFError`` at the source's end."""
        for _ in range(_STEPS):  # so that neither direction starves the other
            if not self._rest:
                try:
                    size = self._source.recv_into(self._buffer.view)
                except (BlockingIOError, ssl.SSLWantReadError):
                    return self._source, select.POLLIN
                except ssl.SSLWantWriteError:
                    return self._source, select.POLLOUT
                if not size:
                    raise EOFError
                self._rest = self._buffer.took(size)
                self._heard(self._rest)
            try:
                self._rest = self._rest[self._target.send(self._rest) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                return self._target, select.POLLOUT
            except ssl.SSLWantReadError:
                return self._target, select.POLLIN
        return None


def _wait(waits: list[_Wait]) -> None:
    """Sleep until one of these can go on, or a socket is shut down."""
    events: dict[int, int] = {}
    for connection, event in waits:
        events[connection.fileno()] = events.get(connection.fileno(), 0) | event
    poll = select.poll()
    for descriptor, event in events.items():
        poll.register(descriptor, event)
    poll.poll()
