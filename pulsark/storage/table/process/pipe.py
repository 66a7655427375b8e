"""What a broker and its table process say to each other over a pipe.

::

    +-----------+---------+--------------+------+----------------------+---------+
    | json size | entries | size of rest | JSON | entry id, its size … | entries |
    | 4         | 4       | 4            |      | 8, 4 for each        |         |
    +-----------+---------+--------------+------+----------------------+---------+

Both ends are one program of one version, so there is no version here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Final, Protocol

MEMORY_VARIABLE: Final = "PULSARK_TABLE_PROCESS_MEMORY_MB"
"""In the environment of a table process: the memory that it may take."""

_head = struct.Struct(">III")
_entry = struct.Struct(">qI")

Entries = Sequence[tuple[int, bytes]]
Message = tuple[dict[str, Any], list[tuple[int, bytes]]]


class BlockingReader(Protocol):
    """A pipe's end, read until it closes."""

    def read(self, size: int, /) -> bytes:
        """``size`` bytes; fewer at the end."""


class AsyncReader(Protocol):
    """A pipe's end on an event loop."""

    async def readexactly(self, n: int) -> bytes:
        """``n`` bytes, or ``IncompleteReadError``."""


def encode(document: dict[str, Any], entries: Entries = ()) -> bytes:
    """A message."""
    text = json.dumps(document, separators=(",", ":")).encode()
    pieces = [_entry.pack(entry_id, len(entry)) for entry_id, entry in entries]
    pieces += [entry for _, entry in entries]
    rest = len(text) + sum(map(len, pieces))
    return b"".join((_head.pack(len(text), len(entries), rest), text, *pieces))


def read(stream: BlockingReader) -> Message | None:
    """The next message; ``None`` when the other end is gone."""
    head = stream.read(_head.size)
    if len(head) < _head.size:
        return None
    text, count, size = _head.unpack(head)
    rest = stream.read(size)
    return _decode(rest, text, count) if len(rest) == size else None


async def receive(stream: AsyncReader) -> Message:
    """The next message; raises ``IncompleteReadError`` when the other end is gone."""
    text, count, size = _head.unpack(await stream.readexactly(_head.size))
    return _decode(await stream.readexactly(size), text, count)


def _decode(rest: bytes, text: int, count: int) -> Message:
    document = json.loads(rest[:text])
    entries = []
    start = text + count * _entry.size
    for entry_id, length in _entry.iter_unpack(rest[text:start]):
        entries.append((entry_id, rest[start : start + length]))
        start += length
    return document, entries
