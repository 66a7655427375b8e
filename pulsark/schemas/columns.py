"""The columns that show a schema's values: Delta's types, and how versions extend them.

A type is what stands in the schema of a Delta table: a text such as ``long``, or the JSON object
of a struct, an array or a map. Values that no column can show (a union of several types, a
record that contains itself, a record without fields) have none; neither have fields whose names
differ from an earlier one's only by upper and lower case, which engines do not tell apart.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pulsark.limits import SCHEMA_DEPTH_MAX, VALUE_FIELDS_MAX, VALUE_TYPE_BYTES_MAX
from pulsark.schemas import key_value
from pulsark.schemas.avro import (
    PRIMITIVES,
    Array,
    AvroType,
    Enumeration,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
    load_json,
    parse_avro,
)
from pulsark.schemas.column_types import BINARY, ColumnType, merged, struct, types_of
from pulsark.schemas.definition import InvalidSchemaDataError, SchemaData, SchemaType
from pulsark.schemas.protobuf import Field, Message, protobuf_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DECIMAL_DIGITS_MAX: Final = 38
"""The limit of Delta and of the engines that read it."""

_OF_AVRO: Final[Mapping[tuple[str, str], str]] = {
    ("boolean", ""): "boolean",
    ("int", ""): "integer",
    ("int", "date"): "date",
    ("long", ""): "long",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("float", ""): "float",
    ("double", ""): "double",
    ("bytes", ""): BINARY,
    ("string", ""): "string",
}

_OF_JSON: Final[Mapping[str, str]] = {"bytes": "string", "float": "double"}
"""Where the text of JSON has another type than Avro's: bytes are as they stand there."""

_OF_PRIMITIVES: Final[Mapping[SchemaType, str]] = {
    SchemaType.STRING: "string",
    SchemaType.BOOLEAN: "boolean",
    SchemaType.INT8: "byte",
    SchemaType.INT16: "short",
    SchemaType.INT32: "integer",
    SchemaType.INT64: "long",
    SchemaType.FLOAT: "float",
    SchemaType.DOUBLE: "double",
    SchemaType.DATE: "timestamp",
    SchemaType.TIME: "long",
    SchemaType.TIMESTAMP: "timestamp",
    SchemaType.INSTANT: "timestamp",
    SchemaType.LOCAL_DATE: "date",
    SchemaType.LOCAL_TIME: "long",
    SchemaType.LOCAL_DATE_TIME: "timestamp",
}

_OF_PROTOBUF: Final[Mapping[str, str]] = {
    "bool": "boolean",
    **dict.fromkeys(("int32", "sint32", "sfixed32"), "integer"),
    **dict.fromkeys(
        ("int64", "sint64", "sfixed64", "uint32", "fixed32", "uint64", "fixed64"), "long"
    ),
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": BINARY,
    "enum": "string",
}

_KEYS: Final = ("string", "boolean", "integer", "long")
"""What the key of a map may be."""

_DECIMAL: Final = re.compile(r"decimal\(([1-9][0-9]?),([0-9][0-9]?)\)", re.ASCII)

_SIMPLE: Final = {*_OF_AVRO.values(), *_OF_PRIMITIVES.values()}

_SEPARATED = "SEPARATED"


def value_type(schema: SchemaData) -> ColumnType:
    """The type of the column with a schema's values; ``binary`` if it can show no more."""
    found = _typed(schema)
    if found is None or len(json.dumps(found)) > VALUE_TYPE_BYTES_MAX:
        return BINARY
    return found


def type_of_versions(schemas: Iterable[SchemaData]) -> ColumnType:
    """The type of a new table, from the versions of the topic's schema, the oldest first."""
    found: ColumnType = BINARY
    for schema in schemas:
        new = value_type(schema)
        found = new if found == BINARY else merged(found, new)
    return found


def avro_of(schema: SchemaData) -> AvroType | None:
    """The Avro type that describes values with columns; ``None`` if they are described else."""
    if schema.type not in (SchemaType.AVRO, SchemaType.JSON):
        return None
    try:
        found = parse_avro(load_json(schema.data))
    except InvalidSchemaDataError:
        return None
    if schema.type is SchemaType.JSON and not isinstance(found, Record):
        return None
    return found


def pair_of(schema: SchemaData) -> tuple[SchemaData, SchemaData] | SchemaData | None:
    """The schemas of key and value; that of the value alone where the key is the message's."""
    if schema.type is not SchemaType.KEY_VALUE:
        return None
    try:
        key, value = key_value.split(schema)
    except InvalidSchemaDataError:
        return None
    if SchemaType.KEY_VALUE in (key.type, value.type):
        return None
    separated = schema.properties.get(key_value.ENCODING_PROPERTY, "").upper() == _SEPARATED
    return value if separated else (key, value)


def is_column_type(kind: Any) -> bool:
    """Whether something that came from outside is the type of a column ``value``."""
    try:
        return len(json.dumps(kind)) <= VALUE_TYPE_BYTES_MAX and _is_column_type(kind)
    except RecursionError:
        return False


