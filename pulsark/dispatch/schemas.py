"""The schemas of topics: numbered versions, shared by all partitions.

A definition that is registered again gets the version it already has. Versions are kept at
``/schemas/<tenant>/<namespace>/<domain>/<local>`` as one JSON list.
"""

from __future__ import annotations

import base64
import json
from typing import Any, cast
from urllib.parse import quote

from pulsark.errors import BadVersionError, ClientError, ServerError
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName

AUTO_CONSUME = 21
FORMAT_VERSION = 1


class Schemas:
    """Reads and registers schemas in the metadata store."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def register(self, topic: TopicName, schema: pb.Schema) -> bytes:
        """The version of a schema, which is stored if it is new: 8 bytes, big-endian.

        A client that only consumes whatever is there (AutoConsume) registers nothing.
        """
        if schema.type == AUTO_CONSUME:
            return b""
        wanted = _to_json(schema)
        while True:
            found = await self._metadata.get(_path(topic))
            versions = json.loads(found.value)["versions"] if found else []
            if wanted in versions:
                return _encode(versions.index(wanted))
            record = {"version": FORMAT_VERSION, "versions": [*versions, wanted]}
            try:
                await self._metadata.put(
                    _path(topic), json.dumps(record).encode(), found.version if found else ABSENT
                )
            except BadVersionError:
                continue  # another producer registered one at the same time: look again
            return _encode(len(versions))

    async def get(self, topic: TopicName, version: bytes | None) -> tuple[pb.Schema, bytes]:
        """A schema and its version; the newest if no version is given."""
        found = await self._metadata.get(_path(topic))
        if found is None:
            raise ClientError(ServerError.TopicNotFound, f"Topic {topic.base} has no schema")
        versions = json.loads(found.value)["versions"]
        if version is None:
            number = len(versions) - 1
        elif len(version) == 8:
            number = int.from_bytes(version, "big")
        else:
            raise ClientError(
                ServerError.IncompatibleSchema, "A schema version has 8 bytes, big-endian"
            )
        if number >= len(versions):
            raise ClientError(
                ServerError.TopicNotFound, f"Topic {topic.base} has no schema version {number}"
            )
        return _from_json(topic, versions[number]), _encode(number)


def _path(topic: TopicName) -> str:
    base = topic.base
    return f"/schemas/{base.namespace_name}/{base.domain}/{quote(base.local, safe='')}"


def _encode(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _to_json(schema: pb.Schema) -> dict[str, object]:
    return {
        "type": schema.type,
        "data": base64.b64encode(schema.schema_data).decode(),
        # The stubs take the list's type for the enum value of the same name.
        "properties": {p.key: p.value for p in cast(Any, schema.properties)},
    }


def _from_json(topic: TopicName, record: dict[str, object]) -> pb.Schema:
    schema = pb.Schema(name=topic.base.local, type=record["type"])  # type: ignore[arg-type]
    schema.schema_data = base64.b64decode(str(record["data"]))
    properties = record["properties"]
    if isinstance(properties, dict):
        for key, value in properties.items():
            schema.properties.add(key=key, value=value)
    return schema
