"""Clients of a port that this broker shares with others, and those that others pass on to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.connection import notices
from pulsark.dispatch.handover.lobby import Lobby
from pulsark.dispatch.handover.receiver import Receiver
from pulsark.dispatch.handover.wanted import split_address
from pulsark.errors import ClientError
from pulsark.limits import HANDSHAKE_FRAME_BYTES_MAX
from pulsark.wire.frames import encode_command

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pulsark.dispatch.connection.connection import Connection
    from pulsark.dispatch.handover.sender import Sender

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedPort:
    """How a broker is reached at a port that is not its alone."""

    listeners: Sequence[socket.socket]
    sender: Sender
    address: str
    """The Unix socket at which others pass clients on to it."""
    urls: Collection[str]
    """Those of the shared port, and of its own: who asks for one of them stays here."""


class SharedClients:
    """Serves those that want this broker, and passes on all others."""

    def __init__(self, port: SharedPort, connect: Callable[[], Connection]) -> None:
        self._port = port
        self._connect = connect
        self._mine = {split_address(url) for url in port.urls} - {None}
        self._lobby = Lobby(port.listeners, self._serve, self._give)
        self._receiver: Receiver | None = None
        self._tasks: set[asyncio.Task[None]] = set()

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
        task = asyncio.get_running_loop().create_task(self._attach(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attach(self, client: socket.socket) -> None:
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(self._connect, client)
        except OSError as error:
            log.debug("a client left before it was served: %s", error)
            client.close()

    def _give(self, client: socket.socket, url: str) -> None:
        if split_address(url) in self._mine:
            self._serve(client)
            return
        try:
            self._port.sender.give(client, url)
        except ClientError as error:
            log.info("a client is refused: %s", error)
            with contextlib.suppress(OSError):
                # What was not read would make the system drop the answer, too.
                client.recv(HANDSHAKE_FRAME_BYTES_MAX)
                refusal = notices.request_error(notices.NO_REQUEST, error)
                client.send(encode_command(refusal))
            client.close()
