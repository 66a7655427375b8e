"""Frames between a broker and a bookie process: bytes in, frames out.

A frame is a head of 16 bytes and a body. The head, little-endian, has the size of the body, the
type, flags, two unused bytes, and the number of the request; an answer repeats its request's
number. ``docs/formats/bookie-protocol.md`` draws it.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from pulsark.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pulsark.runtime import Piece

PROTOCOL_VERSION = 1
_HEAD = struct.Struct("<IBBHQ")
HEAD_SIZE = _HEAD.size


class FrameType(IntEnum):
    """The type of a frame. Values are shared between versions: never reuse one."""

    HELLO = 1
    """The first frame of each side: the bookie's identity, or the one a broker expects."""
    ADD = 2
    TAIL = 3
    READ = 4
    RELEASE = 5
    DELETE = 6
    RECYCLE = 7
    MARK = 8
    """A mark of the metadata store; it has no answer."""
    EXCERPT = 9

    ADDED = 64
    """All unanswered adds up to this number are durable."""
    ANSWER = 65
    ERROR = 66


class Flag:
    """Options of a request. Plain numbers: each add has some, and an ``IntFlag`` takes 1 us."""

    RECOVERY: Final = 1
    """An add that is accepted on a fenced ledger."""
    RESERVE: Final = 2
    """An add that may use the reserved disk space."""
    FENCE: Final = 4
    """Fence the ledger; the tail is answered once the fence is durable."""
    MEMORY: Final = 8
    """An add whose payloads lie in the shared memory: its place, then the record without them."""


class Frame(NamedTuple):
    """One frame. ``kind`` is a ``FrameType`` unless the peer has a later version."""

    kind: int
    flags: int
    number: int
    pieces: Sequence[Piece]
    """The body, as it arrived: parts of what was received, which is not copied."""

    @property
    def body(self) -> bytes:
        """All of it, in one piece."""
        return b"".join(self.pieces)


def frame_head(kind: int, number: int, size: int, flags: int = 0) -> bytes:
    """The head of a frame whose body has ``size`` bytes."""
    return _HEAD.pack(size, kind, flags, 0, number)


class FrameReader:
    """Cuts a stream into frames. It buffers at most one frame of the largest size."""

    def __init__(self, body_bytes_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        """A larger body is refused when its head arrives."""
        self._head: tuple[int, int, int] | None = None
        """Type, flags and number of the frame whose body arrives."""
        self._pieces: list[Piece] = []
        """What is there of a head, or of a body."""
        self._missing = HEAD_SIZE
        """Bytes until it is complete."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are now complete; ``ProtocolError`` if one is too large."""
        view, position, end = memoryview(data), 0, len(data)
        while (after := position + self._missing) <= end:
            pieces, self._pieces = self._pieces, []
            pieces.append(view[position:after])
            position = after
            if self._head is None:
                head = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                size, kind, flags, _, number = _HEAD.unpack(head)
                if size > self.body_bytes_max:
                    raise ProtocolError(
                        f"a frame of {size} bytes is larger than the {self.body_bytes_max} allowed"
                    )
                self._head, self._missing = (kind, flags, number), size
            else:
                # Before the yield: who takes this frame may change the limit for the next one.
                frame = Frame(*self._head, pieces)
                self._head, self._missing = None, HEAD_SIZE
                yield frame
        if position < end:
            self._pieces.append(view[position:])
            self._missing -= end - position
