"""Bytes of the journal: segment heads, group heads, records, snapshots.

``docs/formats/journal.md`` draws them. Everything is little-endian. This module neither reads
nor writes files; it turns values into bytes and back, and says ``None`` or ``BadRecordError``
where the bytes are not what they should be.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pulsark.runtime import Piece

FORMAT_VERSION = 1

SEGMENT_MAGIC = b"PLSKJRNL"
_SEGMENT_HEAD = struct.Struct("<8sHHIQQ16sqI")
_CRC = struct.Struct("<I")
CRC_SIZE = _CRC.size
SEGMENT_HEAD_SIZE = _SEGMENT_HEAD.size + CRC_SIZE

GROUP_MAGIC = b"\xf1GRP"
_GROUP_HEAD = struct.Struct("<4sHHQQIIIq")
GROUP_HEAD_SIZE = _GROUP_HEAD.size + CRC_SIZE

RECORD_MAGIC = 0xE7C1
_RECORD_HEAD = struct.Struct("<HBBIqqqqI")
_RECORD_HEAD_SIZE = _RECORD_HEAD.size
_PAIR = struct.Struct("<II")
_LONE_RECORD = struct.Struct("<HBBIqqqqIII")
RECORD_OVERHEAD = _RECORD_HEAD_SIZE + CRC_SIZE
"""Bytes of a record beside its payloads and the eight bytes of table for each of them."""
TABLE_ENTRY = 8

_SNAPSHOT_HEAD = struct.Struct("<HHIIIq")

_crc32c = google_crc32c.value
_pack_crc = _CRC.pack
_BIG_ENDIAN = sys.byteorder == "big"


class BadRecordError(Exception):
    """Bytes that should be a record are not one. Internal to reading the journal."""


class Kind(IntEnum):
    """What a record says. Values are on disk: never reuse one."""

    ENTRIES = 1
    """Entries of a ledger from ``first``; ``value`` is the LAC, ``total`` the length up to it."""
    FENCE = 2
    """The ledger takes no more entries but those of its recovery."""
    RELEASE = 3
    """Entries of the ledger up to ``first`` live in the table."""
    DELETE = 4
    """The ledger is gone: its tombstone."""
    SNAPSHOT = 5
    """State of the ledgers; the first record of each segment."""
    SEGMENT_REMOVED = 6
    """Segment ``first`` is no longer needed and is about to be unlinked."""


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """First bytes of a segment file."""

    segment_id: int
    epoch: int
    """Random number of this file, repeated in each of its groups."""
    instance_id: bytes
    """The bookie that wrote it, 16 bytes."""
    created_ms: int

    def encode(self) -> bytes:
        """The ``SEGMENT_HEAD_SIZE`` bytes."""
        head = _SEGMENT_HEAD.pack(
            SEGMENT_MAGIC,
            FORMAT_VERSION,
            0,
            SEGMENT_HEAD_SIZE,
            self.segment_id,
            self.epoch,
            self.instance_id,
            self.created_ms,
            0,
        )
        return head + _pack_crc(_crc32c(head))


def decode_segment_head(data: bytes) -> tuple[int, SegmentHead] | None:
    """``(version, head)``, or ``None`` if these are not the intact bytes of a head."""
    if len(data) < SEGMENT_HEAD_SIZE or not data.startswith(SEGMENT_MAGIC):
        return None
    head = data[: _SEGMENT_HEAD.size]
    if _CRC.unpack_from(data, len(head))[0] != _crc32c(head):
        return None
    _, version, _, _, segment_id, epoch, instance_id, created_ms, _ = _SEGMENT_HEAD.unpack(head)
    return version, SegmentHead(segment_id, epoch, instance_id, created_ms)


class GroupHead(NamedTuple):
    """Frame of a group: its place, its size, and one checksum that binds the whole group.

    ``records_crc`` covers the checksum of every record, which covers its head and table; the
    tables hold a CRC32C of each payload. So it stands for every byte of the body.
    """

    version: int
    epoch: int
    offset: int
    body_size: int
    records: int
    records_crc: int
    max_ledger_id: int
    """No ledger above this is in an earlier group: bounds what a damaged one may have held."""

    def encode(self) -> bytes:
        """The ``GROUP_HEAD_SIZE`` bytes."""
        head = _GROUP_HEAD.pack(
            GROUP_MAGIC,
            self.version,
            0,
            self.epoch,
            self.offset,
            self.body_size,
            self.records,
            self.records_crc,
            self.max_ledger_id,
        )
        return head + _pack_crc(_crc32c(head))


def decode_group_head(
    data: bytes, position: int, epoch: int | None, offset: int
) -> GroupHead | None:
    """The group head at ``data[position:]``, which is ``offset`` in its file.

    ``None`` unless magic, checksum, offset and epoch are right (``epoch`` ``None``: any), so
    neither a stale block nor a payload that contains journal bytes is taken for a group.
    """
    head = data[position : position + _GROUP_HEAD.size]
    end = position + GROUP_HEAD_SIZE
    if len(data) < end or not head.startswith(GROUP_MAGIC):
        return None
    if _CRC.unpack_from(data, end - CRC_SIZE)[0] != _crc32c(head):
        return None
    _, version, _, its_epoch, its_offset, *rest = _GROUP_HEAD.unpack(head)
    if its_offset != offset or (epoch is not None and its_epoch != epoch):
        return None
    return GroupHead(version, its_epoch, its_offset, *rest)


def encode_record(
    kind: int,
    ledger_id: int,
    first: int,
    value: int,
    payloads: Sequence[Piece] = (),
    total: int = -1,
) -> tuple[bytes, int]:
    """``(meta, size)``: the bytes before the payloads, and the size of meta and payloads."""
    count = len(payloads)
    fields = (RECORD_MAGIC, kind, 0, count, ledger_id, first, value, total)
    if count == 1:
        payload = payloads[0]
        length = len(payload)
        meta = _LONE_RECORD.pack(*fields, length, length, _crc32c(payload))
    else:
        lengths = little_endian(array("I", map(len, payloads)))
        checksums = little_endian(array("I", map(_crc32c, payloads)))
        length = sum(map(len, payloads))
        meta = b"".join((_RECORD_HEAD.pack(*fields, length), lengths, checksums))
    meta += _pack_crc(_crc32c(meta))
    return meta, len(meta) + length


class RecordHead(NamedTuple):
    """The fixed part of a record."""

    kind: int
    entries: int
    ledger_id: int
    first: int
    value: int
    total: int
    body_size: int

    @property
    def meta_size(self) -> int:
        """Bytes before the first payload."""
        return RECORD_OVERHEAD + TABLE_ENTRY * self.entries

    @property
    def size(self) -> int:
        """Bytes of the whole record."""
        return RECORD_OVERHEAD + TABLE_ENTRY * self.entries + self.body_size


def decode_record_head(data: Piece, position: int) -> RecordHead:
    """The record head at ``data[position:]``, not yet verified; raises ``BadRecordError``."""
    if position + _RECORD_HEAD_SIZE > len(data):
        raise BadRecordError("record head is cut")
    magic, kind, _, *rest = _RECORD_HEAD.unpack_from(data, position)
    if magic != RECORD_MAGIC:
        raise BadRecordError("no record here")
    return RecordHead(kind, *rest)


def decode_table(
    data: bytes, position: int, head: RecordHead
) -> tuple[Sequence[int], Sequence[int]]:
    """``(lengths, checksums)`` of the payloads, after verifying head and table.

    ``data[position:]`` starts with the record's head. Raises ``BadRecordError``.
    """
    end = position + head.meta_size - CRC_SIZE
    if end + CRC_SIZE > len(data):
        raise BadRecordError("record table is cut")
    meta = data[position:end]
    if _CRC.unpack_from(data, end)[0] != _crc32c(meta):
        raise BadRecordError("record checksum differs")
    if head.entries == 1:
        length, checksum = _PAIR.unpack_from(meta, _RECORD_HEAD_SIZE)
        if length != head.body_size:
            raise BadRecordError("record lengths do not add up")
        return (length,), (checksum,)
    middle = _RECORD_HEAD_SIZE + 4 * head.entries
    lengths = from_little_endian("I", meta[_RECORD_HEAD_SIZE:middle])
    checksums = from_little_endian("I", meta[middle:])
    if sum(lengths) != head.body_size:
        raise BadRecordError("record lengths do not add up")
    return lengths, checksums


def received_record(pieces: Sequence[Piece]) -> tuple[RecordHead, bytes, list[Piece]]:
    """Head, meta and payloads of the one record that the pieces are together.

    The meta is verified; a reader of a payload verifies that. Raises ``BadRecordError``.
    """
    if len(pieces) > 1 and len(pieces[0]) < _RECORD_HEAD_SIZE:
        pieces = (b"".join(pieces),)
    head = decode_record_head(pieces[0], 0)
    meta_size = head.meta_size
    if meta_size + head.body_size != sum(map(len, pieces)):
        raise BadRecordError("record has a wrong size")
    if len(pieces[0]) < meta_size:
        pieces = (b"".join(pieces),)
    meta = bytes(pieces[0][:meta_size])
    decode_table(meta, 0, head)
    return head, meta, [pieces[0][meta_size:], *pieces[1:]]


def records_checksum(checksums: Sequence[bytes]) -> int:
    """The checksum of a group from those of its records, as they are stored.

    Not from the records with their checksums: bytes that are followed by their own CRC leave
    the CRC in the same state whatever they are, so that would bind nothing.
    """
    checksum: int = _crc32c(b"".join(checksums))
    return checksum


def group_of(
    metas: Sequence[bytes], body_size: int, epoch: int, offset: int, max_ledger_id: int
) -> bytes:
    """The group head for records with these metas."""
    checksum = records_checksum([meta[-CRC_SIZE:] for meta in metas])
    head = GroupHead(FORMAT_VERSION, epoch, offset, body_size, len(metas), checksum, max_ledger_id)
    return head.encode()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the bookie at the start of a segment: all that must outlive older segments.

    Columns have one value a ledger. ``segments`` are the older files that must still be there
    as ``(segment id, epoch, size)``; ``tombstones`` are deleted ledgers that may have entries
    in files up to the given segment.
    """

    max_ledger_id: int = -1
    segments: Sequence[tuple[int, int, int]] = ()
    tombstones: Sequence[tuple[int, int]] = ()
    ledger_ids: array[int] = field(default_factory=lambda: array("q"))
    last_confirmed: array[int] = field(default_factory=lambda: array("q"))
    confirmed_bytes: array[int] = field(default_factory=lambda: array("q"))
    released: array[int] = field(default_factory=lambda: array("q"))
    fenced: bytes = b""

    def encode(self) -> bytes:
        """The payload of a ``SNAPSHOT`` record."""
        head = _SNAPSHOT_HEAD.pack(
            FORMAT_VERSION,
            0,
            len(self.segments),
            len(self.tombstones),
            len(self.ledger_ids),
            self.max_ledger_id,
        )
        flat = array_of("Q", [number for segment in self.segments for number in segment])
        dead = array_of("q", [number for tombstone in self.tombstones for number in tombstone])
        columns = [flat, dead, self.ledger_ids, self.last_confirmed, self.confirmed_bytes]
        columns.append(self.released)
        return b"".join((head, *map(little_endian, columns), self.fenced))


