"""Sets of entry ids as bytes, small at every density.

The first byte says the form:

* ``0`` *roaring*: the portable Roaring format. At most one bit for each id of the range, two
  bytes for each lone member.
* ``1`` *gaps of members*, ``2`` *gaps of holes*: the distances between the members, or between
  the ids of ``[first, last]`` that are missing, as four byte planes, compressed. About one byte
  for each member or hole while they lie up to some hundred ids apart, where Roaring takes two.

The encoder takes what is shorter, and looks for gaps only where they can pay.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING

from pyroaring import BitMap

from pulsark.errors import CorruptEntryError

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW = 1 << 18
"""Ids in one piece: at most 32 KiB of bytes."""

_ROARING, _GAPS_OF_MEMBERS, _GAPS_OF_HOLES = 0, 1, 2
_GAPS_PAY_FROM_BYTES = 512
_RANGE = struct.Struct("<III")


def pieces(entries: BitMap) -> Iterator[BitMap]:
    """Split a set so that each piece lies in one window of ids. Their union is the set."""
    if not entries:
        return
    last = entries.max()
    first = entries.min()
    while True:
        end = first - first % WINDOW + WINDOW
        if last < end:
            yield (
                entries
                if first == entries.min()
                else BitMap.intersection(entries, _range(first, last + 1))
            )
            return
        yield BitMap.intersection(entries, _range(first, end))
        first = entries.next_set_bit(end)


def encode_entries(entries: BitMap) -> bytes:
    """A set that is not empty, as bytes."""
    plain = BitMap(entries)
    plain.run_optimize()
    roaring = bytes((_ROARING,)) + plain.serialize()
    if len(roaring) < _GAPS_PAY_FROM_BYTES:
        return roaring
    first, last = entries.min(), entries.max()
    holes = last - first + 1 - len(entries)
    # A gap takes a byte or so: no use where there are more gaps than bytes.
    if len(roaring) < 1.1 * min(holes, len(entries)):
        return roaring
    if holes < len(entries):
        missing = BitMap.flip(entries, first, last + 1)
        missing &= _range(first, last + 1)
        gaps = _pack(_GAPS_OF_HOLES, missing, first, last)
    else:
        gaps = _pack(_GAPS_OF_MEMBERS, entries, first, last)
    return min(roaring, gaps, key=len)


def decode_entries(data: bytes) -> BitMap:
    """The set that ``encode_entries`` wrote; ``CorruptEntryError`` if it is none."""
    try:
        return _decode(data)
    except (ValueError, IndexError, OverflowError, struct.error) as error:
        raise CorruptEntryError(f"A set of entries cannot be read: {error}") from error


def _decode(data: bytes) -> BitMap:
    form = data[0]
    if form == _ROARING:
        return BitMap.deserialize(data[1:])
    if form not in (_GAPS_OF_MEMBERS, _GAPS_OF_HOLES):
        raise ValueError(f"its form {form} is unknown")
    first, last, count = _RANGE.unpack_from(data, 1)
    listed = BitMap(_unpack(data[1 + _RANGE.size :], count))
    if form == _GAPS_OF_MEMBERS:
        return listed
    members = _range(first, last + 1)
    members -= listed
    return members


def _range(start: int, end: int) -> BitMap:
    members = BitMap()
    members.add_range(start, end)
    return members


def _pack(form: int, listed: BitMap, first: int, last: int) -> bytes:
    ids = _little(listed.to_array())
    # One subtraction of long integers takes all neighbours from each other: the ids ascend, so
    # no lane borrows from the next.
    line = int.from_bytes(ids, "little")
    gaps = (line - (line << 32) % (1 << (8 * len(ids)))).to_bytes(len(ids), "little")
    planes = b"".join(gaps[i::4] for i in range(4))
    return bytes((form,)) + _RANGE.pack(first, last, len(listed)) + zlib.compress(planes, 1)


def _unpack(data: bytes, count: int) -> array[int]:
    planes = inflate(data, 4 * count)
    gaps = bytearray(4 * count)
    for i in range(4):
        gaps[i::4] = planes[i * count : (i + 1) * count]
    return array("I", accumulate(array("I", _little(bytes(gaps)))))


def inflate(data: bytes, size: int) -> bytes:
    """Decompress what must come to ``size`` bytes; else ``CorruptEntryError``, soon."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, size + 1)
    except zlib.error as error:
        raise CorruptEntryError(f"Compressed bytes cannot be read: {error}") from error
    if len(plain) != size or not inflater.eof:
        raise CorruptEntryError(f"Compressed bytes do not end after {size}, or are cut")
    return plain


def _little(values: bytes | array[int]) -> bytes:
    """32-bit values between the machine's byte order and little-endian."""
    lanes = array("I", values) if isinstance(values, bytes) else values
    if sys.byteorder == "big":
        lanes = array("I", lanes)
        lanes.byteswap()
    return lanes.tobytes()
