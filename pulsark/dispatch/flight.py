"""The Flight port: listens from the start, pays for pyarrow.flight at the first connection.

Importing ``pyarrow.flight`` costs tens of megabytes and a few hundred milliseconds, which an
idle broker shall not spend. So a thread sleeps in ``accept`` on the public port; at the first
connection it imports and starts the Flight server on a loopback port, and from then on copies
bytes between the two. Bytes are never looked at, so whatever gRPC does works, TLS included.
The event loop takes no part: it only answers ``EntrySource`` calls, one bounded chunk at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pulsark.errors import ConfigError
from pulsark.storage.position import Position

if TYPE_CHECKING:
    from pulsark.dispatch.flight_server import EntryFlightServer

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
_COPY_BYTES = 256 * 1024
_STOP_SECONDS = 2.0


class TopicRange(NamedTuple):
    """A topic's identity and what it holds: ``last`` is (-1, -1) while it is empty."""

    topic_id: str
    first: Position
    last: Position


class EntrySource(Protocol):
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
        """The same of a compacted ledger of a topic, by its own numbers and as it is stored.

        ``ClientError(NotAllowedError)`` if it was replaced and is gone.
        """


class FlightListener:
    """Accepts Flight clients of one broker. Create, listen and close on the event loop."""

    def __init__(self, source: EntrySource) -> None:
        self._source = source
        self._listeners: list[socket.socket] = []
        self._server: EntryFlightServer | None = None
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._closed = False
        self._open: set[socket.socket] = set()

    async def listen(self, hosts: Sequence[str], port: int) -> int:
        """Listen; returns the port (``port`` 0 takes a free one). ``ConfigError`` if in use."""
        try:
            for host in hosts:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                listener = socket.create_server((host, port), family=family, backlog=128)
                self._listeners.append(listener)
        except OSError as error:
            _close(self._listeners)
            raise ConfigError.cannot_listen("flightServicePort", hosts, port, error) from error
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            threading.Thread(
                target=self._accept, args=(listener, loop), name="flight-accept", daemon=True
            ).start()
        return int(self._listeners[0].getsockname()[1])

    async def close(self) -> None:
        """Cut all connections and stop the server, if it was ever started."""
        with self._lock:
            self._closed = True
            listeners, self._listeners = self._listeners, []
            server, self._server = self._server, None
            cut = list(self._open)
        _close(listeners)
        if server is not None:
            server.closing.set()
        for connection in cut:
            _shut(connection)
        if server is not None:
            await _stop(server)

    def _accept(self, listener: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # the listener was closed
            try:
                backend = socket.create_connection(("127.0.0.1", self._backend_port(loop)))
            except OSError as error:
                client.close()
                log.warning("flight: no connection to the Flight server: %s", error)
                continue
            self._join(client, backend)

    def _backend_port(self, loop: asyncio.AbstractEventLoop) -> int:
        """The Flight server's own port; starts it at the first call. Acceptor threads only."""
        server = self._server
        if server is None:
            from pulsark.dispatch.flight_server import EntryFlightServer

            with self._starting:
                server = self._server
                if server is None:
                    server = EntryFlightServer(self._source, loop)
                    with self._lock:
                        if self._closed:
                            server.closing.set()
                            raise OSError("the broker is shutting down")
                        self._server = server
        return int(server.port)

    def _join(self, client: socket.socket, backend: socket.socket) -> None:
        with self._lock:
            refused = self._closed or len(self._open) >= 2 * MAX_CONNECTIONS
            if not refused:
                self._open |= {client, backend}
        if refused:
            client.close()
            backend.close()
            return
        for end in (client, backend):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        half_done = threading.Event()
        for source, target in ((client, backend), (backend, client)):
            threading.Thread(
                target=self._copy, args=(source, target, half_done), name="flight-copy", daemon=True
            ).start()

    def _copy(
        self, source: socket.socket, target: socket.socket, half_done: threading.Event
    ) -> None:
        """Copy one direction to its end; the direction that ends last closes both sockets."""
        buffer = memoryview(bytearray(_COPY_BYTES))
        try:
            while size := source.recv_into(buffer):
                target.sendall(buffer[:size])
            with contextlib.suppress(OSError):  # the peer may have gone completely
                target.shutdown(socket.SHUT_WR)
        except OSError:
            _shut(source)
            _shut(target)
        with self._lock:
            last = half_done.is_set()
            half_done.set()
            if last:
                self._open -= {source, target}
        if last:
            source.close()
            target.close()


def _close(listeners: Iterable[socket.socket]) -> None:
    for listener in listeners:
        _shut(listener)
        listener.close()


def _shut(connection: socket.socket) -> None:
    """Wake every thread that is blocked on a socket."""
    with contextlib.suppress(OSError):  # not connected any more
        connection.shutdown(socket.SHUT_RDWR)


async def _stop(server: EntryFlightServer) -> None:
    """Shut the server down off the loop, which its streams still need; give up after a while."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.shutdown()
        with contextlib.suppress(RuntimeError):  # nobody waited so long: the loop has ended
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=stop, name="flight-stop", daemon=True).start()
    try:
        await asyncio.wait_for(done.wait(), _STOP_SECONDS)
    except TimeoutError:
        log.warning("flight: a stream did not end within %s s", _STOP_SECONDS)
