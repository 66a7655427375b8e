"""One client connection: the life of its socket, and the parts that serve it.

Bytes become commands in ``command_turns``. A command is for the handshake until that is done, and
then for its handler. Handlers that need storage run as tasks, so replies to different requests may
be reordered, as the protocol allows; SEND, ACK and FLOW are handled at once and in order.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast

from pulsark.dispatch.connection import notices
from pulsark.dispatch.connection.command_turns import CommandTurns
from pulsark.dispatch.connection.handshake import Handshake, HandshakeState
from pulsark.dispatch.connection.intake import Intake
from pulsark.dispatch.connection.keep_alive import KeepAlive
from pulsark.dispatch.connection.opened import Opened
from pulsark.dispatch.connection.output import Output
from pulsark.dispatch.connection.pending_requests import PendingRequests
from pulsark.dispatch.connection.sends import Sends
from pulsark.dispatch.connection.served_client import ServedClient
from pulsark.errors import ClientError, ProtocolError, ServerError
from pulsark.limits import FRAME_OVERHEAD_BYTES, LARGE_FRAME_SECONDS
from pulsark.security.decisions import owner_of
from pulsark.security.peer import tls_peer, verified_certificate
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import NO_REQUEST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.connection.login import Login
    from pulsark.security.connection_slots import Slot
    from pulsark.security.peer import TlsPeer
    from pulsark.security.principal import Origin, Principal
    from pulsark.security.trials import Trial

    Handler = Callable[["Connection", pb.BaseCommand], None]
    Handlers = Mapping[int, Handler]
    """What is done for each command after the handshake."""

log = logging.getLogger(__name__)


class Connection(asyncio.BufferedProtocol):
    """The server's side of one TCP connection. Its parts are made when the socket is open."""

    output: Output
    requests: PendingRequests
    intake: Intake
    keep_alive: KeepAlive
    client: ServedClient
    sends: Sends
    turns: CommandTurns

    def __init__(self, broker: Broker, handlers: Handlers, trial: Trial | None = None) -> None:
        """``trial`` is the client's, if it came from an address that failed to log in."""
        self.broker = broker
        self._trial = trial
        self.settings = broker.settings
        self.host = ""
        self.address = "/local"
        self.handshake = Handshake(self.settings)
        self.opened = Opened()
        self._slot: Slot | None = None
        self.login: Login | None = None
        """Only with authentication."""
        self._handlers = handlers
        self._transport: asyncio.Transport

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the socket is not closed."""
        return self.handshake.state is HandshakeState.CONNECTED

    @property
    def is_closed(self) -> bool:
        """Whether the client is not served any more."""
        return self.handshake.state is HandshakeState.CLOSED

    def carry_out(self, command: pb.BaseCommand) -> None:
        """Every command but SEND passes here: what is to be asked before a handler belongs here."""
        if self.handshake.state is not HandshakeState.CONNECTED:
            connect = self.handshake.hear(command)
            if self.login is None:
                self.connected()
            else:
                self.login.begin(connect)
            return
        if command.type == pb.BaseCommand.ERROR:  # the answer to a request that is too large
            self.output.send(command)
            return
        handler = self._handlers.get(command.type)
        if handler is None:
            raise ProtocolError(f"unexpected command {pb.BaseCommand.Type.Name(command.type)}")
        self.requests.command = command
        try:
            handler(self, command)
        finally:
            self.requests.command = None

    @property
    def principal(self) -> Principal | None:
        """Who the client is; nobody is known without authentication."""
        return None if self.login is None else self.login.principal

    def owner(self) -> str:
        """Return the client to whom budgets count: its role, or its address."""
        principal = self.principal
        return self.host if principal is None else owner_of(principal)

    @property
    def origin(self) -> Origin:
        """Where the client is, for an audit."""
        from pulsark.security.principal import Origin  # where there is an audit

        address, version = self.address.lstrip("/"), self.handshake.client_version
        return Origin("binary", address, version, self._tls_peer)

    @cached_property
    def _tls_peer(self) -> TlsPeer | None:
        return tls_peer(self._transport)

    @property
    def is_over_tls(self) -> bool:
        """Whether the client came to a port for TLS."""
        return self._transport.get_extra_info("ssl_object") is not None

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate in DER, if it came with one that was verified."""
        return verified_certificate(self._transport)

    # -- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.host, self.address = peer[0], f"/{peer[0]}:{peer[1]}"
        self._make_parts()
        refused = self._take_place()
        if refused is not None:
            complaints = self.broker.connections.complaints
            complaints.note("%s: connection refused: %s", self.address, refused)
            if self.broker.audit is not None:
                self.broker.audit.denied(self.origin, None, "connect", refused)
            error = ClientError(ServerError.NotAllowedError, refused)
            self.output.send(notices.request_error(NO_REQUEST, error))
            self.close()

    def _take_place(self) -> str | None:
        """Count among the broker's connections; returns why it is refused, if it is."""
        connections = self.broker.connections
        loop = asyncio.get_running_loop()
        close = partial(loop.call_soon_threadsafe, self._transport.abort)
        self._slot = connections.slots.take(close)
        if self._slot is None:
            return "The broker has no file descriptor left for another connection"
        return connections.add(self)

    def _make_parts(self) -> None:
        """Later parts use earlier ones."""
        self.output = Output(
            self._transport, self.settings.maxMessageSize, self.broker.output_buffer,
            self._on_write, self._on_room,
        )  # fmt: skip
        self.requests = PendingRequests(
            self.broker.defects, self.output, self.broker.request_turns, self.owner,
            self.broker.request_room, self._on_request_ended,
        )  # fmt: skip
        self.intake = Intake(self, self._transport)
        self.keep_alive = KeepAlive(self)
        self.client = ServedClient(self)
        self.sends = Sends(self)
        self.turns = CommandTurns(self)
        if self.broker.logins is not None:
            from pulsark.dispatch.connection.login import Login  # for those who need it

            self.login = Login(self, self.broker.logins, self._trial)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes of this connection go."""
        return self.turns.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived in the buffer that ``get_buffer`` gave."""
        self.turns.received(nbytes)
        self.keep_alive.heard()

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self.output.fall_behind()
        if self.output.lags:
            self.client.writable = False

    def resume_writing(self) -> None:
        """The client caught up."""
        self.output.catch_up()
        self.intake.check_room()
        self.client.become_writable()

    def eof_received(self) -> bool:
        """The client closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._leave()
        if self._slot is not None:
            self._slot.leave()
        self.output.drop()
        self.keep_alive.stop()

    # -- called by the parts ---

    def connected(self) -> None:
        """The client is let in."""
        self.broker.connections.logged_in(self)
        if self._slot is not None:
            self._slot.log_in()
        self.output.send(self.handshake.answer())
        self.turns.set_max_frame_size(self.settings.maxMessageSize + FRAME_OVERHEAD_BYTES)

    def _on_write(self) -> None:
        self.client.writable = False
        self.intake.hold_back()

    def _on_room(self) -> None:
        self.client.become_writable()

    def _on_request_ended(self) -> None:
        self.intake.request_ended()

    # -- the end ---

    def close(self) -> None:
        """Close after what was written has been sent."""
        if not self.is_closed:
            self._leave()
            self.output.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once: what was not sent is dropped."""
        self._leave()
        self.output.drop()
        self._transport.abort()

    def give_up_frame(self) -> None:
        """Close because a large frame does not arrive, and others wait for its memory."""
        self.broker.connections.complaints.note(
            "%s: connection closed: a large frame did not arrive within %d s",
            self.address,
            LARGE_FRAME_SECONDS,
        )
        self.abort()

    def give_up(self, error: Exception) -> None:
        """Close after a defect: the state of this client is unknown, and it has to begin anew.

        All others go on.
        """
        self.broker.defects.report(error, "A command failed and its connection is closed")
        self.abort()

    def _leave(self) -> None:
        """Serve the client no more: neither its producers nor its consumers.

        What it has in topics leaves here. References in a circle are cut, so that all memory is
        free as soon as the socket is: a busy broker does not run the garbage collector.
        """
        if self.is_closed:
            return
        self.handshake.state = HandshakeState.CLOSED
        if self.login is not None:
            self.login.close()
        self.broker.connections.discard(self)
        self.output.close()
        self.intake.close()
        self.keep_alive.gone()
        self.requests.close()
        self.opened.clear()
        self.client.leave()
        self.broker.run_queue.call_all(self.client.holdings.departures())
        self.turns.close()
        self.sends.close()
