"""Delayed positions in order of time, as bytes: *segments*, and the header of a bucket of them.

In memory a segment is its *keys*, 20 bytes each and sorted: deliver-at time, ledger id, entry id,
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
SEGMENT_KEYS = 4096
"""Keys in one segment: 80 KiB in memory."""


class SegmentInfo(NamedTuple):
    """What is known of a segment that is not in memory: earliest and latest time, and how many."""

    first_ms: int
    last_ms: int
    keys: int


class BucketHeader(NamedTuple):
    """What is known of a bucket whose segments are not in memory."""

    segments: tuple[SegmentInfo, ...]
    positions: PositionSet


def segments_of(keys: Sequence[bytes], size: int = SEGMENT_KEYS) -> list[bytes]:
    """Sorted keys, cut into segments of ``size`` keys."""
    return [b"".join(keys[i : i + size]) for i in range(0, len(keys), size)]


def info_of(segment: bytes) -> SegmentInfo:
    """What a header says of a segment, which is not empty."""
    first, last = KEY.unpack_from(segment), KEY.unpack_from(segment, len(segment) - KEY.size)
    return SegmentInfo(first[0], last[0], len(segment) // KEY.size)


def encode_segment(segment: bytes) -> bytes:
    """The stored form."""
    return zlib.compress(b"".join(segment[i :: KEY.size] for i in range(KEY.size)), 1)


def decode_segment(stored: bytes, info: SegmentInfo) -> bytes:
    """The inverse; ``CorruptEntryError`` if it is not the segment that ``info`` tells of."""
    size = info.keys * KEY.size
    planes = inflate(stored, size)
    if not size:
        raise CorruptEntryError("A segment is empty")
    segment = bytearray(size)
    for i in range(KEY.size):
        segment[i :: KEY.size] = planes[i * info.keys : (i + 1) * info.keys]
    decoded = bytes(segment)
    if info_of(decoded) != info:
        raise CorruptEntryError("A segment is not what its header says")
    return decoded


def encode_header(topic_id: str, segments: Sequence[bytes]) -> bytes:
    """The first entry of a bucket."""
    positions = PositionSet(key[1:] for segment in segments for key in KEY.iter_unpack(segment))
    sets: list[bytes] = []
    directory = []
    for ledger_id in sorted(positions.ledgers):
        encoded = [encode_entries(piece) for piece in pieces(positions.ledgers[ledger_id])]
        directory.append([ledger_id, *map(len, encoded)])
        sets += encoded
    head = {
        "version": FORMAT_VERSION,
        "topicId": topic_id,
        "segments": [info_of(segment) for segment in segments],
        "positions": directory,
    }
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + b"".join(sets)


def decode_header(entry: bytes, topic_id: str) -> BucketHeader:
    """The inverse; ``CorruptEntryError`` if it cannot be read, or is of another topic.

    Of a newer format, ``StorageError``.
    """
    try:
        line, sets = entry.split(b"\n", 1)
        head = json.loads(line)
        if head["version"] > FORMAT_VERSION:
            raise StorageError(f"A bucket of delayed messages has format {head['version']}")
        if head["topicId"] != topic_id:
            raise ValueError(f"it is of topic {head['topicId']}")
        segments = tuple(SegmentInfo(*map(int, info)) for info in head["segments"])
        positions, start = PositionSet(), 0
        for ledger_id, *sizes in head["positions"]:
            entries = BitMap()
            for size in sizes:
                entries |= decode_entries(sets[start : start + size])
                start += size
            positions.add_entries(int(ledger_id), entries)
        if start != len(sets) or len(positions) > sum(info.keys for info in segments):
            raise ValueError("positions and segments do not agree")
    except (ValueError, KeyError, TypeError, OverflowError, CorruptEntryError) as error:
        raise CorruptEntryError(f"Delayed messages cannot be read: {error!r}") from error
    if not positions or any(info.first_ms > info.last_ms or info.keys < 1 for info in segments):
        raise CorruptEntryError("A bucket of delayed messages is empty or out of order")
    return BucketHeader(segments, positions)
