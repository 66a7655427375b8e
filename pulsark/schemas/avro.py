"""Avro definitions, parsed: JSON in, types out, with all names resolved.

What a definition may say follows the Avro specification and, where that leaves room, the Java
parser that Pulsar's brokers use: defaults are not checked against their types, unknown
attributes are skipped, and names may contain ``$``. So every schema that Pulsar accepts is
accepted here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pulsark.limits import SCHEMA_DEPTH_MAX
from pulsark.schemas.definition import InvalidSchemaDataError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"[^\W\d][\w$]*|\$[\w$]*")


# Types are compared by identity: a record that contains itself has no end.
@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """``null``, ``boolean``, ``int``, ``long``, ``float``, ``double``, ``bytes``, ``string``.

    ``logical`` is the logical type, for instance ``date``. It matters for showing the data, not for
    whether one schema reads another.
    """

    kind: str
    logical: str = ""
    precision: int = 0
    """Precision and scale of a ``decimal``."""
    scale: int = 0

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """Values of one type."""

    items: AvroType

    def __str__(self) -> str:
        return "array"


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """Values of one type by text."""

    values: AvroType

    def __str__(self) -> str:
        return "map"


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """One of several types."""

    branches: tuple[AvroType, ...]

    def __str__(self) -> str:
        return "union"


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """``name`` and ``aliases`` are full names: with their namespace."""

    name: str
    aliases: frozenset[str]

    @property
    def simple_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True, eq=False)
class Enumeration(Named):
    """One of some symbols, which data names by their index."""

    symbols: tuple[str, ...]

    def __str__(self) -> str:
        return f"enum {self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Fixed(Named):
    """A fixed number of bytes.

    ``precision`` and ``scale`` are those of a ``decimal``; a precision of 0 means plain bytes.
    """

    size: int
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"fixed {self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    aliases: tuple[str, ...]
    type: AvroType
    has_default: bool


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Record(Named):
    """Fields by name, in order. They are filled in while parsing: a field may hold the record."""

    fields: dict[str, AvroField] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the name alone: fields that share their types would be shown times two a level."""
        return f"Record({self.name!r})"

    def __str__(self) -> str:
        return f"record {self.name}"


AvroType: TypeAlias = Primitive | Array | Map | Union | Enumeration | Fixed | Record

PRIMITIVES = {
    kind: Primitive(kind)
    for kind in ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
}


def load_json(data: bytes) -> Any:
    """The JSON of a definition. Raises ``InvalidSchemaDataError``."""
    try:
        return json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaDataError(f"The definition is not JSON: {_short(error)}") from None


def parse_avro(definition: Any) -> AvroType:
    """The type that a definition's JSON describes. Raises ``InvalidSchemaDataError``."""
    return _Parser().type(definition, "", 1)


