"""Avro's binary encoding, message by message: schemas and messages that have no common steps."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from pulsark.rows.values.decimals import bytes_of, decimal_of
from pulsark.rows.values.primitives import (
    FIRST_DAY,
    FIRST_MICROSECOND,
    LAST_DAY,
    LAST_MICROSECOND,
)
from pulsark.rows.values.types import column_of, without_times
from pulsark.schemas.avro import Array, AvroType, Map, Primitive, Record, Union
from pulsark.schemas.columns import branch_of, is_decimal

if TYPE_CHECKING:
    from pulsark.rows.values.bounds import AvroShape

TIME_UNITS: Final = {"timestamp-millis": 1000, "timestamp-micros": 1}
"""Microseconds of the units that times have."""

_Convert: TypeAlias = Callable[[Any], Any]


class AvroOneByOne:
    """Values of any schema."""

    def __init__(
        self, avro: AvroType, definition: Any, kind: pa.DataType, shape: AvroShape
    ) -> None:
        self.type = kind
        self._definition = definition
        self._parsed: Any = None
        self._shown = _conversion(avro, kind, back=False)
        self._stored = _conversion(avro, kind, back=True)
        self.bounds = shape.bounds

    def decode(self, payloads: pa.Array) -> pa.Array:
        """Null where a payload is not a value of the schema, or more than that."""
        return self.bounds.decoded(payloads, self.decoded)

    def decoded(self, payloads: pa.Array) -> pa.Array:
        """``decode`` payloads that are known to be within the bounds."""
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
                except Exception:  # noqa: BLE001
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
                except Exception:  # noqa: BLE001
                    # As when it reads; a field that has no column is missing here.
                    payload = None
            found.append(payload)
        return pa.array(found, pa.binary())

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


def _conversion(avro: AvroType, kind: pa.DataType, back: bool) -> _Convert | None:
    """From what the library reads to what Arrow takes, or ``back``; ``None`` if that is equal.

    May change records in place. What has no column stays as it is.
    """
    match avro:
        case Primitive("long", logical) if logical in TIME_UNITS:
            return _conversion_of_times(TIME_UNITS[logical], back)
        case Primitive("int", "date") if not back:
            return lambda value: value if FIRST_DAY <= value <= LAST_DAY else None
        case Primitive("bytes") if is_decimal(avro):
            one = bytes_of if back else decimal_of
            return lambda value: one(value, avro)
        case Union():
            branch = branch_of(avro)
            assert branch is not None
            return _optional(_conversion(branch, kind, back))
        case Record():
            fields = [
                (field.name, convert)
                for field in kind
                if (convert := _conversion(avro.fields[field.name].type, field.type, back))
            ]
            return _record_conversion(fields) if fields else None
        case Array(items):
            of_item = _conversion(items, kind.value_type, back)
            return of_item and _of_all(of_item)
        case Map(values):
            of_value = _conversion(values, kind.item_type, back)
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
