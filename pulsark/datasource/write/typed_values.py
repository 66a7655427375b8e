"""``valueFormat`` avro and json of a write: fields of a DataFrame as values of a topic's schema.

The form says which columns the fields are, the driver finds the schema for them, and tasks make
values: a column of structs, just as the topic's table has it, from which payloads can be made.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.datasource.options.errors import DataSourceError, TopicSchemaError
from pulsark.datasource.write.outgoing import ColumnError
from pulsark.rows.arrow.schema import TIMESTAMP
from pulsark.rows.values.avro import avro_codec
from pulsark.rows.values.decimals import decimal_bytes
from pulsark.rows.values.json_form import JsonForm
from pulsark.rows.values.json_values import JsonCodec
from pulsark.rows.values.times import DAY_TIMES, TIME_UNITS, since_midnight, times_of_day
from pulsark.rows.values.types import from_start, spread, valid
from pulsark.schemas.avro import Array, AvroType, Enumeration, Fixed, Map, Primitive, Record, Union
from pulsark.schemas.columns import avro_of, branch_of
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.of_columns import (
    NoSchemaError,
    may_be_null,
    next_schema,
    place_of,
    schema_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.datasource.admin.client import SparkAdmin
    from pulsark.rows.values.codec import Codec
    from pulsark.schemas.column_types import ColumnType
    from pulsark.wire.topic_name import TopicName

_ISO: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class ValueForm:
    """Which columns are the fields of values. Goes to the tasks."""

    schema_type: SchemaType
    kind: ColumnType
    """A struct of the fields, as Spark writes types in JSON."""
    column: str | None
    """The struct; ``None``: each field is a column of its own."""
    unread: str | None = None
    """A column that has payloads of which a read made no fields; such rows cannot be written."""

    def schema_for(self, topic: TopicName, newest: SchemaData | None) -> SchemaData:
        """The schema of the values on a topic whose newest one is given; ``ColumnError``."""
        try:
            if newest is not None and newest.type is self.schema_type:
                return next_schema(newest, self.kind, topic.local)
            return schema_of(self.kind, self.schema_type, topic.local)
        except NoSchemaError as error:
            raise ColumnError(str(error)) from None


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The schema that the values of one write have on a topic, and the version that they carry."""

    schema: SchemaData
    version: bytes


def register(admin: SparkAdmin, topic: TopicName, form: ValueForm) -> TopicSchema:
    """Find the schema for a topic, and add it to those of the topic if it is new.

    ``TopicSchemaError`` if it may not follow them.
    """
    known = admin.schemas.versions(topic)
    newest = list(known.values())[-1] if known else None
    schema = form.schema_for(topic, newest)
    if newest is not None and schema is newest:
        return TopicSchema(schema, list(known)[-1])
    return TopicSchema(schema, admin.schemas.register(topic, schema))


class TypedValues:
    """Makes values of one schema; in tasks."""

    def __init__(self, form: ValueForm, found: TopicSchema) -> None:
        self.schema = found.schema
        self.version = found.version
        self._form = form
        avro = avro_of(found.schema)
        codec = _codec(found.schema, avro)
        if not isinstance(avro, Record) or codec is None:
            raise TopicSchemaError(
                "the topic's schema has types that no DataFrame has; write bytes of your own, with "
                "valueFormat raw"
            )
        self._avro = avro
        self._codec = codec
        self._fit = _Fit(as_json=found.schema.type is SchemaType.JSON)

    @property
    def names_its_fields(self) -> bool:
        """Whether payloads hold the names of their fields."""
        return self.schema.type is SchemaType.JSON

    def of(self, rows: pa.RecordBatch) -> pa.StructArray:
        """The value of each row; null for a tombstone. ``ColumnError``."""
        form = self._form
        if form.unread is not None:
            count = rows.num_rows - rows.column(form.unread).null_count
            if count:
                raise ColumnError(
                    f"column '{form.unread}' has payloads of which there are no fields, in {count} "
                    f"rows: leave them out (where `{form.unread}` is null), or drop the column"
                )
        if form.column is not None:
            given = rows.column(form.column)
        else:
            given = _together(rows, [field["name"] for field in form.kind["fields"]])  # type: ignore[index]
        present = valid(given)
        found = self._fit.record(self._avro, given.drop_null(), self._codec.type, "")
        return spread(found, present)

    def payloads(self, values: pa.StructArray) -> pa.Array:
        """The payloads of values; null for null."""
        found = self._codec.encode(values)
        if found.null_count != values.null_count:
            raise DataSourceError("a value cannot be encoded with the topic's schema")
        return found


ValuesOf: TypeAlias = "Callable[[SparkAdmin, TopicName], TypedValues | None]"
"""What makes values for a topic; ``None``: its rows have payloads."""


def _codec(schema: SchemaData, avro: AvroType | None) -> Codec | None:
    if not isinstance(avro, Record):
        return None
    if schema.type is SchemaType.JSON:
        return JsonCodec(avro, JsonForm())
    return avro_codec(avro)


def _together(rows: pa.RecordBatch, names: Sequence[str]) -> pa.StructArray:
    """Columns as one of structs; null where all of them are."""
    columns = [rows.column(name) for name in names]
    nothing = np.ones(rows.num_rows, np.bool_)
    for column in columns:
        if not column.null_count:
            nothing[:] = False
            break
        nothing &= ~valid(column)
    mask = pa.array(nothing) if nothing.any() else None
    return pa.StructArray.from_arrays(columns, names=list(names), mask=mask)


