"""What Pulsar's admin API has and Pulsark has nothing behind.

Reads answer what Pulsar answers where nothing of the kind was set. Writes are refused with 501:
nothing would follow them, and who asks should know. Functions, connectors and transactions have
prefixes that answer as a Pulsar where they are switched off.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi.responses import Response

from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import (
    READ,
    WRITE,
    Guarded,
    login,
    namespace,
    namespace_policy,
    superuser,
    tenant,
    topic,
    topic_policy,
)
from pulsark.admin.http.paths import BUNDLE, TOPICS
from pulsark.admin.http.places import ANYWHERE, OWNER_IF_VOLATILE
from pulsark.admin.http.requests import (
    AnyTopicOf,
    BrokerOf,
    NamespaceOf,
    done,
    name_part,
    value,
)
from pulsark.admin.pulsar.bundles import checked_bundle
from pulsark.admin.pulsar.partitioned import leaves
from pulsark.admin.pulsar.policies import existing_namespace, remove_namespace_policy
from pulsark.dispatch.broker import Broker
from pulsark.security.operations import NamespaceOperation, TenantOperation
from pulsark.security.operations import TopicOperation as T

router = Guarded(at=ANYWHERE, tags=["absent"])

_V2 = "/admin/v2"
_CLUSTER = _V2 + "/clusters/{cluster}"
_NAMESPACE = _V2 + "/namespaces/{tenant}/{namespace}"
_TOPIC = TOPICS + "/{topic}"

_QUOTA = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100_000.0,
    "bandwidthOut": 300_000.0,
    "memory": 80.0,
    "dynamic": True,
}

NOTHING: dict[str, Any] = {
    "/resource-quotas": _QUOTA,
    "/broker-stats/mbeans": [],
    "/broker-stats/bookieops": {},
    "/broker-stats/allocator-stats/{allocator}": {},
}
"""Paths and what they answer."""

REFUSED: dict[str, tuple[str, ...]] = {
    "/resource-quotas": ("POST",),
}
"""Paths and the methods that are refused."""


def _answering(content: Any) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        return value(content)

    return answer


def _failing(status: int, reason: str) -> Callable[[], Awaitable[Response]]:
    async def refuse() -> Response:
        raise fail(status, reason)

    return refuse


_NOT_BUILT = "This is not implemented; nothing would follow it"

for _path, _content in NOTHING.items():
    router.answer(_V2 + _path, _answering(_content), needs=superuser, methods=["GET"])
# A route for each method: the name of an operation is made of its route.
for _path, _methods in REFUSED.items():
    for _method in _methods:
        router.answer(_V2 + _path, _failing(501, _NOT_BUILT), needs=superuser, methods=[_method])


# -- clusters ----------------------------------------------------------------------------------


async def _check_cluster(broker: Broker, cluster: str) -> None:
    if await broker.resources.clusters.get(name_part("cluster", cluster)) is None:
        raise fail(404, "Cluster does not exist")


@router.get(_CLUSTER + "/failureDomains", needs=superuser)
async def failure_domains(cluster: str, broker: BrokerOf) -> Response:
    """Brokers are in no failure domains."""
    await _check_cluster(broker, cluster)
    return value({})


@router.get(_CLUSTER + "/failureDomains/{domain}", needs=superuser)
@router.delete(_CLUSTER + "/failureDomains/{domain}", needs=superuser)
async def failure_domain(cluster: str, domain: str, broker: BrokerOf) -> Response:
    """There is none."""
    await _check_cluster(broker, cluster)
    raise fail(404, "The failure domain does not exist")


@router.post(_CLUSTER + "/failureDomains/{name}", needs=superuser)
@router.post(_CLUSTER + "/migrate", needs=superuser)
async def refuse_for_cluster(cluster: str, broker: BrokerOf) -> Response:
    """There is one broker, and nowhere to go from it."""
    await _check_cluster(broker, cluster)
    raise fail(501, _NOT_BUILT)


@router.get(_CLUSTER + "/migrate", needs=superuser)
async def migration(cluster: str, broker: BrokerOf) -> Response:
    """No migration was ever set."""
    await _check_cluster(broker, cluster)
    raise fail(404, "The cluster does not migrate")


# -- namespaces --------------------------------------------------------------------------------


@router.get("/admin/namespaces/{tenant}/{cluster}", needs=tenant(TenantOperation.LIST_NAMESPACES))
async def old_namespaces(tenant: str, cluster: str, broker: BrokerOf) -> Response:
    """Namespaces whose names have a cluster in them, as before Pulsar 2: there are none."""
    if await broker.resources.tenants.get(name_part("tenant", tenant)) is None:
        raise fail(404, "Tenant does not exist")
    await _check_cluster(broker, cluster)
    return value([])


@router.delete(_NAMESPACE + "/removeOffloadPolicies", needs=namespace_policy("OFFLOAD", WRITE))
async def remove_offload_policies(name: NamespaceOf, broker: BrokerOf) -> Response:
    """The other name of their removal."""
    return await remove_namespace_policy(name, "offloadPolicies", broker)


@router.post(_NAMESPACE + "/migration", needs=superuser)
async def migrate_namespace(name: NamespaceOf, broker: BrokerOf) -> Response:
    """There is one cluster."""
    await existing_namespace(broker, name)
    raise fail(501, _NOT_BUILT)


@router.get(_V2 + "/resource-quotas/{tenant}/{namespace}" + BUNDLE, needs=superuser)
async def bundle_quota(name: NamespaceOf, bundle: str, broker: BrokerOf) -> Response:
    """Every bundle has the default."""
    await checked_bundle(broker, name, bundle)
    return value(_QUOTA)


@router.delete(_V2 + "/resource-quotas/{tenant}/{namespace}" + BUNDLE, needs=superuser)
async def remove_bundle_quota(name: NamespaceOf, bundle: str, broker: BrokerOf) -> Response:
    """Every bundle has the default: done."""
    await checked_bundle(broker, name, bundle)
    return done()


@router.post(_V2 + "/resource-quotas/{tenant}/{namespace}" + BUNDLE, needs=superuser)
async def set_bundle_quota(name: NamespaceOf, bundle: str, broker: BrokerOf) -> Response:
    """Bundles are not balanced."""
    await checked_bundle(broker, name, bundle)
    raise fail(501, _NOT_BUILT)


@router.get(
    _V2 + "/broker-stats/broker-resource-availability/{tenant}/{namespace}", needs=superuser
)
async def resource_availability(name: NamespaceOf) -> Response:
    """As in Pulsar with its default load manager."""
    raise fail(409, "The load manager does not know the availability of resources")


# -- scalable topics ---------------------------------------------------------------------------

_SCALABLE = _V2 + "/scalable/{tenant}/{namespace}"


@router.get(_SCALABLE, needs=namespace(NamespaceOperation.GET_TOPICS))
async def scalable_topics(name: NamespaceOf, broker: BrokerOf) -> Response:
    """No topic was made of segments; clients of those use the others."""
    await existing_namespace(broker, name)
    return value([])


@router.get(_SCALABLE + "/{rest:path}", needs=namespace(NamespaceOperation.GET_TOPICS))
async def scalable_topic(name: NamespaceOf, broker: BrokerOf) -> Response:
    """There is none."""
    await existing_namespace(broker, name)
    raise fail(404, "Scalable topic not found: topics here are persistent, also as topic://")


@router.put(_SCALABLE + "/{rest:path}", needs=namespace(NamespaceOperation.CREATE_TOPIC))
@router.post(_SCALABLE + "/{rest:path}", needs=namespace(NamespaceOperation.CREATE_TOPIC))
@router.delete(_SCALABLE + "/{rest:path}", needs=namespace(NamespaceOperation.DELETE_TOPIC))
async def refuse_scalable_topic(name: NamespaceOf, broker: BrokerOf) -> Response:
    """Segments are not split and not merged: a topic gets more partitions instead."""
    await existing_namespace(broker, name)
    raise fail(501, "Topics are not made of segments here: create partitions, and add more later")


# -- topics ------------------------------------------------------------------------------------


@router.get(_TOPIC + "/offload", needs=topic(T.OFFLOAD), at=OWNER_IF_VOLATILE)
async def offload_status(topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """Nothing was offloaded: closed ledgers go to the topic's table by themselves."""
    await leaves(broker, topic)
    return value({"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": None})


