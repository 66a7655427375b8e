"""The schemas of topics: read, uploaded, deleted, compared.

A topic's schema may be uploaded before the topic exists, and whatever clients may not update can
be updated here. ``persistent`` is not in the path: topics of both domains share the schemas of
their name.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import Response

from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, tenant_admin, topic
from pulsark.admin.http.places import ANYWHERE
from pulsark.admin.http.requests import (
    BrokerOf,
    flag,
    json_object,
    number,
    string_map,
    topic_name,
    value,
)
from pulsark.dispatch.policies.schemas import NO_VERSION, StoredSchema
from pulsark.limits import TOPIC_PROPERTIES_MAX
from pulsark.schemas import key_value
from pulsark.schemas.definition import IncompatibleSchemaError, SchemaData, SchemaType
from pulsark.security.operations import TopicOperation as T
from pulsark.wire.topic_name import TopicName

router = Guarded(
    at=ANYWHERE, prefix="/admin/v2/schemas/{tenant}/{namespace}/{topic}", tags=["schemas"]
)


async def _topic(request: Request, broker: BrokerOf) -> TopicName:
    path = request.path_params
    name = topic_name("persistent", path["tenant"], path["namespace"], path["topic"])
    await broker.ownership.namespace(name)
    return name


async def _payload(request: Request) -> SchemaData:
    body = await json_object(request)
    kind, text = body.get("type"), body.get("schema", "")
    if not isinstance(kind, str) or kind not in SchemaType.__members__:
        raise fail(422, f"type: {str(kind)[:100]!r} is not a schema type")
    if not isinstance(text, str):
        raise fail(422, "schema: the definition is a text")
    schema_type = SchemaType[kind]
    pair = schema_type is SchemaType.KEY_VALUE
    data = key_value.from_text(text) if pair else text.encode()
    properties = string_map(body.get("properties"), "properties", TOPIC_PROPERTIES_MAX)
    return SchemaData(schema_type, data, properties)


SchemaTopicOf = Annotated[TopicName, Depends(_topic)]
PayloadOf = Annotated[SchemaData, Depends(_payload)]


@router.get("/schema", needs=topic(T.GET_METADATA))
async def newest_schema(topic: SchemaTopicOf, broker: BrokerOf) -> Response:
    """A topic's newest schema."""
    return value(_stored(await broker.schemas.get(topic)))


@router.get("/schema/{version}", needs=topic(T.GET_METADATA))
async def schema_version(topic: SchemaTopicOf, version: str, broker: BrokerOf) -> Response:
    """One version of a topic's schema."""
    return value(_stored(await broker.schemas.get(topic, number(version))))


@router.get("/schemas", needs=topic(T.GET_METADATA))
async def all_schemas(topic: SchemaTopicOf, broker: BrokerOf) -> Response:
    """All versions since the last deletion."""
    found = await broker.schemas.all(topic)
    return value({"getSchemaResponses": [_stored(each) for each in found]})


@router.get("/metadata", needs=topic(T.GET_METADATA))
async def schema_metadata(topic: SchemaTopicOf, broker: BrokerOf) -> Response:
    """Where the versions are, were they in ledgers: the entry of each is its number."""
    places = [
        {"ledgerId": -1, "entryId": found.version, "version": found.version}
        for found in await broker.schemas.all(topic)
    ]
    if not places:
        raise fail(404, "The topic has no schema")
    return value({"info": places[-1], "index": places})


@router.post("/schema", needs=topic(T.PRODUCE))
async def upload_schema(topic: SchemaTopicOf, schema: PayloadOf, broker: BrokerOf) -> Response:
    """Add a schema, if the strategy allows it."""
    strategy = broker.schema_admission.strategy(topic, await broker.policy_source.current(topic))
    version = await broker.schemas.register(topic, schema, strategy)
    return value({"version": {"version": version}})


@router.post("/producerSchema", needs=topic(T.PRODUCE))
async def bring_schema(topic: SchemaTopicOf, schema: PayloadOf, broker: BrokerOf) -> Response:
    """Add a schema as a producer that brings it: only if clients may. Pulsark's own.

    ``{"schemaVersion"}`` is what messages carry, in hexadecimal.
    """
    policies = await broker.policy_source.current(topic)
    version = await broker.schema_admission.of_producer(topic, policies, schema)
    return value({"schemaVersion": version.hex()})


@router.delete("/schema", needs=tenant_admin)
async def delete_schema(topic: SchemaTopicOf, request: Request, broker: BrokerOf) -> Response:
    """Delete the schema; ``force`` forgets its versions too, and the next one is 0."""
    if flag(request, "force"):
        await broker.schemas.erase(topic)
        return value({"version": NO_VERSION})
    return value({"version": await broker.schemas.delete(topic)})


@router.post("/version", needs=topic(T.GET_METADATA))
async def version_of_schema(topic: SchemaTopicOf, schema: PayloadOf, broker: BrokerOf) -> Response:
    """The version that a schema is registered as, or -1."""
    return value({"version": await broker.schemas.version_of(topic, schema)})


@router.post("/compatibility", needs=tenant_admin)
async def is_compatible(topic: SchemaTopicOf, schema: PayloadOf, broker: BrokerOf) -> Response:
    """Whether a schema could be added."""
    strategy = broker.schema_admission.strategy(topic, await broker.policy_source.current(topic))
    try:
        await broker.schemas.check(topic, schema, strategy)
        compatible = True
    except IncompatibleSchemaError:
        compatible = False
    return value(
        {"compatibility": compatible, "schemaCompatibilityStrategy": strategy.name}, status=202
    )


def _stored(found: StoredSchema) -> dict[str, Any]:
    schema = found.schema
    pair = schema.type is SchemaType.KEY_VALUE
    return {
        "version": found.version,
        "type": schema.type.name,
        "timestamp": found.timestamp,
        "data": key_value.to_text(schema.data) if pair else schema.data.decode("utf-8", "replace"),
        "properties": dict(schema.properties),
    }
