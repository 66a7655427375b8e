"""The columns that show a schema's values: Delta's types, and how versions extend them.

A type is what stands in the schema of a Delta table: a text such as ``long``, or the JSON object
of a struct, an array or a map. A union of several types is a struct with one field for each type.
A record that contains itself and a record without fields have no column; neither have fields whose
names differ from an earlier one's only by upper and lower case, which engines do not tell apart.
"""

from __future__ import annotations

import json
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
from pulsark.schemas.column_types import (
    BINARY,
    LOCAL_TIMESTAMP,
    ColumnType,
    are_digits,
    decimal_digits,
    struct,
    struct_field,
    twin_of,
    types_of,
    widened,
)
from pulsark.schemas.definition import InvalidSchemaDataError, SchemaData, SchemaType
from pulsark.schemas.protobuf import Field, Message, protobuf_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OF_AVRO: Final[Mapping[tuple[str, str], str]] = {
    ("boolean", ""): "boolean",
    ("int", ""): "integer",
    ("int", "date"): "date",
    ("long", ""): "long",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): LOCAL_TIMESTAMP,
    ("long", "local-timestamp-micros"): LOCAL_TIMESTAMP,
    ("int", "time-millis"): "string",
    ("long", "time-micros"): "string",
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

_SIMPLE: Final = {*_OF_AVRO.values(), *_OF_PRIMITIVES.values()}

_SEPARATED = "SEPARATED"

_UNIONS_TOO_LARGE_MAX: Final = 8
"""Unions that may be too large for columns before a whole type counts as too large."""


def value_type(schema: SchemaData, *, format_2: bool = False) -> ColumnType:
    """Return the type of the column with a schema's values; ``binary`` if it can show no more.

    In files of ``format_2`` unions have no column, and some logical types are bytes and numbers.
    """
    found = _typed(schema, format_2)
    if found is None or len(json.dumps(found)) > VALUE_TYPE_BYTES_MAX:
        return BINARY
    return found


def type_of_versions(schemas: Iterable[SchemaData]) -> ColumnType:
    """Return the type that shows the values of all versions of a schema, the oldest first."""
    found: ColumnType = BINARY
    for schema in schemas:
        new = value_type(schema)
        found = new if found == BINARY else widened(found, new)
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
            known = [field for field in fields if _is_field(field)]
            names = {field["name"].lower() for field in known}
            return not rest and len(names) == len(fields)
    return False


def _is_field(field: Any) -> bool:
    return (
        isinstance(field, dict)
        and isinstance(field.get("name"), str)
        and isinstance(field.get("metadata"), dict)
        and _is_column_type(field.get("type"))
        and struct_field(field["name"], field["type"], twin_of(field)) == field
    )


def of_avro(avro: AvroType, as_json: bool = False, *, format_2: bool = False) -> ColumnType | None:
    """Return the type that shows an Avro type, written ``as_json`` or not; None without one."""
    try:
        return _AvroColumns(as_json, format_2).of(avro, ())
    except _TooManyFieldsError:
        return None


def of_protobuf(message: Message) -> ColumnType:
    """The type that shows a Protobuf message."""
    return struct((field.name, _of_protobuf(field)) for field in message.fields)


def branch_of(union: Union) -> AvroType | None:
    """Return the one type that a union has besides null, or None."""
    branches = members_of(union)
    return branches[0] if len(branches) == 1 else None


def members_of(union: Union) -> list[AvroType]:
    """Return the types of a union besides null. If there are several, they are ``member0`` to n."""
    return [branch for branch in union.branches if str(branch) != "null"]


def member_name(number: int) -> str:
    """Return the field of a union's struct that has the values of one of its types."""
    return f"member{number}"


def is_decimal(avro: Primitive | Fixed) -> bool:
    """Return whether bytes are shown as the numbers that they stand for."""
    if isinstance(avro, Primitive) and (avro.kind, avro.logical) != ("bytes", "decimal"):
        return False
    return are_digits(avro.precision, avro.scale)


