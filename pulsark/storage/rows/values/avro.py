"""Avro's binary encoding, all messages at once.

Values are read field by field with numpy: each message has a place that moves on, and each step
reads one thing of every message. Arrays, maps and unions of several types have no common steps;
schemas with them are read and written message by message.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.schemas.avro import (
    Array,
    AvroType,
    Enumeration,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
)
from pulsark.schemas.columns import branch_of, of_avro, shown_fields
from pulsark.storage.rows.arrays import (
    Bools,
    Ints,
    cells_of,
    joined,
    not_text,
    slices,
    text,
    varints,
)
from pulsark.storage.rows.schema import TIMESTAMP
from pulsark.storage.rows.values.primitives import (
    FIRST_DAY,
    FIRST_MICROSECOND,
    LAST_DAY,
    LAST_MICROSECOND,
    as_cells,
    dates,
    timestamps,
)
from pulsark.storage.rows.values.types import (
    arrow_type,
    column_of,
    spread,
    valid,
    with_nulls,
    without_times,
)

_PADDING: Final = bytes(16)
_TIME_UNITS: Final = {"timestamp-millis": 1000, "timestamp-micros": 1}
_DATE: Final = "date"
BINARY: Final = pa.binary()

_Convert: TypeAlias = Callable[[Any], Any]


def avro_codec(avro: AvroType, definition: Any) -> AvroCodec | None:
    """The codec of a type; ``None`` if no column can show it. ``definition`` is its JSON."""
    found = of_avro(avro)
    if found is None:
        return None
    return (AvroCodec if _is_regular(avro) else _OneByOne)(avro, definition, arrow_type(found))


def _is_regular(avro: AvroType, inside: tuple[str, ...] = ()) -> bool:
    match avro:
        case Array() | Map():
            return False
        case Union():
            branch = branch_of(avro)
            return branch is not None and _is_regular(branch, inside)
        case Record(name=name):
            if name in inside or not avro.fields or len(shown_fields(avro)) < len(avro.fields):
                return False
            types = [field.type for field in avro.fields.values()]
            return all(_is_regular(each, (*inside, name)) for each in types)
    return str(avro) != "null"


class AvroCodec:
    """Values of a schema in which every message has the same steps."""

    def __init__(self, avro: AvroType, definition: Any, kind: pa.DataType) -> None:
        self._avro = avro
        self._definition = definition
        self.type = kind

    def decode(self, payloads: pa.Array) -> pa.Array:
        """Null where a payload is not a value of the schema, or more than that."""
        present = valid(payloads)
        if not present.all():
            return spread(self.decode(payloads.drop_null()), present)
        if not len(payloads):
            return pa.nulls(0, self.type)
        reader = _Reader(payloads)
        rows = np.arange(len(payloads))
        found = reader.read(self._avro, self.type, rows)
        return with_nulls(found, reader.wrong())

    def encode(self, values: pa.Array) -> pa.Array:
        """The payloads; null for null."""
        present = valid(values)
        if not present.all():
            return spread(self.encode(values.drop_null()), present)
        return joined(_pieces(self._avro, values), len(values))


class _Reader:
    """Where the reading of each message is."""

    def __init__(self, payloads: pa.Array) -> None:
        numbers = np.frombuffer(payloads.buffers()[1], np.int32)
        offsets: Ints = numbers[payloads.offset :][: len(payloads) + 1].astype(np.int64)
        held = payloads.buffers()[2]
        raw = (held.to_pybytes() if held is not None else b"") + _PADDING
        self._buffer = pa.py_buffer(raw)
        self._data = np.frombuffer(raw, np.uint8)
        self._position = offsets[:-1].copy()
        self._ends = offsets[1:]
        self._bad = np.zeros(len(payloads), np.bool_)

    def wrong(self) -> Bools:
        """Messages that were not read, or not to their end."""
        found: Bools = self._bad | (self._position != self._ends)
        return found

    def read(self, avro: AvroType, kind: pa.DataType, rows: Ints) -> pa.Array:
        """The next value of the given messages."""
        match avro:
            case Primitive():
                return self._primitive(avro, rows)
            case Enumeration(symbols=symbols):
                places = self._longs(rows)
                good = self._check(rows, (places >= 0) & (places < len(symbols)))
                places = np.where(good, places, 0)
                return pa.array(symbols, pa.string()).take(pa.array(places))
            case Fixed(size=size):
                return slices(self._buffer, *self._take(rows, np.full(len(rows), size, np.int64)))
            case Union():
                return self._union(avro, kind, rows)
            case Record():
                return pa.StructArray.from_arrays(
                    [
                        self.read(field.type, kind.field(name).type, rows)
                        for name, field in avro.fields.items()
                    ],
                    fields=list(kind),
                )
        raise TypeError(f"{avro} is not regular")

    def _primitive(self, avro: Primitive, rows: Ints) -> pa.Array:
        match avro.kind:
            case "boolean":
                start, _ = self._take(rows, np.ones(len(rows), np.int64))
                found = self._data[start]
                self._check(rows, found <= 1)
                return pa.array(found == 1)
            case "int":
                numbers = self._longs(rows)
                good = self._check(rows, numbers == numbers.astype(np.int32))
                numbers = np.where(good, numbers, 0)
                return dates(numbers) if avro.logical == _DATE else pa.array(numbers, pa.int32())
            case "long":
                numbers = self._longs(rows)
                unit = _TIME_UNITS.get(avro.logical)
                return pa.array(numbers) if unit is None else timestamps(numbers, unit)
            case "float" | "double":
                size, code = (4, "<f4") if avro.kind == "float" else (8, "<f8")
                start, _ = self._take(rows, np.full(len(rows), size, np.int64))
                cells = self._data[start[:, None] + np.arange(size)]
                return pa.array(np.ascontiguousarray(cells).view(code)[:, 0])
        found = slices(self._buffer, *self._take(rows, self._longs(rows)))
        if avro.kind == "bytes":
            return found
        shown = text(found)
        if shown is None:
            broken = not_text(found)
            self._check(rows, ~broken)
            shown = text(with_nulls(found, broken))
        return shown

    def _union(self, union: Union, kind: pa.DataType, rows: Ints) -> pa.Array:
        places = self._longs(rows)
        self._check(rows, (places >= 0) & (places < len(union.branches)))
        branch = branch_of(union)
        assert branch is not None
        here = places == union.branches.index(branch)
        return spread(self.read(branch, kind, rows[here]), here)

    def _check(self, rows: Ints, good: Bools) -> Bools:
        self._bad[rows[~good]] = True
        return good

    def _take(self, rows: Ints, sizes: Ints) -> tuple[Ints, Ints]:
        """Starts and ends of the next so many bytes; nothing of messages that have fewer."""
        start: Ints = self._position[rows]
        good = self._check(rows, (sizes >= 0) & (sizes <= self._ends[rows] - start))
        end: Ints = np.where(good, start + sizes, start)
        self._position[rows] = end
        return start, end

    def _longs(self, rows: Ints) -> Ints:
        """The next number of each, in zigzag."""
        data = self._data
        position = self._position[rows]
        ends = self._ends[rows]
        self._check(rows, position < ends)
        first = data[position]
        values = (first & 0x7F).astype(np.uint64)
        after = position + 1
        more = np.flatnonzero(first >= 0x80)
        shift = 7
        while len(more):
            self._check(rows[more], after[more] < ends[more])
            byte = data[np.minimum(after[more], len(data) - 1)]
            values[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            after[more] += 1
            more = more[byte >= 0x80]
            shift += 7
            if shift > 63 and len(more):
                self._bad[rows[more]] = True
                break
        self._position[rows] = np.minimum(after, ends)
        return (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)


# -- writing -----------------------------------------------------------------------------------


def _pieces(avro: AvroType, values: pa.Array) -> list[pa.Array]:
    """What stands one behind the other for each value; values that must not be null may be."""
    match avro:
        case Union():
            branch = branch_of(avro)
            assert branch is not None
            place = avro.branches.index(branch)
            here = valid(values)
            if here.all():
                return [_branch(place, len(values)), *_pieces(branch, values)]
            inside = values.drop_null()
            written = joined([_branch(place, len(inside)), *_pieces(branch, inside)], len(inside))
            # Null is the other one of two, or there is none and this will not be equal.
            return [pc.coalesce(spread(written, here), _branch(1 - place, 1)[0])]
        case Record():
            fields = zip(avro.fields.values(), values.flatten(), strict=True)
            return [piece for field, found in fields for piece in _pieces(field.type, found)]
        case Enumeration(symbols=symbols):
            places = pc.index_in(values, pa.array(symbols, pa.string()))
            return [_longs(pc.fill_null(places, 0).to_numpy())]
        case Fixed():
            return [values]
        case Primitive():
            return _primitive_pieces(avro, values)
    raise TypeError(f"{avro} is not regular")


def _primitive_pieces(avro: Primitive, values: pa.Array) -> list[pa.Array]:
    match avro.kind:
        case "boolean":
            numbers = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
            return [cells_of(numbers.astype(np.uint8)[:, None])]
        case "int" | "long":
            if pa.types.is_date32(values.type):
                values = values.cast(pa.int32())
            numbers = pc.fill_null(values.cast(pa.int64()), 0).to_numpy()
            unit = _TIME_UNITS.get(avro.logical) if values.type == TIMESTAMP else None
            return [_longs(numbers // unit if unit is not None else numbers)]
        case "float" | "double":
            code = "<f4" if avro.kind == "float" else "<f8"
            numbers = pc.fill_null(values, 0).to_numpy().astype(code)
            return [cells_of(as_cells(numbers))]
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy()
    return [_longs(sizes), values.cast(pa.binary())]


def _branch(place: int, count: int) -> pa.Array:
    return cells_of(np.full((count, 1), place * 2, np.uint8))


def _longs(numbers: npt.NDArray[Any]) -> pa.Array:
    """Numbers in zigzag, each in as few bytes as it needs."""
    signed = numbers.astype(np.int64)
    return varints(((signed << 1) ^ (signed >> 63)).view(np.uint64))


# -- message by message ------------------------------------------------------------------------


class _OneByOne(AvroCodec):
    """Values of any other schema."""

    def __init__(self, avro: AvroType, definition: Any, kind: pa.DataType) -> None:
        super().__init__(avro, definition, kind)
        self._parsed: Any = None
        self._shown = _conversion(avro, back=False)
        self._stored = _conversion(avro, back=True)

    def decode(self, payloads: pa.Array) -> pa.Array:
        """Null where a payload is not a value of the schema, or more than that."""
        from fastavro import schemaless_reader

        schema, shown = self._schema(), self._shown
        found: list[Any] = []
        for payload in payloads.to_pylist():
            value = None
            if payload is not None:
                stream = io.BytesIO(payload)
                try:
                    value = schemaless_reader(stream, schema, None)
                    value = shown(value) if shown is not None else value
                except Exception:
                    # The library raises whatever its reading meets: IndexError, struct.error.
                    value = None
                if stream.tell() != len(payload):
                    value = None
            found.append(value)
        return column_of(found, self.type)

    def encode(self, values: pa.Array) -> pa.Array:
        """The payloads; null for null, and for what the schema cannot hold."""
        from fastavro import schemaless_writer

        schema, stored = self._schema(), self._stored
        plain = values.cast(without_times(self.type)).to_pylist(maps_as_pydicts="lossy")
        found: list[bytes | None] = []
        for value in plain:
            payload = None
            if value is not None:
                stream = io.BytesIO()
                try:
                    value = stored(value) if stored is not None else value
                    schemaless_writer(stream, schema, value)
                    payload = stream.getvalue()
                except Exception:
                    # Likewise; a field that has no column is missing here.
                    payload = None
            found.append(payload)
        return pa.array(found, BINARY)

    def _schema(self) -> Any:
        if self._parsed is None:
            from fastavro import parse_schema

            self._parsed = parse_schema(_without_logical(self._definition))
        return self._parsed


def _without_logical(definition: Any) -> Any:
    """A definition of the same data whose numbers are read as numbers."""
    if isinstance(definition, list):
        return [_without_logical(each) for each in definition]
    if not isinstance(definition, dict):
        return definition
    return {
        key: value if key in ("default", "doc") else _without_logical(value)
        for key, value in definition.items()
        if key != "logicalType"
    }


def _conversion(avro: AvroType, back: bool, inside: tuple[str, ...] = ()) -> _Convert | None:
    """From what the library reads to what Arrow takes, or ``back``; ``None`` if that is equal.

    May change records in place.
    """
    match avro:
        case Primitive("long", logical) if logical in _TIME_UNITS:
            return _conversion_of_times(_TIME_UNITS[logical], back)
        case Primitive("int", "date") if not back:
            return lambda value: value if FIRST_DAY <= value <= LAST_DAY else None
        case Union():
            branch = branch_of(avro)
            if branch is None:
                return lambda value: None
            return _optional(_conversion(branch, back, inside))
        case Record(name=name):
            if name in inside:
                return None
            fields = [
                (field.name, convert)
                for field in avro.fields.values()
                if (convert := _conversion(field.type, back, (*inside, name)))
            ]
            return _record_conversion(fields) if fields else None
        case Array(items):
            of_item = _conversion(items, back, inside)
            return of_item and _of_all(of_item)
        case Map(values):
            of_value = _conversion(values, back, inside)
            return of_value and _of_values(of_value)
    return None


def _conversion_of_times(unit: int, back: bool) -> _Convert:
    if back:
        return lambda value: value // unit

    def shown(value: int) -> int | None:
        microseconds = value * unit
        return microseconds if FIRST_MICROSECOND <= microseconds <= LAST_MICROSECOND else None

    return shown


def _optional(convert: _Convert | None) -> _Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _of_all(convert: _Convert) -> _Convert:
    return lambda value: [convert(item) for item in value]


def _of_values(convert: _Convert) -> _Convert:
    return lambda value: {key: convert(item) for key, item in value.items()}


def _record_conversion(fields: Sequence[tuple[str, _Convert]]) -> _Convert:
    def convert(value: dict[str, Any]) -> dict[str, Any]:
        for name, inner in fields:
            value[name] = inner(value[name])
        return value

    return convert
