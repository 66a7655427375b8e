"""The HTTP port: listens from the start, pays for FastAPI at the first connection.

FastAPI and uvicorn cost 25 MiB and most of a second to import, which an idle broker shall not
spend. So the port is served by a protocol that only collects the first request's head. The
first connection starts the import, in a thread, so that dispatch goes on; once it is done,
each connection is handed to uvicorn's protocol together with what it has sent so far.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from pulsark.errors import CrowdedOutError
from pulsark.limits import (
    HTTP_CLOSE_SECONDS,
    HTTP_HEAD_BYTES_MAX,
    HTTP_HEAD_TIMEOUT_SECONDS,
    HTTP_LOBBY_MIN,
    HTTP_PROBES_MAX,
    HTTP_READ_BYTES_MAX,
    HTTP_READ_BYTES_MIN,
    HTTP_READS_BYTES_MAX,
)
from pulsark.rates.shares import even_share
from pulsark.runtime import run_in_worker
from pulsark.security.peer import tls_peer, verified_certificate
from pulsark.security.plain_listener import PlainListener
from pulsark.security.trials import PROBES_ONLY, Trial

if TYPE_CHECKING:
    import socket
    import ssl

    from pulsark.admin.timed_connection import TimedConnection
    from pulsark.admin.uvicorn_app import Http
    from pulsark.dispatch.broker import Broker
    from pulsark.security.connection_slots import Slot
    from pulsark.security.tls_listener import TlsListener

log = logging.getLogger(__name__)

_PROBES = (b"/status.html", b"/admin/v2/brokers/health", b"/metrics", b"/metrics/")
"""What probes ask for: answered whatever else is connected."""
_END_OF_HEAD = b"\r\n\r\n"

# All connections share this buffer: each copies its bytes out before the next one reads.
_received = memoryview(bytearray(HTTP_READ_BYTES_MAX))
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TOO_LARGE = _BUSY.replace(b"503 Service Unavailable", b"431 Request Header Fields Too Large")


class AdminServer:
    """Serves one broker's HTTP. Create, listen and close on the event loop."""

    def __init__(self, broker: Broker) -> None:
        self.stats = broker.stats
        self._broker = broker
        self._plain = PlainListener(self._connect, self._begin_trial, broker.connections.slots)
        self._over_tls: TlsListener | None = None
        self._waiting: dict[_HttpSocket, None] = {}
        """The oldest first."""
        self._probes = 0
        """Connections of crowded addresses, which may only probe."""
        self._http: Http | None = None
        self._loading: asyncio.Task[None] | None = None

    def _connect(self, trial: Trial | None) -> _HttpSocket:
        return _HttpSocket(self, trial)

    def listen(self, hosts: Sequence[str], port: int) -> int:
        """Listen; returns the port (``port`` 0 takes a free one). ``ConfigError`` if in use."""
        taken = self._plain.listen(hosts, port, "webServicePort")
        self._plain.serve()
        return taken

    def listen_tls(self, hosts: Sequence[str], port: int, context: ssl.SSLContext) -> int:
        """The same for HTTPS."""
        from pulsark.security.tls_listener import TlsListener  # for those who need it

        self._over_tls = TlsListener(
            self._connect, self._begin_trial, self._broker.connections.slots
        )
        if self._broker.audit is not None:
            self._over_tls.told = partial(self._broker.audit.certificate_refused, "rest")
        taken = self._over_tls.listen(hosts, port, "webServicePortTls", context)
        self._over_tls.serve()
        return taken

    def share(self, listeners: Sequence[socket.socket]) -> None:
        """Answer at these sockets, too, at which other brokers answer as well."""
        self._plain.share(listeners)
        self._plain.serve()

    def share_tls(self, listeners: Sequence[socket.socket]) -> None:
        """The same for HTTPS."""
        if self._over_tls is not None:
            self._over_tls.share(listeners)
            self._over_tls.serve()

    async def close(self) -> None:
        """Stop listening; requests under way get a moment to end."""
        self._plain.close()
        if self._over_tls is not None:
            self._over_tls.close()
        if self._loading is not None:
            await asyncio.wait([self._loading])
        for connection in list(self._waiting):
            connection.drop()
        if self._http is not None:
            await self._http.close()

    def admit(self, connection: _HttpSocket) -> Slot | None:
        """Take a new connection, in the place of the oldest stranger if need be.

        Every connection may send the head of a request, because it may be a probe. None if the
        process has no descriptor left for it.
        """
        loop = asyncio.get_running_loop()
        slot = self._broker.connections.slots.take(
            partial(loop.call_soon_threadsafe, connection.abort)
        )
        if slot is None:
            return None
        while self._is_full(len(self._waiting)) and len(self._waiting) >= HTTP_LOBBY_MIN:
            next(iter(self._waiting)).abort()
        self._waiting[connection] = None
        self.load_soon()
        return slot

    def may_serve(self, head: bytes) -> bool:
        """Return whether a request with this head is served: probes always, others with a place.

        At the limit, connections that are idle or whose client has not logged in are closed.
        """
        return self._http is None or self._http.make_room(self._most) or is_probe(head)

    @property
    def _most(self) -> int:
        return self._broker.settings.maxHttpServerConnections

    def _is_full(self, waiting: int) -> bool:
        return waiting + self._served >= self._most

    @property
    def _served(self) -> int:
        return self._http.connections if self._http is not None else 0

    @property
    def read_bytes(self) -> int:
        """Return how many bytes one connection may read at a time, and hold unparsed.

        They come from a budget of all connections: the more there are, the less each may read.
        """
        connections = len(self._waiting) + self._served
        return even_share(
            HTTP_READS_BYTES_MAX, connections, HTTP_READ_BYTES_MIN, HTTP_READ_BYTES_MAX
        )

    def load_soon(self) -> None:
        """Begin the import now, if it was not."""
        if self._http is None and self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())

    def _begin_trial(self, host: str) -> Trial | None:
        """Whether a client of this address is served: ``CrowdedOutError`` if not.

        A few connections of a crowded address are served nevertheless, but only to probe.
        """
        logins = self._broker.logins
        if logins is None:
            return None
        try:
            return logins.begin_trial(host, "rest")
        except CrowdedOutError:
            if self._probes >= HTTP_PROBES_MAX:
                raise
            return PROBES_ONLY

    def forget(self, connection: _HttpSocket) -> None:
        """A connection is closed, or served by uvicorn now."""
        self._waiting.pop(connection, None)

    def count_probe(self, change: int) -> None:
        """A connection that may only probe has come, or is gone."""
        self._probes += change

    def protocol(
        self, transport: asyncio.BaseTransport, trial: Trial | None, slot: Slot
    ) -> TimedConnection | None:
        """A protocol for a connection; ``None`` while the import is under way."""
        if self._http is None:
            return None
        peer = None if self._broker.audit is None else tls_peer(transport)
        return self._http.new_protocol(
            verified_certificate(transport),
            peer,
            trial,
            slot,
            logs_in=self._broker.logins is None,
            holds=lambda: self.read_bytes,
        )

    async def _load(self) -> None:
        from pulsark.admin.uvicorn_app import Http, load

        worker = self._broker.runtime.new_worker("admin-import")
        try:
            config = await run_in_worker(worker, lambda: load(self._broker, self.stats))
        except Exception:
            # The broker goes on without HTTP; the next connection tries again.
            log.exception("the admin API failed to load: the HTTP port answers no request")
            self._loading = None
            for connection in list(self._waiting):
                connection.drop()
            return
        finally:
            worker.close()
        self._http = Http(config, self._broker.run_queue)
        for connection in list(self._waiting):
            connection.hand_over_if_complete()