def as_held(avro: AvroType, column: ColumnType) -> AvroType:
    """Return a type without the logical types that a column does not have.

    A table that was begun by an earlier release, or with an earlier version of the schema, has
    numbers and bytes where a new table has times and decimals.
    """
    match avro, column:
        case Primitive(kind, logical), str() if logical and column == _OF_AVRO.get((kind, "")):
            return PRIMITIVES[kind]
        case Fixed(name, aliases, size), str() if column == BINARY:
            return Fixed(name, aliases, size)
        case Union(branches), _:
            members = members_of(avro)
            types = types_of(column)
            held = {
                id(member): column if len(members) == 1 else types.get(member_name(number))
                for number, member in enumerate(members)
            }
            return Union(
                tuple(b if (c := held.get(id(b))) is None else as_held(b, c) for b in branches)
            )
        case Array(items), {"type": "array", "elementType": inner}:
            return Array(as_held(items, inner))
        case Map(values), {"type": "map", "valueType": inner}:
            return Map(as_held(values, inner))
        case Record(name, aliases, fields), {"type": "struct"}:
            types = types_of(column)
            found = {
                field.name: replace(field, type=as_held(field.type, types[field.name]))
                if field.name in types
                else field
                for field in fields.values()
            }
            return Record(name, aliases, found)
    return avro


def shown_fields(record: Record) -> list[str]:
    """The fields with names that engines can tell apart."""
    names: dict[str, str] = {}
    for name in record.fields:
        names.setdefault(name.lower(), name)
    return list(names.values())


def _typed(schema: SchemaData, format_2: bool) -> ColumnType | None:
    avro = avro_of(schema)
    if avro is not None:
        return of_avro(avro, schema.type is SchemaType.JSON, format_2=format_2)
    message = protobuf_of(schema)
    if message is not None:
        return of_protobuf(message)
    pair = pair_of(schema)
    if isinstance(pair, SchemaData):
        return _typed(pair, format_2)
    if pair is not None:
        key, value = (value_type(part, format_2=format_2) for part in pair)
        return struct([("key", key), ("value", value)])
    return _OF_PRIMITIVES.get(schema.type)


class _TooManyFieldsError(Exception):
    """A type that would be larger than allowed."""


class _AvroColumns:
    """Counts the fields and levels: types may name each other."""

    def __init__(self, as_json: bool, format_2: bool) -> None:
        self._as_json = as_json
        self._format_2 = format_2
        self._left = VALUE_FIELDS_MAX
        self._levels_left = 2 * SCHEMA_DEPTH_MAX
        self._unions_left = _UNIONS_TOO_LARGE_MAX

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
            case Primitive():
                return self._primitive(avro)
            case Enumeration():
                return "string"
            case Fixed():
                if self._as_json:
                    return "string"
                if is_decimal(avro) and not self._format_2:
                    return f"decimal({avro.precision},{avro.scale})"
                return BINARY
            case Union():
                return self._union(avro, inside)
            case Array(items):
                found = self.of(items, inside)
                return found and _array(found)
            case Map(values):
                found = self.of(values, inside)
                return found and _map("string", found)
            case Record(name=name):
                return None if name in inside else self._struct(avro, (*inside, name))
        return None

    def _primitive(self, avro: Primitive) -> ColumnType | None:
        kind, logical = avro.kind, avro.logical
        if self._as_json:
            return _OF_JSON.get(kind) or _OF_AVRO.get((kind, ""))
        if is_decimal(avro):
            return f"decimal({avro.precision},{avro.scale})"
        if self._format_2 and logical.startswith(("local-", "time-")):
            logical = ""
        return _OF_AVRO.get((kind, logical)) or _OF_AVRO.get((kind, ""))

    def _union(self, union: Union, inside: tuple[str, ...]) -> ColumnType | None:
        members = members_of(union)
        if len(members) == 1:
            return self.of(members[0], inside)
        if self._format_2:
            return None
        fields, left, levels = [], self._left, self._levels_left
        try:
            for number, member in enumerate(members):
                self._spend()
                found = self.of(member, inside)
                if found:
                    fields.append((member_name(number), found))
        except _TooManyFieldsError:
            # Other fields can be shown. Each attempt takes its time, so there are few.
            self._unions_left -= 1
            if not self._unions_left:
                raise
            self._left, self._levels_left = left, levels
            return None
        return struct(fields) if fields else None

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _TooManyFieldsError

    def _struct(self, record: Record, inside: tuple[str, ...]) -> ColumnType | None:
        fields = []
        for name in shown_fields(record):
            self._spend()
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
