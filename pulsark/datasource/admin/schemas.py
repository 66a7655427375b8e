"""Schemas of topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsark.admin_client.paths import schemas_path
from pulsark.datasource.options.errors import TopicSchemaError
from pulsark.schemas import key_value
from pulsark.schemas.definition import SchemaData, SchemaType

if TYPE_CHECKING:
    from pulsark.admin_client.client import AdminClient
    from pulsark.wire.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class SchemaCalls:
    """Reads and registers schemas."""

    _client: AdminClient

    def versions(self, topic: TopicName) -> dict[bytes, SchemaData]:
        """The schemas of a topic by the version that messages carry, the oldest first."""
        answer = self._client.request("GET", f"{schemas_path(topic)}/schemas")
        if answer.status == 404:
            return {}
        found = self._client.value_of(answer, f"the schemas of {topic}")["getSchemaResponses"]
        found.sort(key=lambda each: each["version"])
        return {each["version"].to_bytes(8, "big"): _schema(each) for each in found}

    def register(self, topic: TopicName, schema: SchemaData) -> bytes:
        """The version of a schema, which is added as if a producer brought it.

        ``TopicSchemaError`` if the topic does not take it.
        """
        body = {
            "type": schema.type.name,
            "schema": schema.data.decode(),
            "properties": dict(schema.properties),
        }
        answer = self._client.request("POST", f"{schemas_path(topic)}/producerSchema", body)
        if answer.status in (409, 422):
            raise TopicSchemaError(
                f"topic {topic} does not take the schema of these columns: {answer.reason}. Cast "
                "or rename columns so that they fit, or change the namespace's "
                "schemaCompatibilityStrategy"
            )
        found = self._client.value_of(answer, f"the schema of {topic}")
        return bytes.fromhex(found["schemaVersion"])


def _schema(stored: dict[str, Any]) -> SchemaData:
    kind, text = SchemaType[stored["type"]], stored["data"]
    data = key_value.from_text(text) if kind is SchemaType.KEY_VALUE else text.encode()
    return SchemaData(kind, data, stored["properties"])