def _is_column_type(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind in _SIMPLE or decimal_digits(kind) is not None
    match kind:
        case {"type": "array", "elementType": inner, "containsNull": True, **rest}:
            return not rest and _is_column_type(inner)
        case {
            "type": "map",
            "keyType": key,
            "valueType": inner,
            "valueContainsNull": True,
            **rest,
        }:
            return not rest and key in _KEYS and _is_column_type(inner)
        case {"type": "struct", "fields": [_, *_] as fields, **rest}:
            pairs = [
                (field["name"], field["type"])
                for field in fields
                if isinstance(field, dict)
                and isinstance(field.get("name"), str)
                and _is_column_type(field.get("type"))
            ]
            names = {name.lower() for name, _ in pairs}
            return not rest and len(names) == len(fields) and struct(pairs) == kind
    return False


def of_avro(avro: AvroType, as_json: bool = False) -> ColumnType | None:
    """The type that shows an Avro type; ``as_json``: written as JSON. ``None`` without one."""
    try:
        return _AvroColumns(as_json).of(avro, ())
    except _TooManyFieldsError:
        return None


def of_protobuf(message: Message) -> ColumnType:
    """The type that shows a Protobuf message."""
    return struct((field.name, _of_protobuf(field)) for field in message.fields)


def branch_of(union: Union) -> AvroType | None:
    """The one type that a union has besides null."""
    branches = [branch for branch in union.branches if str(branch) != "null"]
    return branches[0] if len(branches) == 1 else None


def is_decimal(avro: Primitive) -> bool:
    """Whether bytes are shown as the numbers that they stand for."""
    is_one = (avro.kind, avro.logical) == ("bytes", "decimal")
    return is_one and _are_digits(avro.precision, avro.scale)


def decimal_digits(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal; ``None`` of other types."""
    found = _DECIMAL.fullmatch(kind)
    if found is None:
        return None
    precision, scale = int(found[1]), int(found[2])
    return (precision, scale) if _are_digits(precision, scale) else None


def _are_digits(precision: int, scale: int) -> bool:
    return 1 <= precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision


def as_held(avro: AvroType, column: ColumnType) -> AvroType:
    """A type with bytes in place of decimals wherever a column holds bytes.

    A table whose column was made from an earlier version of the schema keeps the column's type.
    """
    match avro, column:
        case Primitive(), str() if column == BINARY and is_decimal(avro):
            return PRIMITIVES["bytes"]
        case Union(branches), _:
            shown = branch_of(avro)
            return Union(tuple(as_held(b, column) if b is shown else b for b in branches))
        case Array(items), {"type": "array", "elementType": inner}:
            return Array(as_held(items, inner))
        case Map(values), {"type": "map", "valueType": inner}:
            return Map(as_held(values, inner))
        case Record(name, aliases, fields), {"type": "struct"}:
            types = types_of(column)
            held = {
                field.name: replace(field, type=as_held(field.type, types[field.name]))
                if field.name in types
                else field
                for field in fields.values()
            }
            return Record(name, aliases, held)
    return avro


def shown_fields(record: Record) -> list[str]:
    """The fields with names that engines can tell apart."""
    names: dict[str, str] = {}
    for name in record.fields:
        names.setdefault(name.lower(), name)
    return list(names.values())


def _typed(schema: SchemaData) -> ColumnType | None:
    avro = avro_of(schema)
    if avro is not None:
        return of_avro(avro, schema.type is SchemaType.JSON)
    message = protobuf_of(schema)
    if message is not None:
        return of_protobuf(message)
    pair = pair_of(schema)
    if isinstance(pair, SchemaData):
        return _typed(pair)
    if pair is not None:
        return struct(zip(("key", "value"), map(value_type, pair), strict=True))
    return _OF_PRIMITIVES.get(schema.type)


class _TooManyFieldsError(Exception):
    """A type that would be larger than allowed."""


class _AvroColumns:
    """Counts the fields and levels: types may name each other."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._left = VALUE_FIELDS_MAX
        self._levels_left = 2 * SCHEMA_DEPTH_MAX

    def of(self, avro: AvroType, inside: tuple[str, ...]) -> ColumnType | None:
        """The type of a column; ``None`` without one. ``inside`` are the records around it."""
        self._levels_left -= 1
        if self._levels_left < 0:
            raise _TooManyFieldsError
        found = self._of(avro, inside)
        self._levels_left += 1
        return found

    def _of(self, avro: AvroType, inside: tuple[str, ...]) -> ColumnType | None:
        match avro:
            case Primitive(kind, logical):
                if self._as_json:
                    return _OF_JSON.get(kind) or _OF_AVRO.get((kind, ""))
                if is_decimal(avro):
                    return f"decimal({avro.precision},{avro.scale})"
                return _OF_AVRO.get((kind, logical)) or _OF_AVRO.get((kind, ""))
            case Enumeration():
                return "string"
            case Fixed():
                return "string" if self._as_json else BINARY
            case Union():
                branch = branch_of(avro)
                return None if branch is None else self.of(branch, inside)
            case Array(items):
                found = self.of(items, inside)
                return found and _array(found)
            case Map(values):
                found = self.of(values, inside)
                return found and _map("string", found)
            case Record(name=name):
                return None if name in inside else self._struct(avro, (*inside, name))
        return None

    def _struct(self, record: Record, inside: tuple[str, ...]) -> ColumnType | None:
        fields = []
        for name in shown_fields(record):
            self._left -= 1
            if self._left < 0:
                raise _TooManyFieldsError
            found = self.of(record.fields[name].type, inside)
            if found:
                fields.append((name, found))
        return struct(fields) if fields else None


def _of_protobuf(field: Field) -> ColumnType:
    if field.message is None:
        found: ColumnType = _OF_PROTOBUF[field.kind]
    elif field.kind == "map":
        key, value = field.message.fields
        return _map(_OF_PROTOBUF[key.kind], _of_protobuf(value))
    else:
        found = of_protobuf(field.message)
    return _array(found) if field.repeated else found


def _array(items: ColumnType) -> ColumnType:
    return {"type": "array", "elementType": items, "containsNull": True}


def _map(key: str, value: ColumnType) -> ColumnType:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
