"""Clients of a port that this broker shares with others, and those that others pass on to it."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.connection import notices
from pulsark.dispatch.handover.lobby import Lobby
from pulsark.dispatch.handover.receiver import Receiver
from pulsark.dispatch.handover.wanted import split_address
from pulsark.errors import ClientError
from pulsark.limits import HANDSHAKE_FRAME_BYTES_MAX
from pulsark.wire.frames import NO_REQUEST, encode_command

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Sequence

    from pulsark.dispatch.handover.sender import SocketSender
    from pulsark.security.connection_slots import ConnectionSlots

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedPort:
    """How a broker is reached at a port that is not its alone."""

    listeners: Sequence[socket.socket]
    sender: SocketSender
    address: str
    """The Unix socket at which others pass clients on to it."""
    urls: Collection[str]
    """The URLs of the shared port and of its own: clients that name one of them stay here."""


class SharedClients:
    """Serves those that want this broker, and passes on all others."""

    def __init__(
        self,
        port: SharedPort,
        take: Callable[[socket.socket, str], bool],
        slots: ConnectionSlots,
    ) -> None:
        """``take`` serves a client of an address."""
        self._port = port
        self._take = take
        self._mine = {split_address(url) for url in port.urls} - {None}
        self._lobby = Lobby(port.listeners, self._serve, self._give, slots)
        self._receiver: Receiver | None = None

    def open(self) -> None:
        """Accept clients."""
        self._receiver = Receiver(self._port.address, self._serve)
        self._lobby.open()

    def close(self) -> None:
        """Accept no more."""
        self._lobby.close()
        if self._receiver is not None:
            self._receiver.close()

    def _serve(self, client: socket.socket) -> None:
        try:
            host = client.getpeername()[0]
        except OSError:  # it has left
            client.close()
            return
        self._take(client, host)

    def _give(self, client: socket.socket, url: str) -> None:
        if split_address(url) in self._mine:
            self._serve(client)
            return
        try:
            self._port.sender.give(client, url)
        except ClientError as error:
            log.info("refused a client on the shared port: %s", error)
            with contextlib.suppress(OSError):
                # What was not read would make the system drop the answer, too.
                client.recv(HANDSHAKE_FRAME_BYTES_MAX)
                refusal = notices.request_error(NO_REQUEST, error)
                client.send(encode_command(refusal))
            client.close()
