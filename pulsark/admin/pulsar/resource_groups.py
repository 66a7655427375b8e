"""``/admin/v2/resourcegroups``: limits that several namespaces share."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, superuser
from pulsark.admin.http.places import ANYWHERE
from pulsark.admin.http.requests import BrokerOf, done, integer, json_object, name_part, value
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.turns import in_turns
from pulsark.metadata.resource_groups import GROUP_LIMITS, RESOURCE_GROUP

router = Guarded(at=ANYWHERE, prefix="/admin/v2/resourcegroups", tags=["resource groups"])


@router.get("", needs=superuser)
async def list_groups(broker: BrokerOf) -> Response:
    """Names of all resource groups."""
    return value(await broker.resources.resource_groups.list())


@router.get("/{group}", needs=superuser)
async def get_group(group: str, broker: BrokerOf) -> Response:
    """The limits of a resource group; -1 is none."""
    return value(await _existing(broker, name_part("resource group", group)))


@router.put("/{group}", needs=superuser)
async def put_group(group: str, request: Request, broker: BrokerOf) -> Response:
    """Add a resource group, or change what is given of its limits; publishes follow at once."""
    name = name_part("resource group", group)
    given = await json_object(request)
    limits = {key: integer(given[key], key) for key in GROUP_LIMITS if given.get(key) is not None}
    await broker.resources.resource_groups.put(name, limits)
    await broker.group_throttles.refresh(name)
    return done()


@router.delete("/{group}", needs=superuser)
async def delete_group(group: str, broker: BrokerOf) -> Response:
    """Remove a resource group that no namespace is in."""
    name = name_part("resource group", group)
    await _existing(broker, name)
    resources = broker.resources
    for tenant in await resources.tenants.list():
        async for namespace in in_turns(await resources.namespaces.list(tenant)):
            found = await resources.namespaces.get(namespace)
            if found is not None and found.policies.get(RESOURCE_GROUP) == name:
                raise fail(409, f"Resource group {name} is used by namespace {namespace}")
    await resources.resource_groups.delete(name)
    await broker.group_throttles.refresh(name)
    return done()


async def check_group(broker: Broker, name: str) -> None:
    """412 if a namespace cannot be in a group because there is none of that name."""
    if await broker.resources.resource_groups.get(name) is None:
        raise fail(412, f"Resource group {name} does not exist")


async def _existing(broker: Broker, name: str) -> dict[str, int]:
    found = await broker.resources.resource_groups.get(name)
    if found is None:
        raise fail(404, "The resource group does not exist")
    return found
