"""Messages of batches, read all at once.

What a batch holds is a chain: each message says how long it is. ``Batches.add`` follows the
chain with a protobuf message that knows nothing but that length. ``columns`` then parses the
metadata of all messages together, field by field, with numpy.

It reads what official clients write: fields in ascending order, each once. Whatever else is
allowed is *irregular*; such entries are left to ``plain``, which reads them one by one.
"""

from __future__ import annotations

import struct
from array import array
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from pulsark.errors import ProtocolError
from pulsark.storage.rows.arrays import (
    Bools,
    Ints,
    MessageColumns,
    not_text,
    repeated_names,
    slices,
    text,
    times,
)
from pulsark.storage.rows.schema import MILLISECONDS_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import EntryHeader

PAYLOAD_BYTES_MAX = (1 << 31) - (1 << 20)
"""Arrow's binary columns count with 31 bits."""

# Fields of SingleMessageMetadata: number << 3 | wire type.
_PROPERTIES, _KEY, _PAYLOAD_SIZE, _COMPACTED_OUT, _EVENT_TIME = 0x0A, 0x12, 0x18, 0x20, 0x28
_KEY_BASE64, _ORDERING_KEY, _SEQUENCE_ID, _NULL_VALUE, _NULL_KEY = 0x30, 0x3A, 0x40, 0x48, 0x50
_PROPERTY_KEY, _PROPERTY_VALUE = 0x0A, 0x12

_PADDING = bytes(16)
"""Behind the last payload, so that a look at the next byte is always allowed."""

_FAR = 1 << 40
"""Stands for a length that is more than any payload's."""

_message_size = struct.Struct(">I").unpack_from


@cache
def _length_only() -> type:
    """A message with ``payload_size`` of ``SingleMessageMetadata`` and no other field."""
    file = descriptor_pb2.FileDescriptorProto(
        name="pulsark/storage/rows/payload_size.proto", package="pulsark.rows", syntax="proto2"
    )
    of_pulsar = pb.SingleMessageMetadata.DESCRIPTOR.fields_by_name["payload_size"]
    message = file.message_type.add(name="PayloadSize")
    message.field.add(name="payload_size", number=of_pulsar.number, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found: type = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("pulsark.rows.PayloadSize")
    )
    return found


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
        self._length = _length_only()()
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
    raw = b"".join([*(batch.payload for batch in batches), _PADDING])
    buffer, data = pa.py_buffer(raw), np.frombuffer(raw, np.uint8)
    fields = _Fields(data, starts, middles)

    counts_of_properties, pieces = fields.properties()
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

    key = text(slices(buffer, key_starts, key_ends, has_key))
    name_starts, name_ends, value_starts, value_ends = pieces
    names = text(slices(buffer, name_starts, name_ends))
    values = text(slices(buffer, value_starts, value_ends))
    property_ends = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(counts_of_properties, out=property_ends[1:])
    if key is None or names is None or values is None:
        broken = not_text(slices(buffer, key_starts, key_ends, has_key))
        rows = np.repeat(np.arange(len(starts)), counts_of_properties)
        for left, right in ((name_starts, name_ends), (value_starts, value_ends)):
            broken[rows[not_text(slices(buffer, left, right))]] = True
        return None, owner[broken]
    twice = repeated_names(names, property_ends)
    if twice.any():
        return None, owner[twice]

    entry_sequence_ids = np.array([batch.head.sequence_id for batch in batches], np.uint64)
    ids = np.where(has_sequence_id, sequence_ids, entry_sequence_ids[owner])
    within = np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts)
    firsts = np.array([batch.first for batch in batches])
    present = null_values == 0
    columns = MessageColumns(
        entry=np.array([batch.entry for batch in batches])[owner],
        batch_index=pa.array((within + firsts[owner]).astype(np.int32)),
        key=key,
        key_base64=pa.array(base64_flags != 0, mask=~has_key),
        ordering_key=slices(buffer, ordering_starts, ordering_ends, has_ordering_key),
        value=slices(buffer, middles, ends)
        if present.all()
        else slices(buffer, middles[present], ends[present], present),
        value_raw=pa.nulls(len(starts), pa.binary()),
        properties=pa.MapArray.from_arrays(pa.array(property_ends), names, values),
        sequence_id=pa.array(ids.view(np.int64)),
        event_time=times(event_times),
        message_meta=pa.nulls(len(starts), pa.binary()),
    )
    return columns, owner[:0]


