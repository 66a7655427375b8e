"""Connections between Flight clients and the Flight server: who waits, who is connected.

A new client waits in the lobby, which costs a socket and nothing else, until it has spoken HTTP/2.
Then it gets a connection of its own to the server, and two threads. The number of these connections
is bounded; at the limit, the one that has been silent for longest is cut. Its client connects again
when it needs to.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections import Counter
from typing import TYPE_CHECKING

from pulsark.limits import FLIGHT_IDLE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What every client sends first."""

_COPY_BYTES = 256 * 1024
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
_UNANSWERED_MS = 120_000


def shut(connection: socket.socket) -> None:
    """Wake every thread that is blocked on a socket."""
    with contextlib.suppress(OSError):  # not connected any more
        connection.shutdown(socket.SHUT_RDWR)


class Lobby:
    """Clients that have connected and said nothing yet, the oldest first. For one thread."""

    def __init__(self, most: int, seconds: float, now: Callable[[], float]) -> None:
        self._most = most
        self._seconds = seconds
        self._now = now
        self._waiting: dict[socket.socket, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, client: socket.socket) -> list[socket.socket]:
        """A client has connected; returns clients to close, because there are too many."""
        client.setblocking(False)
        # It is readable once the whole preface is there, or nothing more comes.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(PREFACE))
        gone = []
        while len(self._waiting) >= self._most:
            gone.append(next(iter(self._waiting)))
            del self._waiting[gone[-1]]
        self._waiting[client] = self._now() + self._seconds
        return gone

    def leave(self, client: socket.socket) -> bool:
        """Whether a client that is readable speaks HTTP/2. It waits no more."""
        self._waiting.pop(client, None)
        try:
            spoken = client.recv(len(PREFACE), socket.MSG_PEEK)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            client.setblocking(True)
        except OSError:
            return False
        return spoken == PREFACE

    def late(self) -> list[socket.socket]:
        """Take out and return the clients that have waited for too long."""
        now = self._now()
        gone = [client for client, end in self._waiting.items() if end <= now]
        for client in gone:
            del self._waiting[client]
        return gone

    def clear(self) -> list[socket.socket]:
        """Empty the lobby; returns its clients."""
        gone = list(self._waiting)
        self._waiting.clear()
        return gone


class Relay:
    """One client and its connection to the server."""

    def __init__(self, client: socket.socket, backend: socket.socket, host: str) -> None:
        self.client = client
        self.backend = backend
        self.host = host
        self.heard_at = 0.0

    def cut(self) -> None:
        """End it; its threads notice."""
        shut(self.client)
        shut(self.backend)


class Relays:
    """All of them. Called from any thread."""

    def __init__(self, most: int, most_of_host: int, now: Callable[[], float]) -> None:
        """``most_of_host`` is for one address; 0: no limit."""
        self._most = most
        self._most_of_host = most_of_host
        self._now = now
        self._lock = threading.Lock()
        self._open: dict[Relay, None] = {}
        self._of_host: Counter[str] = Counter()
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def join(self, client: socket.socket, connect: Callable[[], socket.socket], host: str) -> None:
        """Connect a client with the server, or close it."""
        if not self._make_room(host):
            client.close()
            return
        try:
            backend = connect()
        except Exception as error:  # whatever it is, the next client is let in
            self._give_back(host)
            client.close()
            log.warning(
                "flight: cannot connect to the Flight server behind the port: %s",
                error,
                exc_info=None if isinstance(error, OSError) else error,
            )
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(client)
        relay = Relay(client, backend, host)
        relay.heard_at = self._now()
        with self._lock:
            self._open[relay] = None
            closed = self._closed
        half_done = threading.Event()
        for source, target in ((client, backend), (backend, client)):
            try:
                threading.Thread(
                    target=self._copy,
                    args=(relay, source, target, half_done),
                    name="flight-copy",
                    daemon=True,
                ).start()
            except RuntimeError as error:  # there are too many
                log.warning(
                    "flight: cannot start a thread for a connection from %s: %s", host, error
                )
                relay.cut()
                self._copied(relay, half_done)
        if closed:
            relay.cut()

    def close(self) -> None:
        """End all, now and later."""
        with self._lock:
            self._closed = True
            cut = list(self._open)
        for relay in cut:
            relay.cut()

    def _make_room(self, host: str) -> bool:
        """Count a connection of this address; whether the limits allow it."""
        with self._lock:
            taken = self._of_host.total()
            of_host = 0 < self._most_of_host <= self._of_host[host]
            if self._closed or (taken < self._most and not of_host):
                self._of_host[host] += not self._closed
                return not self._closed
            rivals = (r for r in self._open if not of_host or r.host == host)
            silent = min(rivals, key=lambda relay: relay.heard_at, default=None)
            idle = silent is not None and self._now() - silent.heard_at >= FLIGHT_IDLE_SECONDS
            if silent is None or not idle:
                log.warning("flight: %s is refused, all %d connections are in use", host, taken)
                return False
            del self._open[silent]
            self._of_host[silent.host] -= 1
            self._of_host[host] += 1
        silent.cut()
        return True

    def _give_back(self, host: str) -> None:
        with self._lock:
            self._of_host[host] -= 1

    def _copy(
        self,
        relay: Relay,
        source: socket.socket,
        target: socket.socket,
        half_done: threading.Event,
    ) -> None:
        """Copy one direction to its end; the direction that ends last closes both sockets."""
        buffer = memoryview(bytearray(_COPY_BYTES))
        try:
            while size := source.recv_into(buffer):
                relay.heard_at = self._now()
                target.sendall(buffer[:size])
            with contextlib.suppress(OSError):  # the peer may have gone completely
                target.shutdown(socket.SHUT_WR)
        except OSError:
            relay.cut()
        self._copied(relay, half_done)

    def _copied(self, relay: Relay, half_done: threading.Event) -> None:
        """A direction has ended."""
        with self._lock:
            last = half_done.is_set()
            half_done.set()
            if last and relay in self._open:
                del self._open[relay]
                self._of_host[relay.host] -= 1
                self._of_host += Counter()  # without those that have none
        if last:
            relay.client.close()
            relay.backend.close()


def _keep_alive(client: socket.socket) -> None:
    """Notice a client whose machine is gone."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**_KEEP_ALIVE, "TCP_USER_TIMEOUT": _UNANSWERED_MS}.items():
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            client.setsockopt(socket.IPPROTO_TCP, option, value)
