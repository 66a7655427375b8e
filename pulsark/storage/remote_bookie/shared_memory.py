"""Memory that a broker shares with a bookie process: payloads lie there, and pass no socket.

The broker writes a payload once, and the bookie hands it to the kernel from there. Whose turn it
is needs no lock: a place is the bookie's from the frame that names it until the add is answered.
Adds are answered in order, so places become free in order. When the connection ends, the memory
ends with it: a place that a dead or slow bookie may still read is never written again.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from pulsark.errors import ProtocolError
from pulsark.storage.remote_bookie.limits import BOOKIE_MEMORY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.runtime import Piece

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Nobody can make it shorter: who reads beyond the end of a file is killed."""
_CREDENTIALS = struct.Struct("iII")
_MANY: Final = 4
"""So many payloads are joined before they are copied: one call instead of one for each."""


class Ring:
    """Places of a memory of ``size`` bytes that are taken, and given back in the same order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken: deque[tuple[int, int]] = deque()
        """Start and end of each, the oldest one first."""

    def take(self, size: int) -> int | None:
        """Where ``size`` (at least 1) bytes in one piece are free; ``None`` if nowhere.

        An empty ring begins at 0 again: what is used often stays in the processor's cache.
        """
        start = 0
        if self._taken:
            first, start = self._taken[0][0], self._taken[-1][1]
            if start > first and start + size > self._size:
                start = 0
            if start <= first < start + size:
                return None
        if start + size > self._size:
            return None
        self._taken.append((start, start + size))
        return start

    def give_back(self) -> None:
        """The place that was taken first is free."""
        self._taken.popleft()


class SharedMemory:
    """The broker's side. ``OSError`` if this system has no such memory."""

    def __init__(self, size: int) -> None:
        """``size`` in bytes, of which only what was written once is really used."""
        self.size = size
        self._ring = Ring(size)
        self.fd = os.memfd_create("pulsark-adds", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        """What the bookie opens."""
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._bytes = mmap.mmap(self.fd, size)
        except BaseException:
            os.close(self.fd)
            raise

    def put(self, payloads: Sequence[Piece], size: int) -> int | None:
        """Copy payloads of ``size`` bytes in all; returns their place, ``None`` if full."""
        start = self._ring.take(size)
        if start is None:
            return None
        if len(payloads) >= _MANY:
            payloads = (b"".join(payloads),)
        place = start
        for payload in payloads:
            end = place + len(payload)
            self._bytes[place:end] = payload
            place = end
        return start

    def give_back(self) -> None:
        """The bookie needs the oldest place no more."""
        self._ring.give_back()

    def close(self) -> None:
        """The bookie keeps its own view for as long as it needs it."""
        self._bytes.close()
        os.close(self.fd)


class Connection(Protocol):
    """As the loops give it: a socket that only answers."""

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes:
        """As of a socket."""


def peer_memory(connection: Connection, fd: int, size: int) -> memoryview | None:
    """The bookie's view of the memory that the process at the other end has as ``fd``.

    ``None`` if it cannot be had, as where each process sees only itself in ``/proc``.
    ``ProtocolError`` if it is not such memory.
    """
    if not 0 < size <= BOOKIE_MEMORY_BYTES_MAX:
        raise ProtocolError(f"memory of {size} bytes, and {BOOKIE_MEMORY_BYTES_MAX} are allowed")
    # The process that connected, as the kernel knows it: not one that it may name.
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _, _ = _CREDENTIALS.unpack(told)
    with suppress(OSError):
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if fcntl.fcntl(own, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ProtocolError("memory that its owner could make shorter")
            if os.fstat(own).st_size != size:
                raise ProtocolError(f"memory that has not the {size} bytes it should have")
            return memoryview(mmap.mmap(own, size, prot=mmap.PROT_READ))
        finally:
            os.close(own)
    return None