def _borders(borders: array[int]) -> tuple[Ints, Ints, Ints]:
    found = np.frombuffer(borders, np.int64)
    return found[0:-1:2], found[1::2], found[2::2] - 4


class _Fields:
    """A place in each of many messages' metadata, moving on together.

    A field that is absent has length or number 0. ``bad`` marks messages that cannot be what
    they claim; what is then said of them has no meaning.
    """

    def __init__(self, data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> None:
        self._data = data
        self._ends = ends
        self._last = len(data) - len(_PADDING)
        self.position = starts.copy()
        self.bad = np.zeros(len(starts), np.bool_)

    def _at(self, tag: int) -> Ints:
        """The messages whose next field has this tag."""
        return np.flatnonzero((self._data[self.position] == tag) & (self.position < self._ends))

    def _varints(self, places: Ints) -> tuple[npt.NDArray[np.uint64], Ints]:
        """Numbers at these places and the places behind them; at most 10 bytes."""
        data = self._data
        first = data[places]
        values = (first & 0x7F).astype(np.uint64)
        after = places + 1
        more = np.flatnonzero(first >= 0x80)
        shift = 7
        while len(more):
            byte = data[after[more]]
            values[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            after[more] += 1
            more = more[byte >= 0x80]
            shift += 7
            if shift > 63 and len(more):
                values[more] = _FAR
                break
        return values, after

    def _lengths(self, places: Ints) -> tuple[Ints, Ints]:
        values, after = self._varints(places)
        return np.minimum(values, _FAR).astype(np.int64), after

    def _move(self, rows: Ints, to: Ints, good: Bools | None = None) -> None:
        ends = self._ends[rows]
        wrong = to > ends
        if good is not None:
            wrong |= ~good
        self.bad[rows[wrong]] = True
        self.position[rows] = np.minimum(to, ends)

    def number(self, tag: int) -> tuple[Bools, npt.NDArray[np.uint64]]:
        """An optional number: where it is present, and the numbers."""
        present = np.zeros(len(self.position), np.bool_)
        values = np.zeros(len(self.position), np.uint64)
        rows = self._at(tag)
        if len(rows):
            found, after = self._varints(self.position[rows] + 1)
            present[rows] = True
            values[rows] = found
            self._move(rows, after)
        return present, values

    def bytes(self, tag: int) -> tuple[Bools, Ints, Ints]:
        """An optional field with bytes: where it is present; starts and ends of those."""
        present = np.zeros(len(self.position), np.bool_)
        rows = self._at(tag)
        if not len(rows):
            return present, rows, rows
        lengths, starts = self._lengths(self.position[rows] + 1)
        ends = starts + lengths
        present[rows] = True
        self._move(rows, ends)
        return present, starts, ends

    def properties(self) -> tuple[Ints, tuple[Ints, Ints, Ints, Ints]]:
        """How many properties each message has; starts and ends of all names and values."""
        counts = np.zeros(len(self.position), np.int64)
        rounds: list[tuple[Ints, ...]] = []
        while len(rows := self._at(_PROPERTIES)):
            lengths, start = self._lengths(self.position[rows] + 1)
            end = start + lengths
            good = self._data[np.minimum(start, self._last)] == _PROPERTY_KEY
            lengths, name = self._lengths(np.minimum(start + 1, self._last))
            name_end = np.minimum(name + lengths, self._last)
            good &= self._data[name_end] == _PROPERTY_VALUE
            lengths, value = self._lengths(name_end + 1)
            good &= value + lengths == end
            self._move(rows, end, good)
            rounds.append((rows, name, name_end, value, end))
            counts[rows] += 1
        # Round k holds the k-th property of each message that has so many.
        total = int(counts.sum())
        pieces = tuple(np.zeros(total, np.int64) for _ in range(4))
        firsts = np.cumsum(counts) - counts
        for k, (rows, *found) in enumerate(rounds):
            for piece, column in zip(pieces, found, strict=True):
                piece[firsts[rows] + k] = column
        return counts, (pieces[0], pieces[1], pieces[2], pieces[3])
