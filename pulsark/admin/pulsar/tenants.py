"""``/admin/v2/tenants``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.changes import tell
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, tenant
from pulsark.admin.http.places import ANYWHERE
from pulsark.admin.http.requests import (
    BrokerOf,
    done,
    flag,
    integer,
    json_object,
    name_part,
    strings,
    value,
)
from pulsark.dispatch.broker import Broker
from pulsark.metadata.resources import Tenant
from pulsark.security.operations import TenantOperation as Te

_QUOTA = "storageQuotaBytes"

router = Guarded(at=ANYWHERE, prefix="/admin/v2/tenants", tags=["tenants"])


@router.get("", needs=tenant(Te.LIST_TENANTS))
async def list_tenants(broker: BrokerOf) -> Response:
    """Names of all tenants."""
    return value(await broker.resources.tenants.list())


@router.get("/{tenant}", needs=tenant(Te.GET_TENANT))
async def get_tenant(tenant: str, broker: BrokerOf) -> Response:
    """A tenant's administrators and clusters."""
    found = await broker.resources.tenants.get(name_part("tenant", tenant))
    if found is None:
        raise fail(404, "Tenant does not exist")
    return value(_shown(found))


@router.put("/{tenant}", needs=tenant(Te.CREATE_TENANT))
async def create_tenant(tenant: str, request: Request, broker: BrokerOf) -> Response:
    """Add a tenant."""
    name = name_part("tenant", tenant)
    info = await _tenant(await json_object(request), broker)
    await broker.resources.tenants.create(name, info, broker.settings.maxTenants)
    tell(None, _shown(info))
    return done()


@router.post("/{tenant}", needs=tenant(Te.UPDATE_TENANT))
async def update_tenant(tenant: str, request: Request, broker: BrokerOf) -> Response:
    """Replace a tenant's administrators and clusters; its quota stays unless it is named."""
    name = name_part("tenant", tenant)
    # Pulsar's tools know of no quota, and do not mean to remove it.
    given = await json_object(request)
    changed = await _tenant(given, broker)
    before, after = await broker.resources.tenants.update(
        name, changed, keep_quota=_QUOTA not in given
    )
    tell(_shown(before), _shown(after))
    return done()


@router.delete("/{tenant}", needs=tenant(Te.DELETE_TENANT))
async def delete_tenant(tenant: str, request: Request, broker: BrokerOf) -> Response:
    """Remove a tenant; with ``force`` also its namespaces and their topics."""
    name = name_part("tenant", tenant)
    resources = broker.resources
    if flag(request, "force"):
        if not broker.settings.forceDeleteTenantAllowed:
            raise fail(405, "Deleting a tenant by force is not allowed on this broker")
        for namespace in await resources.namespaces.list(name):
            await broker.namespace_deletion.delete(namespace, force=True)
    tell(_shown(await resources.tenants.delete(name)), None)
    return done()


async def _tenant(info: Mapping[str, Any], broker: Broker) -> Tenant:
    clusters = strings(info.get("allowedClusters"), "allowedClusters")
    if not clusters:
        raise fail(412, "A tenant needs at least one cluster")
    known = set(await broker.resources.clusters.list())
    unknown = sorted(set(clusters) - known)
    if unknown:
        raise fail(412, f"Clusters do not exist: {', '.join(unknown)[:200]}")
    quota = None if info.get(_QUOTA) is None else integer(info[_QUOTA], _QUOTA)
    if quota is not None and quota < -1:
        raise fail(412, f"{_QUOTA} is a number from 0 on; null and -1 are no limit")
    return Tenant(
        tuple(strings(info.get("adminRoles"), "adminRoles")),
        tuple(clusters),
        None if quota == -1 else quota,
    )


def _shown(found: Tenant) -> dict[str, Any]:
    quota = found.storage_quota_bytes
    return {
        "adminRoles": list(found.admin_roles),
        "allowedClusters": list(found.allowed_clusters),
        **({} if quota is None else {_QUOTA: quota}),
    }
