"""``/admin/v2/clusters``."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, login, superuser
from pulsark.admin.http.places import ANYWHERE
from pulsark.admin.http.requests import (
    BrokerOf,
    done,
    empty,
    json_body,
    json_object,
    name_part,
    strings,
    value,
)
from pulsark.dispatch.broker import Broker

router = Guarded(at=ANYWHERE, prefix="/admin/v2/clusters", tags=["clusters"])

_URL_SCHEMES = {
    "serviceUrl": ("http",),
    "serviceUrlTls": ("https",),
    "brokerServiceUrl": ("pulsar",),
    "brokerServiceUrlTls": ("pulsar+ssl",),
}
_FLAGS = (
    "brokerClientTlsEnabled",
    "tlsAllowInsecureConnection",
    "brokerClientTlsEnabledWithKeyStore",
)


@router.get("", needs=login)
async def list_clusters(broker: BrokerOf) -> Response:
    """Names of all clusters."""
    return value(await broker.resources.clusters.list())


@router.get("/{cluster}", needs=superuser)
async def get_cluster(cluster: str, broker: BrokerOf) -> Response:
    """A cluster's addresses."""
    data = await _existing(broker, name_part("cluster", cluster))
    return value({**dict.fromkeys(_FLAGS, False), **data})


@router.put("/{cluster}", needs=superuser)
async def create_cluster(cluster: str, request: Request, broker: BrokerOf) -> Response:
    """Add a cluster."""
    name = name_part("cluster", cluster)
    await broker.resources.clusters.create(name, await _cluster_data(request))
    return empty()


@router.post("/{cluster}", needs=superuser)
async def update_cluster(cluster: str, request: Request, broker: BrokerOf) -> Response:
    """Replace a cluster's addresses."""
    name = name_part("cluster", cluster)
    await broker.resources.clusters.update(name, await _cluster_data(request))
    return empty()


@router.delete("/{cluster}", needs=superuser)
async def delete_cluster(cluster: str, broker: BrokerOf) -> Response:
    """Remove a cluster that no tenant uses."""
    name = name_part("cluster", cluster)
    resources = broker.resources
    if await resources.clusters.get(name) is None:
        raise fail(404, "Cluster does not exist")
    for tenant_name in await resources.tenants.list():
        tenant = await resources.tenants.get(tenant_name)
        if tenant is not None and name in tenant.allowed_clusters:
            raise fail(412, f"Cluster {name} is used by tenant {tenant_name}")
    await resources.isolation.delete_all(name)
    await resources.clusters.delete(name)
    return done()


@router.get("/{cluster}/peers", needs=superuser)
async def get_peers(cluster: str, broker: BrokerOf) -> Response:
    """The clusters that stand in for this one."""
    data = await _existing(broker, name_part("cluster", cluster))
    peers = data.get("peerClusterNames")
    return value(peers) if peers else empty()


@router.post("/{cluster}/peers", needs=superuser)
async def set_peers(cluster: str, request: Request, broker: BrokerOf) -> Response:
    """Say which clusters stand in for this one."""
    name = name_part("cluster", cluster)
    data = await _existing(broker, name)
    peers = strings(await json_body(request), "The body")
    unknown = sorted(set(peers) - set(await broker.resources.clusters.list()))
    if unknown or name in peers:
        raise fail(412, f"Not another cluster: {', '.join(unknown or [name])[:200]}")
    await broker.resources.clusters.update(name, {**data, "peerClusterNames": peers})
    return done()


async def _existing(broker: Broker, name: str) -> dict[str, Any]:
    data = await broker.resources.clusters.get(name)
    if data is None:
        raise fail(404, "Cluster does not exist")
    return data


async def _cluster_data(request: Request) -> dict[str, Any]:
    data = await json_object(request)
    if not data:
        raise fail(400, "The cluster's addresses are missing")
    for key, schemes in _URL_SCHEMES.items():
        url = data.get(key)
        if url and not (isinstance(url, str) and url.partition("://")[0] in schemes):
            raise fail(400, f"{key} must begin with {schemes[0]}://")
    return {key: item for key, item in data.items() if item is not None}
