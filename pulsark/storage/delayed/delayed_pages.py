"""Delayed positions in order of time, as bytes: *pages*, and the header of a bucket of them.

In memory a page is its *keys*, 20 bytes each and sorted: deliver-at time, ledger id, entry id,
big-endian. Stored, the first bytes of all keys come first, then all second ones, and so on,
compressed: about five bytes per key. ``docs/formats/delayed.md`` has both forms.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.storage.cursor.bitmap import decode_entries, encode_entries, inflate, pieces
from pulsark.storage.position_set import PositionSet

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT_VERSION = 1
KEY = struct.Struct(">QQI")
"""Deliver-at time in milliseconds since the epoch, ledger id, entry id."""
PAGE_KEYS = 4096
"""Keys in one page: 80 KiB in memory."""


class PageInfo(NamedTuple):
    """What is known of a page that is not in memory: earliest and latest time, and how many."""

    first_ms: int
    last_ms: int
    keys: int


class BucketHeader(NamedTuple):
    """What is known of a bucket whose pages are not in memory."""

    pages: tuple[PageInfo, ...]
    positions: PositionSet


def pages_of(keys: Sequence[bytes], size: int = PAGE_KEYS) -> list[bytes]:
    """Sorted keys, cut into pages of ``size`` keys."""
    return [b"".join(keys[i : i + size]) for i in range(0, len(keys), size)]


def info_of(page: bytes) -> PageInfo:
    """What a header says of a page, which is not empty."""
    first, last = KEY.unpack_from(page), KEY.unpack_from(page, len(page) - KEY.size)
    return PageInfo(first[0], last[0], len(page) // KEY.size)


def encode_page(page: bytes) -> bytes:
    """The stored form."""
    return zlib.compress(b"".join(page[i :: KEY.size] for i in range(KEY.size)), 1)


def decode_page(stored: bytes, info: PageInfo) -> bytes:
    """The inverse; ``CorruptEntryError`` if it is not the page that ``info`` tells of."""
    size = info.keys * KEY.size
    planes = inflate(stored, size)
    if not size:
        raise CorruptEntryError("A page is empty")
    page = bytearray(size)
    for i in range(KEY.size):
        page[i :: KEY.size] = planes[i * info.keys : (i + 1) * info.keys]
    decoded = bytes(page)
    if info_of(decoded) != info:
        raise CorruptEntryError("A page is not what its header says")
    return decoded


def encode_header(topic_id: str, pages: Sequence[bytes]) -> bytes:
    """The first entry of a bucket."""
    positions = PositionSet(key[1:] for page in pages for key in KEY.iter_unpack(page))
    sets: list[bytes] = []
    directory = []
    for ledger_id in sorted(positions.ledgers):
        encoded = [encode_entries(piece) for piece in pieces(positions.ledgers[ledger_id])]
        directory.append([ledger_id, *map(len, encoded)])
        sets += encoded
    head = {
        "version": FORMAT_VERSION,
        "topicId": topic_id,
        "segments": [info_of(page) for page in pages],
        "positions": directory,
    }
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + b"".join(sets)


def decode_header(entry: bytes, topic_id: str) -> BucketHeader:
    """The inverse; ``CorruptEntryError`` if it cannot be read, or is of another topic,
    ``StorageError`` if its format is newer.
    """
    try:
        line, sets = entry.split(b"\n", 1)
        head = json.loads(line)
        if head["version"] > FORMAT_VERSION:
            raise StorageError(f"A bucket of delayed messages has format {head['version']}")
        if head["topicId"] != topic_id:
            raise ValueError(f"it is of topic {head['topicId']}")
        pages = tuple(PageInfo(*map(int, info)) for info in head["segments"])
        positions, start = PositionSet(), 0
        for ledger_id, *sizes in head["positions"]:
            entries = BitMap()
            for size in sizes:
                entries |= decode_entries(sets[start : start + size])
                start += size
            positions.add_entries(int(ledger_id), entries)
        if start != len(sets) or len(positions) > sum(info.keys for info in pages):
            raise ValueError("positions and pages do not agree")
    except (ValueError, KeyError, TypeError, OverflowError, CorruptEntryError) as error:
        raise CorruptEntryError(f"Delayed messages cannot be read: {error!r}") from error
    if not positions or any(info.first_ms > info.last_ms or info.keys < 1 for info in pages):
        raise CorruptEntryError("A bucket of delayed messages is empty or out of order")
    return BucketHeader(pages, positions)
