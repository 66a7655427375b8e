"""``/admin/v2/bookies``: which bookies there are, and their racks."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.changes import tell
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, superuser
from pulsark.admin.http.places import ANYWHERE, HERE
from pulsark.admin.http.requests import BrokerOf, done, json_object, unquoted, value
from pulsark.metadata.bookie_racks import info_of

router = Guarded(at=ANYWHERE, prefix="/admin/v2/bookies", tags=["bookies"])


@router.get("/all", needs=superuser, at=HERE)
async def list_bookies(broker: BrokerOf) -> Response:
    """The bookies that this broker knows; ``state``, Pulsark's own, says what they are good for."""
    states = await broker.known_bookies.states()
    found = [{"bookieId": bookie, "state": state.value} for bookie, state in states.items()]
    return value({"bookies": found})


@router.get("/racks-info", needs=superuser)
async def list_racks(broker: BrokerOf) -> Response:
    """By group and by bookie its rack."""
    return value(await broker.resources.bookie_racks.get())


@router.get("/racks-info/{bookie}", needs=superuser)
async def get_rack(bookie: str, broker: BrokerOf) -> Response:
    """The rack of one bookie."""
    name = unquoted(bookie)
    found = info_of(await broker.resources.bookie_racks.get(), name)
    if found is None:
        raise fail(404, f"Bookie address not found: {name[:200]}")
    return value(found)


@router.post("/racks-info/{bookie}", needs=superuser)
async def set_rack(bookie: str, request: Request, broker: BrokerOf) -> Response:
    """Set the rack of a bookie, which need not be there yet; it leaves any other group."""
    group = request.query_params.get("group", "")
    if not group:
        raise fail(412, "Bookie 'group' parameters is missing")
    info = await json_object(request)
    tell(*await broker.resources.bookie_racks.put(unquoted(bookie), group, info))
    return done()


@router.delete("/racks-info/{bookie}", needs=superuser)
async def delete_rack(bookie: str, broker: BrokerOf) -> Response:
    """Forget the rack of a bookie."""
    tell(*await broker.resources.bookie_racks.delete(unquoted(bookie)))
    return done()
