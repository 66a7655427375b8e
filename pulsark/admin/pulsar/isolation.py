"""``.../clusters/{cluster}/namespaceIsolationPolicies``: who may have which namespaces."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.changes import tell
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, superuser
from pulsark.admin.http.places import ANYWHERE
from pulsark.admin.http.requests import (
    BrokerOf,
    done,
    json_object,
    name_part,
    unquoted,
    value,
)
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.brokers.isolation import MIN_AVAILABLE, IsolationPolicy, policies_of

router = Guarded(
    at=ANYWHERE,
    prefix="/admin/v2/clusters/{cluster}/namespaceIsolationPolicies",
    tags=["isolation"],
)

_BROKER_CHARS_MAX = 300


@router.get("", needs=superuser)
async def list_policies(cluster: str, broker: BrokerOf) -> Response:
    """All policies by name; 404 if none was ever set."""
    return value(await _stored(broker, cluster))


@router.get("/brokers", needs=superuser)
async def list_brokers(cluster: str, broker: BrokerOf) -> Response:
    """The live brokers, each with the namespaces that policies bring to it."""
    policies = policies_of(await _stored(broker, cluster))
    return value([_shown(each, policies) for each in sorted(broker.registry.live)])


@router.get("/brokers/{name}", needs=superuser)
async def show_broker(cluster: str, name: str, broker: BrokerOf) -> Response:
    """The same of one broker, be it there or not."""
    wanted = unquoted(name)
    if len(wanted) > _BROKER_CHARS_MAX:
        raise fail(412, "This is not the host:port of a broker")
    return value(_shown(wanted, policies_of(await _stored(broker, cluster))))


@router.get("/{policy}", needs=superuser)
async def show_policy(cluster: str, policy: str, broker: BrokerOf) -> Response:
    """One policy."""
    found = (await _stored(broker, cluster)).get(name_part("policy", policy))
    if found is None:
        raise fail(404, "The namespace isolation policy does not exist")
    return value(found)


@router.post("/{policy}", needs=superuser)
async def set_policy(cluster: str, policy: str, request: Request, broker: BrokerOf) -> Response:
    """Add a policy, or replace it. Bundles that it takes away from their brokers are moved."""
    of, name = await _existing_cluster(broker, cluster), name_part("policy", policy)
    data = await json_object(request)
    try:
        IsolationPolicy.of(name, data)
        tell(*await broker.resources.isolation.put(of, name, _kept(data), policies_of))
    except ValueError as error:
        raise fail(400, f"The namespace isolation policy {name[:100]}: {error}") from error
    await _follow(broker, of)
    return done()


@router.delete("/{policy}", needs=superuser)
async def delete_policy(cluster: str, policy: str, broker: BrokerOf) -> Response:
    """Remove a policy, if it is there."""
    of, name = await _existing_cluster(broker, cluster), name_part("policy", policy)
    tell(*await broker.resources.isolation.delete(of, name))
    await _follow(broker, of)
    return done()


async def _existing_cluster(broker: Broker, cluster: str) -> str:
    name = name_part("cluster", cluster)
    if await broker.resources.clusters.get(name) is None:
        raise fail(404, "Cluster does not exist")
    return name


async def _stored(broker: Broker, cluster: str) -> dict[str, dict[str, Any]]:
    name = await _existing_cluster(broker, cluster)
    found = await broker.resources.isolation.get(name)
    if found is None:
        raise fail(404, "No namespace isolation policy was set")
    return found


async def _follow(broker: Broker, cluster: str) -> None:
    """Who set it finds it in force at the broker that was asked; others hear of it."""
    if cluster == broker.settings.clusterName:
        await broker.isolation.refresh()


def _kept(data: dict[str, Any]) -> dict[str, Any]:
    """What was checked, in Pulsar's form."""
    parameters = data["auto_failover_policy"]["parameters"]
    numbers = {key: str(parameters[key]) for key in ("min_limit", "usage_threshold")}
    kept = {key: data.get(key) or [] for key in ("namespaces", "primary", "secondary")}
    kept["auto_failover_policy"] = {"policy_type": MIN_AVAILABLE, "parameters": numbers}
    if data.get("unload_scope") is not None:
        kept["unload_scope"] = data["unload_scope"]
    return kept


def _shown(broker_id: str, policies: tuple[IsolationPolicy, ...]) -> dict[str, Any]:
    """As in Pulsar, with the name of one policy only, the last, if several concern a broker."""
    found: dict[str, Any] = {
        "brokerName": broker_id,
        "policyName": None,
        "namespaceRegex": [],
        "primary": False,
    }
    for each in policies:
        is_primary = each.has_primary(broker_id)
        if is_primary or each.has_secondary(broker_id):
            found["namespaceRegex"] += each.namespaces.texts
            found["policyName"], found["primary"] = each.name, is_primary
    return found
