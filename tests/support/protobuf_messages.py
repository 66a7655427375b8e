"""Protobuf messages that are defined in tests, and how clients register them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import _pulsar
import pulsar
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pulsark.schemas.definition import SchemaData, SchemaType

F = descriptor_pb2.FieldDescriptorProto
INT32, STRING, MESSAGE, ENUM = F.TYPE_INT32, F.TYPE_STRING, F.TYPE_MESSAGE, F.TYPE_ENUM


def one(name: str, number: int, kind: Any = INT32, **more: Any) -> Any:
    """A field. A text is the name of a message, or, if its last part begins with E, of an enum."""
    if isinstance(kind, str):
        more |= {"type_name": f".t.{kind}"}
        kind = ENUM if kind.rpartition(".")[2].startswith("E") else MESSAGE
    label = more.pop("label", F.LABEL_OPTIONAL)
    packed = more.pop("packed", None)
    found = F(name=name, number=number, type=kind, label=label, **more)
    if packed is not None:
        found.options.packed = packed
    return found


def many(name: str, number: int, kind: Any = INT32, **more: Any) -> Any:
    """A repeated field."""
    return one(name, number, kind, label=F.LABEL_REPEATED, **more)


def message(name: str, *fields: Any, nested: Sequence[Any] = (), **more: Any) -> Any:
    """A message's definition."""
    return descriptor_pb2.DescriptorProto(name=name, field=fields, nested_type=nested, **more)


def entry(name: str, key: Any, value: Any) -> Any:
    """The message of a map's entries."""
    found = message(name, one("key", 1, key), one("value", 2, value))
    found.options.map_entry = True
    return found


def enumeration(name: str, **numbers: int) -> Any:
    """An enum's definition."""
    found = descriptor_pb2.EnumDescriptorProto(name=name)
    for symbol, number in numbers.items():
        found.value.add(name=symbol, number=number)
    return found


def file(*messages: Any, syntax: str = "proto3", enums: Sequence[Any] = (), **more: Any) -> Any:
    """A file in package t."""
    return descriptor_pb2.FileDescriptorProto(
        name=more.pop("name", "t.proto"), package="t", syntax=syntax, message_type=messages,
        enum_type=enums, **more,
    )  # fmt: skip


def native(*files: Any, root: str = "t.R") -> SchemaData:
    """As clients register a message; the last file has it."""
    held = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    data = {
        "fileDescriptorSet": base64.b64encode(held).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": files[-1].name,
    }
    return SchemaData(SchemaType.PROTOBUF_NATIVE, json.dumps(data).encode())


def class_of(*files: Any, root: str = "t.R") -> Any:
    """The class of a message; each file stands behind those that it needs."""
    pool = descriptor_pool.DescriptorPool()
    for each in files:
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(root))


class ProtobufSchema(pulsar.schema.Schema):  # type: ignore[misc]
    """PROTOBUF_NATIVE for Python's client, which has no class for it; payloads are bytes."""

    def __init__(self, schema: SchemaData) -> None:
        definition = json.loads(schema.data)
        super().__init__(bytes, _pulsar.SchemaType.PROTOBUF_NATIVE, definition, "PROTOBUF_NATIVE")

    def encode(self, payload: bytes) -> bytes:
        """The payload."""
        return payload

    def decode(self, payload: bytes) -> bytes:
        """The payload."""
        return payload
