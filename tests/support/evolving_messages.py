"""Random key-value schemas and Protobuf messages that evolve, beside ``evolving_schemas``."""

from __future__ import annotations

import json
import random
import struct
from itertools import count
from typing import Any, Protocol

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor

from pulsark.schemas.compatibility import check
from pulsark.schemas.definition import IncompatibleSchemaError, SchemaData, SchemaType
from pulsark.schemas.key_value import ENCODING_PROPERTY, from_text
from pulsark.schemas.parsed import parse
from pulsark.schemas.protobuf import PARSING_INFO
from pulsark.schemas.strategies import SchemaCompatibilityStrategy
from tests.support.evolving_schemas import Evolution, Opaque
from tests.support.protobuf_messages import class_of, entry, enumeration, file, message, native, one

F = descriptor_pb2.FieldDescriptorProto
VERSIONS = 4

_KINDS = (
    F.TYPE_DOUBLE, F.TYPE_FLOAT, F.TYPE_INT32, F.TYPE_INT64, F.TYPE_UINT32, F.TYPE_UINT64,
    F.TYPE_SINT32, F.TYPE_SINT64, F.TYPE_FIXED32, F.TYPE_FIXED64, F.TYPE_SFIXED32,
    F.TYPE_SFIXED64, F.TYPE_BOOL, F.TYPE_STRING, F.TYPE_BYTES,
)  # fmt: skip
_OTHER_KINDS = ("E", "Inner", "Inner", "R", "Nothing")

KINDS = ("AVRO", "JSON", "INLINE", "SEPARATED", "PROTOBUF", "PROTOBUF_NATIVE")
"""What evolves: a type of schema, or how messages of a key-value schema have their key."""


class Evolving(Protocol):
    """Versions of one schema. What a definition is, only the class knows."""

    kind: SchemaType
    definitions: list[Any]

    def schema(self, definition: Any) -> SchemaData: ...
    def value(self, definition: Any) -> Any: ...
    def payload(self, definition: Any, value: Any) -> bytes: ...
    def shown(self, definition: Any, value: Any) -> Any: ...


def evolution_of(seed: int, kind: str, strategy: SchemaCompatibilityStrategy) -> Evolving:
    """Return versions of one of ``KINDS``, each accepted by a strategy after those before it."""
    if kind in ("INLINE", "SEPARATED"):
        return PairEvolution(seed, kind, strategy)
    if kind.startswith("PROTOBUF"):
        return ProtobufEvolution(seed, SchemaType[kind], strategy)
    return Evolution(seed, SchemaType[kind], strategy)


class PairEvolution:
    """Versions of a key-value schema: key and value evolve, each by itself."""

    kind = SchemaType.KEY_VALUE

    def __init__(self, seed: int, encoding: str, strategy: SchemaCompatibilityStrategy) -> None:
        self.rng = random.Random(seed)
        self.encoding = encoding
        kinds = (SchemaType.AVRO, SchemaType.JSON)
        self.key, self.value_part = (
            None
            if self.rng.random() < 0.25
            else Evolution(seed + 1_000_000 * number, self.rng.choice(kinds), strategy)
            for number in (1, 2)
        )
        parts = [len(part.definitions) for part in (self.key, self.value_part) if part]
        self.definitions = list(range(max(parts, default=1)))

    def schema(self, definition: int) -> SchemaData:
        """Return the schema of one version."""
        texts = {"key": "", "value": ""}
        properties = {ENCODING_PROPERTY: self.encoding}
        for name, part in (("key", self.key), ("value", self.value_part)):
            properties[f"{name}.schema.type"] = "STRING" if part is None else part.kind.name
            texts[name] = "" if part is None else _version(part, definition)
        return SchemaData(self.kind, from_text(json.dumps(texts)), properties)

    def value(self, definition: int) -> Any:
        """Return a random pair."""
        return [
            self.rng.choice(["", "k", "ünï🚀"])
            if part is None
            else part.value(_version(part, definition))
            for part in (self.key, self.value_part)
        ]

    def parts(self, definition: int, value: Any) -> tuple[bytes, bytes]:
        """Return the bytes of key and value."""
        key, found = (
            text.encode() if part is None else part.payload(_version(part, definition), text)
            for part, text in zip((self.key, self.value_part), value, strict=True)
        )
        return key, found

    def payload(self, definition: int, value: Any) -> bytes:
        """Return what a client sends besides the message's key."""
        key, found = self.parts(definition, value)
        if self.encoding == "SEPARATED":
            return found
        return struct.pack(">i", len(key)) + key + struct.pack(">i", len(found)) + found

    def shown(self, definition: int, value: Any) -> Any:
        """Return what readers show of a value."""
        key, found = value
        if self.encoding == "INLINE":
            return {"key": key, "value": found}
        return found


