"""Statistics of topics, and of the Spark queries that read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.guard import Guarded, topic
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import OWNER, EachPartition
from pulsark.admin.http.requests import AnyTopicOf, BrokerOf, StatsOf, flag, value
from pulsark.admin.http.spreading import Part, failure
from pulsark.admin.pulsar.partitioned import existing, parts_of
from pulsark.admin.pulsar.query_lag import reading
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.model.interfaces import AnyTopic
from pulsark.dispatch.stats.stats import Stats
from pulsark.security.operations import TopicOperation as T
from pulsark.wire.topic_name import TopicName

router = Guarded(prefix=TOPICS, tags=["topics"])

_EARLIEST = "getEarliestTimeInBacklog"
_OF_TOPIC = ("sparkQueries", "scalable")
"""What is said of a topic, and not of its partitions."""


def _merged(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    failed = failure(parts)
    if failed is not None:
        return failed
    found = {part.of: _of_partition(part.json) for part in parts}
    stats: Stats = request.app.state.stats
    per_partition = flag(request, "perPartition", default=True)
    return value(stats.partitioned(found, len(found), per_partition=per_partition))


def _of_partition(found: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in found.items() if key not in _OF_TOPIC}


@router.get("/{topic}/stats", needs=topic(T.GET_STATS), at=OWNER)
async def topic_stats(
    topic: AnyTopicOf, request: Request, broker: BrokerOf, stats: StatsOf
) -> Response:
    """Statistics of a topic.

    ``sparkQueries``, Pulsark's own, is there if any reads it; so is ``scalable`` if clients of
    Pulsar 5 do.
    """
    found = await _stats_of(await broker.topics.open(topic), request, stats)
    return value(found | _scalable(topic, broker) | await _queries_of(topic, request, broker))


@router.get(
    "/{topic}/partitioned-stats", needs=topic(T.GET_STATS), at=EachPartition(_merged, tail="stats")
)
async def partitioned_stats(
    topic: AnyTopicOf, request: Request, broker: BrokerOf, stats: StatsOf
) -> Response:
    """Statistics of a topic over all its partitions."""
    found = await existing(broker, topic)
    parts = {
        str(part): await _stats_of(await broker.topics.open(part, create=True), request, stats)
        for part in parts_of(topic, found)
    }
    per_partition = flag(request, "perPartition", default=True)
    merged = await broker.large_jobs.run(
        lambda: stats.partitioned(parts, found.partitions, per_partition=per_partition)
    )
    return value(merged | _scalable(topic, broker) | await _queries_of(topic, request, broker))


async def _stats_of(topic: AnyTopic, request: Request, stats: Stats) -> dict[str, Any]:
    """TopicStats with what the query asks for. Backlogs are precise in any case."""
    found = await stats.topic(
        topic,
        with_publishers=not flag(request, "excludePublishers"),
        with_consumers=not flag(request, "excludeConsumers"),
        with_backlog_sizes=flag(request, "subscriptionBacklogSize", default=True),
    )
    if flag(request, _EARLIEST):
        await stats.add_earliest(topic, found)
    return found


def _scalable(topic: TopicName, broker: Broker) -> dict[str, Any]:
    found = None if broker.scalable is None else broker.scalable.stats(topic)
    return {} if found is None else {"scalable": found}


async def _queries_of(topic: TopicName, request: Request, broker: Broker) -> dict[str, Any]:
    claims = request.app.state.queries
    return await reading(broker, claims, topic, earliest=flag(request, _EARLIEST))
