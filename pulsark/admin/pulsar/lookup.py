"""``/lookup/v2``: who serves a topic."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.guard import Guarded, namespace, topic
from pulsark.admin.http.paths import LOOKUP, OLD_LOOKUP
from pulsark.admin.http.places import ANYWHERE
from pulsark.admin.http.requests import AnyTopicOf, BrokerOf, flag, text, value
from pulsark.admin.pulsar.partitioned import is_there
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.policies.policies import auto_topic_creation
from pulsark.dispatch.topics.lookup import LookupResult
from pulsark.errors import ClientError, ServerError
from pulsark.security.operations import NamespaceOperation as N
from pulsark.security.operations import TopicOperation as T
from pulsark.wire.topic_name import TopicName

router = Guarded(at=ANYWHERE, tags=["lookup"])

_LISTENER_HEADER = "X-Pulsar-ListenerName"


@router.get(LOOKUP, needs=topic(T.LOOKUP))
@router.get(OLD_LOOKUP, include_in_schema=False, needs=topic(T.LOOKUP))
async def lookup_topic(request: Request, topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """The broker that serves a topic, or will. Never creates it."""
    broker.lookups.begin()
    try:
        found = await _found(request, topic, broker)
    finally:
        broker.lookups.end()
    return value(
        {
            "brokerUrl": found.urls.broker,
            "brokerUrlTls": found.urls.broker_tls,
            "httpUrl": found.urls.web,
            "httpUrlTls": found.urls.web_tls,
            "nativeUrl": found.urls.broker,
            "brokerUrlSsl": "",
        }
    )


async def _found(request: Request, topic: TopicName, broker: Broker) -> LookupResult:
    namespace = await broker.ownership.namespace(topic)
    created = auto_topic_creation(broker.settings, namespace.policies)
    if not created.allowed and not await is_there(broker, topic):
        raise ClientError(ServerError.TopicNotFound, f"Topic {topic} does not exist")
    listener = request.query_params.get("listenerName", "")
    return await broker.lookup.find(
        topic,
        authoritative=flag(request, "authoritative"),
        listener=listener or request.headers.get(_LISTENER_HEADER, ""),
        sends_on=False,  # curl, for one, would leave the credentials behind
    )


@router.get(LOOKUP + "/bundle", needs=namespace(N.GET_BUNDLE))
@router.get(OLD_LOOKUP + "/bundle", include_in_schema=False, needs=namespace(N.GET_BUNDLE))
async def lookup_bundle(topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """The bundle that a topic is in, as bare text."""
    return text(await broker.ownership.bundle_of(topic))
