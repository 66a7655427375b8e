"""The schema that describes columns: the inverse of ``schemas.columns``.

Types are as Spark and Delta write them in JSON, with their own word on nulls. A field that may be
null is a union with null, and null by default, so that versions with and without it read each
other; elements of arrays and maps may not, as in the classes of Pulsar's clients. Where JSON has no
type for something, a text stands for it: times and dates in ISO 8601, decimals in digits.

A topic keeps its schema if the columns fit: fields match by name, in any order, and only
additional or different columns make another version.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any, Final

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
from pulsark.schemas.column_types import (
    LOCAL_TIMESTAMP,
    ColumnType,
    decimal_digits,
    fields_of,
)
from pulsark.schemas.columns import avro_of, branch_of, is_decimal, shown_fields
from pulsark.schemas.definition import SchemaData, SchemaType

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXT: Final = re.compile(r"string.*|varchar\(\d+\)|char\(\d+\)")
_NULL: Final = "null"

_AVRO: Final[Mapping[str, Any]] = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    LOCAL_TIMESTAMP: {"type": "long", "logicalType": "local-timestamp-micros"},
}
_AS_TEXT: Final = ("date", "timestamp", "decimal")
"""What JSON has as text."""

_INTEGERS: Final = ("byte", "short", "integer", "long")
_FITTING: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("boolean", ""): ("boolean",),
    ("int", ""): _INTEGERS[:3],
    ("int", "date"): ("date",),
    ("long", ""): _INTEGERS,
    ("long", "timestamp-millis"): ("timestamp",),
    ("long", "timestamp-micros"): ("timestamp",),
    ("long", "local-timestamp-millis"): (LOCAL_TIMESTAMP, *_INTEGERS),
    ("long", "local-timestamp-micros"): (LOCAL_TIMESTAMP, *_INTEGERS),
    ("int", "time-millis"): ("string", *_INTEGERS[:3]),
    ("long", "time-micros"): ("string", *_INTEGERS),
    ("float", ""): ("float",),
    ("double", ""): ("float", "double"),
    ("bytes", ""): ("binary",),
    ("string", ""): ("string",),
}
"""Which columns an Avro type holds without a loss; milliseconds cut what is below them."""


class NoSchemaError(ValueError):
    """A column that no schema describes; the message names it and what to do."""


def schema_of(kind: ColumnType, schema_type: SchemaType, name: str) -> SchemaData:
    """The schema, AVRO or JSON, of a struct's values; ``name`` is that of its record."""
    name = re.sub(r"\W", "_", name, flags=re.ASCII)
    name = f"_{name}" if not name or name[0].isdigit() else name
    found = _Definitions(schema_type).record(kind, name, "", "")
    return SchemaData(schema_type, json.dumps(found).encode())


def next_schema(newest: SchemaData, kind: ColumnType, name: str) -> SchemaData:
    """The schema of a struct's values on a topic that has one: that one, if they fit.

    Otherwise the struct's fields replace those that do not fit, and new ones come last. The topic's
    compatibility strategy decides whether it may follow.
    """
    avro = avro_of(newest)
    if not isinstance(avro, Record):
        return schema_of(kind, newest.type, name)
    if fits(avro, kind, as_json=newest.type is SchemaType.JSON):
        return newest
    found = _Definitions(newest.type).extended(json.loads(newest.data), avro, kind)
    return SchemaData(newest.type, json.dumps(found).encode(), newest.properties)


def fits(avro: AvroType, kind: ColumnType, *, as_json: bool) -> bool:
    """Whether an Avro type holds all values of a column but nulls, and needs no others."""
    match avro:
        case Union():
            branch = branch_of(avro)
            return branch is not None and fits(branch, kind, as_json=as_json)
        case Primitive():
            return _primitive_fits(avro, kind, as_json)
        case Enumeration():
            return _is_text(kind)
        case Fixed():
            if as_json:
                return _is_text(kind)
            return _decimal_fits(avro, kind) if is_decimal(avro) else kind == "binary"
    if isinstance(kind, str):
        return False
    match avro, kind:
        case Array(items), {"type": "array", "elementType": inner}:
            return fits(items, inner, as_json=as_json)
        case Map(values), {"type": "map", "keyType": key, "valueType": inner}:
            return _is_text(key) and fits(values, inner, as_json=as_json)
        case Record(), {"type": "struct"}:
            return _record_fits(avro, kind, as_json)
    return False


