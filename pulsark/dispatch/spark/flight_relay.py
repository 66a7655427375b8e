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
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from pulsark.dispatch.spark.flight_buffers import CopyBuffer
from pulsark.dispatch.spark.flight_calls import Calls
from pulsark.dispatch.spark.flight_requests import PREFACE, FlightRequests, RequestError
from pulsark.dispatch.spark.flight_tls import copy, shake_hands
from pulsark.limits import FLIGHT_COPY_BYTES_MAX, FLIGHT_IDLE_SECONDS, FLIGHT_LOGIN_SURE_SECONDS
from pulsark.security.limits import (
    TLS_HANDSHAKE_SURE_SECONDS,
    TLS_HANDSHAKES_MAX,
    TLS_HANDSHAKES_PER_ADDRESS_MAX,
)
from pulsark.security.networks import network_of
from pulsark.security.peer import certificate_of, peer_of, refused_certificate
from pulsark.security.seldom_warnings import SeldomWarnings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from pulsark.security.connection_slots import ConnectionSlots, Slot
    from pulsark.security.peer import TlsPeer

log = logging.getLogger(__name__)

_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
_UNANSWERED_MS = 120_000
DESCRIPTORS_OF_RELAY = 3
"""The client's socket, and both ends of the connection to the server."""


def shut(connection: socket.socket) -> None:
    """Wake every thread that is blocked on a socket."""
    with contextlib.suppress(OSError):  # not connected any more
        # Not the method of a connection over TLS, which is not for a second thread.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class SilentClients:
    """Clients that have connected and said nothing yet, the oldest first. For one thread."""

    def __init__(
        self,
        most: int,
        seconds: float,
        now: Callable[[], float],
        begin: bytes = PREFACE,
        slots: ConnectionSlots | None = None,
    ) -> None:
        """``begin``: what a client sends first."""
        self._begin = begin
        self._most = most
        self._seconds = seconds
        self._now = now
        self._slots = slots
        self._waiting: dict[socket.socket, tuple[float, Slot | None]] = {}

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
            self._forget(gone[-1])
        # One whose slot is taken away becomes readable, and does not begin as it has to.
        slot = self._slots.take(partial(shut, client)) if self._slots is not None else None
        if slot is None and self._slots is not None:
            shut(client)
        self._waiting[client] = self._now() + self._seconds, slot
        return gone

    def leave(self, client: socket.socket) -> bool:
        """Whether a client that is readable begins as it has to. It waits no more."""
        self._forget(client)
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
        gone = [client for client, (end, _) in self._waiting.items() if end <= now]
        for client in gone:
            self._forget(client)
        return gone

    def clear(self) -> list[socket.socket]:
        """Empty the lobby; returns its clients."""
        gone = list(self._waiting)
        for client in gone:
            self._forget(client)
        return gone

    def _forget(self, client: socket.socket) -> None:
        _, slot = self._waiting.pop(client, (0.0, None))
        if slot is not None:
            slot.leave()


class Rival(Protocol):
    """A connection that may be cut for another one."""

    host: str
    logged_in: bool
    begun: float
    heard_at: float


R = TypeVar("R", bound=Rival)


def whom_to_cut(rivals: Sequence[R], host: str, now: float) -> R | None:
    """Who goes for a client of this address, if anybody does; ``rivals`` are in order of age.

    First those who have not logged in: of the network that has most of them the oldest one, so
    that no flood keeps others out. Else who has been silent for long.
    """
    strangers = [rival for rival in rivals if not rival.logged_in]
    if strangers:
        counts = Counter(network_of(rival.host) for rival in strangers)
        oldest = max(strangers, key=lambda rival: counts[network_of(rival.host)])
        others = counts[network_of(oldest.host)] - counts[network_of(host)]
        if others > 1 or now - oldest.begun >= FLIGHT_LOGIN_SURE_SECONDS:
            return oldest
    silent = min(rivals, key=lambda rival: rival.heard_at, default=None)
    idle = silent is not None and now - silent.heard_at >= FLIGHT_IDLE_SECONDS
    return silent if idle else None


