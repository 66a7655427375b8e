"""Connections in virtual time: what one side writes arrives at the other a little later."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Iterable
from typing import Any

LATENCY_SECONDS = 0.0001


class OneProcess:
    """What both ends' sockets would say of the other: it is this process."""

    def getsockopt(self, _level: int, _name: int, _size: int) -> bytes:
        return struct.pack("iII", os.getpid(), os.getuid(), os.getgid())


class PipeEnd(asyncio.Transport):
    """One side's way to the other. Bytes keep their order; they arrive in pieces of any size."""

    def __init__(self, piece_bytes: int) -> None:
        super().__init__({"socket": OneProcess()})
        self._loop = asyncio.get_running_loop()
        self._piece_bytes = piece_bytes
        self.other: PipeEnd
        self.protocol: asyncio.Protocol
        self._held: list[bytes] = []
        self._arrives_at = 0.0
        self._paused = self._closing = self._lost = False

    def write(self, data: Any) -> None:
        if not self._closing:
            for start in range(0, len(data), self._piece_bytes):
                piece = bytes(data[start : start + self._piece_bytes])
                # Timers of one moment have no order.
                now = self._loop.time()
                self._arrives_at = max(now + LATENCY_SECONDS, self._arrives_at + 1e-9)
                self._loop.call_at(self._arrives_at, self.other.arrives, piece)

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    def arrives(self, piece: bytes) -> None:
        if self._paused:
            self._held.append(piece)
        elif not self._lost:
            self.protocol.data_received(piece)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        held, self._held = self._held, []
        for piece in held:
            self._loop.call_soon(self.arrives, piece)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_later(2 * LATENCY_SECONDS, self._lose)
            self._loop.call_later(2 * LATENCY_SECONDS, self.other.abort)

    def abort(self) -> None:
        self._closing = True
        self._loop.call_soon(self._lose)
        self._loop.call_soon(self.other.lose)

    def lose(self) -> None:
        self._closing = True
        self._lose()

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self.protocol.connection_lost(None)


class Pipes:
    """A listener whose connections can be cut. ``piece_bytes``: the largest piece that arrives."""

    def __init__(
        self, accept: Callable[[], asyncio.Protocol], *, piece_bytes: int = 1 << 16
    ) -> None:
        self.accept: Callable[[], asyncio.Protocol] | None = accept
        """``None``: nobody listens."""
        self.piece_bytes = piece_bytes
        self.ends: list[PipeEnd] = []
        """The listener's ends, in the order in which they were made."""

    async def connect(self, protocol: asyncio.Protocol) -> None:
        await asyncio.sleep(LATENCY_SECONDS)
        if self.accept is None:
            raise ConnectionRefusedError("nobody listens")
        here, there = PipeEnd(self.piece_bytes), PipeEnd(self.piece_bytes)
        here.other, there.other = there, here
        here.protocol, there.protocol = protocol, self.accept()
        self.ends.append(there)
        there.protocol.connection_made(there)
        here.protocol.connection_made(here)

    def cut(self) -> None:
        """All connections end now."""
        for end in self.ends:
            end.abort()
        self.ends.clear()
