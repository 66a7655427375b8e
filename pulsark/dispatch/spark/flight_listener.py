"""The Flight port: listens from the start, pays for pyarrow.flight at the first connection.

Importing ``pyarrow.flight`` costs tens of megabytes and a few hundred milliseconds, which an
idle broker shall not spend. So a thread waits at the public port; when the first client
speaks HTTP/2, it imports and starts the Flight server on a private Unix socket, and from then on
threads copy bytes between the two (``flight_relay``; decision 016 says why they stay). They look
only at a client's first bytes. The event loop takes no part: it only answers ``FlightSource``
calls, one bounded chunk at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import selectors
import socket
import threading
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from pulsark.config.addresses import listening
from pulsark.dispatch.spark.flight_relay import Relays, SilentClients, shut
from pulsark.dispatch.spark.flight_requests import PREFACE
from pulsark.dispatch.spark.flight_tls import HELLO
from pulsark.limits import FLIGHT_LOBBY_MAX, FLIGHT_PREFACE_SECONDS
from pulsark.runtime import Clock, SystemClock
from pulsark.security.connection_slots import NO_DESCRIPTOR

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Sequence

    from pulsark.dispatch.loop.request_turns import RequestTurns
    from pulsark.dispatch.spark.flight_server import EntryFlightServer
    from pulsark.security.audit.audit import Audit
    from pulsark.security.authorization import AuthorizationProvider
    from pulsark.security.connection_slots import ConnectionSlots
    from pulsark.security.logins import Logins
    from pulsark.wire.position import Position

log = logging.getLogger(__name__)

_LOBBY_ROUND_SECONDS = 0.5
_STOP_SECONDS = 2.0


class TopicRange(NamedTuple):
    """A topic's identity and what it holds: ``last`` is (-1, -1) while it is empty."""

    topic_id: str
    first: Position
    last: Position


