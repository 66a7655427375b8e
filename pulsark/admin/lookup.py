"""``/lookup/v2`` and the schemas that clients read over HTTP."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pulsark.admin.partitioned import is_there
from pulsark.admin.paths import LOOKUP, OLD_LOOKUP
from pulsark.admin.requests import AnyTopicOf, BrokerOf, number, text, topic_name, value
from pulsark.dispatch.broker import Broker
from pulsark.errors import ClientError, ServerError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName

router = APIRouter(tags=["lookup"])

_LISTENER_HEADER = "X-Pulsar-ListenerName"
_SCHEMA = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


@router.get(LOOKUP)
@router.get(OLD_LOOKUP, include_in_schema=False)
async def lookup_topic(request: Request, topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """The broker that serves a topic. Never creates it."""
    if not broker.settings.allowAutoTopicCreation and not await is_there(broker, topic):
        raise ClientError(ServerError.TopicNotFound, f"Topic {topic} does not exist")
    listener = request.query_params.get("listenerName", "")
    found = await broker.lookup(topic, listener or request.headers.get(_LISTENER_HEADER, ""))
    return value(
        {
            "brokerUrl": found.broker_url,
            "httpUrl": found.http_url,
            "nativeUrl": found.broker_url,
            "brokerUrlSsl": "",
        }
    )


@router.get(LOOKUP + "/bundle")
@router.get(OLD_LOOKUP + "/bundle", include_in_schema=False)
async def lookup_bundle(topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """The bundle that a topic is in, as bare text."""
    return text(await broker.ownership.bundle_of(topic))


@router.get(_SCHEMA + "/schema")
async def newest_schema(request: Request, broker: BrokerOf) -> Response:
    """A topic's newest schema."""
    return await _schema(broker, _topic(request), None)


@router.get(_SCHEMA + "/schema/{version}")
async def schema_version(request: Request, version: str, broker: BrokerOf) -> Response:
    """One version of a topic's schema."""
    return await _schema(broker, _topic(request), number(version).to_bytes(8, "big"))


def _topic(request: Request) -> TopicName:
    path = request.path_params
    return topic_name("persistent", path["tenant"], path["namespace"], path["topic"])


async def _schema(broker: Broker, topic: TopicName, version: bytes | None) -> Response:
    schema, number_ = await broker.schemas.get(topic, version)
    name = pb.Schema.Type.Name(schema.type).upper()
    return value(
        {
            "version": int.from_bytes(number_, "big"),
            "type": _TYPE_NAMES.get(name, name),
            "timestamp": 0,
            "data": schema.schema_data.decode("utf-8", "replace"),
            "properties": {p.key: p.value for p in schema.properties},
        }
    )


_TYPE_NAMES = {"KEYVALUE": "KEY_VALUE", "PROTOBUFNATIVE": "PROTOBUF_NATIVE"}