def may_be_null(avro: AvroType) -> bool:
    """Whether null is among the values of a type."""
    branches = avro.branches if isinstance(avro, Union) else (avro,)
    return any(str(branch) == _NULL for branch in branches)


def place_of(names: Mapping[str, Any], name: str) -> str | None:
    """The one of some names that is a name; upper and lower case count where both are there."""
    if name in names:
        return name
    alike = [each for each in names if each.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def _record_fits(record: Record, kind: ColumnType, as_json: bool) -> bool:
    if len(shown_fields(record)) < len(record.fields):
        return False
    left = dict(record.fields)
    for field in fields_of(kind):
        name = place_of(left, field["name"])
        if name is None or not fits(left.pop(name).type, field["type"], as_json=as_json):
            return False
    return all(may_be_null(field.type) and _is_shown(field.type) for field in left.values())


def _is_shown(avro: AvroType) -> bool:
    return not isinstance(avro, Union) or branch_of(avro) is not None


def _primitive_fits(avro: Primitive, kind: ColumnType, as_json: bool) -> bool:
    if as_json:
        if avro.kind == "string":
            return _is_text(kind) or (isinstance(kind, str) and kind.startswith(_AS_TEXT))
        return kind in _FITTING.get((avro.kind, ""), ()) or (
            avro.kind == "float" and kind == "double"
        )
    if avro.kind == "string":
        return _is_text(kind)
    if avro.logical == "decimal" or (isinstance(kind, str) and decimal_digits(kind)):
        return is_decimal(avro) and _decimal_fits(avro, kind)
    return kind in _FITTING.get((avro.kind, avro.logical), _FITTING.get((avro.kind, ""), ()))


def _decimal_fits(avro: Primitive | Fixed, kind: ColumnType) -> bool:
    digits = decimal_digits(kind) if isinstance(kind, str) else None
    return digits is not None and avro.precision >= digits[0] and avro.scale == digits[1]


def _is_text(kind: ColumnType) -> bool:
    return isinstance(kind, str) and _TEXT.fullmatch(kind) is not None


class _Definitions:
    """Definitions in Avro's JSON. ``path`` is where a column is, for errors.

    A record within another one has the name of its field as classes are named, because some clients
    tell records by it: that of ``shipping_address`` is ``ShippingAddress``. Its namespace is the
    other one's full name.
    """

    def __init__(self, schema_type: SchemaType) -> None:
        self._as_json = schema_type is SchemaType.JSON
        self._names: set[str] = set()

    def record(self, kind: ColumnType, name: str, space: str, path: str) -> dict[str, Any]:
        fields = fields_of(kind)
        if not fields:
            raise NoSchemaError(f"column '{path or 'value'}' is a struct without fields")
        names: dict[str, str] = {}
        for field in fields:
            other = names.setdefault(field["name"].lower(), field["name"])
            if other != field["name"]:
                raise NoSchemaError(
                    f"columns '{other}' and '{field['name']}' differ in upper and lower case only; "
                    "rename one"
                )
        inner = f"{space}.{name}" if space else name
        record: dict[str, Any] = {"type": "record", "name": name}
        if space:
            record["namespace"] = space
        for name in names.values():
            if _NAME.fullmatch(name) is None:
                where = f"{path}.{name}" if path else name
                raise NoSchemaError(
                    f"column '{where}' cannot be a field: a name has only ASCII letters, "
                    "digits and '_', and does not begin with a digit; rename it, for "
                    f"instance to '{_valid_name(name, names)}'"
                )
        return {**record, "fields": [self._field(field, inner, path) for field in fields]}

    def _field(self, field: Mapping[str, Any], space: str, path: str) -> dict[str, Any]:
        name = field["name"]
        where = f"{path}.{name}" if path else name
        found = self._type(field["type"], name, space, where)
        if not field.get("nullable", True):
            return {"name": name, "type": found}
        return {"name": name, "type": [_NULL, found], "default": None}

    def _type(self, kind: ColumnType, name: str, space: str, path: str) -> Any:
        if isinstance(kind, str):
            return self._simple(kind, path)
        match kind["type"]:
            case "struct":
                return self.record(kind, self._class_name(name, space), space, path)
            case "array":
                items = self._type(kind["elementType"], name, space, f"{path}[]")
                return {"type": "array", "items": items}
            case "map":
                if not _is_text(kind["keyType"]):
                    raise NoSchemaError(
                        f"column '{path}' is a map by {kind['keyType']}; keys have to be strings: "
                        "cast them, or make it an array of structs"
                    )
                values = self._type(kind["valueType"], name, space, f"{path}[]")
                return {"type": "map", "values": values}
        raise _none(path, kind["type"])

    def _class_name(self, name: str, space: str) -> str:
        found = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
        if _NAME.fullmatch(found) is None or f"{space}.{found}" in self._names:
            found = name
        self._names.add(f"{space}.{found}")
        return found

    def _simple(self, kind: str, path: str) -> Any:
        digits = decimal_digits(kind)
        if self._as_json and (digits or kind in _AS_TEXT):
            return "string"
        if digits:
            precision, scale = digits
            return {
                "type": "bytes",
                "logicalType": "decimal",
                "precision": precision,
                "scale": scale,
            }
        if _is_text(kind):
            return "string"
        if kind not in _AVRO or (self._as_json and kind == LOCAL_TIMESTAMP):
            raise _none(path, kind)
        return _AVRO[kind]

    def extended(self, definition: dict[str, Any], avro: Record, kind: ColumnType) -> Any:
        """A record's definition with what a struct has more, or otherwise."""
        derived = self.record(kind, avro.simple_name, avro.name.rpartition(".")[0], "")
        own = {field["name"]: field for field in derived["fields"]}
        fields = []
        for field in definition["fields"]:
            old = avro.fields[field["name"]]
            name = place_of(own, field["name"])
            if name is None:
                if may_be_null(old.type):
                    fields.append(field)
                continue
            new = own.pop(name)
            column = next(each for each in fields_of(kind) if each["name"] == name)
            if fits(old.type, column["type"], as_json=self._as_json):
                fields.append(field)
            else:
                fields.append(self._nested(field, old.type, column) or new)
        return {**definition, "fields": [*fields, *map(_optional, own.values())]}

    def _nested(
        self, field: dict[str, Any], avro: AvroType, column: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """A field whose record is extended within; ``None`` if it is none, or defined elsewhere."""
        given = field["type"]
        record = branch_of(avro) if isinstance(avro, Union) else avro
        branches = given if isinstance(given, list) else [given]
        inline = [b for b in branches if isinstance(b, dict) and b.get("type") == "record"]
        if not isinstance(record, Record) or not fields_of(column["type"]) or len(inline) != 1:
            return None
        found = self.extended(inline[0], record, column["type"])
        return {**field, "type": [found if b is inline[0] else b for b in branches]}


def _optional(field: dict[str, Any]) -> dict[str, Any]:
    """A field that values before it lack."""
    if "default" in field:
        return field
    return {**field, "type": [_NULL, field["type"]], "default": None}


def _valid_name(name: str, taken: Container[str]) -> str:
    """Return a name like the given one that a field may have; ``taken`` are in lower case."""
    plain = unicodedata.normalize("NFKD", name)
    plain = "".join(each for each in plain if not unicodedata.combining(each))
    plain = re.sub(r"[^A-Za-z0-9_]", "_", plain)
    plain = plain if _NAME.fullmatch(plain) else f"_{plain}"
    candidates = itertools.chain([plain], (f"{plain}_{number}" for number in itertools.count(2)))
    return next(each for each in candidates if each.lower() not in taken)


def _none(path: str, kind: str) -> NoSchemaError:
    cure = "cast it to timestamp" if kind == "timestamp_ntz" else "cast it, or leave it out"
    return NoSchemaError(f"column '{path}' is {kind}, which no schema describes; {cure}")
