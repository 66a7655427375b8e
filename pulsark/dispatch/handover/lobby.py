"""Where clients of the shared port wait until each has said which broker it wants.

Their bytes stay in the system's buffers: they are looked at, not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Final

from pulsark.dispatch.handover.wanted import missing, wanted
from pulsark.limits import HANDOVER_LOBBY_MAX, HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

_ACCEPTS_PER_TURN: Final = 16
_PAUSE_SECONDS: Final = 1.0


class _Waiting:
    __slots__ = ("seen", "timer")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer
        self.seen = -1
        """Bytes that were there the last time."""


class Lobby:
    """Of one broker, for listening sockets that other processes accept from, too."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        serve: Callable[[socket.socket], None],
        give: Callable[[socket.socket, str], None],
    ) -> None:
        """``serve`` gets clients that want this broker, or did not say; ``give`` all others."""
        self._listeners = list(listeners)
        self._serve = serve
        self._give = give
        self._loop = asyncio.get_running_loop()
        self._clients: dict[socket.socket, _Waiting] = {}
        """The longest waiting first."""
        self._resuming: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Accept clients."""
        self._resuming = None
        for listener in self._listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Accept no more clients; those that wait are closed."""
        if self._resuming is not None:
            self._resuming.cancel()
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for client in list(self._clients):
            self._drop(client)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                client, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return  # another process was faster
            except OSError as error:  # no free descriptor for example: try again in a while
                log.warning("no client can be accepted: %s", error)
                for each in self._listeners:
                    self._loop.remove_reader(each)
                if self._resuming is None:
                    self._resuming = self._loop.call_later(_PAUSE_SECONDS, self.open)
                return
            self._enter(client)

    def _enter(self, client: socket.socket) -> None:
        if len(self._clients) >= HANDOVER_LOBBY_MAX:
            self._drop(next(iter(self._clients)))
        client.setblocking(False)
        timer = self._loop.call_later(HANDSHAKE_SECONDS, self._drop, client)
        self._clients[client] = _Waiting(timer)
        self._loop.add_reader(client, self._look, client)

    def _look(self, client: socket.socket) -> None:
        try:
            data = client.recv(HANDSHAKE_FRAME_BYTES_MAX, socket.MSG_PEEK)
            more = missing(data)
            if more:
                waiting = self._clients[client]
                if len(data) <= waiting.seen or not data:
                    self._drop(client)  # no more will come: the client has closed its side
                    return
                waiting.seen = len(data)
                # The loop hears of the client again when so much is there, or it is gone.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, more)
                return
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._drop(client)
            return
        self._leave(client)
        url = wanted(data)
        if url:
            self._give(client, url)
        else:
            self._serve(client)

    def _leave(self, client: socket.socket) -> None:
        self._clients.pop(client).timer.cancel()
        self._loop.remove_reader(client)

    def _drop(self, client: socket.socket) -> None:
        self._leave(client)
        with contextlib.suppress(OSError):
            client.close()