class Relay:
    """One client and its connection to the server."""

    def __init__(
        self, client: socket.socket, backend: socket.socket, host: str, begun: float
    ) -> None:
        self.client = client
        self.backend = backend
        self.host = host
        self.port = 0
        self.certificate: bytes | None = None
        """The client's, in DER, if it came with one that was verified."""
        self.tls: TlsPeer | None = None
        """How the client's connection is secured, if it is."""
        self.logged_in = False
        """Whether a call of the client was let in, or made where nobody has to log in."""
        self.slot: Slot | None = None
        self.begun = self.heard_at = begun
        self.name = name_of(str(backend.getsockname()))
        """How the server knows this connection."""
        self._requests = FlightRequests()

    def known(self) -> None:
        """The client has logged in, or need not: other connections do not take its place."""
        self.logged_in = True
        if self.slot is not None:
            self.slot.log_in()

    @property
    def calls(self) -> int:
        """How many are under way."""
        return self._requests.calls

    def take(self, data: memoryview) -> None:
        """What the client sends. Raises ``RequestError``."""
        try:
            self._requests.take(data)
        except RequestError as error:
            log.info("flight: closing the connection of %s: %s", self.host, error)
            raise

    def answered(self, data: memoryview) -> None:
        """What the server sends."""
        self._requests.answered(data)

    def cut(self) -> None:
        """End it; its threads notice."""
        shut(self.client)
        shut(self.backend)


def name_of(address: str) -> str:
    """The last part of the path of a socket."""
    return address.rpartition("/")[2]


class _Handshake(NamedTuple):
    """One over TLS that is under way."""

    network: str
    begun: float


