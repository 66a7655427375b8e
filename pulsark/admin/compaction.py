"""``/admin/v2/persistent/.../compaction``: run it, and ask how it went."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from pulsark.admin.errors import fail
from pulsark.admin.partitioned import leaves
from pulsark.admin.paths import TOPICS
from pulsark.admin.requests import BrokerOf, TopicOf, done, value

router = APIRouter(prefix=TOPICS, tags=["compaction"])


@router.put("/{topic}/compaction")
async def compact(topic: TopicOf, broker: BrokerOf) -> Response:
    """Begin to compact a topic, or each partition of it."""
    started = [(await broker.topic(leaf)).compactor.start() for leaf in await leaves(broker, topic)]
    if not any(started):
        raise fail(409, "Compaction already in progress")
    return done()


@router.get("/{topic}/compaction")
async def compaction_status(topic: TopicOf, broker: BrokerOf) -> Response:
    """How the last run of this broker went: NOT_RUN, RUNNING, SUCCESS or ERROR."""
    compactor = (await broker.topic(topic)).compactor
    return value({"status": compactor.status, "lastError": compactor.last_error})
