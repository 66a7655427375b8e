"""Topics with partitions: create, grow, delete, describe."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import WRITE, Guarded, both, namespace, namespace_policy, topic
from pulsark.admin.http.merging import all_done, by_name
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import ANYWHERE, OWNER_IF_VOLATILE, OWNER_OF_BASE, EachPartition
from pulsark.admin.http.requests import (
    AnyTopicOf,
    BrokerOf,
    NamespaceOf,
    StatsOf,
    done,
    flag,
    integer,
    json_body,
    property_map,
    value,
)
from pulsark.admin.http.streams import long_value
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.turns import in_turns
from pulsark.errors import ClientError, ServerError
from pulsark.limits import PARTITIONS_MAX
from pulsark.metadata.records import InUseError
from pulsark.metadata.resources import is_system_topic
from pulsark.metadata.topic_resources import PartitionedTopic
from pulsark.security.operations import NamespaceOperation as N
from pulsark.security.operations import TopicOperation as T
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

router = Guarded(prefix=TOPICS, tags=["topics"])


def _internal(broker: Broker, request: Request, found: dict[str, object]) -> Response:
    return long_value({"metadata": _metadata(len(found)), "partitions": found})


def _metadata(partitions: int) -> dict[str, Any]:
    return {"partitions": partitions, "deleted": False}


@router.get("/partitioned", needs=namespace(N.GET_TOPICS), at=ANYWHERE)
async def list_partitioned(name: NamespaceOf, request: Request, broker: BrokerOf) -> Response:
    """Names of a namespace's topics that have partitions."""
    if await broker.resources.namespaces.get(name) is None:
        raise fail(404, "Namespace does not exist")
    domain = request.path_params["domain"]
    include_system = flag(request, "includeSystemTopic")
    topics = broker.resources.partitioned_topics
    listed = await topics.list(name, domain)
    found = [str(topic) async for topic in in_turns(listed) if await topics.get(topic) is not None]
    return value([topic for topic in found if include_system or not is_system_topic(topic)])


@router.get("/{topic}/partitions", needs=topic(T.LOOKUP), at=OWNER_IF_VOLATILE)
async def get_partitions(topic: AnyTopicOf, request: Request, broker: BrokerOf) -> Response:
    """How many partitions a topic has: 0 if it is not partitioned."""
    count = await broker.creation.partition_count(
        topic, create=flag(request, "checkAllowAutoCreation")
    )
    found = await broker.resources.partitioned_topics.get(topic)
    metadata: dict[str, Any] = {"partitions": count, "deleted": False}
    if found is not None and found.properties:
        metadata["properties"] = dict(found.properties)
    return value(metadata)


@router.put(
    "/{topic}/partitions",
    needs=both(namespace_policy("PARTITION", WRITE), namespace(N.CREATE_TOPIC)),
    at=OWNER_OF_BASE,
)
async def create_partitioned(topic: AnyTopicOf, request: Request, broker: BrokerOf) -> Response:
    """Create a topic with partitions."""
    body = await json_body(request)
    properties: dict[str, str] = {}
    if isinstance(body, dict):
        if "partitioned-topic-metadata" not in request.headers.get("content-type", ""):
            raise fail(400, "A number of partitions is expected")
        properties = property_map(body.get("properties"))
        body = body.get("partitions")
    partitions = _partition_count(integer(body, "The number of partitions"), broker)
    if "-partition-" in topic.local:
        raise fail(412, "The name of a partitioned topic cannot contain '-partition-'")
    if await broker.resources.namespaces.get(topic.namespace_name) is None:
        raise fail(404, "Namespace does not exist")
    if await is_there(broker, topic):
        raise fail(409, "This topic already exists")
    await broker.creation.create_partitioned_topic(topic, partitions, properties)
    return done()


@router.post("/{topic}/partitions", needs=namespace_policy("PARTITION", WRITE), at=OWNER_OF_BASE)
async def update_partitions(topic: AnyTopicOf, request: Request, broker: BrokerOf) -> Response:
    """Raise a topic's number of partitions."""
    wanted = integer(await json_body(request), "The number of partitions")
    found = await broker.resources.partitioned_topics.get(topic)
    if found is None:
        raise fail(409, "Topic is not partitioned")
    partitions = _partition_count(wanted, broker)
    if partitions < found.partitions:
        raise fail(422, f"The number of partitions must be more than {found.partitions}")
    if partitions > found.partitions:
        await broker.creation.add_partitions(topic, partitions)
    return done()


