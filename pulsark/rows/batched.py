"""Reads the messages of batches all at once.

A batch is a chain: each message gives its length. ``Batches.add`` follows the chain with a
protobuf message that has only that length. ``columns`` then parses the
metadata of all messages together, field by field, with numpy.

It reads what official clients write: fields in ascending order, each once. All other
valid encodings are *irregular*; ``one_by_one`` reads such entries one by one.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from pulsark.errors import ProtocolError
from pulsark.rows.arrow.arrays import (
    Ints,
    MessageColumns,
    slices,
    times,
)
from pulsark.rows.arrow.fields import PADDING, Fields, only, texts_of
from pulsark.rows.arrow.schema import MILLISECONDS_MAX
from pulsark.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from pulsark.wire.entry import EntryHeader

PAYLOAD_BYTES_MAX = (1 << 31) - (1 << 20)
"""Arrow's binary columns count with 31 bits."""

# Fields of SingleMessageMetadata: number << 3 | wire type.
_PROPERTIES, _KEY, _PAYLOAD_SIZE, _COMPACTED_OUT, _EVENT_TIME = 0x0A, 0x12, 0x18, 0x20, 0x28
_KEY_BASE64, _ORDERING_KEY, _SEQUENCE_ID, _NULL_VALUE, _NULL_KEY = 0x30, 0x3A, 0x40, 0x48, 0x50

_message_size = struct.Struct(">I").unpack_from


class _Batch(NamedTuple):
    entry: int
    head: EntryHeader
    payload: bytes
    first: int
    """Batch index of its first message here."""
    borders: array[int]
    """Start of the metadata and start of the value of each message, then the end of the last."""


class Batches:
    """Collects whole batches, or a range of their messages."""

    def __init__(self) -> None:
        self._length = only(pb.SingleMessageMetadata, "payload_size")()
        self.batches: list[_Batch] = []
        self.rows = 0
        self.size = 0

    def add(
        self, entry: int, head: EntryHeader, payload: bytes, skip_through: int, stop_after: int
    ) -> int:
        """Add messages of a batch; returns their number. ``ProtocolError`` if it is damaged."""
        length = self._length
        parse = length.ParseFromString
        borders = array("q")
        add = borders.append
        total = len(payload)
        end = 0
        try:
            for _ in range(min(head.messages, stop_after + 1)):
                start = end + 4
                middle = start + _message_size(payload, end)[0]
                parse(payload[start:middle])
                size = length.payload_size
                end = middle + size
                if size < 0 or end > total:
                    raise ProtocolError("A message that is larger than its batch")
                add(start)
                add(middle)
        except (DecodeError, struct.error) as e:
            raise ProtocolError(f"A damaged batch: {e}") from None
        first = skip_through + 1
        add(end + 4)
        if first:
            del borders[: 2 * first]
        count = len(borders) // 2
        if count:
            self.batches.append(_Batch(entry, head, payload, first, borders))
            self.rows += count
            self.size += total
        return count

    def columns(self) -> tuple[MessageColumns | None, list[_Batch]]:
        """The rows of all regular batches (``None`` without one), and the irregular batches."""
        batches = self.batches
        if self.size > PAYLOAD_BYTES_MAX:
            return None, batches
        irregular: list[_Batch] = []
        while batches:
            columns, bad = _columns(batches)
            if columns is not None:
                return columns, irregular
            wrong = set(np.unique(bad).tolist())
            irregular += [batch for i, batch in enumerate(batches) if i in wrong]
            batches = [batch for i, batch in enumerate(batches) if i not in wrong]
        return None, irregular


def _columns(batches: list[_Batch]) -> tuple[MessageColumns | None, Ints]:
    """The rows; or ``None`` and the numbers of the batches that are irregular."""
    counts = np.array([len(batch.borders) // 2 for batch in batches])
    lengths = np.array([len(batch.payload) for batch in batches])
    base = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    owner = np.repeat(np.arange(len(batches)), counts)
    shift = np.repeat(base, counts)
    starts, middles, ends = (
        np.concatenate(pieces) + shift
        for pieces in zip(*(_borders(batch.borders) for batch in batches), strict=True)
    )
    raw = b"".join([*(batch.payload for batch in batches), PADDING])
    buffer, data = pa.py_buffer(raw), np.frombuffer(raw, np.uint8)
    fields = Fields(data, starts, middles)

    counts_of_properties, pieces = fields.properties(_PROPERTIES)
    has_key, key_starts, key_ends = fields.bytes(_KEY)
    has_size, _ = fields.number(_PAYLOAD_SIZE)
    _, compacted = fields.number(_COMPACTED_OUT)
    _, event_times = fields.number(_EVENT_TIME)
    _, base64_flags = fields.number(_KEY_BASE64)
    has_ordering_key, ordering_starts, ordering_ends = fields.bytes(_ORDERING_KEY)
    has_sequence_id, sequence_ids = fields.number(_SEQUENCE_ID)
    _, null_values = fields.number(_NULL_VALUE)
    _, null_keys = fields.number(_NULL_KEY)

    bad = fields.bad | (fields.position != middles) | ~has_size
    bad |= (compacted != 0) | (null_keys != 0) | (event_times > MILLISECONDS_MAX)
    bad |= (base64_flags != 0) & ~has_key
    if bad.any():
        return None, owner[bad]

    texts = texts_of(buffer, (has_key, key_starts, key_ends), counts_of_properties, pieces)
    if isinstance(texts, np.ndarray):
        return None, owner[texts]

    entry_sequence_ids = np.array([batch.head.sequence_id for batch in batches], np.uint64)
    ids = np.where(has_sequence_id, sequence_ids, entry_sequence_ids[owner])
    within = np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts)
    firsts = np.array([batch.first for batch in batches])
    present = null_values == 0
    columns = MessageColumns(
        entry=np.array([batch.entry for batch in batches])[owner],
        batch_index=pa.array((within + firsts[owner]).astype(np.int32)),
        key=texts.key,
        key_base64=pa.array(base64_flags != 0, mask=~has_key),
        ordering_key=slices(buffer, ordering_starts, ordering_ends, has_ordering_key),
        value=slices(buffer, middles, ends)
        if present.all()
        else slices(buffer, middles[present], ends[present], present),
        value_raw=pa.nulls(len(starts), pa.binary()),
        properties=texts.properties,
        sequence_id=pa.array(ids.view(np.int64)),
        event_time=times(event_times),
        message_meta=pa.nulls(len(starts), pa.binary()),
    )
    return columns, owner[:0]


def _borders(borders: array[int]) -> tuple[Ints, Ints, Ints]:
    found = np.frombuffer(borders, np.int64)
    return found[0:-1:2], found[1::2], found[2::2] - 4
