"""How far behind Spark queries are, in the words of topic statistics. Pulsark's own.

With a subscription that is its backlog; without one, what comes behind the places that the query
says it has read. Only topics in memory are looked at: those that a running query reads are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pulsark.admin.pulsar.partitioned import leaves
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.request_turns import pause
from pulsark.dispatch.spark.query_claims import Query, QueryClaims
from pulsark.dispatch.stats.iso_time import iso_time
from pulsark.dispatch.topic.topic import Topic
from pulsark.errors import ClientError, ProtocolError, StorageError
from pulsark.wire.entry import parse_entry
from pulsark.wire.topic_name import TopicName

_TOPICS_AT_ONCE = 100


async def described(
    broker: Broker, query: Query, topics: Iterable[str], *, earliest: bool
) -> dict[str, Any]:
    """A query, and how far behind it is with these of its topics.

    ``earliest``: look up when the oldest message was published that it has not read.
    """
    entries = size = 0
    times: list[int] = []
    for count, name in enumerate(topics, 1):
        for topic in await _loaded(broker, TopicName.parse(name)):
            more, more_bytes = _behind(topic, query)
            entries += more
            size += more_bytes
            if earliest and more:
                time = await _oldest(topic, query)
                times += [] if time is None else [time]
        if count % _TOPICS_AT_ONCE == 0:
            await pause()
    found: dict[str, Any] = {
        "query": query.query_id,
        "client": query.client,
        "subscription": query.subscription,
        "startedAt": iso_time(query.started_ms),
        "msgBacklog": entries,
        "backlogSize": size,
    }
    if earliest:
        found["earliestMsgPublishTimeInBacklog"] = min(times, default=0)
    progress = query.progress
    if progress is not None:
        found |= {
            "name": progress.name,
            "id": progress.query_id,
            "runId": progress.run_id,
            "batchId": progress.batch,
            "inputRowsPerSecond": progress.rows_in,
            "processedRowsPerSecond": progress.rows_processed,
            "lastBatchAt": iso_time(progress.at_ms),
        }
    return found


async def reading(
    broker: Broker, claims: QueryClaims, topic: TopicName, *, earliest: bool
) -> dict[str, Any]:
    """``sparkQueries`` of a topic's statistics, all its partitions together; empty without any."""
    base = str(topic.base)
    found = [
        await described(broker, query, [str(topic)], earliest=earliest)
        for query in claims.running()
        if base in query.topics
    ]
    return {"sparkQueries": found} if found else {}


async def _loaded(broker: Broker, name: TopicName) -> list[Topic]:
    try:
        names = await leaves(broker, name)
    except ClientError:
        return []  # deleted since
    found = [broker.topics.get_loaded(leaf) for leaf in names]
    return [topic for topic in found if topic is not None]


def _behind(topic: Topic, query: Query) -> tuple[int, int]:
    """Entries and bytes that the query has not read."""
    if query.subscription is not None:
        subscription = topic.subscriptions.get(query.subscription)
        return (0, 0) if subscription is None else (subscription.backlog, subscription.backlog_size)
    read = query.read.get(str(topic.name))
    if read is None:
        return 0, 0
    entries = topic.ledger.entries_between(read, topic.ledger.last_confirmed)
    return entries, topic.ledger.bytes_after(read) if entries else 0


async def _oldest(topic: Topic, query: Query) -> int | None:
    """When the first message was published that the query has not read, if that can be told."""
    try:
        if query.subscription is not None:
            oldest = await topic.backlog.oldest_of(topic.subscriptions[query.subscription])
            return None if oldest is None else oldest.published_ms
        entries = await topic.entries.read(
            topic.ledger.next_position(query.read[str(topic.name)]), 1, 1
        )
        return parse_entry(entries[0].data).publish_time if entries else None
    except (ProtocolError, StorageError):
        return None
