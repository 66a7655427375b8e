"""Writing Avro's binary encoding, all messages at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.rows.arrow.arrays import (
    Bools,
    cells_of,
    grouped,
    joined,
    to_zigzag,
    varints,
)
from pulsark.rows.values.bounds import is_empty
from pulsark.rows.values.decimals import decimal_bytes, fixed_decimal_bytes
from pulsark.rows.values.primitives import as_cells
from pulsark.rows.values.times import DAY_TIMES, TIME_UNITS, since_midnight
from pulsark.rows.values.types import (
    from_start,
    spread,
    valid,
)
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
from pulsark.schemas.columns import member_name, members_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_END: Final = b"\0"
"""The end of an array or a map: a block without elements."""

_KEY: Final = Primitive("string")


def avro_pieces(avro: AvroType, values: pa.Array) -> list[pa.Array] | None:
    """The encoded pieces of each value, in order; values that must not be null may be.

    ``None`` if there may be something for which there is no column.
    """
    match avro:
        case Union():
            return _union_pieces(avro, values)
        case Record():
            return _record_pieces(avro, values)
        case Array(items):
            lists = from_start(values.drop_null())
            elements = avro_pieces(items, lists.values[: _count(lists)])
            return _block(elements, lists, valid(values))
        case Map(items):
            maps = from_start(values.drop_null())
            count = _count(maps)
            elements = avro_pieces(items, maps.items[:count])
            if elements is not None:
                elements = [*_primitive_pieces(_KEY, maps.keys[:count]), *elements]
            return _block(elements, maps, valid(values))
        case Enumeration(symbols=symbols):
            places = pc.index_in(values, pa.array(symbols, pa.string()))
            return [_longs(pc.fill_null(places, 0).to_numpy())]
        case Fixed(size=size):
            return [
                fixed_decimal_bytes(values, size) if pa.types.is_decimal(values.type) else values
            ]
    return _primitive_pieces(avro, values)


def _union_pieces(union: Union, values: pa.Array) -> list[pa.Array] | None:
    members = members_of(union)
    if len(members) > 1:
        return _member_pieces(union, members, values)
    (branch,) = members
    place = union.branches.index(branch)
    here = valid(values)
    inside = avro_pieces(branch, values.drop_null())
    if inside is None:
        return None
    count = int(here.sum())
    if here.all():
        return [_branch(place, count), *inside]
    written = joined([_branch(place, count), *inside], count)
    # Null is the other one of two, or there is none and this will not be equal.
    return [pc.coalesce(spread(written, here), _branch(1 - place, 1)[0])]


def _member_pieces(
    union: Union, members: Sequence[AvroType], values: pa.Array
) -> list[pa.Array] | None:
    """Return pieces of a struct with a field for each type. Its first one that is not null counts.

    If there is none, and null is none of the types, this is not equal to what was sent.
    """
    found = pa.nulls(len(values), pa.binary())
    columns = dict(zip(values.type.names, values.flatten(), strict=True))
    for number, member in enumerate(members):
        column = columns.get(member_name(number))
        if column is None or column.null_count == len(column):
            continue
        here = valid(column)
        inside = avro_pieces(member, column.drop_null())
        if inside is not None:
            count = int(here.sum())
            written = joined([_branch(union.branches.index(member), count), *inside], count)
            found = pc.coalesce(found, spread(written, here))
    nothing = nothing_of(union)
    return [found if nothing is None else pc.fill_null(found, nothing)]


def _record_pieces(record: Record, values: pa.Array) -> list[pa.Array] | None:
    columns = dict(zip(values.type.names, values.flatten(), strict=True))
    pieces: list[pa.Array] = []
    for name, field in record.fields.items():
        if name in columns:
            found = avro_pieces(field.type, columns[name])
        else:
            nothing = nothing_of(field.type)
            found = None if nothing is None else [pa.repeat(pa.scalar(nothing), len(values))]
        if found is None:
            return None
        pieces += found
    return pieces


def nothing_of(avro: AvroType) -> bytes | None:
    """Return how it is written that there is no value, or None if a type has no such value."""
    match avro:
        case Union(branches):
            nulls = [place for place, branch in enumerate(branches) if str(branch) == "null"]
            return bytes([nulls[0] * 2]) if nulls and nulls[0] < 64 else None
        case Array() | Map():
            return _END
    return b"" if is_empty(avro) else None


def _count(lists: Any) -> int:
    return int(lists.offsets[-1].as_py()) if len(lists) else 0


def _block(elements: list[pa.Array] | None, lists: Any, present: Bools) -> list[pa.Array] | None:
    """Arrays or maps: how many elements, those, and the end."""
    if elements is None:
        return None
    if not len(lists):
        return [spread(joined((), 0), present)]
    offsets = lists.offsets.to_numpy()
    counts = np.diff(offsets)
    some = counts > 0
    pieces = [
        varints(counts.astype(np.uint64) << np.uint64(1), present=some),
        grouped(joined(elements, int(offsets[-1])), offsets),
        cells_of(np.zeros((len(counts), 1), np.uint8)),
    ]
    return pieces if present.all() else [spread(joined(pieces, len(counts)), present)]


def _primitive_pieces(avro: Primitive, values: pa.Array) -> list[pa.Array]:
    match avro.kind:
        case "boolean":
            numbers = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
            return [cells_of(numbers.astype(np.uint8)[:, None])]
        case "int" | "long":
            if pa.types.is_date32(values.type):
                values = values.cast(pa.int32())
            if pa.types.is_string(values.type):
                return [_longs(since_midnight(values, DAY_TIMES[avro.logical]))]
            numbers = pc.fill_null(values.cast(pa.int64()), 0).to_numpy()
            unit = TIME_UNITS.get(avro.logical) if pa.types.is_timestamp(values.type) else None
            return [_longs(numbers // unit if unit is not None else numbers)]
        case "float" | "double":
            code = "<f4" if avro.kind == "float" else "<f8"
            numbers = pc.fill_null(values, 0).to_numpy().astype(code)
            return [cells_of(as_cells(numbers))]
    if pa.types.is_decimal(values.type):
        values = decimal_bytes(values)
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy()
    return [_longs(sizes), values.cast(pa.binary())]


def _branch(place: int, count: int) -> pa.Array:
    return _longs(np.full(count, place))


def _longs(numbers: npt.NDArray[Any]) -> pa.Array:
    """Numbers in zigzag, each in as few bytes as it needs."""
    return varints(to_zigzag(numbers))