@router.delete("/{topic}/partitions", needs=namespace(N.DELETE_TOPIC), at=OWNER_OF_BASE)
async def delete_partitioned(topic: AnyTopicOf, request: Request, broker: BrokerOf) -> Response:
    """Delete a topic with all its partitions."""
    if await broker.resources.partitioned_topics.record(topic) is None:
        if await broker.catalog.exists(topic):
            raise fail(409, "Topic is not partitioned")
        raise fail(404, "Partitioned topic does not exist")
    try:
        await broker.deletion.delete_partitioned_topic(topic, force=flag(request, "force"))
    except InUseError as error:
        raise fail(412, "Topic has connected producers or consumers") from error
    return done()


@router.post(
    "/{topic}/createMissedPartitions",
    needs=namespace(N.CREATE_TOPIC),
    at=EachPartition(all_done, method="GET", tail="subscriptions"),
)
async def create_missed_partitions(topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """Load each partition once, which makes what is missing."""
    for part in parts_of(topic, await existing(broker, topic)):
        await broker.topics.open(part, create=True)
    return done()


@router.get(
    "/{topic}/partitioned-internalStats",
    needs=topic(T.GET_STATS),
    at=EachPartition(by_name(_internal), tail="internalStats"),
)
async def partitioned_internal_stats(
    topic: AnyTopicOf, broker: BrokerOf, stats: StatsOf
) -> Response:
    """What is inside each partition."""
    found = await existing(broker, topic)
    parts = {
        str(part): await stats.internal(await broker.topics.open(part, create=True))
        for part in parts_of(topic, found)
    }
    return long_value({"metadata": _metadata(found.partitions), "partitions": parts})


def parts_of(topic: TopicName, found: PartitionedTopic) -> list[TopicName]:
    """The names of all partitions."""
    return [topic.with_partition(i) for i in range(found.partitions)]


async def existing(broker: Broker, topic: TopicName) -> PartitionedTopic:
    """The partitions of a topic; 404 if it has none."""
    found = await broker.resources.partitioned_topics.get(topic)
    if found is None:
        raise fail(404, "Partitioned topic does not exist")
    return found


async def refuse_base(broker: Broker, topic: TopicName) -> None:
    """405 for a topic that has partitions."""
    if await broker.resources.partitioned_topics.get(topic) is not None:
        raise fail(405, "This is done on a partition, not on a partitioned topic")


async def is_there(broker: Broker, topic: TopicName) -> bool:
    """Whether a topic exists, with or without partitions."""
    if await broker.resources.partitioned_topics.get(topic) is not None:
        return True
    return await broker.catalog.exists(topic)


@asynccontextmanager
async def staying(broker: Broker, topic: TopicName) -> AsyncIterator[None]:
    """While this lasts, a topic is not deleted; 404 if it is missing.

    So what is said of it goes with it, and is not left to the next topic of its name.
    """
    async with broker.topics.ending(topic.base):
        if not await is_there(broker, topic):
            raise ClientError(ServerError.TopicNotFound, f"Topic {topic} does not exist")
        yield


async def leaves(broker: Broker, topic: TopicName) -> list[TopicName]:
    """The partitions of a topic, or the topic itself if it has none; 404 if it is missing."""
    found = await broker.resources.partitioned_topics.get(topic)
    if found is not None:
        return parts_of(topic, found)
    if not await broker.catalog.exists(topic):
        raise ClientError(ServerError.TopicNotFound, f"Topic {topic} does not exist")
    return [topic]


def is_used(broker: Broker, topic: TopicName) -> bool:
    """Whether a producer or consumer is connected."""
    loaded = broker.topics.get(topic)
    return loaded is not None and loaded.is_used


def _partition_count(count: int, broker: Broker) -> int:
    most = broker.settings.maxNumPartitionsPerPartitionedTopic or PARTITIONS_MAX
    if not 0 < count <= min(most, PARTITIONS_MAX):
        raise fail(406, f"The number of partitions must be from 1 to {min(most, PARTITIONS_MAX)}")
    return count