class _Fit:
    """Columns as Spark has them in the types that a schema's values have. ``ColumnError``."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def _value(self, avro: AvroType, column: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
        """A column, null where it is null, which must be allowed."""
        if column.null_count and not may_be_null(avro):
            raise ColumnError(
                f"column '{path}' is null in a row, and the topic's schema allows no null there; "
                "leave nulls out, or register a schema for the topic that allows them"
            )
        branch = branch_of(avro) if isinstance(avro, Union) else avro
        assert branch is not None
        present = valid(column)
        found = self._present(branch, column.drop_null(), kind, path)
        return spread(found, present)

    def _present(self, avro: AvroType, column: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
        match avro:
            case Record():
                return self.record(avro, column, kind, path)
            case Array(items):
                lists = from_start(column)
                inner = self._value(items, lists.flatten(), kind.value_type, f"{path}[]")
                return pa.ListArray.from_arrays(lists.offsets, inner, kind)
            case Map(values):
                maps = from_start(column)
                count = maps.offsets[-1].as_py() if len(maps) else 0
                inner = self._value(values, maps.items[:count], kind.item_type, f"{path}[]")
                keys = maps.keys[:count].cast(pa.string())
                return pa.MapArray.from_arrays(maps.offsets, keys, inner, kind)
            case Enumeration(symbols=symbols):
                return _checked_symbols(column, symbols, path)
            case Fixed(size=size):
                if pa.types.is_decimal(kind):
                    return column.cast(kind)
                return _checked_size(column, size, path)
            case Primitive():
                return self._primitive(avro, column, kind, path)
        raise TypeError(f"{avro} has no column")

    def record(self, record: Record, column: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
        """Structs without nulls; their fields are found by their names."""
        places = {field.name: place for place, field in enumerate(column.type)}
        fields = []
        for field in kind:
            name = place_of(places, field.name)
            if name is None:
                fields.append(pa.nulls(len(column), field.type))
                continue
            inside = f"{path}.{name}" if path else name
            given = column.field(places[name])
            fields.append(self._value(record.fields[field.name].type, given, field.type, inside))
        return pa.StructArray.from_arrays(fields, fields=list(kind))

    def _primitive(
        self, avro: Primitive, column: pa.Array, kind: pa.DataType, path: str
    ) -> pa.Array:
        have = column.type
        if avro.logical in DAY_TIMES and not self._as_json:
            return _checked_times(column, DAY_TIMES[avro.logical], path)
        if pa.types.is_integer(have) and pa.types.is_timestamp(kind):
            unit = TIME_UNITS[avro.logical]
            return pc.multiply(column.cast(pa.int64()), unit).cast(kind)
        if have.equals(kind) and avro.logical != "local-timestamp-millis":
            return self._checked_numbers(column, path)
        if pa.types.is_timestamp(have):
            if self._as_json:
                return pc.strftime(column.cast(TIMESTAMP), format=_ISO)
            found = column.cast(kind)
            if avro.logical.endswith("timestamp-millis"):
                found = pc.floor_temporal(found, unit="millisecond")
            return found
        if pa.types.is_decimal(have):
            return decimal_bytes(column) if pa.types.is_binary(kind) else column.cast(kind)
        if pa.types.is_binary(have) and self._as_json:
            return pa.array([base64.b64encode(item).decode() for item in column.to_pylist()], kind)
        if pa.types.is_float32(have) and self._as_json:
            # The shortest text of the small number, not that of its exact value.
            return self._checked_numbers(column.cast(pa.string()).cast(kind), path)
        return self._checked_numbers(column.cast(kind), path)

    def _checked_numbers(self, column: pa.Array, path: str) -> pa.Array:
        if (
            self._as_json
            and pa.types.is_floating(column.type)
            and not pc.all(pc.is_finite(column), min_count=0).as_py()
        ):
            raise ColumnError(
                f"column '{path}' is NaN or infinite in a row, which JSON has no number for; "
                "write null there, or use valueFormat avro"
            )
        return column


def _checked_times(column: pa.Array, unit: int, path: str) -> pa.Array:
    """Return times of a day, which are texts or numbers of a unit, as texts."""
    is_text = pa.types.is_string(column.type)
    numbers = since_midnight(column, unit) if is_text else column.cast(pa.int64()).to_numpy()
    found = times_of_day(numbers, unit)
    if found.null_count or (is_text and not found.equals(column)):
        form = "HH:MM:SS.mmmmmm" if unit == 1 else "HH:MM:SS.mmm"
        raise ColumnError(f"column '{path}' has to be a time of a day, {form}, in each row")
    return found


def _checked_symbols(column: pa.Array, symbols: Sequence[str], path: str) -> pa.Array:
    wrong = column.filter(pc.invert(pc.is_in(column, value_set=pa.array(symbols, pa.string()))))
    if len(wrong):
        raise ColumnError(
            f"column '{path}' is {wrong[0].as_py()!r:.60} in a row; the topic's schema knows "
            f"{', '.join(symbols)[:200]}"
        )
    return column


def _checked_size(column: pa.Array, size: int, path: str) -> pa.Array:
    if pa.types.is_binary(column.type):
        sizes = pc.unique(pc.binary_length(column)).to_pylist()
        if any(each != size for each in sizes):
            raise ColumnError(f"column '{path}' has to have {size} bytes in each row")
    return column
