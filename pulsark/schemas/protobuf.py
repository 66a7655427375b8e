"""Protobuf definitions: which fields a message has, and how they stand in its payloads.

PROTOBUF_NATIVE describes a message in full. PROTOBUF, as Java's client registers it, has a
definition in Avro, without numbers, and in a property names, numbers and types of the message's own
fields; of those within its fields it says nothing.

Only fields that columns can show are there: no groups, no extensions, no messages without fields or
within themselves, and of names that differ only by upper and lower case the first.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pulsark.limits import SCHEMA_DEPTH_MAX, VALUE_FIELDS_MAX
from pulsark.schemas.avro import load_json
from pulsark.schemas.definition import InvalidSchemaDataError, SchemaData, SchemaType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

PARSING_INFO: Final = "__PARSING_INFO__"
"""The property of a PROTOBUF schema with the message's fields."""

_NUMBER_MAX: Final = (1 << 29) - 1
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KINDS: Final = {
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
    "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
}  # fmt: skip
_KEYS: Final = _KINDS - {"double", "float", "bytes"}
_UNPACKED: Final = {"string", "bytes", "message", "map"}
_MEMOS: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A field. ``kind`` is its type in a ``.proto`` file, ``enum``, ``message`` or ``map``."""

    name: str
    number: int
    kind: str
    repeated: bool = False
    packed: bool | None = False
    """Whether repeated numbers stand together; ``None`` if nothing says so."""
    presence: bool = True
    """Whether a value that is absent differs from a default."""
    oneof: str = ""
    message: Message | None = None
    """The type of a message field; for a map, of its entries, with the fields key and value."""
    symbols: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """Fields in the order of the definition."""

    fields: tuple[Field, ...]


def protobuf_of(schema: SchemaData) -> Message | None:
    """The message of a definition; ``None`` if it is none of Protobuf, or shows nothing."""
    if schema.type is SchemaType.PROTOBUF_NATIVE:
        return _native(schema.data)
    if schema.type is SchemaType.PROTOBUF:
        return _of_parsing_info(schema.properties.get(PARSING_INFO, ""))
    return None


def load_native(data: bytes) -> tuple[str, str, Any]:
    """The root message's name, its file's name and the ``FileDescriptorSet`` of a PROTOBUF_NATIVE
    definition. Raises ``InvalidSchemaDataError``."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    where = "Invalid PROTOBUF_NATIVE definition"
    found = load_json(data)
    names = ("fileDescriptorSet", "rootMessageTypeName", "rootFileDescriptorName")
    if not isinstance(found, dict) or not all(isinstance(found.get(n), str) for n in names):
        raise InvalidSchemaDataError(f"{where}: it is a JSON object with {', '.join(names)}")
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(
            base64.b64decode(found["fileDescriptorSet"], validate=True)
        )
    except (ValueError, DecodeError):
        raise InvalidSchemaDataError(f"{where}: fileDescriptorSet cannot be decoded") from None
    return found["rootMessageTypeName"], found["rootFileDescriptorName"], files


@lru_cache(_MEMOS)
def _native(data: bytes) -> Message | None:
    try:
        root, _, files = load_native(data)
        return _Walk().message(_descriptor(root, files.file), ())
    except (InvalidSchemaDataError, _NothingToShow):
        return None


class _NothingToShow(Exception):
    """A definition that is incomplete or too large."""


def _descriptor(root: str, files: Sequence[Any]) -> Any:
    """The message's descriptor, from files in any order."""
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    for file in _imported_first(files):
        try:
            pool.Add(file)
        except (TypeError, ValueError):
            # Something that it needs is missing, or it contradicts itself.
            raise _NothingToShow from None
    try:
        return pool.FindMessageTypeByName(root)
    except KeyError:
        raise _NothingToShow from None


def _imported_first(files: Sequence[Any]) -> Iterator[Any]:
    """Return files in an order in which each follows those that it imports."""
    by_name = {file.name: file for file in files}
    waits: dict[str, int] = {}
    importers: dict[str, list[str]] = {}
    for name, file in by_name.items():
        imports = {each for each in file.dependency if each in by_name}
        waits[name] = len(imports)
        for each in imports:
            importers.setdefault(each, []).append(name)
    ready = [name for name, count in waits.items() if not count]
    for name in ready:  # grows
        yield by_name[name]
        for importer in importers.get(name, ()):
            waits[importer] -= 1
            if not waits[importer]:
                ready.append(importer)
    if len(ready) < len(by_name):
        raise _NothingToShow


class _Walk:
    """Counts the fields, wherever they are."""

    def __init__(self) -> None:
        self._left = VALUE_FIELDS_MAX

    def message(self, descriptor: Any, inside: tuple[str, ...]) -> Message | None:
        if descriptor.full_name in inside or len(inside) >= SCHEMA_DEPTH_MAX:
            return None
        inside = (*inside, descriptor.full_name)
        return _message(self._field(each, inside) for each in descriptor.fields)

    def _field(self, given: Any, inside: tuple[str, ...]) -> Field | None:
        from google.protobuf.descriptor_pb2 import FieldDescriptorProto

        self._left -= 1
        if self._left < 0:
            raise _NothingToShow
        kind = FieldDescriptorProto.Type.Name(given.type).removeprefix("TYPE_").lower()
        message = None
        if kind == "message":
            message = self.message(given.message_type, inside)
            if message is None:
                return None
            if given.message_type.GetOptions().map_entry:
                kind = "map"
                if not _is_entry(message):
                    return None
        elif kind not in _KINDS and kind != "enum":
            return None
        symbols: dict[int, str] = {}
        if kind == "enum":
            for value in given.enum_type.values:
                symbols.setdefault(value.number, value.name)
        oneof = given.containing_oneof
        return Field(
            given.name,
            given.number,
            kind,
            given.is_repeated,
            given.is_packed,
            given.has_presence,
            oneof.name if oneof is not None and len(oneof.fields) > 1 else "",
            message,
            symbols,
        )


def _is_entry(message: Message) -> bool:
    """Whether both key and value can be shown."""
    numbers = [each.number for each in message.fields]
    return numbers == [1, 2] and message.fields[0].kind in _KEYS


@lru_cache(_MEMOS)
def _of_parsing_info(text: str) -> Message | None:
    try:
        found = load_json(text.encode())
        if not isinstance(found, list) or len(found) > VALUE_FIELDS_MAX:
            return None
        fields = [_of_info(each) for each in found]
    except (InvalidSchemaDataError, KeyError, TypeError, ValueError):
        return None
    if len({each.number for each in fields if each}) < sum(each is not None for each in fields):
        return None
    return _message(fields)


def _of_info(given: Mapping[str, Any]) -> Field | None:
    """Nothing says what numbers an enum has, or a message within: they are numbers and bytes.

    Neither is it said whether an absent number is a zero; it stays absent.
    """
    name, number, kind = given["name"], given["number"], given["type"].lower()
    if not _NAME.fullmatch(name) or isinstance(number, bool) or not 0 < number <= _NUMBER_MAX:
        raise ValueError(f"{name!r:.50} with the number {number!r:.50} is no field")
    kind = {"enum": "int32", "message": "bytes"}.get(kind, kind)
    if kind not in _KINDS:
        return None
    repeated = given["label"] == "LABEL_REPEATED"
    packed = None if repeated and kind not in _UNPACKED else False
    return Field(name, int(number), kind, repeated, packed)


def _message(fields: Iterable[Field | None]) -> Message | None:
    shown: dict[str, Field] = {}
    for each in fields:
        if each is not None:
            shown.setdefault(each.name.lower(), each)
    return Message(tuple(shown.values())) if shown else None
