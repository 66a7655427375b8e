"""``/admin/v2/namespaces/{cluster}/antiAffinity/{group}``: the namespaces of a group.

Behind all other routes: a namespace may have the name ``antiAffinity``.
"""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, superuser
from pulsark.admin.http.places import ANYWHERE
from pulsark.admin.http.requests import BrokerOf, name_part, unquoted, value
from pulsark.dispatch.brokers.anti_affinity import ANTI_AFFINITY_GROUP
from pulsark.dispatch.loop.turns import in_turns

router = Guarded(at=ANYWHERE, tags=["isolation"])


@router.get("/admin/v2/namespaces/{cluster}/antiAffinity/{group}", needs=superuser)
@router.get("/admin/namespaces/{cluster}/antiAffinity/{group}", needs=superuser)
async def namespaces_of_group(
    cluster: str, group: str, request: Request, broker: BrokerOf
) -> Response:
    """Those of one tenant, which the query names. Pulsar's Java client asks by the older path."""
    name_part("cluster", cluster)
    query, wanted = request.query_params, unquoted(group)
    tenant = query.get("tenant") or query.get("property")
    if not tenant:
        raise fail(400, "The query names no tenant")
    namespaces = broker.resources.namespaces
    found = []
    async for name in in_turns(await namespaces.list(name_part("tenant", tenant))):
        stored = await namespaces.get(name)
        if stored is not None and stored.policies.get(ANTI_AFFINITY_GROUP) == wanted:
            found.append(name)
    return value(found)
