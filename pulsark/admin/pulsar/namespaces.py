"""``/admin/v2/namespaces``: create, list, delete, policies, bundles, topics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.changes import tell
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import (
    READ,
    WRITE,
    Guarded,
    RightsOf,
    namespace,
    namespace_policy,
    superuser,
    tenant,
)
from pulsark.admin.http.merging import all_done, sorted_names
from pulsark.admin.http.places import ANYWHERE, EachBroker
from pulsark.admin.http.requests import (
    BrokerOf,
    NamespaceOf,
    done,
    empty,
    flag,
    integer,
    json_body,
    json_object,
    name_part,
    strings,
    value,
)
from pulsark.admin.http.streams import json_list, streamed
from pulsark.admin.pulsar.policies import existing_namespace
from pulsark.admin.pulsar.policy_table import document_of, policies_of
from pulsark.admin.pulsar.resource_groups import check_group
from pulsark.dispatch.broker import Broker
from pulsark.metadata.namespaces import (
    PROTECTED_POLICIES,
    Namespace,
    check_boundaries,
    even_boundaries,
)
from pulsark.metadata.resource_groups import RESOURCE_GROUP
from pulsark.security.decisions import Target
from pulsark.security.operations import GeneralOperation
from pulsark.security.operations import NamespaceOperation as N
from pulsark.security.operations import TenantOperation as Te

router = Guarded(at=ANYWHERE, prefix="/admin/v2/namespaces", tags=["namespaces"])


def _has_volatile(request: Request) -> bool:
    return request.query_params.get("mode", "PERSISTENT") in ("NON_PERSISTENT", "ALL")


_MODES = ("PERSISTENT", "NON_PERSISTENT", "ALL")


@router.get("/{tenant}", needs=tenant(Te.LIST_NAMESPACES))
async def list_namespaces(tenant: str, broker: BrokerOf) -> Response:
    """Names of a tenant's namespaces."""
    name = name_part("tenant", tenant)
    if await broker.resources.tenants.get(name) is None:
        raise fail(404, "Tenant does not exist")
    return value(await broker.resources.namespaces.list(name))


@router.get("/{tenant}/{namespace}", needs=namespace_policy("ALL", READ))
async def get_policies(name: NamespaceOf, broker: BrokerOf) -> Response:
    """A namespace's policies."""
    return value(_policies(await existing_namespace(broker, name), broker.settings.clusterName))


@router.put("/{tenant}/{namespace}", needs=tenant(Te.CREATE_NAMESPACE))
async def create_namespace(
    name: NamespaceOf, request: Request, broker: BrokerOf, rights: RightsOf
) -> Response:
    """Add a namespace; the body may say how many bundles it has and where it is replicated."""
    given = await json_object(request)
    clusters = strings(given.get("replication_clusters"), "replication_clusters")
    await _check_allowed(broker, name, clusters)
    policies = policies_of(given, broker.settings.clusterName)
    protected = not PROTECTED_POLICIES.isdisjoint(policies)
    if protected:
        await rights.check(GeneralOperation.SUPER_USER, Target())
    if RESOURCE_GROUP in policies:
        await check_group(broker, policies[RESOURCE_GROUP])
    await broker.resources.namespaces.create(
        name,
        boundaries=_boundaries(given.get("bundles"), broker),
        replication_clusters=clusters or [broker.settings.clusterName],
        policies=policies,
        most=broker.settings.maxNamespacesPerTenant,
        by_super_user=protected,
    )
    return done()


@router.delete("/{tenant}/{namespace}", needs=tenant(Te.DELETE_NAMESPACE))
async def delete_namespace(name: NamespaceOf, request: Request, broker: BrokerOf) -> Response:
    """Remove a namespace; with ``force`` also its topics."""
    before = await existing_namespace(broker, name)
    force = flag(request, "force")
    if force and not broker.settings.forceDeleteNamespaceAllowed:
        raise fail(405, "Deleting a namespace by force is not allowed on this broker")
    await broker.namespace_deletion.delete(name, force=force)
    tell({"replication_clusters": list(before.replication_clusters), **before.policies}, None)
    return done()