def decode_snapshot(data: bytes) -> Snapshot:
    """The inverse of ``Snapshot.encode``; raises ``BadRecordError``."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise BadRecordError("snapshot is cut")
    _, _, segments, tombstones, ledgers, max_ledger_id = _SNAPSHOT_HEAD.unpack_from(data)
    if len(data) != _SNAPSHOT_HEAD.size + 24 * segments + 16 * tombstones + 33 * ledgers:
        raise BadRecordError("snapshot has a wrong size")
    position = _SNAPSHOT_HEAD.size

    def column(kind: str, count: int) -> array[int]:
        nonlocal position
        start, position = position, position + 8 * count
        return from_little_endian(kind, data[start:position])

    flat, dead = column("Q", 3 * segments), column("q", 2 * tombstones)
    return Snapshot(
        max_ledger_id,
        list(zip(flat[0::3], flat[1::3], flat[2::3], strict=True)),
        list(zip(dead[0::2], dead[1::2], strict=True)),
        column("q", ledgers),
        column("q", ledgers),
        column("q", ledgers),
        column("q", ledgers),
        data[position:],
    )


def array_of(typecode: str, numbers: Iterable[int]) -> array[int]:
    """An array of 64-bit numbers: ``q`` signed, ``Q`` not."""
    return array(typecode, numbers)


def little_endian(numbers: array[int]) -> bytes:
    """An array's bytes as they are stored."""
    if _BIG_ENDIAN:
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()


def from_little_endian(typecode: str, data: bytes) -> array[int]:
    """The inverse of ``little_endian``; ``data`` must be whole numbers."""
    numbers: array[int] = array(typecode, data)
    if _BIG_ENDIAN:
        numbers.byteswap()
    return numbers


def segment_name(segment_id: int) -> str:
    """File name of a segment; names sort like their numbers."""
    return f"{segment_id:016x}.journal"


def segment_id_of(name: str) -> int | None:
    """The inverse of ``segment_name``; ``None`` for other files."""
    stem, _, suffix = name.partition(".")
    if suffix != "journal" or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None
