"""Reads messages that were sent alone, all at once.

As in ``batched``, only what official clients write is read here. Whatever else an entry may be
(encrypted, a chunk, a marker, damaged) is *irregular* and read one by one (``one_by_one``).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError

from pulsark.errors import ProtocolError
from pulsark.limits import ROW_PAYLOAD_BYTES_MAX
from pulsark.rows.arrow.arrays import Bools, Ints, MessageColumns, binary, slices, text, times
from pulsark.rows.arrow.fields import PADDING, Fields, only, texts_of
from pulsark.rows.arrow.schema import MILLISECONDS_MAX
from pulsark.rows.batched import PAYLOAD_BYTES_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.compression import decompress
from pulsark.wire.entry import CHECKSUM_END, MAGIC

METADATA_START = 10

# Fields of MessageMetadata: number << 3 | wire type; from 16 on in two bytes, the low one first.
_PRODUCER_NAME, _SEQUENCE_ID, _PUBLISH_TIME, _PROPERTIES = 0x0A, 0x10, 0x18, 0x22
_KEY, _COMPRESSION, _UNCOMPRESSED_SIZE, _EVENT_TIME = 0x32, 0x40, 0x48, 0x60
_SCHEMA_VERSION, _KEY_BASE64, _ORDERING_KEY = 0x0182, 0x0188, 0x0192
_BATCH_TAG = b"\x58"
"""The tag of ``num_messages_in_batch``; without it an entry is no batch."""
_COMPRESSION_TAG = bytes([_COMPRESSION])
"""The tag of ``compression``; without it, no payload is compressed."""

_checksum = struct.Struct(">I").unpack_from
_CHECKSUM_START = CHECKSUM_END - 4


class AloneEntries(NamedTuple):
    """What is known of entries; one element each."""

    number: Ints
    producer_name: pa.Array
    publish_time: pa.Array
    schema_version: pa.Array
    compressed: Bools


class Alone:
    """Collects entries that may be messages sent alone."""

    def __init__(self) -> None:
        self._count = only(pb.MessageMetadata, "num_messages_in_batch")()
        self._size = only(pb.MessageMetadata, "uncompressed_size")()
        self.numbers: list[int] = []
        self.entries: list[bytes] = []
        self.size = 0

    def metadata_of(self, entry: bytes) -> bytes | None:
        """The metadata of an entry; ``None`` if it cannot be a message sent alone."""
        if entry[:2] != MAGIC or len(entry) < METADATA_START:
            return None
        metadata = entry[METADATA_START : METADATA_START + _checksum(entry, CHECKSUM_END)[0]]
        if _BATCH_TAG in metadata:
            try:
                self._count.ParseFromString(metadata)
            except DecodeError:
                return None
            if self._count.HasField("num_messages_in_batch"):
                return None
        return metadata

    def add(self, number: int, entry: bytes, metadata: bytes) -> int:
        """Add one that has ``metadata_of``; returns the bytes of its value, about."""
        self.numbers.append(number)
        self.entries.append(entry)
        size = len(entry) - METADATA_START - len(metadata)
        if _COMPRESSION_TAG in metadata:
            try:
                self._size.ParseFromString(metadata)
                size = max(size, min(self._size.uncompressed_size, ROW_PAYLOAD_BYTES_MAX))
            except DecodeError:
                pass
        self.size += size
        return size

    def columns(self) -> tuple[MessageColumns | None, AloneEntries | None, list[int]]:
        """The rows of all regular entries (``None`` without one), what is known of those entries,
        and the numbers of the irregular ones."""
        numbers, entries = np.array(self.numbers, np.int64), self.entries
        if self.size + sum(map(len, entries)) > PAYLOAD_BYTES_MAX:
            return None, None, self.numbers
        irregular: list[int] = []
        while len(entries):
            found = _columns(numbers, entries)
            if not isinstance(found, np.ndarray):
                return *found, irregular
            irregular += numbers[found].tolist()
            entries = [entry for entry, bad in zip(entries, found.tolist(), strict=True) if not bad]
            numbers = numbers[~found]
        return None, None, irregular


def _columns(numbers: Ints, entries: list[bytes]) -> tuple[MessageColumns, AloneEntries] | Bools:
    """The rows, and what is known of entries; or which entries are irregular."""
    crc = google_crc32c.value
    damaged: Bools = np.array(
        [crc(entry[CHECKSUM_END:]) != _checksum(entry, _CHECKSUM_START)[0] for entry in entries]
    )
    if damaged.any():
        return damaged
    lengths = np.array([len(entry) for entry in entries])
    entry_ends = np.cumsum(lengths)
    starts = entry_ends - lengths + METADATA_START
    raw = b"".join([*entries, PADDING])
    buffer, data = pa.py_buffer(raw), np.frombuffer(raw, np.uint8)
    sizes = np.ascontiguousarray(data[starts[:, None] + np.arange(-4, 0)]).view(">u4")[:, 0]
    ends = starts + sizes.astype(np.int64)
    bad: Bools = ends > entry_ends
    if bad.any():
        return bad
    fields = Fields(data, starts, ends)
    has_name, name_starts, name_ends = fields.bytes(_PRODUCER_NAME)
    has_sequence_id, sequence_ids = fields.number(_SEQUENCE_ID)
    has_publish_time, publish_times = fields.number(_PUBLISH_TIME)
    counts, pieces = fields.properties(_PROPERTIES)
    key = fields.bytes(_KEY)
    _, compressions = fields.number(_COMPRESSION)
    _, uncompressed_sizes = fields.number(_UNCOMPRESSED_SIZE)
    _, event_times = fields.number(_EVENT_TIME)
    has_version, version_starts, version_ends = fields.bytes(_SCHEMA_VERSION)
    _, base64_flags = fields.number(_KEY_BASE64)
    has_ordering_key, ordering_starts, ordering_ends = fields.bytes(_ORDERING_KEY)
    bad = fields.bad | (fields.position != ends)
    bad |= ~(has_name & has_sequence_id & has_publish_time)
    bad |= (event_times > MILLISECONDS_MAX) | (publish_times > MILLISECONDS_MAX)
    bad |= (base64_flags != 0) & ~key[0]
    if bad.any():
        return bad
    texts = texts_of(buffer, key, counts, pieces)
    if isinstance(texts, np.ndarray):
        return texts
    names = text(slices(buffer, name_starts, name_ends))
    if names is None:
        return np.ones(len(entries), np.bool_)
    compressed: Bools = compressions != 0
    value = slices(buffer, ends, entry_ends)
    if compressed.any():
        found = _decompressed(value, compressions, uncompressed_sizes)
        if isinstance(found, np.ndarray):
            return found
        value = found
    version = slices(buffer, version_starts, version_ends, has_version)
    count = len(entries)
    rows = MessageColumns(
        entry=numbers,
        batch_index=pa.array(np.full(count, -1, np.int32)),
        key=texts.key,
        key_base64=pa.array(base64_flags != 0, mask=~key[0]),
        ordering_key=slices(buffer, ordering_starts, ordering_ends, has_ordering_key),
        value=value,
        value_raw=pa.nulls(count, pa.binary()),
        properties=texts.properties,
        sequence_id=pa.array(sequence_ids.view(np.int64)),
        event_time=times(event_times),
        message_meta=pa.nulls(count, pa.binary()),
    )
    return rows, AloneEntries(numbers, names, times(publish_times), version, compressed)


def _decompressed(
    payloads: pa.Array, compressions: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64]
) -> pa.Array | Bools:
    """What payloads are without their compression; or which of them cannot be read."""
    found: list[bytes | None] = payloads.to_pylist()
    damaged = np.zeros(len(found), np.bool_)
    places = np.flatnonzero(compressions)
    for place, kind, size in zip(
        places.tolist(), compressions[places].tolist(), sizes[places].tolist(), strict=True
    ):
        try:
            found[place] = decompress(kind, found[place] or b"", size, ROW_PAYLOAD_BYTES_MAX)
        except ProtocolError:
            damaged[place] = True
    return damaged if damaged.any() else binary(found)