def _version(part: Evolution, number: int) -> Any:
    return part.definitions[min(number, len(part.definitions) - 1)]


class ProtobufEvolution:
    """Versions of a message; its definitions are files. All but one strategy accept any change.

    PROTOBUF_NATIVE has whole descriptors; PROTOBUF, as Java's client registers it, has names,
    numbers and types of the message's own fields.
    """

    def __init__(self, seed: int, kind: SchemaType, strategy: SchemaCompatibilityStrategy) -> None:
        self.rng = random.Random(seed)
        self.kind = kind
        self._numbers = count()
        self._symbols = 3
        self._classes: dict[bytes, Any] = {}
        inner = [self._field(2) for _ in range(2)]
        self._definition: list[list[Any]] = [[self._field(1) for _ in range(4)], inner]
        self.definitions = [self._file()]
        for _ in range(VERSIONS * 3):
            before = json.dumps(self._definition), self._symbols
            self._change()
            new = self._file()
            versions = [parse(self.schema(each)) for each in self.definitions]
            try:
                check(versions, parse(self.schema(new)), strategy)
            except IncompatibleSchemaError:
                self._definition, self._symbols = json.loads(before[0]), before[1]
                continue
            self.definitions.append(new)
            if len(self.definitions) == VERSIONS:
                break

    def schema(self, definition: Any) -> SchemaData:
        """Return the schema of one version."""
        if self.kind is SchemaType.PROTOBUF_NATIVE:
            return native(definition)
        fields = [
            {
                "number": field.number,
                "name": field.name,
                "type": F.Type.Name(field.type).removeprefix("TYPE_"),
                "label": F.Label.Name(field.label),
                "definition": None,
            }
            for field in definition.message_type[0].field
        ]
        avro = {"type": "record", "name": "R", "fields": []}
        return SchemaData(self.kind, json.dumps(avro).encode(), {PARSING_INFO: json.dumps(fields)})

    def class_of(self, definition: Any) -> Any:
        """Return the class of one version's messages, always the same."""
        name = definition.SerializeToString()
        if name not in self._classes:
            self._classes[name] = class_of(definition)
        return self._classes[name]

    def value(self, definition: Any) -> Any:
        """Return a random message."""
        found = self.class_of(definition)()
        self._fill(found, 0)
        return found

    def payload(self, definition: Any, value: Any) -> bytes:
        """Return what a client sends."""
        return bytes(value.SerializeToString())

    def shown(self, definition: Any, value: Any) -> Any:
        """Return what readers show of a value."""
        return self._shown(value)

    # -- definitions -----------------------------------------------------------------------

    def _field(self, depth: int) -> list[Any]:
        """Return name, number, kind, and how often: once, optional, in a oneof, many or a map."""
        number = next(self._numbers)
        kind: Any = self.rng.choice(_KINDS)
        if self.rng.random() < 0.4:
            kind = self.rng.choice(_OTHER_KINDS[:1] if depth > 1 else _OTHER_KINDS)
        # In PROTOBUF a map is a list of its entries' bytes.
        last = "many" if self.kind is SchemaType.PROTOBUF else "map"
        how = self.rng.choice(["once", "once", "optional", "oneof", "many", last])
        return [f"n{number}", number + 1, kind, how]

    def _change(self) -> None:
        fields = self.rng.choice(self._definition)
        field = self.rng.choice(fields)
        depth = 1 + (fields is self._definition[1])
        match self.rng.randint(0, 5):
            case 0:
                fields.insert(self.rng.randint(0, len(fields)), self._field(depth))
            case 1 if len(fields) > 1:
                fields.remove(field)
            case 2:
                field[1] = next(self._numbers) + 1
            case 3:
                self._symbols += 1
            case _:
                field[2:] = self._field(depth)[2:]

    def _file(self) -> Any:
        names = ("R", "Inner")
        messages = [
            _message(name, fields) for name, fields in zip(names, self._definition, strict=True)
        ]
        symbols = {f"S{number}": number * number for number in range(self._symbols)}
        return file(*messages, message("Nothing"), enums=[enumeration("E", **symbols)])

    # -- values ----------------------------------------------------------------------------

    def _fill(self, found: Any, depth: int) -> None:
        for field in found.DESCRIPTOR.fields:
            if self.rng.random() < 0.3:
                continue
            is_message = field.type == FieldDescriptor.TYPE_MESSAGE
            if is_message and depth > 2:
                continue
            if is_message and field.message_type.GetOptions().map_entry:
                key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
                for _ in range(self.rng.randint(0, 3)):
                    held = getattr(found, field.name)
                    if value.type == FieldDescriptor.TYPE_MESSAGE:
                        self._fill(held[self._one(key)], depth + 1)
                    else:
                        held[self._one(key)] = self._one(value)
            elif field.is_repeated:
                for _ in range(self.rng.randint(0, 3)):
                    if is_message:
                        self._fill(getattr(found, field.name).add(), depth + 1)
                    else:
                        getattr(found, field.name).append(self._one(field))
            elif is_message:
                getattr(found, field.name).SetInParent()
                self._fill(getattr(found, field.name), depth + 1)
            else:
                setattr(found, field.name, self._one(field))

    def _one(self, field: Any) -> Any:
        rng = self.rng
        if field.enum_type is not None:
            return rng.choice([0, 1, 4, 7])
        name = F.Type.Name(field.type).removeprefix("TYPE_").lower()
        match name:
            case "double":
                return rng.choice([0.0, -0.0, 1e300, 0.1, float("inf")])
            case "float":
                return struct.unpack("<f", struct.pack("<f", rng.choice([0.0, 0.1, 3e38])))[0]
            case "bool":
                return rng.random() < 0.5
            case "string":
                return rng.choice(["", "x", "ünï🚀"])
            case "bytes":
                return rng.choice([b"", b"ab", b"\xff"])
        bits = 32 if "32" in name else 64
        if name.startswith(("uint", "fixed")):
            return rng.choice([0, 1, (1 << bits) - 1, rng.randrange(1 << bits)])
        end = 1 << (bits - 1)
        return rng.choice([0, -1, end - 1, -end, rng.randrange(-end, end)])

    def _shown(self, found: Any) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for field in found.DESCRIPTOR.fields:
            value = getattr(found, field.name)
            if field.is_repeated:
                shown[field.name] = self._shown_many(field, value)
            elif field.has_presence and not found.HasField(field.name):
                shown[field.name] = None
            elif self.kind is SchemaType.PROTOBUF and not field.has_presence and _is_zero(value):
                shown[field.name] = None  # It does not say whether an absent number is a zero.
            else:
                shown[field.name] = self._shown_one(field, value)
        return shown

    def _shown_many(self, field: Any, values: Any) -> Any:
        if not values:
            return None
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            return {key: self._shown_one(inner, value) for key, value in values.items()}
        return [self._shown_one(field, value) for value in values]

    def _shown_one(self, field: Any, value: Any) -> Any:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if self.kind is SchemaType.PROTOBUF:
                return value.SerializeToString()
            return self._shown(value)
        if field.enum_type is not None and self.kind is not SchemaType.PROTOBUF:
            symbol = field.enum_type.values_by_number.get(value)
            return Opaque() if symbol is None else symbol.name
        return value


def _message(name: str, fields: list[list[Any]]) -> Any:
    found = message(name)
    for field_name, number, kind, how in fields:
        if how == "oneof":
            if not found.oneof_decl:
                found.oneof_decl.add(name="choice")
            found.field.append(one(field_name, number, kind, oneof_index=0))
        elif how == "map":
            entry_name = f"N{field_name[1:]}Entry"
            found.nested_type.append(entry(entry_name, F.TYPE_STRING, kind))
            found.field.append(
                one(field_name, number, f"{name}.{entry_name}", label=F.LABEL_REPEATED)
            )
        else:
            label = F.LABEL_REPEATED if how == "many" else F.LABEL_OPTIONAL
            found.field.append(one(field_name, number, kind, label=label))
    for field_proto, (_, _, _, how) in zip(found.field, fields, strict=True):
        if how == "optional" and field_proto.type != F.TYPE_MESSAGE:
            field_proto.proto3_optional = True
            field_proto.oneof_index = len(found.oneof_decl)
            found.oneof_decl.add(name=f"_{field_proto.name}")
    return found


def _is_zero(value: Any) -> bool:
    """Return whether a value is not written; minus zero is."""
    return not value and not str(value).startswith("-")
