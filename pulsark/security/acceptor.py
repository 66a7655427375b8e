"""Accepts connections, a few in each turn of the event loop, so that open ones go on.

A flood of connections that are refused does not wake the loop for each: they are refused together,
after a pause.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.config.addresses import listening
from pulsark.security.connection_slots import NO_DESCRIPTOR
from pulsark.security.limits import (
    ACCEPT_PAUSE_SECONDS,
    LISTEN_BACKLOG,
    REFUSED_PAUSE_SECONDS,
    REFUSED_PER_TURN_MAX,
    STRANGERS_RELIEVED_PAUSE_SECONDS,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from pulsark.security.connection_slots import ConnectionSlots

log = logging.getLogger(__name__)


class Acceptor:
    """Listening sockets, which other processes may share. Use it on the event loop."""

    def __init__(
        self,
        take: Callable[[socket.socket, str], bool],
        per_turn: int,
        slots: ConnectionSlots | None = None,
    ) -> None:
        """``take`` gets each client's non-blocking socket and address.

        It returns whether it serves the client; if not, it has closed the socket. ``slots`` are
        those of the process, and make room when it has no descriptor left.
        """
        self._slots = slots
        self._take = take
        self._per_turn = per_turn
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._resuming: asyncio.TimerHandle | None = None

    def listen(self, hosts: Sequence[str], port: int, key: str) -> int:
        """Bind a port and return it (``port`` 0: any free one). No client is accepted yet.

        ``ConfigError`` names the setting ``key`` if the port is in use.
        """
        self.share(listening(hosts, port, key, LISTEN_BACKLOG))
        return int(self._listeners[0].getsockname()[1])

    def share(self, listeners: Sequence[socket.socket]) -> None:
        """Accept clients of these sockets, too."""
        for listener in listeners:
            listener.setblocking(False)
        self._listeners += listeners

    def open(self) -> None:
        """Accept clients."""
        self._resuming = None
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Accept no more clients."""
        if self._resuming is not None:
            self._resuming.cancel()
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners = []

    def _accept(self, listener: socket.socket) -> None:
        served = refused = 0
        while served < self._per_turn and refused < REFUSED_PER_TURN_MAX:
            try:
                client, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break  # all are accepted, maybe by another process
            except OSError as error:
                self._accept_failed(error)
                return
            client.setblocking(False)
            if self._take(client, str(address[0])):
                served += 1
            else:
                refused += 1
        if refused:
            self._pause(REFUSED_PAUSE_SECONDS)

    def _accept_failed(self, error: OSError) -> None:
        if error.errno in NO_DESCRIPTOR and self._slots is not None and self._slots.strangers:
            log.warning(
                "no file descriptor is left: closing connections without a login: %s", error
            )
            self._slots.relieve()
            self._pause(STRANGERS_RELIEVED_PAUSE_SECONDS)
            return
        log.warning("cannot accept clients, trying again in a second: %s", error)
        self._pause(ACCEPT_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        for one in self._listeners:
            self._loop.remove_reader(one)
        if self._resuming is None:
            self._resuming = self._loop.call_later(seconds, self.open)
