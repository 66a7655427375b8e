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

from pulsark.dispatch.spark.flight_tls import copy, shake_hands
from pulsark.limits import (
    FLIGHT_IDLE_SECONDS,
    TLS_HANDSHAKES_MAX,
    TLS_HANDSHAKES_PER_ADDRESS_MAX,
)

if TYPE_CHECKING:
    import ssl
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
        # Not the method of a connection over TLS, which is not for a second thread.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class Lobby:
    """Clients that have connected and said nothing yet, the oldest first. For one thread."""

    def __init__(
        self, most: int, seconds: float, now: Callable[[], float], begin: bytes = PREFACE
    ) -> None:
        """``begin``: what a client sends first."""
        self._begin = begin
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
        """Whether a client that is readable begins as it has to. It waits no more."""
        self._waiting.pop(client, None)
        try:
            spoken = client.recv(len(PREFACE), socket.MSG_PEEK)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            client.setblocking(True)
        except OSError:
            return False
        return spoken.startswith(self._begin)

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
        self._shaking: Counter[str] = Counter()
        """TLS handshakes under way, by address."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def join_over_tls(
        self,
        client: socket.socket,
        connect: Callable[[], socket.socket],
        host: str,
        context: ssl.SSLContext,
    ) -> None:
        """The same over TLS, in a thread that first has the client's handshake."""
        with self._lock:
            shaking = self._shaking[host] + 1
            allowed = (
                not self._closed
                and shaking <= TLS_HANDSHAKES_PER_ADDRESS_MAX
                and self._shaking.total() < TLS_HANDSHAKES_MAX
            )
            self._shaking[host] += allowed
        try:
            if allowed:
                threading.Thread(
                    target=self._carry_over_tls,
                    args=(client, connect, host, context),
                    name="flight-tls",
                    daemon=True,
                ).start()
                return
        except RuntimeError as error:  # there are too many
            log.warning("flight: cannot start a thread for a connection from %s: %s", host, error)
            self._shaken(host)
        client.close()

    def _carry_over_tls(
        self,
        client: socket.socket,
        connect: Callable[[], socket.socket],
        host: str,
        context: ssl.SSLContext,
    ) -> None:
        try:
            secured = shake_hands(client, context)
        except OSError as error:
            log.debug("flight: %s: no TLS handshake: %s", host, error)
            client.close()
            return
        finally:
            self._shaken(host)
        relay = self._enter(secured, connect, host)
        if relay is None:
            return

        def heard() -> None:
            relay.heard_at = self._now()

        copy(secured, relay.backend, heard)
        self._leave(relay)

    def _shaken(self, host: str) -> None:
        with self._lock:
            self._shaking[host] -= 1
            self._shaking += Counter()  # without those that have none

    def join(self, client: socket.socket, connect: Callable[[], socket.socket], host: str) -> None:
        """Connect a client with the server, or close it."""
        relay = self._enter(client, connect, host)
        if relay is None:
            return
        half_done = threading.Event()
        for source, target in ((client, relay.backend), (relay.backend, client)):
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

    def _enter(
        self, client: socket.socket, connect: Callable[[], socket.socket], host: str
    ) -> Relay | None:
        """A relay between a client and the server; without one the client is closed."""
        if not self._make_room(host):
            client.close()
            return None
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
            return None
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(client)
        relay = Relay(client, backend, host)
        relay.heard_at = self._now()
        with self._lock:
            self._open[relay] = None
            closed = self._closed
        if closed:
            relay.cut()
        return relay

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
        if last:
            self._leave(relay)

    def _leave(self, relay: Relay) -> None:
        """Both directions have ended."""
        with self._lock:
            if relay in self._open:
                del self._open[relay]
                self._of_host[relay.host] -= 1
                self._of_host += Counter()  # without those that have none
        relay.client.close()
        relay.backend.close()


def _keep_alive(client: socket.socket) -> None:
    """Notice a client whose machine is gone."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**_KEEP_ALIVE, "TCP_USER_TIMEOUT": _UNANSWERED_MS}.items():
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            client.setsockopt(socket.IPPROTO_TCP, option, value)