@router.get(
    _TOPIC + "/shadowTopics", needs=topic_policy("SHADOW_TOPIC", READ), at=OWNER_IF_VOLATILE
)
async def shadow_topics(topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """There are none. Pulsar's own tool fails on an answer without a list."""
    await leaves(broker, topic)
    return value([])


@router.delete(
    _TOPIC + "/shadowTopics", needs=topic_policy("SHADOW_TOPIC", WRITE), at=OWNER_IF_VOLATILE
)
async def remove_shadow_topics(topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """There are none: done."""
    await leaves(broker, topic)
    return done()


@router.put(_TOPIC + "/offload", needs=topic(T.OFFLOAD), at=OWNER_IF_VOLATILE)
@router.put(
    _TOPIC + "/shadowTopics", needs=topic_policy("SHADOW_TOPIC", WRITE), at=OWNER_IF_VOLATILE
)
async def refuse_for_topic(topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """Not built."""
    await leaves(broker, topic)
    raise fail(501, _NOT_BUILT)


# -- functions and transactions ----------------------------------------------------------------

switched_off = Guarded(at=ANYWHERE, include_in_schema=False)
"""Prefixes under which nothing is described."""

_NO_FUNCTIONS = _failing(409, "Function worker service is not enabled on this broker")
_NO_TRANSACTIONS = _failing(503, "Transactions are not enabled on this broker")
_VERBS = ["GET", "PUT", "POST", "DELETE"]

for _prefix in (
    *(f"/admin/v3/{name}" for name in ("functions", "sinks", "sources", "source", "sink")),
    "/admin/v3/packages",
    *(f"{_V2}/{name}" for name in ("worker", "worker-stats", "functions")),
):
    switched_off.answer(_prefix, _NO_FUNCTIONS, needs=login, methods=_VERBS)
    switched_off.answer(_prefix + "/{rest:path}", _NO_FUNCTIONS, needs=login, methods=_VERBS)
switched_off.answer(
    "/admin/v3/transactions/{rest:path}", _NO_TRANSACTIONS, needs=superuser, methods=_VERBS
)
