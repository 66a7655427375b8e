"""Holds clients of the shared port until each has named the broker it wants.

The lobby peeks at their bytes, which stay in the socket's receive buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from typing import TYPE_CHECKING, Final

from pulsark.dispatch.handover.wanted import missing, wanted
from pulsark.limits import HANDOVER_LOBBY_MAX, HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_SECONDS
from pulsark.security.acceptor import Acceptor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.security.connection_slots import ConnectionSlots, Slot

_ACCEPTS_PER_TURN: Final = 16


class _Waiting:
    __slots__ = ("seen", "slot", "timer")

    def __init__(self, timer: asyncio.TimerHandle, slot: Slot | None) -> None:
        self.timer = timer
        self.slot = slot
        self.seen = -1
        """How many bytes the last peek found."""


class Lobby:
    """The lobby of one broker. Other processes accept from the same listening sockets."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        serve: Callable[[socket.socket], None],
        give: Callable[[socket.socket, str], None],
        slots: ConnectionSlots | None = None,
    ) -> None:
        """``serve`` gets clients that name no broker; ``give`` gets all others."""
        self._slots = slots
        self._serve = serve
        self._give = give
        self._loop = asyncio.get_running_loop()
        self._clients: dict[socket.socket, _Waiting] = {}
        """In the order of their arrival."""
        self._acceptor = Acceptor(self._enter, _ACCEPTS_PER_TURN, slots)
        self._acceptor.share(listeners)

    def open(self) -> None:
        """Accept clients."""
        self._acceptor.open()

    def close(self) -> None:
        """Accept no more clients, and close those that wait."""
        self._acceptor.close()
        for client in list(self._clients):
            self._drop(client)

    def _enter(self, client: socket.socket, _: str) -> bool:
        if len(self._clients) >= HANDOVER_LOBBY_MAX:
            self._drop(next(iter(self._clients)))
        slot = None
        if self._slots is not None:
            slot = self._slots.take(
                partial(self._loop.call_soon_threadsafe, self._drop_if_waiting, client)
            )
            if slot is None:
                client.close()
                return False
        timer = self._loop.call_later(HANDSHAKE_SECONDS, self._drop, client)
        self._clients[client] = _Waiting(timer, slot)
        self._loop.add_reader(client, self._look, client)
        return True

    def _look(self, client: socket.socket) -> None:
        try:
            data = client.recv(HANDSHAKE_FRAME_BYTES_MAX, socket.MSG_PEEK)
            more = missing(data)
            if more:
                waiting = self._clients[client]
                if len(data) <= waiting.seen or not data:
                    self._drop(client)  # the client has closed its side
                    return
                waiting.seen = len(data)
                # The loop calls again when ``more`` bytes have arrived, or the client is gone.
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
        waiting = self._clients.pop(client)
        waiting.timer.cancel()
        if waiting.slot is not None:
            waiting.slot.leave()
        self._loop.remove_reader(client)

    def _drop(self, client: socket.socket) -> None:
        self._leave(client)
        with contextlib.suppress(OSError):
            client.close()

    def _drop_if_waiting(self, client: socket.socket) -> None:
        if client in self._clients:
            self._drop(client)
