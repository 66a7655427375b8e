"""Kazoo's socket, with few system calls: what came is read at once, and served from memory.

Kazoo reads each answer in two parts, and asks before each part whether there is something.
"""

from __future__ import annotations

import select
import ssl
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

READ_BYTES: Final = 64 << 10


class ReadAhead:
    """A socket that does not block, as kazoo uses it."""

    def __init__(self, plain: socket.socket) -> None:
        self._socket = plain
        self._ahead = b""
        self._at = 0
        self.fileno = plain.fileno
        self.send = plain.send
        self.close = plain.close
        self.shutdown = plain.shutdown
        self.setblocking = plain.setblocking

    def pending(self) -> int:
        """Bytes that are read without the network; kazoo asks so where it knows of TLS."""
        ahead = len(self._ahead) - self._at
        if not ahead and isinstance(self._socket, ssl.SSLSocket):
            return self._socket.pending()
        return ahead

    def recv(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end of the connection."""
        if self._at == len(self._ahead):
            self._ahead, self._at = self._socket.recv(READ_BYTES), 0
        start, self._at = self._at, min(self._at + size, len(self._ahead))
        return self._ahead[start : self._at]


def wait_for(
    reading: Sequence[Any], writing: Sequence[Any], seconds: float | None
) -> tuple[list[Any], list[Any]]:
    """Which of these can be read, and which written. What was read ahead can be at once."""
    ahead = [each for each in reading if isinstance(each, ReadAhead) and each.pending()]
    poll = select.poll()
    wanted: dict[int, int] = {}
    for each in reading:
        wanted[each.fileno()] = select.POLLIN
    for each in writing:
        wanted[each.fileno()] = wanted.get(each.fileno(), 0) | select.POLLOUT
    for number, events in wanted.items():
        poll.register(number, events)
    found = dict(poll.poll(0 if ahead else None if seconds is None else 1000 * seconds))
    # Errors and the end of a connection make a socket ready for both: the call then tells.
    return (
        [
            each
            for each in reading
            if each in ahead or found.get(each.fileno(), 0) & ~select.POLLOUT
        ],
        [each for each in writing if found.get(each.fileno(), 0) & ~select.POLLIN],
    )
