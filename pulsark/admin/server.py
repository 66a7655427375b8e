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

from pulsark.limits import HTTP_HEAD_BYTES_MAX, HTTP_HEAD_TIMEOUT_SECONDS
from pulsark.runtime import run_in_worker
from pulsark.security.peer import tls_peer, verified_certificate
from pulsark.security.plain_listener import PlainListener

if TYPE_CHECKING:
    import socket
    import ssl

    from uvicorn.protocols.http.h11_impl import H11Protocol

    from pulsark.admin.uvicorn_app import Http
    from pulsark.dispatch.broker import Broker
    from pulsark.security.tls_listener import TlsListener
    from pulsark.security.trials import Trial

log = logging.getLogger(__name__)

_END_OF_HEAD = b"\r\n\r\n"
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TOO_LARGE = _BUSY.replace(b"503 Service Unavailable", b"431 Request Header Fields Too Large")


class AdminServer:
    """Serves one broker's HTTP. Create, listen and close on the event loop."""

    def __init__(self, broker: Broker) -> None:
        self.stats = broker.stats
        self._broker = broker
        self._plain = PlainListener(self._connect, self._begin_trial)
        self._over_tls: TlsListener | None = None
        self._waiting: set[_FirstRequest] = set()
        self._http: Http | None = None
        self._loading: asyncio.Task[None] | None = None

    def _connect(self, trial: Trial | None) -> _FirstRequest:
        return _FirstRequest(self, trial)

    def listen(self, hosts: Sequence[str], port: int) -> int:
        """Listen; returns the port (``port`` 0 takes a free one). ``ConfigError`` if in use."""
        taken = self._plain.listen(hosts, port, "webServicePort")
        self._plain.serve()
        return taken

    def listen_tls(self, hosts: Sequence[str], port: int, context: ssl.SSLContext) -> int:
        """The same for HTTPS."""
        from pulsark.security.tls_listener import TlsListener  # for those who need it

        self._over_tls = TlsListener(self._connect, self._begin_trial)
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

    def admit(self, connection: _FirstRequest) -> bool:
        """Take a new connection, unless there are too many."""
        served = self._http.connections if self._http is not None else 0
        if len(self._waiting) + served >= self._broker.settings.maxHttpServerConnections:
            return False
        self._waiting.add(connection)
        self.load_soon()
        return True

    def load_soon(self) -> None:
        """Begin the import now, if it was not."""
        if self._http is None and self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())

    def _begin_trial(self, host: str) -> Trial | None:
        """Whether a client of this address is served: ``CrowdedOutError`` if not."""
        logins = self._broker.logins
        return None if logins is None else logins.begin_trial(host, "rest")

    def forget(self, connection: _FirstRequest) -> None:
        """A connection is closed, or served by uvicorn now."""
        self._waiting.discard(connection)

    def protocol(self, transport: asyncio.BaseTransport, trial: Trial | None) -> H11Protocol | None:
        """A protocol for a connection; ``None`` while the import is under way."""
        if self._http is None:
            return None
        peer = None if self._broker.audit is None else tls_peer(transport)
        return self._http.new_protocol(verified_certificate(transport), peer, trial)

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
        self._http = Http(config)
        for connection in list(self._waiting):
            connection.hand_over_if_complete()


class _FirstRequest(asyncio.Protocol):
    """A connection whose first request is not complete yet, or came before the import was."""

    def __init__(self, server: AdminServer, trial: Trial | None) -> None:
        self._server = server
        self._trial = trial
        self._received = bytearray()
        self._transport: asyncio.Transport
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.admit(self):
            self._transport.write(_BUSY)
            self._transport.close()
            return
        loop = asyncio.get_running_loop()
        self._timeout = loop.call_later(HTTP_HEAD_TIMEOUT_SECONDS, self.drop)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if _END_OF_HEAD in self._received:
            # What follows stays in the socket until uvicorn reads it.
            self._transport.pause_reading()
            self._wait_no_more()
            self.hand_over_if_complete()
        elif len(self._received) > HTTP_HEAD_BYTES_MAX:
            self._transport.write(_TOO_LARGE)
            self.drop()

    def hand_over_if_complete(self) -> None:
        """Let uvicorn go on from here, if a head is there and uvicorn is."""
        if _END_OF_HEAD not in self._received or self._transport.is_closing():
            return
        protocol = self._server.protocol(self._transport, self._trial)
        if protocol is None:
            return
        self._leave()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(bytes(self._received))
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def drop(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _leave(self) -> None:
        self._server.forget(self)
        self._wait_no_more()

    def _wait_no_more(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
