"""The segments of many topics at once, for queries with a pattern. Pulsark's own."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pulsark.admin.errors import fail
from pulsark.admin.requests import BrokerOf, json_object
from pulsark.admin.segments import plan_of
from pulsark.admin.streams import long_value
from pulsark.errors import ClientError, ServerError
from pulsark.limits import PLANNED_TOPICS_MAX
from pulsark.wire.topic_name import TopicName

router = APIRouter(prefix="/admin/v2/spark-plans", tags=["pulsark"])

_TOPICS_AT_ONCE = 50


@router.post("")
async def get_plans(request: Request, broker: BrokerOf) -> Response:
    """The segments of several topics; those that do not exist are left out."""
    asked = await json_object(request)
    wanted, compacted = asked.get("topics"), asked.get("compacted") is True
    if not isinstance(wanted, dict) or len(wanted) > PLANNED_TOPICS_MAX:
        raise fail(412, f"topics: an object of at most {PLANNED_TOPICS_MAX} topics is expected")
    found = []
    for count, (name, after) in enumerate(wanted.items(), 1):
        if not isinstance(after, list) or not all(type(each) is int for each in after):
            raise fail(400, f"{name[:100]}: a list of ledger ids is expected")
        try:
            found.append(await plan_of(broker, TopicName.parse(name), after, compacted=compacted))
        except ClientError as error:
            if error.code is not ServerError.TopicNotFound:
                raise
        if count % _TOPICS_AT_ONCE == 0:
            await asyncio.sleep(0)  # those that are loaded are answered without a pause
    return long_value({"topics": found})
