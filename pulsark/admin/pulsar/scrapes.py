"""The metrics of a broker as an answer that all who ask share.

A scrape is built once for everybody who waits for it and kept compressed. It goes to clients that
take gzip as it is; for others, each connection expands the piece that is its turn. So a client that
reads slowly holds a few kilobytes, and answers to ``/metrics`` need no budget. If scrapes that are
still being read take too much memory, the oldest one ends, and with it the connections that read
it.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from fastapi.responses import Response

from pulsark.admin.http.budgets import ACCOUNT, Account
from pulsark.admin.http.requests import SLOT
from pulsark.limits import (
    HTTP_PIECE_BYTES,
    SCRAPE_PIECE_BYTES,
    SCRAPE_REUSE_SECONDS_MAX,
    SCRAPES_BYTES_MAX,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from starlette.types import Receive, Scope, Send

    from pulsark.runtime import Clock
    from pulsark.security.connection_slots import Slot

_RAW_DEFLATE: Final = -15
_GZIP_HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
_BODY: Final = "http.response.body"


class Scrape:
    """The text of all metrics, compressed in pieces of which each can be expanded alone."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        """Bytes of the text."""
        self.readers = 0
        self.is_dropped = False
        self._packer = zlib.compressobj(1, zlib.DEFLATED, _RAW_DEFLATE)
        self._crc = 0

    def add(self, text: bytes) -> None:
        """Add the next piece."""
        packed = self._packer.compress(text) + self._packer.flush(zlib.Z_FULL_FLUSH)
        self.pieces.append(packed)
        self.size += len(text)
        self._crc = zlib.crc32(text, self._crc)

    def end(self) -> None:
        """Add no more."""
        self.pieces.append(self._packer.flush())

    @property
    def packed_bytes(self) -> int:
        """Bytes in memory."""
        return sum(map(len, self.pieces))

    def drop(self) -> None:
        """Let its readers end before they have all of it."""
        self.is_dropped = True
        self.pieces.clear()

    def packed(self) -> Iterator[bytes]:
        """A gzip file, in pieces for the socket."""
        waiting, size = [_GZIP_HEAD], len(_GZIP_HEAD)
        for piece in list(self.pieces):
            waiting.append(piece)
            size += len(piece)
            if size >= HTTP_PIECE_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
        yield b"".join(waiting) + struct.pack("<II", self._crc, self.size & 0xFFFFFFFF)

    def plain(self) -> Iterator[bytes]:
        """The text, in pieces for the socket."""
        for piece in list(self.pieces):
            text = zlib.decompressobj(_RAW_DEFLATE).decompress(piece)
            for start in range(0, len(text), SCRAPE_PIECE_BYTES):
                yield text[start : start + SCRAPE_PIECE_BYTES]


class Scrapes:
    """Builds one scrape at a time, and knows those that are being read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._building: asyncio.Task[Scrape] | None = None
        self._newest = Scrape()
        self._fresh_until = -1.0
        self._older: deque[Scrape] = deque()

    async def take(self, lines: Callable[[], AsyncIterator[bytes]]) -> Scrape:
        """Return the scrape that is being built, or one that is not much older than its build took.

        It is built even if this client leaves.
        """
        if self._building is None:
            if self._clock.monotonic() < self._fresh_until:
                return self._newest
            loop = asyncio.get_running_loop()
            self._building = loop.create_task(self._build(lines))
        return await asyncio.shield(self._building)

    async def _build(self, lines: Callable[[], AsyncIterator[bytes]]) -> Scrape:
        begun = self._clock.monotonic()
        try:
            scrape = Scrape()
            async for text in lines():
                scrape.add(text)
            scrape.end()
        finally:
            self._building = None
        ended = self._clock.monotonic()
        self._fresh_until = ended + min(ended - begun, SCRAPE_REUSE_SECONDS_MAX)
        self._older.append(self._newest)
        self._newest = scrape
        self._bound()
        return scrape

    def _bound(self) -> None:
        """Drop the oldest scrapes that are still read if all of them take too much memory."""
        self._older = deque(scrape for scrape in self._older if scrape.readers)
        taken = sum(scrape.packed_bytes for scrape in self._older)
        while self._older and taken > SCRAPES_BYTES_MAX:
            oldest = self._older.popleft()
            taken -= oldest.packed_bytes
            oldest.drop()


class ScrapeAnswer(Response):
    """Sends a scrape. It counts in no budget of answers: all who ask share it."""

    def __init__(self, scrape: Scrape, content_type: str, *, takes_gzip: bool) -> None:
        super().__init__()
        self._scrape = scrape
        self._content_type = content_type
        self._takes_gzip = takes_gzip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the scrape, or close the connection if its reader is too slow."""
        account: Account = scope["state"][ACCOUNT]
        account.shares_its_answer = True
        scrape = self._scrape
        headers = [
            (b"content-type", self._content_type.encode()),
            (b"vary", b"accept-encoding"),
            *([(b"content-encoding", b"gzip")] if self._takes_gzip else []),
        ]
        scrape.readers += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for piece in scrape.packed() if self._takes_gzip else scrape.plain():
                if scrape.is_dropped:
                    break
                await send({"type": _BODY, "body": piece, "more_body": True})
            if scrape.is_dropped:
                await _hang_up(scope["state"], receive)
            else:
                await send({"type": _BODY, "body": b"", "more_body": False})
        finally:
            scrape.readers -= 1


async def _hang_up(state: dict[str, Any], receive: Receive) -> None:
    """Close a connection within its answer, so that its client sees that something is missing."""
    slot: Slot | None = state.get(SLOT)
    if slot is not None:
        slot.close()
        await receive()