def is_probe(head: bytes) -> bool:
    """Return whether a request asks how the broker is, as load balancers and scrapers do."""
    method, _, rest = head.partition(b" ")
    target = rest.partition(b" ")[0].partition(b"?")[0]
    return method in (b"GET", b"HEAD") and target in _PROBES


class _HttpSocket(asyncio.BufferedProtocol):
    """Reads one connection: the head of its first request, and then whatever uvicorn gets."""

    def __init__(self, server: AdminServer, trial: Trial | None) -> None:
        self._server = server
        self._probes_only = trial is PROBES_ONLY
        self._trial = None if trial is PROBES_ONLY else trial
        self._head = bytearray()
        self._is_refused = False
        """Whether the head was too large: what else comes is thrown away."""
        self._slot: Slot | None = None
        self._transport: asyncio.Transport
        self._timeout: asyncio.TimerHandle | None = None
        self._served: TimedConnection | None = None
        """Once the first request has a head and uvicorn is imported."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._probes_only:
            self._server.count_probe(1)
        self._slot = self._server.admit(self)
        if self._slot is None:
            self._refuse()
            return
        loop = asyncio.get_running_loop()
        self._timeout = loop.call_later(HTTP_HEAD_TIMEOUT_SECONDS, self.drop)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _received[: self._server.read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        if self._served is not None:
            self._served.data_received(bytes(_received[:nbytes]))
            return
        if self._is_refused:
            return
        self._head += _received[:nbytes]
        if _END_OF_HEAD in self._head:
            if self._probes_only and not is_probe(bytes(self._head)):
                self.abort()
                return
            # What follows stays in the socket until uvicorn reads it.
            self._transport.pause_reading()
            if self._slot is not None and self._head.startswith((b"GET ", b"HEAD ")):
                self._slot.ask()  # nothing more has to come
            self._wait_no_more()
            self.hand_over_if_complete()
        elif len(self._head) > HTTP_HEAD_BYTES_MAX:
            self._refuse_head()

    def _refuse_head(self) -> None:
        """Answer that the head is too large, and read on for a moment.

        If something were left unread, the system would drop the answer.
        """
        self._transport.write(_TOO_LARGE)
        self._is_refused = True
        self._head = bytearray()
        self._wait_no_more()
        loop = asyncio.get_running_loop()
        self._timeout = loop.call_later(HTTP_CLOSE_SECONDS, self.drop)

    def hand_over_if_complete(self) -> None:
        """Let uvicorn go on from here, if a head is there and uvicorn is."""
        if _END_OF_HEAD not in self._head or self._transport.is_closing():
            return
        if self._slot is None or not self._server.may_serve(bytes(self._head)):
            self._refuse()
            return
        served = self._server.protocol(self._transport, self._trial, self._slot)
        if served is None:
            return
        self._leave()
        head, self._head = bytes(self._head), bytearray()
        self._served = served
        served.connection_made(self._transport)
        self._transport.resume_reading()
        served.data_received(head)  # which may find that enough was read for now

    def pause_writing(self) -> None:
        if self._served is not None:
            self._served.pause_writing()

    def resume_writing(self) -> None:
        if self._served is not None:
            self._served.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._served is not None:
            self._served.connection_lost(exc)
            return
        self._leave()
        if self._slot is not None:
            self._slot.leave()

    def drop(self) -> None:
        """Close the connection."""
        self._transport.close()

    def abort(self) -> None:
        """Close the connection for another one, which has its place at once."""
        self._leave()
        self._transport.abort()

    def _refuse(self) -> None:
        self._transport.write(_BUSY)
        self._transport.close()

    def _leave(self) -> None:
        if self._probes_only:
            self._probes_only = False
            self._server.count_probe(-1)
        self._server.forget(self)
        self._wait_no_more()

    def _wait_no_more(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
