"""What a definition says: checked, comparable, and able to tell which data it reads."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, TypeAlias

from pulsark.schemas import key_value
from pulsark.schemas.avro import AvroType, Union, load_json, parse_avro
from pulsark.schemas.avro_resolution import Effort, why_unreadable
from pulsark.schemas.definition import InvalidSchemaDataError, SchemaData, SchemaType
from pulsark.schemas.protobuf import PARSING_INFO, load_native

_AVRO_DESCRIBED = (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF)
_OF_CLIENTS = (SchemaType.AUTO, SchemaType.AUTO_CONSUME, SchemaType.AUTO_PUBLISH)
_UNCHECKED = (SchemaType.NONE, SchemaType.BYTES)
_STRING_OF_PYTHON = (SchemaType.STRING, b"null")
"""How Pulsar's Python client spells that a string has no definition."""
_JSON_SCHEMA_TYPES = ["any", "array", "boolean", "integer", "null", "number", "object", "string"]
_PARTS_DEPTH_MAX = 4
"""The format allows pairs within pairs; this bounds the nesting."""


@dataclass(frozen=True, slots=True)
class AvroDescribed:
    """AVRO, and JSON and PROTOBUF, whose data has another encoding but a definition in Avro."""

    type: AvroType


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON as clients before Pulsar 2.1 described it: a JSON Schema. Only its id counts."""

    id: str


@dataclass(frozen=True, slots=True)
class ProtobufNative:
    """PROTOBUF_NATIVE: protobuf's own rules keep versions readable, if the message is the same."""

    root_message: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """A primitive type, or bytes: its name says all."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """KEY_VALUE: two schemas."""

    key: Parsed
    value: Parsed


Form: TypeAlias = AvroDescribed | JsonSchema | ProtobufNative | Opaque | KeyValue


@dataclass(frozen=True, slots=True)
class Parsed:
    """A valid schema. Schemas that mean the same have the same fingerprint (hexadecimal)."""

    type: SchemaType
    form: Form
    fingerprint: str
    field_numbers: str = ""
    """What a PROTOBUF schema says of its fields' numbers and types; empty if it does not.

    The definition in Avro, which compatibility and the fingerprint go by, has only the names. Two
    schemas with one fingerprint may number their fields differently.
    """


def parse(schema: SchemaData, depth: int = 1) -> Parsed:
    """Check a definition. Raises ``InvalidSchemaDataError``."""
    form: Form = Opaque()
    canonical = schema.data
    if schema.type in _AVRO_DESCRIBED:
        form, canonical = _parse_avro_described(schema)
    elif schema.type is SchemaType.PROTOBUF_NATIVE:
        form = ProtobufNative(_root_message(schema.data))
    elif schema.type is SchemaType.KEY_VALUE:
        form, canonical = _parse_key_value(schema, depth)
    elif schema.type in _OF_CLIENTS:
        raise InvalidSchemaDataError(
            f"Schema type {schema.type.name} is for clients; a topic has none of it"
        )
    elif schema.type not in _UNCHECKED:
        canonical = b""
        if schema.data and (schema.type, schema.data) != _STRING_OF_PYTHON:
            raise InvalidSchemaDataError(
                f"A {schema.type.name} schema has no definition, but {len(schema.data)} bytes came"
            )
    digest = hashlib.sha256(schema.type.name.encode() + b"\0" + canonical)
    return Parsed(schema.type, form, digest.hexdigest(), _field_numbers(schema, form))


def _field_numbers(schema: SchemaData, form: Form) -> str:
    if isinstance(form, KeyValue):
        parts = [form.key.field_numbers, form.value.field_numbers]
        return json.dumps(parts) if any(parts) else ""
    text = schema.properties.get(PARSING_INFO, "") if schema.type is SchemaType.PROTOBUF else ""
    try:
        return json.dumps(load_json(text.encode()), sort_keys=True) if text else ""
    except (InvalidSchemaDataError, RecursionError, UnicodeEncodeError):
        return text


def _parse_key_value(schema: SchemaData, depth: int) -> tuple[KeyValue, bytes]:
    if depth > _PARTS_DEPTH_MAX:
        raise InvalidSchemaDataError("KEY_VALUE schemas are nested too deep")
    key, value = (parse(part, depth + 1) for part in key_value.split(schema))
    encoding = schema.properties.get(key_value.ENCODING_PROPERTY, "")
    canonical = "\0".join((key.fingerprint, value.fingerprint, encoding))
    return KeyValue(key, value), canonical.encode("utf-8", "surrogatepass")


def _parse_avro_described(schema: SchemaData) -> tuple[AvroDescribed | JsonSchema, bytes]:
    try:
        found = load_json(schema.data)
        # Sorted and without spaces and comments, two texts of one definition are the same.
        canonical = json.dumps(_without_docs(found), sort_keys=True, separators=(",", ":"))
        return _form_of(schema.type, found), canonical.encode()
    except RecursionError:
        raise InvalidSchemaDataError("The definition is nested too deep") from None
    except InvalidSchemaDataError as error:
        raise InvalidSchemaDataError(f"Invalid {schema.type.name} definition: {error}") from None


def _form_of(schema_type: SchemaType, found: Any) -> AvroDescribed | JsonSchema:
    try:
        form = parse_avro(found)
    except InvalidSchemaDataError:
        if schema_type is SchemaType.JSON and _is_json_schema(found):
            return JsonSchema(str(found.get("id", "")))
        raise
    if schema_type is SchemaType.AVRO and isinstance(form, Union):
        raise InvalidSchemaDataError("a union at the top is not supported")
    return AvroDescribed(form)


def _is_json_schema(found: Any) -> bool:
    return isinstance(found, dict) and found.get("type") in _JSON_SCHEMA_TYPES


def _without_docs(definition: Any) -> Any:
    """A definition without the texts for people; defaults are data and stay as they are."""
    if isinstance(definition, list):
        return [_without_docs(each) for each in definition]
    if not isinstance(definition, dict):
        return definition
    return {
        key: value if key == "default" else _without_docs(value)
        for key, value in definition.items()
        if key != "doc" or not isinstance(value, str)
    }


def _root_message(data: bytes) -> str:
    """The full name of the message that a PROTOBUF_NATIVE definition describes."""
    root, root_file, files = load_native(data)
    for file in files.file:
        if file.name == root_file:
            package = f"{file.package}." if file.package else ""
            messages = file.message_type
            if root.startswith(package):
                for step in root.removeprefix(package).split("."):
                    message = next((m for m in messages if m.name == step), None)
                    if message is None:
                        break
                    messages = message.nested_type
                else:
                    return root
    raise InvalidSchemaDataError(
        f"Invalid PROTOBUF_NATIVE definition: it does not hold its root message {root[:100]}"
    )


def why_cannot_read(reader: Parsed, writer: Parsed, effort: Effort) -> str | None:
    """Why a reader's schema does not read all data of a writer's; ``None`` if it does."""
    if reader.type is not writer.type:
        return f"the reader's type is {reader.type.name}, the writer's {writer.type.name}"
    if reader.fingerprint == writer.fingerprint:
        return None
    match reader.form, writer.form:
        case AvroDescribed(read), AvroDescribed(written):
            return why_unreadable(read, written, effort)
        case JsonSchema(read_id), JsonSchema(written_id) if read_id != written_id:
            return f"the reader's id is {read_id}, the writer's {written_id}"
        case ProtobufNative(read_root), ProtobufNative(written_root) if read_root != written_root:
            return f"the reader's root message is {read_root}, the writer's {written_root}"
        case KeyValue(), KeyValue():
            for part in ("key", "value"):
                reason = why_cannot_read(
                    getattr(reader.form, part), getattr(writer.form, part), effort
                )
                if reason is not None:
                    return f"{part}: {reason}"
    # Primitive types of one name; and old and new descriptions of JSON may follow each other.
    return None