@router.get(
    "/{tenant}/{namespace}/topics",
    needs=namespace(N.GET_TOPICS),
    at=EachBroker(sorted_names, when=_has_volatile),
)
async def list_topics(name: NamespaceOf, request: Request, broker: BrokerOf) -> Response:
    """Full names of a namespace's topics, each partition by itself."""
    mode = request.query_params.get("mode", "PERSISTENT")
    if mode not in _MODES:
        raise fail(404, f"mode is one of {', '.join(_MODES)}")
    include_system = flag(request, "includeSystemTopic")
    topics: list[str] = []
    if mode != "NON_PERSISTENT":
        topics += await broker.catalog.list_topics(name, include_system=include_system)
    if mode != "PERSISTENT":
        topics += await broker.catalog.list_non_persistent_topics(
            name, include_system=include_system
        )
    return streamed(json_list(topics))


@router.get("/{tenant}/{namespace}/replication", needs=namespace_policy("REPLICATION", READ))
async def get_replication(name: NamespaceOf, broker: BrokerOf) -> Response:
    """The clusters a namespace is in."""
    return value(list((await existing_namespace(broker, name)).replication_clusters))


@router.post("/{tenant}/{namespace}/replication", needs=namespace_policy("REPLICATION", WRITE))
async def set_replication(name: NamespaceOf, request: Request, broker: BrokerOf) -> Response:
    """Say which clusters a namespace is in."""
    before = await existing_namespace(broker, name)
    clusters = strings(await json_body(request), "The body")
    if not clusters:
        raise fail(412, "A namespace is in at least one cluster")
    await _check_allowed(broker, name, clusters)
    await broker.resources.namespaces.update(
        name, lambda old: replace(old, replication_clusters=tuple(clusters))
    )
    tell(
        {"replication_clusters": list(before.replication_clusters)},
        {"replication_clusters": clusters},
    )
    return empty()


@router.put("/{tenant}/{namespace}/unload", needs=superuser, at=EachBroker(all_done))
async def unload_namespace(name: NamespaceOf, broker: BrokerOf) -> Response:
    """Give the namespace's bundles up, with their topics; clients look them up again."""
    await existing_namespace(broker, name)
    await broker.bundle_release.release_namespace(name)
    return done()


async def _check_allowed(broker: Broker, name: str, clusters: list[str]) -> None:
    """403 for clusters that the namespace's tenant may not use; 404 without a tenant."""
    tenant_name, _, _ = name.partition("/")
    tenant = await broker.resources.tenants.get(tenant_name)
    if tenant is None:
        raise fail(404, "Tenant does not exist")
    foreign = sorted(set(clusters) - set(tenant.allowed_clusters))
    if foreign:
        raise fail(403, f"Tenant {tenant_name} is not allowed in {', '.join(foreign)[:200]}")


def _boundaries(given: Any, broker: Broker) -> tuple[str, ...]:
    """Bundle boundaries from a request: spelled out, a number, or the default number."""
    if given is not None and not isinstance(given, dict):
        raise fail(400, "bundles has boundaries or numBundles")
    spelled = strings((given or {}).get("boundaries"), "boundaries")
    if spelled:
        return check_boundaries(spelled)
    count = integer((given or {}).get("numBundles"), "numBundles", 0)
    return even_boundaries(count if count > 0 else broker.settings.defaultNumberOfNamespaceBundles)


def _bundles(namespace: Namespace) -> dict[str, Any]:
    edges = list(namespace.bundle_boundaries)
    return {"boundaries": edges, "numBundles": len(edges) - 1}


def _policies(namespace: Namespace, cluster: str) -> dict[str, Any]:
    return {
        "replication_clusters": list(namespace.replication_clusters),
        "bundles": _bundles(namespace),
        **document_of(namespace.policies, cluster),
        "deleted": namespace.emptying,
    }
