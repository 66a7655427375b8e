"""KEY_VALUE: two schemas in one. Their definitions are in the data, the rest in properties.

The data is, for the key and then the value, a length of 4 bytes big-endian and the definition.
The admin API writes it as JSON text instead: ``{"key": ..., "value": ...}``.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from pulsark.schemas.avro import load_json
from pulsark.schemas.definition import InvalidSchemaDataError, SchemaData, SchemaType

if TYPE_CHECKING:
    from collections.abc import Mapping

ENCODING_PROPERTY = "kv.encoding.type"
"""Whether a message holds both in its payload (INLINE) or the key as its key (SEPARATED)."""

_LENGTH = struct.Struct(">i")


def split(schema: SchemaData) -> tuple[SchemaData, SchemaData]:
    """The schemas of key and value. Raises ``InvalidSchemaDataError``."""
    key, rest = _take(schema.data, "key")
    value, rest = _take(rest, "value")
    if rest:
        raise InvalidSchemaDataError(f"KEY_VALUE: {len(rest)} bytes follow the value's definition")
    return _part("key", key, schema.properties), _part("value", value, schema.properties)


def _take(data: bytes, part: str) -> tuple[bytes, bytes]:
    """The definition at the start of ``data``, and what follows it. A length of -1 is empty."""
    if len(data) < _LENGTH.size:
        raise InvalidSchemaDataError(f"KEY_VALUE: the length of the {part}'s definition is missing")
    length = max(_LENGTH.unpack_from(data)[0], 0)
    end = _LENGTH.size + length
    if len(data) < end:
        raise InvalidSchemaDataError(f"KEY_VALUE: the {part}'s definition has not {length} bytes")
    return data[_LENGTH.size : end], data[end:]


def _part(part: str, data: bytes, properties: Mapping[str, str]) -> SchemaData:
    name = properties.get(f"{part}.schema.type") or SchemaType.BYTES.name
    if name not in SchemaType.__members__:
        raise InvalidSchemaDataError(f"{part}.schema.type: {name[:100]} is no type of a schema")
    own = properties.get(f"{part}.schema.properties")
    found = load_json(own.encode()) if own else {}
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise InvalidSchemaDataError(f"{part}.schema.properties is a JSON object of texts")
    return SchemaData(SchemaType[name], data, found)


def to_text(data: bytes) -> str:
    """The admin API's form of the data; a definition that is not JSON becomes a text."""
    key, rest = _take(data, "key")
    value, _ = _take(rest, "value")
    return json.dumps({"key": _json_of(key), "value": _json_of(value)}, separators=(",", ":"))


def _json_of(definition: bytes) -> Any:
    try:
        return load_json(definition)
    except InvalidSchemaDataError:
        return definition.decode("utf-8", "replace")


def from_text(text: str) -> bytes:
    """The data that the admin API's form means. Raises ``InvalidSchemaDataError``."""
    given = load_json(text.encode())
    if not isinstance(given, dict) or not given.keys() >= {"key", "value"}:
        raise InvalidSchemaDataError('A KEY_VALUE definition is {"key": ..., "value": ...}')
    parts = (_definition_of(given[part]) for part in ("key", "value"))
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def _definition_of(given: Any) -> bytes:
    """A text stands for itself, so that primitive types have an empty one."""
    return given.encode() if isinstance(given, str) else json.dumps(given).encode()