class Relays:
    """All of them. Called from any thread."""

    def __init__(
        self,
        most: int,
        most_of_host: int,
        now: Callable[[], float],
        *,
        most_calls: int = 512,
        logins: bool = False,
        slots: ConnectionSlots | None = None,
    ) -> None:
        """``most_of_host`` is for one address; 0: no limit. With ``logins`` clients log in."""
        self._slots = slots
        self._calls: Calls[Relay] = Calls(most_calls)
        self._most = most
        self._logins = logins
        self._most_of_host = most_of_host
        self._now = now
        self._refusals = SeldomWarnings(log, now)
        self._lock = threading.Lock()
        self._open: dict[Relay, None] = {}
        self._by_name: dict[str, Relay] = {}
        self._of_host: Counter[str] = Counter()
        self._shaking: dict[socket.socket, _Handshake] = {}
        """Clients whose TLS handshake is under way, the oldest first."""
        self._closed = False
        self.told: Callable[[str, str], None] | None = None
        """Hears of which address a certificate was refused, and why. Called from any thread."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def calls(self) -> int:
        """How many calls are under way on all of them."""
        return self._calls.total

    def find(self, name: str) -> Relay | None:
        """The one that the server knows by this name."""
        return self._by_name.get(name)

    def join_over_tls(
        self,
        client: socket.socket,
        connect: Callable[[], socket.socket],
        host: str,
        context: ssl.SSLContext,
    ) -> None:
        """The same over TLS, in a thread that first has the client's handshake."""
        try:
            secured = context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
        except OSError:  # it is gone
            client.close()
            return
        with self._lock:
            allowed = not self._closed and self._may_shake_hands(network_of(host))
            if allowed:
                self._shaking[secured] = _Handshake(network_of(host), self._now())
        try:
            if allowed:
                threading.Thread(
                    target=self._carry_over_tls,
                    args=(secured, connect, host),
                    name="flight-tls",
                    daemon=True,
                ).start()
                return
        except RuntimeError as error:  # there are too many
            log.warning("flight: cannot start a thread for a connection from %s: %s", host, error)
            self._shaken(secured)
        secured.close()

    def _may_shake_hands(self, network: str) -> bool:
        """Whether one more handshake may begin, if need be in the place of the oldest."""
        mine = [c for c, each in self._shaking.items() if each.network == network]
        crowded = len(mine) >= TLS_HANDSHAKES_PER_ADDRESS_MAX
        if not crowded and len(self._shaking) < TLS_HANDSHAKES_MAX:
            return True
        oldest = mine[0] if crowded else next(iter(self._shaking))
        if self._now() - self._shaking[oldest].begun < TLS_HANDSHAKE_SURE_SECONDS:
            return False
        del self._shaking[oldest]
        shut(oldest)
        return True

    def _carry_over_tls(
        self, client: ssl.SSLSocket, connect: Callable[[], socket.socket], host: str
    ) -> None:
        try:
            shake_hands(client)
        except OSError as error:
            log.debug("flight: %s: no TLS handshake: %s", host, error)
            if self.told is not None and (why := refused_certificate(error)):
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self.told(host, why)
            client.close()
            return
        finally:
            self._shaken(client)
        relay = self._enter(client, connect, host, certificate_of(client), peer_of(client))
        if relay is None:
            return
        copy(
            client,
            relay.backend,
            lambda data: self._heard(relay, data),
            lambda data: self._answered(relay, data),
        )
        self._leave(relay)

    def _shaken(self, client: socket.socket) -> None:
        with self._lock:
            self._shaking.pop(client, None)

    def _heard(self, relay: Relay, data: memoryview) -> None:
        """The client has sent this, which is on its way. Raises ``RequestError``."""
        relay.heard_at = self._now()
        relay.take(data)
        self._count_calls(relay)

    def _answered(self, relay: Relay, data: memoryview) -> None:
        """The server has sent this, which is on its way."""
        relay.answered(data)
        self._count_calls(relay)

    def _count_calls(self, relay: Relay) -> None:
        if relay.calls and not (self._logins or relay.logged_in):
            relay.known()
        cut = self._calls.count(relay)
        if cut is not None:
            log.info("flight: closing the connection of %s: too many calls are under way", cut.host)
            cut.cut()

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
        self,
        client: socket.socket,
        connect: Callable[[], socket.socket],
        host: str,
        certificate: bytes | None = None,
        tls: TlsPeer | None = None,
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
        relay = Relay(client, backend, host, self._now())
        relay.certificate, relay.tls = certificate, tls
        with contextlib.suppress(OSError):  # the client is gone
            relay.port = client.getpeername()[1]
        if self._slots is not None:
            relay.slot = self._slots.take(relay.cut, DESCRIPTORS_OF_RELAY)
        with self._lock:
            self._open[relay] = None
            self._by_name[relay.name] = relay
            closed = self._closed
        if closed or (self._slots is not None and relay.slot is None):
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
            rivals = [r for r in self._open if not of_host or r.host == host]
            leaving = whom_to_cut(rivals, host, self._now())
            if leaving is None:
                self._refusals.note(
                    "flight: refused %s: all %d connections are in use", host, taken
                )
                return False
            del self._open[leaving]
            self._of_host[leaving.host] -= 1
            self._of_host[host] += 1
        leaving.cut()
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
        is_client = source is relay.client
        buffer = CopyBuffer() if is_client else CopyBuffer(FLIGHT_COPY_BYTES_MAX)
        note = self._heard if is_client else self._answered
        try:
            while size := source.recv_into(buffer.view):
                read = buffer.took(size)
                note(relay, read)
                target.sendall(read)
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
            del self._by_name[relay.name]
        if relay.slot is not None:
            relay.slot.leave()
        self._calls.forget(relay)
        relay.client.close()
        relay.backend.close()


def _keep_alive(client: socket.socket) -> None:
    """Notice a client whose machine is gone."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**_KEEP_ALIVE, "TCP_USER_TIMEOUT": _UNANSWERED_MS}.items():
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            client.setsockopt(socket.IPPROTO_TCP, option, value)
