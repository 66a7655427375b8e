"""Passes clients' sockets to other brokers' processes."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING

from pulsark.dispatch.handover.wanted import split_address
from pulsark.errors import ClientError, ServerError
from pulsark.limits import HANDOVER_WAITING_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

GIVEN = b"\x01"
"""The data sent along with a socket: the version of this protocol."""


class SocketSender:
    """The sender of one process. All brokers of a machine have one host and different ports."""

    def __init__(self, host: str, address_of: Callable[[int], str]) -> None:
        """``address_of``: the Unix socket of the broker with a port."""
        self._host = host
        self._address_of = address_of
        self._ways: dict[int, _Way] = {}

    def give(self, client: socket.socket, url: str) -> None:
        """Pass a client on. ``ClientError`` if there is no such broker; the caller keeps it."""
        address = split_address(url)
        if address is None or address[0] != self._host:
            raise _unknown(url)
        port = address[1]
        way = self._ways.get(port)
        if way is not None and way.give(client):
            return
        # There is no channel yet, or its process has died and may have a successor.
        self._ways.pop(port, None)
        try:
            way = _Way(self._address_of(port))
        except OSError:
            raise _unknown(url) from None
        if not way.give(client):
            raise _unknown(url)
        self._ways[port] = way

    def close(self) -> None:
        """Close all channels and the clients that wait in them."""
        for way in self._ways.values():
            way.close()
        self._ways.clear()


class _Way:
    """The channel to one process."""

    def __init__(self, address: str) -> None:
        self._waiting: deque[socket.socket] = deque()
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        try:
            self._socket.connect(address)
        except OSError:
            self._socket.close()
            raise

    def give(self, client: socket.socket) -> bool:
        """Pass a client on, at once or when there is room; false if the process is gone."""
        if self._waiting:
            if len(self._waiting) >= HANDOVER_WAITING_MAX:
                raise ClientError(
                    ServerError.TooManyRequests, "Too many clients wait for this broker; try again"
                )
            self._waiting.append(client)
            return True
        try:
            self._send(client)
        except BlockingIOError:
            self._waiting.append(client)
            self._loop.add_writer(self._socket, self._send_waiting)
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Close the channel and the clients that wait in it."""
        if self._socket.fileno() < 0:
            return  # closed before, because the process was gone
        self._loop.remove_writer(self._socket)
        self._socket.close()
        while self._waiting:
            self._waiting.popleft().close()

    def _send_waiting(self) -> None:
        try:
            while self._waiting:
                self._send(self._waiting[0])
                self._waiting.popleft()
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self._loop.remove_writer(self._socket)

    def _send(self, client: socket.socket) -> None:
        socket.send_fds(self._socket, [GIVEN], [client.fileno()])
        client.close()


def _unknown(url: str) -> ClientError:
    return ClientError(
        ServerError.ServiceNotReady,
        f"No broker {url[:100]!r} here; look the topic up again",
    )
