"""What jobs ask a broker to do with a topic's table, of which it is the only committer.

Pulsark's own. ``POST .../table/retention`` answers ``{"ledgers", "rows", "deletedFiles",
"keptFiles"}``; with ``dryRun=true`` nothing is done, and the numbers are what would go.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pulsark.admin.partitioned import leaves
from pulsark.admin.paths import TOPICS
from pulsark.admin.requests import BrokerOf, TopicOf, flag, value
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.table_retention import apply_retention
from pulsark.dispatch.topic import Topic
from pulsark.wire.topic_name import TopicName

router = APIRouter(prefix=TOPICS, tags=["pulsark"])


@router.post("/{topic}/table/retention")
async def retention(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """Let go now what retention lets go: ledgers, their rows, and files that left long ago."""
    dry_run = flag(request, "dryRun")
    done = await apply_retention(broker, await _partitions(broker, topic), dry_run=dry_run)
    return value(
        {
            "ledgers": done.ledgers,
            "rows": done.rows,
            "deletedFiles": done.deleted_files,
            "keptFiles": done.kept_files,
        }
    )


async def _partitions(broker: Broker, topic: TopicName) -> list[Topic]:
    return [await broker.topic(leaf, create=leaf != topic) for leaf in await leaves(broker, topic)]
