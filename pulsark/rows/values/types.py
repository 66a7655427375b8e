"""Types of columns in Arrow's words, and values of one type in a column of another."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.rows.arrow.arrays import not_text, text
from pulsark.rows.arrow.schema import TIMESTAMP
from pulsark.rows.values.losses import Losses
from pulsark.schemas.column_types import LOCAL_TIMESTAMP, TWIN_OF, decimal_digits, twin_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.rows.arrow.arrays import Bools, Ints
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
    LOCAL_TIMESTAMP: pa.timestamp("us"),
}

_TWIN_OF: Final = TWIN_OF.encode()

_EXACT: Final = Context(prec=100)

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
    return pa.struct([_arrow_field(field) for field in kind["fields"]])


def _arrow_field(field: dict[str, Any]) -> pa.Field:
    other = twin_of(field)
    metadata = None if other is None else {_TWIN_OF: other.encode()}
    return pa.field(field["name"], arrow_type(field["type"]), metadata=metadata)


def _shown_name(field: pa.Field) -> str:
    """Return the name of the schema's field whose values a column has."""
    found = (field.metadata or {}).get(_TWIN_OF)
    return str(field.name) if found is None else str(found, "utf-8")


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


def fit(column: pa.Array, kind: pa.DataType, lost: Losses | None = None) -> pa.Array:
    """Return a column as one of another type: fields by name, and null where a value does not fit.

    A value fits if the other type holds exactly the same one. Those that do not are ``lost``.
    """
    have = column.type
    if have.equals(kind):
        return column
    lost = Losses(len(column)) if lost is None else lost
    if pa.types.is_struct(have) and pa.types.is_struct(kind):
        return _fit_struct(column, kind, lost)
    if pa.types.is_map(have) and pa.types.is_map(kind) and have.key_type == kind.key_type:
        column = _compact(column)
        items = fit(column.items, kind.item_type, lost.within("[]", lambda: owners(column)))
        return pa.MapArray.from_arrays(
            column.offsets, column.keys, items, kind, mask=pc.is_null(column)
        )
    if pa.types.is_list(have) and pa.types.is_list(kind):
        column = _compact(column)
        items = fit(column.values, kind.value_type, lost.within("[]", lambda: owners(column)))
        return pa.ListArray.from_arrays(column.offsets, items, kind, mask=pc.is_null(column))
    found = _fit_simple(column, kind)
    if found.null_count > column.null_count:
        lost.where("", valid(column) & ~valid(found))
    return found


def owners(lists: Any) -> Ints:
    """Return for each element of lists or maps the number of its list."""
    return np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))


def _fit_struct(column: pa.Array, kind: pa.DataType, lost: Losses) -> pa.Array:
    have: dict[str, list[pa.Array]] = {}
    parts = [column] if not len(column.type) else column.flatten()
    for field, part in zip(column.type, parts, strict=True):
        have.setdefault(_shown_name(field), []).append(part)
    wanted: dict[str, list[pa.Field]] = {}
    for field in kind:
        wanted.setdefault(_shown_name(field), []).append(field)
    found: dict[str, pa.Array] = {}
    for name, fields in wanted.items():
        given = have.pop(name, None)
        if given is None:
            found.update((field.name, pa.nulls(len(column), field.type)) for field in fields)
            continue
        # The last of several has the widest type.
        own = [Losses(len(column)) for _ in fields]
        for field, losses in zip(fields, own, strict=True):
            shown = [fit(part, field.type, losses) for part in reversed(given)]
            found[field.name] = shown[0] if len(shown) == 1 else pc.coalesce(*shown)
        in_all = np.logical_and.reduce([losses.rows for losses in own])
        if in_all.any():
            if (own[-1].rows & ~in_all).any():
                lost.where(name, in_all)
            else:
                lost.within(name).take(own[-1])
    for name, left in have.items():
        for part in left:
            if part.null_count < len(part):
                lost.where(name, valid(part))
    arrays = [found[field.name] for field in kind]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pc.is_null(column))


def _fit_simple(column: pa.Array, kind: pa.DataType) -> pa.Array:
    have = column.type
    if pa.types.is_integer(have) and pa.types.is_integer(kind):
        return _fit_integers(column, kind)
    if pa.types.is_integer(have) and pa.types.is_floating(kind):
        return _checked(column, column.cast(kind, safe=False), have)
    if pa.types.is_floating(have) and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return _fit_floats(column, kind)
    if pa.types.is_decimal(have) and pa.types.is_decimal(kind):
        return _fit_decimals(column, kind)
    if pa.types.is_string(have) and pa.types.is_binary(kind):
        return column.cast(kind)
    if pa.types.is_binary(have) and pa.types.is_string(kind):
        found = text(column)
        return text(with_nulls(column, not_text(column))) if found is None else found
    if pa.types.is_timestamp(have) and pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).cast(kind)
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


def _compact(column: Any) -> Any:
    """Return lists or maps whose elements all belong to one that is not null."""
    if column.null_count:
        return column.take(pa.array(np.arange(len(column))))
    return from_start(column)


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


def _fit_floats(column: pa.Array, kind: pa.DataType) -> pa.Array:
    numbers = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    if pa.types.is_integer(kind):
        # -0.0 is no integer: read back, it would be another number.
        end = 2.0 ** (kind.bit_width - 1)
        whole = (numbers >= -end) & (numbers < end) & (numbers == np.floor(numbers))
        whole &= ~((numbers == 0) & np.signbit(numbers))
        return with_nulls(column, ~whole).cast(kind)
    if kind.bit_width >= column.type.bit_width:
        return column.cast(kind)
    with np.errstate(over="ignore"):
        again = numbers.astype(kind.to_pandas_dtype()).astype(numbers.dtype)
    return with_nulls(column, (again != numbers) & ~np.isnan(numbers)).cast(kind, safe=False)


def _checked(column: pa.Array, found: pa.Array, have: pa.DataType) -> pa.Array:
    """Return floats made of integers, and null where they are other numbers than those."""
    numbers = pc.fill_null(column, 0).to_numpy()
    floats = pc.fill_null(found, 0).to_numpy().astype(np.float64)
    inside = floats < 2.0 ** (have.bit_width - 1)
    same = inside & (np.where(inside, floats, 0).astype(numbers.dtype) == numbers)
    return with_nulls(found, ~same)


def _fit_decimals(column: pa.Array, kind: pa.DataType) -> pa.Array:
    have = column.type
    if kind.scale >= have.scale:
        room = kind.precision - (kind.scale - have.scale)
        if room < 1:
            wrong = pc.fill_null(pc.not_equal(column, pa.scalar(Decimal(0), have)), False)
            return with_nulls(column, wrong.to_numpy(False)).cast(kind, safe=False)
        return with_nulls(column, too_long(column, room)).cast(kind)
    numbers = column.to_pylist()
    return pa.array([None if n is None else _with_scale(n, have, kind) for n in numbers], kind)


def _with_scale(number: Decimal, have: pa.DataType, kind: pa.DataType) -> Decimal | None:
    unscaled, rest = divmod(int(_EXACT.scaleb(number, have.scale)), 10 ** (have.scale - kind.scale))
    if rest or abs(unscaled) >= 10**kind.precision:
        return None
    return _EXACT.scaleb(Decimal(unscaled), -kind.scale)