class _Parser:
    """One definition: names are known from where they are defined on."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def type(self, given: Any, namespace: str, depth: int) -> AvroType:
        """A type; names without a namespace are in ``namespace``."""
        if depth > SCHEMA_DEPTH_MAX:
            raise InvalidSchemaDataError(
                f"Types are nested more than {SCHEMA_DEPTH_MAX} levels deep"
            )
        if isinstance(given, str):
            return self._reference(given, namespace)
        if isinstance(given, list):
            return self._union(given, namespace, depth)
        if not isinstance(given, dict):
            raise InvalidSchemaDataError(f"{_short(given)} is not a type")
        kind = given.get("type")
        match kind:
            case "record" | "error":
                return self._record(given, namespace, depth)
            case "enum":
                return self._enumeration(given, namespace)
            case "fixed":
                return self._fixed(given, namespace)
            case "array":
                return Array(self._inner(given, "items", namespace, depth))
            case "map":
                return Map(self._inner(given, "values", namespace, depth))
            case str():
                return _with_logical(self._reference(kind, namespace), given)
        raise InvalidSchemaDataError(f'A type has a "type" that is a text, not {_short(kind)}')

    def _reference(self, name: str, namespace: str) -> AvroType:
        primitive = PRIMITIVES.get(name)
        if primitive is not None:
            return primitive
        found = self._named.get(_full_name(name, namespace)) or self._named.get(name)
        if found is None:
            raise InvalidSchemaDataError(f"Type {_short(name)} is not defined")
        return found

    def _inner(self, given: dict[str, Any], key: str, namespace: str, depth: int) -> AvroType:
        if key not in given:
            raise InvalidSchemaDataError(f'{given["type"]}: "{key}" is missing')
        return self.type(given[key], namespace, depth + 1)

    def _union(self, given: list[Any], namespace: str, depth: int) -> Union:
        branches: dict[str, AvroType] = {}
        for branch in given:
            parsed = self.type(branch, namespace, depth + 1)
            if isinstance(parsed, Union):
                raise InvalidSchemaDataError("A union holds another union directly")
            if str(parsed) in branches:
                raise InvalidSchemaDataError(f"A union holds {_short(parsed)} twice")
            branches[str(parsed)] = parsed
        return Union(tuple(branches.values()))

    def _record(self, given: dict[str, Any], namespace: str, depth: int) -> Record:
        name = self._new_name(given, namespace)
        record = Record(name, _aliases(given, name))
        self._named[name] = record
        inner = name.rpartition(".")[0]
        for each in _list(given, "fields", record):
            parsed = self._field(each, record, inner, depth)
            if parsed.name in record.fields:
                raise InvalidSchemaDataError(f"{record}: field {parsed.name} is there twice")
            record.fields[parsed.name] = parsed
        return record

    def _field(self, given: Any, record: Record, namespace: str, depth: int) -> AvroField:
        if not isinstance(given, dict):
            raise InvalidSchemaDataError(f"{record}: {_short(given)} is not a field")
        name = _checked_name(given.get("name"), f"{record}: a field")
        where = f"{record}, field {name}"
        if "type" not in given:
            raise InvalidSchemaDataError(f'{where}: "type" is missing')
        try:
            parsed = self.type(given["type"], namespace, depth + 1)
        except InvalidSchemaDataError as error:
            raise InvalidSchemaDataError(f"{where}: {error}") from None
        aliases = tuple(_texts(given.get("aliases", []), where, "aliases"))
        return AvroField(name, aliases, parsed, "default" in given)

    def _enumeration(self, given: dict[str, Any], namespace: str) -> Enumeration:
        name = self._new_name(given, namespace)
        where = f"enum {name}"
        given_symbols = list(_texts(_list(given, "symbols", where), where, "symbols"))
        symbols = tuple(_checked_name(symbol, f"{where}: a symbol") for symbol in given_symbols)
        if len(set(symbols)) < len(symbols):
            raise InvalidSchemaDataError(f"{where}: a symbol is there twice")
        default = given.get("default")
        if isinstance(default, str) and default not in symbols:
            raise InvalidSchemaDataError(f"{where}: {_short(default)} is not one of its symbols")
        parsed = Enumeration(name, _aliases(given, name), symbols)
        self._named[name] = parsed
        return parsed

    def _fixed(self, given: dict[str, Any], namespace: str) -> Fixed:
        name = self._new_name(given, namespace)
        size = given.get("size")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 31:
            raise InvalidSchemaDataError(f'fixed {name}: "size" is a number of bytes')
        digits = (0, 0)
        if given.get("logicalType") == "decimal":
            found = _digits_of(given)
            # If the digits do not fit in the bytes, the bytes alone count, as in the specification.
            if found is not None and (size > 16 or 1 << 8 * size > 2 * 10 ** min(found[0], 39)):
                digits = found
        parsed = Fixed(name, _aliases(given, name), size, *digits)
        self._named[name] = parsed
        return parsed

    def _new_name(self, given: dict[str, Any], namespace: str) -> str:
        name = given.get("name")
        if isinstance(name, str) and "." not in name:
            space = given.get("namespace")
            name = _full_name(name, space if isinstance(space, str) else namespace)
        if not isinstance(name, str):
            raise InvalidSchemaDataError(f'{given["type"]}: "name" is missing')
        _checked_name(name.rpartition(".")[2], str(given["type"]))
        if name in PRIMITIVES:
            raise InvalidSchemaDataError(f"{given['type']} cannot be named like the type {name}")
        if name in self._named:
            raise InvalidSchemaDataError(f"Type {_short(name)} is defined twice")
        return name


def _with_logical(found: AvroType, given: dict[str, Any]) -> AvroType:
    logical = given.get("logicalType")
    if not isinstance(found, Primitive) or not isinstance(logical, str):
        return found
    if logical == "decimal":
        digits = _digits_of(given)
        if digits is None:
            return found  # as the specification has it: the bytes alone count
        return Primitive(found.kind, logical, *digits)
    return Primitive(found.kind, logical)


def _digits_of(given: dict[str, Any]) -> tuple[int, int] | None:
    """Return precision and scale of a decimal, or None if they are not numbers."""
    precision, scale = given.get("precision"), given.get("scale", 0)
    if isinstance(precision, bool) or isinstance(scale, bool):
        return None
    if not isinstance(precision, int) or not isinstance(scale, int):
        return None
    return precision, scale


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _aliases(given: dict[str, Any], name: str) -> frozenset[str]:
    namespace = name.rpartition(".")[0]
    aliases = list(_texts(given.get("aliases", []), name, "aliases"))
    for alias in aliases:
        _checked_name(alias.rpartition(".")[2], f"{name}: an alias")
    return frozenset(_full_name(alias, namespace) for alias in aliases)


def _list(given: dict[str, Any], key: str, where: object) -> list[Any]:
    found = given.get(key)
    if not isinstance(found, list):
        raise InvalidSchemaDataError(f'{where}: "{key}" is a list')
    return found


def _texts(given: Any, where: str, what: str) -> Iterator[str]:
    if not isinstance(given, list):
        raise InvalidSchemaDataError(f'{where}: "{what}" is a list')
    for text in given:
        if not isinstance(text, str):
            raise InvalidSchemaDataError(f'{where}: "{what}" holds {_short(text)}')
        yield text


def _checked_name(given: Any, where: str) -> str:
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        raise InvalidSchemaDataError(f"{where} cannot be named {_short(given)}")
    return given


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _short(given: object) -> str:
    """Anything at a length that fits a message."""
    if isinstance(given, dict | list):
        return "an object" if isinstance(given, dict) else "a list"
    text = repr(given) if isinstance(given, str) else str(given)
    return text if len(text) <= 100 else f"{text[:97]}..."
