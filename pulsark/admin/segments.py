"""What a topic holds, for Spark's planner. Pulsark's own.

``{"topic", "topicId", "flightUrl", "partitions": [{"partition", "name", "topicId", "first",
"last", "ledgers": [{"ledgerId", "entries", "size", "open"}]}]}``: ``partition`` is -1 for a
topic without partitions, ``last`` the last confirmed entry (-1/-1 while there is none).
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from pulsark.admin.partitioned import leaves
from pulsark.admin.paths import TOPICS
from pulsark.admin.requests import BrokerOf, TopicOf, value
from pulsark.dispatch.topic import Topic
from pulsark.storage.position import Position

router = APIRouter(prefix=TOPICS, tags=["pulsark"])


@router.get("/{topic}/segments")
async def get_segments(topic: TopicOf, broker: BrokerOf) -> Response:
    """The partitions of a topic with their ledgers."""
    found = await broker.resources.partitioned_topics.get(topic)
    names = await leaves(broker, topic)
    partitions = [_partition(await broker.topic(name, create=True)) for name in names]
    return value(
        {
            "topic": str(topic),
            "topicId": found.topic_id if found is not None else partitions[0]["topicId"],
            "flightUrl": broker.flight_url,
            "partitions": partitions,
        }
    )


def _partition(topic: Topic) -> dict[str, Any]:
    ledger = topic.ledger
    return {
        "partition": topic.name.partition,
        "name": str(topic.name),
        "topicId": ledger.topic_id,
        "first": _place(ledger.first_position()),
        "last": _place(ledger.last_confirmed),
        "ledgers": [
            {
                "ledgerId": info.ledger_id,
                "entries": info.entries,
                "size": info.size,
                "open": info.open,
            }
            for info in ledger.ledgers()
        ],
    }


def _place(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}
