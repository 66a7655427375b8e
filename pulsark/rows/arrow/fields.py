"""Protobuf fields of many messages, read together with numpy.

It reads what official clients write: fields in ascending order, each once. A caller reads
the possible fields one after the other; a message with bytes left over is irregular.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pulsark.rows.arrow.arrays import Bools, Ints, not_text, repeated_names, slices, text

PADDING = bytes(16)
"""Behind the last message, so that a look at the next bytes is always allowed."""

_FAR = 1 << 40
"""Stands for a length that is more than any payload's."""

_PROPERTY_KEY, _PROPERTY_VALUE = 0x0A, 0x12


@cache
def only(message: Any, field: str) -> type:
    """A message with one numeric field of another one, and no other: it is parsed faster."""
    of_pulsar = message.DESCRIPTOR.fields_by_name[field]
    package = f"pulsark.rows.{field}"
    file = descriptor_pb2.FileDescriptorProto(
        name=f"pulsark/storage/rows/{field}.proto", package=package, syntax="proto2"
    )
    file.message_type.add(name="Only").field.add(
        name=field, number=of_pulsar.number, type=descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found: type = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Only"))
    return found


class Texts(NamedTuple):
    """Keys and properties of messages."""

    key: pa.Array
    properties: pa.Array


def texts_of(
    buffer: pa.Buffer,
    key: tuple[Bools, Ints, Ints],
    counts: Ints,
    pieces: tuple[Ints, Ints, Ints, Ints],
) -> Texts | Bools:
    """Keys and properties from where they are, as ``Fields`` says it.

    Or which messages are irregular: some of it is not UTF-8, or a property is there twice.
    """
    has_key, key_starts, key_ends = key
    keys = text(slices(buffer, key_starts, key_ends, has_key))
    name_starts, name_ends, value_starts, value_ends = pieces
    names = text(slices(buffer, name_starts, name_ends))
    values = text(slices(buffer, value_starts, value_ends))
    if keys is None or names is None or values is None:
        broken = not_text(slices(buffer, key_starts, key_ends, has_key))
        rows = np.repeat(np.arange(len(counts)), counts)
        for left, right in ((name_starts, name_ends), (value_starts, value_ends)):
            broken[rows[not_text(slices(buffer, left, right))]] = True
        return broken
    ends = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    twice = repeated_names(names, ends)
    if twice.any():
        return twice
    return Texts(keys, pa.MapArray.from_arrays(pa.array(ends), names, values))


ROUNDS_MAX = 64
"""Fields of one tag that are read for all messages together; further ones message by message."""

PROPERTY_ROUNDS_MAX = 256
"""Most properties of a message that are read for all messages together. A message with more is
irregular: protobuf itself reads it."""

_FIXED_SIZES = {1: 8, 5: 4}
"""By wire type."""
_VARINT, _BYTES = 0, 2


def tag_of(number: int, wire_type: int) -> int:
    """A field's tag as it stands in a message, the first byte lowest."""
    rest = number << 3 | wire_type
    cells = []
    while rest > 0x7F:
        cells.append(rest & 0x7F | 0x80)
        rest >>= 7
    return int.from_bytes(bytes([*cells, rest]), "little")


def _size(tag: int) -> int:
    return (tag.bit_length() + 7) // 8


def varints(data: npt.NDArray[np.uint8], places: Ints) -> tuple[npt.NDArray[np.uint64], Ints]:
    """Numbers at these places and the places behind them, which are far behind the data where a
    number has more than 10 bytes."""
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
            values[more] = after[more] = _FAR
            break
    return values, after


class Fields:
    """A place in each of many messages' metadata, moving on together.

    A field that is absent has length or number 0. ``bad`` marks messages that cannot be what
    they claim; what is then said of them has no meaning.
    """

    def __init__(self, data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> None:
        self._data = data
        self._ends = ends
        self._last = len(data) - len(PADDING)
        self.position = starts.copy()
        self.bad = np.zeros(len(starts), np.bool_)

    def _at(self, tag: int) -> Ints:
        """The messages whose next field has this tag."""
        here = (self._data[self.position] == tag & 0xFF) & (self.position < self._ends)
        for place in range(1, _size(tag)):
            here &= self._data[self.position + place] == tag >> 8 * place & 0xFF
        return np.flatnonzero(here)

    def _lengths(self, places: Ints) -> tuple[Ints, Ints]:
        values, after = varints(self._data, places)
        return np.minimum(values, _FAR).astype(np.int64), after

    def _move(self, rows: Ints, to: Ints, good: Bools | None = None) -> Ints:
        """Returns where they are then: never behind their end."""
        ends = self._ends[rows]
        wrong = to > ends
        if good is not None:
            wrong |= ~good
        self.bad[rows[wrong]] = True
        found: Ints = np.minimum(to, ends)
        self.position[rows] = found
        return found

    def number(self, tag: int) -> tuple[Bools, npt.NDArray[np.uint64]]:
        """An optional number: where it is present, and the numbers."""
        present = np.zeros(len(self.position), np.bool_)
        values = np.zeros(len(self.position), np.uint64)
        rows = self._at(tag)
        if len(rows):
            found, after = varints(self._data, self.position[rows] + _size(tag))
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
        lengths, starts = self._lengths(self.position[rows] + _size(tag))
        ends = starts + lengths
        present[rows] = True
        ends = self._move(rows, ends)
        return present, np.minimum(starts, ends), ends

    def fixed(self, tag: int) -> tuple[Bools, Ints]:
        """An optional number in 4 or 8 bytes: where it is present, and there its place."""
        present = np.zeros(len(self.position), np.bool_)
        rows = self._at(tag)
        present[rows] = True
        starts = self.position[rows] + _size(tag)
        self._move(rows, starts + _FIXED_SIZES[tag & 7])
        return present, np.minimum(starts, self._last)

    def all(self, tag: int) -> tuple[Ints, Ints, Ints]:
        """A repeated field: how many each message has; starts and ends of all values."""
        counts = np.zeros(len(self.position), np.int64)
        rounds: list[tuple[Ints, Ints, Ints]] = []
        while len(rows := self._at(tag)):
            if len(rounds) == ROUNDS_MAX:
                break
            starts, ends = self._value(tag, self.position[rows] + _size(tag))
            ends = self._move(rows, ends)
            rounds.append((rows, np.minimum(starts, ends), ends))
            counts[rows] += 1
        more = [(row, *self._follow(row, tag)) for row in rows.tolist()]
        for row, starts, _ in more:
            counts[row] += len(starts)
        all_starts, all_ends = (np.zeros(int(counts.sum()), np.int64) for _ in range(2))
        firsts = np.cumsum(counts) - counts
        for k, (rows, starts, ends) in enumerate(rounds):
            all_starts[firsts[rows] + k], all_ends[firsts[rows] + k] = starts, ends
        for row, starts, ends in more:
            here = slice(firsts[row] + len(rounds), firsts[row] + counts[row])
            all_starts[here], all_ends[here] = starts, ends
        return counts, all_starts, all_ends

    def _value(self, tag: int, places: Ints) -> tuple[Ints, Ints]:
        """Starts and ends of the values behind tags."""
        wire_type = tag & 7
        if wire_type == _BYTES:
            lengths, starts = self._lengths(places)
            return starts, starts + lengths
        if wire_type == _VARINT:
            return places, varints(self._data, places)[1]
        return places, places + _FIXED_SIZES[wire_type]

    def _follow(self, row: int, tag: int) -> tuple[Ints, Ints]:
        """Starts and ends of the next values of one message."""
        view, size = self._data.data, _size(tag)
        expected, wire_type = tag.to_bytes(size, "little"), tag & 7
        place, end = int(self.position[row]), int(self._ends[row])
        starts, ends = [], []
        while place < end and view[place : place + size] == expected:
            start = after = place + size
            if wire_type in _FIXED_SIZES:
                after += _FIXED_SIZES[wire_type]
            else:
                number = shift = 0
                while view[after] >= 0x80 and after < end:
                    number |= (view[after] & 0x7F) << shift
                    after, shift = after + 1, shift + 7
                number |= view[after] << shift
                after += 1
                if wire_type == _BYTES:
                    start, after = after, after + number
            if after > end:
                self.bad[row] = True
                break
            starts.append(start)
            ends.append(after)
            place = after
        self.position[row] = place
        return np.array(starts, np.int64), np.array(ends, np.int64)

    def properties(self, tag: int) -> tuple[Ints, tuple[Ints, Ints, Ints, Ints]]:
        """How many properties each message has; starts and ends of all names and values."""
        counts = np.zeros(len(self.position), np.int64)
        rounds: list[tuple[Ints, ...]] = []
        while len(rows := self._at(tag)):
            lengths, start = self._lengths(self.position[rows] + _size(tag))
            end = start + lengths
            good = self._data[np.minimum(start, self._last)] == _PROPERTY_KEY
            lengths, name = self._lengths(np.minimum(start + 1, self._last))
            name_end = np.minimum(name + lengths, self._last)
            good &= self._data[name_end] == _PROPERTY_VALUE
            lengths, value = self._lengths(name_end + 1)
            good &= value + lengths == end
            if len(rounds) == PROPERTY_ROUNDS_MAX:
                self.bad[rows] = True
                break
            self._move(rows, end, good)
            rounds.append((rows, name, name_end, value, end))
            counts[rows] += 1
        # Round k holds the k-th property of each message that has at least k.
        total = int(counts.sum())
        pieces = tuple(np.zeros(total, np.int64) for _ in range(4))
        firsts = np.cumsum(counts) - counts
        for k, (rows, *found) in enumerate(rounds):
            for piece, column in zip(pieces, found, strict=True):
                piece[firsts[rows] + k] = column
        return counts, (pieces[0], pieces[1], pieces[2], pieces[3])