class FlightSource(Protocol):
    """What Flight needs of a broker. Called on the broker's event loop."""

    async def topic_range(self, topic: str) -> TopicRange:
        """Identity and bounds of a topic partition; ``ClientError(TopicNotFound)``."""

    async def read_entries(
        self, topic: str, first: Position, last: Position, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        """Entries in ``[first, last]`` in order, from any ledger that the range touches.

        Ends early after ``max_bytes`` but holds at least one entry if there is any; empty
        means that nothing durable is left in the range.
        """

    async def read_compacted(
        self, topic: str, first: Position, last: Position, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        """Entries of a compacted ledger of a topic, by its own numbers and as they are stored.

        ``ClientError(NotAllowedError)`` if it was replaced and is gone.
        """


class FlightListener:
    """Accepts Flight clients of one broker. Create, listen and close on the event loop."""

    def __init__(
        self,
        source: FlightSource,
        *,
        most: int = 256,
        most_of_host: int = 0,
        most_calls: int = 512,
        clock: Clock | None = None,
        logins: Logins | None = None,
        authorization: AuthorizationProvider | None = None,
        audit: Audit | None = None,
        slots: ConnectionSlots | None = None,
        turns: RequestTurns | None = None,
    ) -> None:
        """``most`` connections at a time, ``most_of_host`` (0: as many) of one address.

        ``most_calls`` are under way on all of them.

        With ``logins`` each call has to bring credentials, and ``authorization`` decides what
        may be read with them. What calls do on the event loop shares the ``turns`` of requests.
        """
        self._slots = slots
        self._turns = turns
        self._logins = logins
        self._authorization = authorization
        self._audit = audit
        self._source = source
        self._now = (clock or SystemClock()).monotonic
        self._listeners: list[socket.socket] = []
        self._server: EntryFlightServer | None = None
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._closing = threading.Event()
        self._asleep, self._wake = socket.socketpair()
        """What sleeps over the first of them wakes when the second is closed."""
        self._relays = Relays(
            most,
            most_of_host,
            self._now,
            most_calls=most_calls,
            logins=logins is not None,
            slots=slots,
        )
        self._numbers = count(1)

    async def listen(self, hosts: Sequence[str], port: int) -> int:
        """Listen; returns the port (``port`` 0 takes a free one). ``ConfigError`` if in use."""
        return self._listen(hosts, port, "flightServicePort", None)

    def listen_tls(self, hosts: Sequence[str], port: int, context: ssl.SSLContext) -> int:
        """The same for clients over TLS."""
        return self._listen(hosts, port, "flightServicePortTls", context)

    def _listen(
        self, hosts: Sequence[str], port: int, key: str, context: ssl.SSLContext | None
    ) -> int:
        listeners = listening(hosts, port, key, backlog=128)
        self._listeners += listeners
        loop = asyncio.get_running_loop()
        audit = self._audit
        if audit is not None and context is not None:

            def told(host: str, why: str) -> None:
                loop.call_soon_threadsafe(audit.certificate_refused, "flight", host, why)

            self._relays.told = told
        for listener in listeners:
            # Here, not in the thread: `close` may run before the thread does.
            selector = selectors.DefaultSelector()
            selector.register(listener, selectors.EVENT_READ)
            selector.register(self._asleep, selectors.EVENT_READ)
            threading.Thread(
                target=self._accept,
                args=(listener, selector, loop, context),
                name="flight-accept",
                daemon=True,
            ).start()
        return int(listeners[0].getsockname()[1])

    async def close(self) -> None:
        """Cut all connections and stop the server, if it was ever started."""
        with self._lock:
            self._closing.set()
            self._wake.close()
            listeners, self._listeners = self._listeners, []
            server, self._server = self._server, None
        _close(listeners)
        if server is not None:
            server.closing.set()
        self._relays.close()
        if server is not None:
            await _stop(server)

    def _accept(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext | None,
    ) -> None:
        """Let clients in, and those through that speak HTTP/2, or TLS where that is wanted."""
        begin = PREFACE if context is None else HELLO
        lobby = SilentClients(
            FLIGHT_LOBBY_MAX, FLIGHT_PREFACE_SECONDS, self._now, begin, self._slots
        )
        with selector:
            while not self._closing.is_set():
                for key, _ in selector.select(_LOBBY_ROUND_SECONDS if lobby else None):
                    found = cast("socket.socket", key.fileobj)
                    if found is listener:
                        self._let_in(listener, lobby, selector)
                    elif found is not self._asleep and found.fileno() >= 0:
                        selector.unregister(found)
                        self._let_through(found, lobby, loop, context)
                for client in lobby.late():
                    selector.unregister(client)
                    client.close()
        for client in lobby.clear():
            client.close()

    def _let_in(
        self, listener: socket.socket, lobby: SilentClients, selector: selectors.BaseSelector
    ) -> None:
        try:
            client, _ = listener.accept()
        except OSError as error:
            # Without a free descriptor for example; or the listener was closed.
            if self._slots is not None and error.errno in NO_DESCRIPTOR:
                self._slots.relieve()
            if not self._closing.wait(_LOBBY_ROUND_SECONDS):
                log.warning("flight: cannot accept clients: %s", error)
            return
        for gone in lobby.enter(client):
            selector.unregister(gone)
            gone.close()
        selector.register(client, selectors.EVENT_READ)

    def _let_through(
        self,
        client: socket.socket,
        lobby: SilentClients,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext | None,
    ) -> None:
        try:
            host = client.getpeername()[0]
        except OSError:
            host = ""
        if not (lobby.leave(client) and host):
            client.close()
            return

        def connect() -> socket.socket:
            backend = socket.socket(socket.AF_UNIX)
            try:
                address = self._backend_address(loop)
                # The server is told this name by the system, and calls bring it back here.
                mine = f"{os.path.dirname(address)}/{next(self._numbers)}"
                backend.bind(mine)
                try:
                    backend.connect(address)
                finally:
                    os.unlink(mine)
            except BaseException:
                backend.close()
                raise
            return backend

        if context is None:
            self._relays.join(client, connect, host)
        else:
            self._relays.join_over_tls(client, connect, host, context)

    def _backend_address(self, loop: asyncio.AbstractEventLoop) -> str:
        """The path of the server's socket; the first call starts it. Acceptor threads only."""
        server = self._server
        if server is None:
            from pulsark.dispatch.spark.flight_server import EntryFlightServer

            with self._starting:
                server = self._server
                if server is None:
                    server = EntryFlightServer(
                        self._source,
                        loop,
                        self._logins,
                        self._authorization,
                        self._relays,
                        self._audit,
                        self._turns,
                    )
                    with self._lock:
                        if self._closing.is_set():
                            server.closing.set()
                            raise OSError("the broker is shutting down")
                        self._server = server
        return server.address


def _close(listeners: Iterable[socket.socket]) -> None:
    for listener in listeners:
        shut(listener)
        listener.close()


async def _stop(server: EntryFlightServer) -> None:
    """Shut the server down off the loop, which its streams still need; give up after a while."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.stop()
        with contextlib.suppress(RuntimeError):  # the loop has ended: the wait was given up
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=stop, name="flight-stop", daemon=True).start()
    try:
        await asyncio.wait_for(done.wait(), _STOP_SECONDS)
    except TimeoutError:
        log.warning("flight: a stream did not end within %s s of the stop", _STOP_SECONDS)
