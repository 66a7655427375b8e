"""Protobuf fields of many messages, read together with numpy.

It reads what official clients write: fields in ascending order, each once. Whoever uses it looks
for the fields that there may be, one after the other; what is left then is something else.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pulsark.storage.rows.arrays import Bools, Ints, not_text, repeated_names, slices, text

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


def _size(tag: int) -> int:
    return 2 if tag > 0xFF else 1


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
        low, high = tag & 0xFF, tag >> 8
        here = (self._data[self.position] == low) & (self.position < self._ends)
        if high:
            here &= self._data[self.position + 1] == high
        return np.flatnonzero(here)

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
            found, after = self._varints(self.position[rows] + _size(tag))
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
        self._move(rows, ends)
        return present, starts, ends

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
