"""Reading Avro's binary encoding, all messages at once.

Values are read field by field with numpy: each message has a place that moves on, and each step
reads one thing of every message. In arrays and maps, a step reads the next element of all messages
that have one. If few are left, they are left to be read one by one.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.rows.arrow.arrays import (
    Bools,
    Ints,
    ends_of,
    from_zigzag,
    not_text,
    repeated_names,
    slices,
    text,
)
from pulsark.rows.arrow.fields import varints as read_varints
from pulsark.rows.values.avro_writer import nothing_of
from pulsark.rows.values.decimals import decimals
from pulsark.rows.values.losses import WHOLE, joined_path
from pulsark.rows.values.primitives import dates, timestamps
from pulsark.rows.values.times import DAY_TIMES, TIME_UNITS, times_of_day
from pulsark.rows.values.types import spread, valid, with_nulls
from pulsark.schemas.avro import (
    Array,
    AvroType,
    Enumeration,
    Fixed,
    Primitive,
    Record,
    Union,
)
from pulsark.schemas.columns import is_decimal, member_name, members_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.rows.values.bounds import AvroShape
    from pulsark.rows.values.losses import Losses

FEW: Final = 16
"""Elements are read together while at least this many messages have a next one: each numpy call has
a fixed cost."""
ROUNDS_MAX: Final = 1000
"""Elements of one array or map that are read together at most."""

READS_MAX: Final = 16_384
"""Values that are read of all messages at a time, one after the other: about a second of numpy's
fixed costs. The messages are left then."""

_PADDING: Final = bytes(16)
_DATE: Final = "date"
_FIXED_SIZES: Final = {"boolean": 1, "float": 4, "double": 8}
_VARINT_BYTES_MAX: Final = 10
_KEY: Final = Primitive("string")
_MAP_KEY: Final = "(key)"
"""The path of keys, which no field has: messages with one that is no text are left."""

_Part: TypeAlias = "tuple[AvroType, pa.DataType | None, str]"
"""What elements consist of: a type, that of its column if it has one, and its path."""


class AvroReader:
    """Where the reading of each message is."""

    def __init__(self, payloads: pa.Array, shape: AvroShape) -> None:
        self._shape = shape
        self._reads = 0
        numbers = np.frombuffer(payloads.buffers()[1], np.int32)
        offsets: Ints = numbers[payloads.offset :][: len(payloads) + 1].astype(np.int64)
        held = payloads.buffers()[2]
        raw = (held.to_pybytes() if held is not None else b"") + _PADDING
        self._buffer = pa.py_buffer(raw)
        self._data = np.frombuffer(raw, np.uint8)
        self._position = offsets[:-1].copy()
        self._ends = offsets[1:]
        self._bad = np.zeros(len(payloads), np.bool_)
        self.left = np.zeros(len(payloads), np.bool_)
        """Messages that have to be read one by one."""
        self._lost: dict[str, list[Ints]] = {}

    def wrong(self) -> Bools:
        """Messages that were not read, or not to their end."""
        found: Bools = self._bad | (self._position != self._ends)
        return found

    def report(self, lost: Losses) -> None:
        """Report the losses of the messages that were read, and those that were not read."""
        wrong = self.wrong() & ~self.left
        good = ~(wrong | self.left)
        for path, parts in self._lost.items():
            rows = np.concatenate(parts)
            lost.add(path, rows[good[rows]])
        lost.where(WHOLE, wrong)

    def _lose(self, path: str, rows: Ints) -> None:
        if len(rows):
            self._lost.setdefault(path, []).append(rows)

    def _shown(self, column: pa.Array, path: str, rows: Ints) -> pa.Array:
        """Report where a column is null because it has no place for a value."""
        if column.null_count:
            self._lose(path, rows[~valid(column)])
        return column

    def read(
        self, avro: AvroType, kind: pa.DataType | None, rows: Ints, path: str = ""
    ) -> pa.Array | None:
        """Return the next value of the given messages. Without a column it is passed over."""
        self._reads += 1
        if self._reads == READS_MAX:
            self.left[:] = True
        if kind is None:
            # What is passed over may have any number of values, all of them for a few messages.
            rows = rows[~(self._bad[rows] | self.left[rows])]
            if not len(rows) or self._shape.is_empty(avro):
                return None
            if len(rows) < FEW and isinstance(avro, Record):
                self.left[rows] = True
                return None
        match avro:
            case Primitive():
                return self._primitive(avro, rows, path)
            case Enumeration():
                return self._of_numbers(avro, self._longs(rows), rows, path)
            case Fixed(size=size):
                starts, ends = self._take(rows, np.full(len(rows), size, np.int64))
                if is_decimal(avro):
                    return self._shown(decimals(self._data, starts, ends, avro), path, rows)
                return slices(self._buffer, starts, ends)
            case Union():
                return self._union(avro, kind, rows, path)
            case Record():
                return self._record(avro, kind, rows, path)
            case Array(items):
                return self._array(items, kind, rows, path)
        return self._map(avro.values, kind, rows, path)

    def _record(
        self, record: Record, kind: pa.DataType | None, rows: Ints, path: str
    ) -> pa.Array | None:
        columns: dict[str, pa.Array | None] = {}
        for name, field in record.fields.items():
            shown = kind is not None and kind.get_field_index(name) >= 0
            of_field = kind.field(name).type if kind is not None and shown else None
            inside = joined_path(path, name)
            if kind is None or shown:
                columns[name] = self.read(field.type, of_field, rows, inside)
            else:
                self._pass_over(field.type, rows, inside)
        if kind is None:
            return None
        found = [columns[field.name] for field in kind]
        return pa.StructArray.from_arrays(found, fields=list(kind))

    def _pass_over(self, avro: AvroType, rows: Ints, path: str) -> None:
        """Read something that has no column, and report where it is more than nothing."""
        start: Ints = self._position[rows].copy()
        self._skip(avro, rows)
        sizes = self._position[rows] - start
        nothing = nothing_of(avro)
        if nothing is None:
            same = np.zeros(len(rows), np.bool_)
        else:
            same = sizes == len(nothing)
            if nothing:
                same &= self._data[start] == nothing[0]
        self._lose(path, rows[~same])

    def _skip(self, avro: AvroType, rows: Ints) -> None:
        known, self._lost = self._lost, {}
        self.read(avro, None, rows)
        self._lost = known

    def _primitive(self, avro: Primitive, rows: Ints, path: str) -> pa.Array:
        if avro.kind in ("int", "long"):
            return self._of_numbers(avro, self._longs(rows), rows, path)
        if avro.kind in _FIXED_SIZES:
            size = _FIXED_SIZES[avro.kind]
            starts, _ = self._take(rows, np.full(len(rows), size, np.int64))
            return self._of_cells(avro, starts, rows)
        starts, ends = self._take(rows, self._longs(rows))
        if is_decimal(avro):
            return self._shown(decimals(self._data, starts, ends, avro), path, rows)
        found = slices(self._buffer, starts, ends)
        if avro.kind == "bytes":
            return found
        shown = text(found)
        if shown is None:
            shown = self._shown(text(with_nulls(found, not_text(found))), path, rows)
        return shown

    def _of_cells(self, avro: Primitive, starts: Ints, rows: Ints) -> pa.Array:
        """What stands in a number of bytes that is always the same."""
        if avro.kind == "boolean":
            found = self._data[starts]
            self._check(rows, found <= 1)
            return pa.array(found == 1)
        cells = self._data[starts[:, None] + np.arange(_FIXED_SIZES[avro.kind])]
        code = "<f4" if avro.kind == "float" else "<f8"
        return pa.array(np.ascontiguousarray(cells).view(code)[:, 0])

    def _of_numbers(self, avro: AvroType, numbers: Ints, rows: Ints, path: str) -> pa.Array:
        """Return what is written as a number."""
        if isinstance(avro, Enumeration):
            outside = (numbers < 0) | (numbers >= len(avro.symbols))
            symbols = pa.array(avro.symbols or [""], pa.string())
            found = symbols.take(pa.array(np.where(outside, 0, numbers), mask=outside))
            return self._shown(found, path, rows)
        assert isinstance(avro, Primitive)
        if avro.kind == "int":
            good = self._check(rows, numbers == numbers.astype(np.int32))
            numbers = np.where(good, numbers, 0)
            if avro.logical == _DATE:
                return self._shown(dates(numbers), path, rows)
        if avro.logical in DAY_TIMES:
            return self._shown(times_of_day(numbers, DAY_TIMES[avro.logical]), path, rows)
        unit = TIME_UNITS.get(avro.logical)
        if unit is None:
            return pa.array(numbers, pa.int32() if avro.kind == "int" else pa.int64())
        found = self._shown(timestamps(numbers, unit), path, rows)
        return found.cast(pa.timestamp("us")) if avro.logical.startswith("local-") else found

    def _union(
        self, union: Union, kind: pa.DataType | None, rows: Ints, path: str
    ) -> pa.Array | None:
        places = self._longs(rows)
        self._check(rows, (places >= 0) & (places < len(union.branches)))
        members = members_of(union)
        columns: dict[str, pa.Array] = {}
        found = None
        for place, branch in enumerate(union.branches):
            here = places == place
            name, inside, of_branch = "", path, kind
            if str(branch) == "null":
                of_branch = None
            elif kind is not None and len(members) > 1:
                name = member_name(members.index(branch))
                inside = joined_path(path, name)
                shown = kind.get_field_index(name) >= 0
                of_branch = kind.field(name).type if shown else None
                if not shown:
                    self._lose(inside, rows[here])
            if of_branch is not None:
                found = spread(self.read(branch, of_branch, rows[here], inside), here)
                columns[name] = found
            elif here.any():
                self._skip(branch, rows[here])
        if kind is None or len(members) == 1:
            return found
        arrays = [columns[field.name] for field in kind]
        none = np.logical_and.reduce([~valid(each) for each in arrays])
        fields = list(kind)
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(none))

    # -- arrays and maps -------------------------------------------------------------------

    def _array(
        self, items: AvroType, kind: pa.DataType | None, rows: Ints, path: str
    ) -> pa.Array | None:
        path = f"{path}[]"
        counts = self._counts(rows)
        of_items = None if kind is None else kind.value_type
        if isinstance(items, Enumeration) or str(items) in ("int", "long"):
            counts, starts = self._numbers_of(counts, rows)
            numbers = from_zigzag(read_varints(self._data, starts)[0])
            found = self._of_numbers(items, numbers, np.repeat(rows, counts), path)
        elif str(items) in _FIXED_SIZES and isinstance(items, Primitive):
            counts, starts = self._cells_of(counts, rows, _FIXED_SIZES[items.kind])
            found = self._of_cells(items, starts, np.repeat(rows, counts))
        else:
            counts, places, rounds = self._rounds(counts, rows, [(items, of_items, path)])
            found = _in_order(rounds[0], places, of_items)
        self._end_blocks(counts, rows)
        return None if kind is None else pa.ListArray.from_arrays(ends_of(counts), found, kind)

    def _map(
        self, values: AvroType, kind: pa.DataType | None, rows: Ints, path: str
    ) -> pa.Array | None:
        of_values = None if kind is None else kind.item_type
        parts: list[_Part] = [(_KEY, pa.string(), _MAP_KEY), (values, of_values, f"{path}[]")]
        counts, places, rounds = self._rounds(self._counts(rows), rows, parts)
        self._end_blocks(counts, rows)
        if kind is None:
            return None
        keys = pc.fill_null(_in_order(rounds[0], places, pa.string()), "")
        items = _in_order(rounds[1], places, of_values)
        ends = ends_of(counts)
        for broken in self._lost.pop(_MAP_KEY, ()):
            self.left[broken] = True
        # The last one of equal keys counts.
        self.left[rows[repeated_names(keys, ends.to_numpy())]] = True
        return pa.MapArray.from_arrays(ends, keys, items, kind)

    def _counts(self, rows: Ints) -> Ints:
        """Elements of the first block of each, which nearly always is all there is."""
        counts = self._longs(rows)
        odd = (counts < 0) | (counts > self._ends[rows] - self._position[rows])
        self.left[rows[odd]] = True
        found: Ints = np.where(odd | self._bad[rows] | self.left[rows], 0, counts)
        return found

    def _end_blocks(self, counts: Ints, rows: Ints) -> None:
        """Behind the elements no other block may begin."""
        some = rows[counts > 0]
        self.left[some[self._longs(some) != 0]] = True

    def _rounds(
        self, counts: Ints, rows: Ints, parts: Sequence[_Part]
    ) -> tuple[Ints, Ints, list[list[Any]]]:
        """Elements of some parts each, read for all messages together: how many each message has,
        where each of the elements belongs, and for each part the columns that were read."""
        done = np.zeros(len(rows), np.int64)
        rounds: list[list[Any]] = [[] for _ in parts]
        owners: list[Ints] = []
        while True:
            more = np.flatnonzero((counts > done) & ~self._bad[rows] & ~self.left[rows])
            if len(more) < FEW or len(owners) == ROUNDS_MAX:
                self.left[rows[more]] = True
                break
            for (avro, kind, path), columns in zip(parts, rounds, strict=True):
                columns.append(self.read(avro, kind, rows[more], path))
            done[more] += 1
            owners.append(more)
        firsts = np.cumsum(done) - done
        places = [firsts[more] + k for k, more in enumerate(owners)]
        return done, np.concatenate([*places, np.zeros(0, np.int64)]), rounds

    def _numbers_of(self, counts: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """How many numbers follow in each message, and where each of them begins."""
        position = self._position[rows]
        first = np.searchsorted(self._number_ends, position)
        last = np.minimum(first + counts, len(self._number_ends)) - 1
        after = np.where(counts > 0, self._number_ends[last] + 1, position)
        good = self._check(rows, after <= self._ends[rows])
        counts = np.where(good, counts, 0)
        self._position[rows] = np.where(good, after, position)
        number = _within(counts) + np.repeat(first, counts)
        starts = np.repeat(position, counts)
        later = _within(counts) > 0
        starts[later] = self._number_ends[number[later] - 1] + 1
        owners = np.repeat(rows, counts)
        self._check(owners, self._number_ends[number] - starts < _VARINT_BYTES_MAX)
        return counts, starts

    @cached_property
    def _number_ends(self) -> Ints:
        """Bytes that end a number, if they are part of one."""
        found: Ints = np.flatnonzero(self._data < 0x80)
        return found

    def _cells_of(self, counts: Ints, rows: Ints, size: int) -> tuple[Ints, Ints]:
        """How many values of a size follow in each message, and where each of them begins."""
        starts, ends = self._take(rows, counts * size)
        counts = (ends - starts) // size
        return counts, np.repeat(starts, counts) + _within(counts) * size

    # -- what each step does ---------------------------------------------------------------

    def _check(self, rows: Ints, good: Bools) -> Bools:
        self._bad[rows[~good]] = True
        return good

    def _take(self, rows: Ints, sizes: Ints) -> tuple[Ints, Ints]:
        """Starts and ends of the next ``sizes`` bytes; nothing for messages that have fewer."""
        start: Ints = self._position[rows]
        good = self._check(rows, (sizes >= 0) & (sizes <= self._ends[rows] - start))
        end: Ints = np.where(good, start + sizes, start)
        self._position[rows] = end
        return start, end

    def _longs(self, rows: Ints) -> Ints:
        """The next number of each, in zigzag."""
        position, ends = self._position[rows], self._ends[rows]
        values, after = read_varints(self._data, position)
        good = self._check(rows, after <= ends)
        self._position[rows] = np.where(good, after, ends)
        return from_zigzag(values)


def _within(counts: Ints) -> Ints:
    """0, 1, ... for each."""
    found: Ints = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


def _in_order(columns: Sequence[Any], places: Ints, kind: pa.DataType | None) -> pa.Array:
    """What was read in rounds, each element at its place."""
    if kind is None or not columns:
        return pa.nulls(0, kind)
    order = np.empty(len(places), np.int64)
    order[places] = np.arange(len(places))
    return pa.concat_arrays(columns).take(pa.array(order))
