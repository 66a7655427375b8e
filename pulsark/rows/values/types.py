"""Types of columns in Arrow's words, and values of one type in a column of another."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.rows.arrow.schema import TIMESTAMP
from pulsark.schemas.columns import decimal_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.rows.arrow.arrays import Bools
    from pulsark.schemas.column_types import ColumnType

_SIMPLE: Final = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
}


_NOT_OF_THE_TYPE: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)


def arrow_type(kind: ColumnType) -> pa.DataType:
    """The Arrow type of a column."""
    if isinstance(kind, str):
        digits = decimal_digits(kind)
        return _SIMPLE[kind] if digits is None else pa.decimal128(*digits)
    match kind["type"]:
        case "array":
            return pa.list_(pa.field("element", arrow_type(kind["elementType"])))
        case "map":
            return pa.map_(arrow_type(kind["keyType"]), arrow_type(kind["valueType"]))
    return pa.struct([(field["name"], arrow_type(field["type"])) for field in kind["fields"]])


def valid(column: pa.Array) -> Bools:
    """Where a column is not null."""
    found: Bools = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return found


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Python's values as a column; null where one is none of the type."""
    try:
        return pa.array(values, kind)
    except _NOT_OF_THE_TYPE:
        return pa.concat_arrays([_element(value, kind) for value in values])


def _element(value: Any, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array([value], kind)
    except _NOT_OF_THE_TYPE:
        return pa.nulls(1, kind)


def without_times(kind: pa.DataType) -> pa.DataType:
    """A type with numbers in place of times and dates."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, without_times(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, without_times(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", without_times(kind.value_type)))
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def spread(column: pa.Array, where: Bools) -> pa.Array:
    """The elements of a shorter column where ``where`` is true, null elsewhere."""
    if where.all():
        return column
    places = np.cumsum(where) - 1
    return column.take(pa.array(places, pa.int64(), mask=~where))


def with_nulls(column: pa.Array, null: Bools) -> pa.Array:
    """A column that is also null where ``null`` is true."""
    if not null.any():
        return column
    places = np.arange(len(column))
    return column.take(pa.array(places, pa.int64(), mask=null))


def fit(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as one of another type: fields by name, null where a value has no place there."""
    have = column.type
    if have.equals(kind):
        return column
    if pa.types.is_struct(have) and pa.types.is_struct(kind):
        fields = [
            fit(column.field(field.name), field.type)
            if have.get_field_index(field.name) >= 0
            else pa.nulls(len(column), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pc.is_null(column))
    if pa.types.is_map(have) and pa.types.is_map(kind) and have.key_type == kind.key_type:
        column = from_start(column)
        items = fit(column.items, kind.item_type)
        return pa.MapArray.from_arrays(
            column.offsets, column.keys, items, kind, mask=pc.is_null(column)
        )
    if pa.types.is_list(have) and pa.types.is_list(kind):
        column = from_start(column)
        items = fit(column.values, kind.value_type)
        return pa.ListArray.from_arrays(column.offsets, items, kind, mask=pc.is_null(column))
    if pa.types.is_integer(have) and pa.types.is_integer(kind):
        return _fit_integers(column, kind)
    if pa.types.is_floating(have) and pa.types.is_floating(kind):
        return column.cast(kind, safe=False)
    if pa.types.is_decimal(have) and pa.types.is_decimal(kind) and have.scale == kind.scale:
        return with_nulls(column, too_long(column, kind.precision)).cast(kind)
    return pa.nulls(len(column), kind)


def holds(kind: pa.DataType, other: pa.DataType) -> bool:
    """Whether ``fit`` makes a ``kind`` of each ``other`` without a loss."""
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        return all(
            kind.get_field_index(field.name) >= 0 and holds(kind.field(field.name).type, field.type)
            for field in other
        )
    if pa.types.is_map(kind) and pa.types.is_map(other):
        return holds(kind.item_type, other.item_type)
    if pa.types.is_list(kind) and pa.types.is_list(other):
        return holds(kind.value_type, other.value_type)
    return bool(kind.equals(other))


def too_long(numbers: pa.Array, precision: int) -> Bools:
    """Where decimals have more digits than ``precision``; not where they are null."""
    kind = numbers.type
    if kind.precision < precision:
        return np.zeros(len(numbers), np.bool_)
    digits = (9,) * precision
    most, least = (pa.scalar(Decimal((sign, digits, -kind.scale)), kind) for sign in (0, 1))
    found = pc.or_(pc.greater(numbers, most), pc.less(numbers, least))
    long: Bools = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
    return long


def from_start(column: Any) -> Any:
    """A column of lists or maps whose buffers begin with it."""
    offsets = column.offsets
    if not len(column) or (not column.offset and not offsets[0].as_py()):
        return column
    return column.take(pa.array(np.arange(len(column))))


def _fit_integers(column: pa.Array, kind: pa.DataType) -> pa.Array:
    low, high = np.iinfo(kind.to_pandas_dtype()).min, np.iinfo(kind.to_pandas_dtype()).max
    if column.type.bit_width > kind.bit_width:
        numbers = pc.fill_null(column, 0).to_numpy()
        column = with_nulls(column, (numbers < low) | (numbers > high))
    return column.cast(kind)
