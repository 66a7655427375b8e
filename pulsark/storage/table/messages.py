"""What a broker and its table process say to each other over a pipe.

::

    +-----------+---------+------+----------+------+-------+
    | json size | entries | JSON | entry id | size | entry |   the last three for each entry
    | 4         | 4       |      | 8        | 4    |       |
    +-----------+---------+------+----------+------+-------+

Both ends are one program of one version, so there is no version here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Protocol

_head = struct.Struct(">II")
_entry = struct.Struct(">qI")

Entries = Sequence[tuple[int, bytes]]


class BlockingReader(Protocol):
    """A pipe's end, read until it closes."""

    def read(self, size: int, /) -> bytes:
        """``size`` bytes; fewer at the end."""


class AsyncReader(Protocol):
    """The same on an event loop."""

    async def readexactly(self, n: int) -> bytes:
        """``n`` bytes, or ``IncompleteReadError``."""


def encode(document: dict[str, Any], entries: Entries = ()) -> bytes:
    """A message."""
    text = json.dumps(document, separators=(",", ":")).encode()
    pieces = [_head.pack(len(text), len(entries)), text]
    for entry_id, entry in entries:
        pieces += (_entry.pack(entry_id, len(entry)), entry)
    return b"".join(pieces)


def read(stream: BlockingReader) -> tuple[dict[str, Any], list[tuple[int, bytes]]] | None:
    """The next message; ``None`` when the other end is gone."""
    head = stream.read(_head.size)
    if len(head) < _head.size:
        return None
    size, count = _head.unpack(head)
    document = json.loads(stream.read(size))
    entries = []
    for _ in range(count):
        entry_id, length = _entry.unpack(stream.read(_entry.size))
        entries.append((entry_id, stream.read(length)))
    return document, entries


async def receive(stream: AsyncReader) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
    """The next message; raises ``IncompleteReadError`` when the other end is gone."""
    size, count = _head.unpack(await stream.readexactly(_head.size))
    document = json.loads(await stream.readexactly(size))
    entries = []
    for _ in range(count):
        entry_id, length = _entry.unpack(await stream.readexactly(_entry.size))
        entries.append((entry_id, await stream.readexactly(length)))
    return document, entries
