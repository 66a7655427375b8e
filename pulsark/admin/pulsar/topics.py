"""Single topics and partitions: create, list, delete, statistics, unload, terminate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.broker_calls import is_part
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, namespace, tenant_admin, topic
from pulsark.admin.http.merging import all_done, all_empty, by_name, done_unless_all, sorted_names
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import OWNER, EachBroker, EachPartition
from pulsark.admin.http.requests import (
    AnyTopicOf,
    BrokerOf,
    NamespaceOf,
    StatsOf,
    TopicOf,
    done,
    empty,
    flag,
    json_body,
    number,
    property_map,
    value,
)
from pulsark.admin.http.spreading import Part, failure
from pulsark.admin.http.streams import json_list, long_value, streamed
from pulsark.admin.pulsar.partitioned import (
    existing,
    is_there,
    leaves,
    parts_of,
    refuse_base,
)
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.peers.topics_elsewhere import IN_MEMORY
from pulsark.dispatch.stats.iso_time import iso_time
from pulsark.dispatch.topic.topic import Topic
from pulsark.dispatch.topics.topic_names import check_clients_may_publish
from pulsark.limits import LEDGERS_PER_TURN_MAX
from pulsark.metadata.records import InUseError
from pulsark.security.operations import NamespaceOperation as N
from pulsark.security.operations import TopicOperation as T
from pulsark.wire.message_id import MessageId
from pulsark.wire.topic_name import PERSISTENT, TopicName

router = Guarded(prefix=TOPICS, tags=["topics"])


def _is_volatile(request: Request) -> bool:
    return bool(request.path_params["domain"] != PERSISTENT)


def _infos(broker: Broker, request: Request, found: dict[str, object]) -> Response:
    return long_value({"version": 0, "partitions": found})


def _terminated(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    failed = failure(parts)
    return failed or value({str(part.nr): part.json for part in parts})


@router.get("", needs=namespace(N.GET_TOPICS), at=EachBroker(sorted_names, when=_is_volatile))
async def list_topics(name: NamespaceOf, request: Request, broker: BrokerOf) -> Response:
    """Full names of a namespace's topics, each partition by itself."""
    if is_part(request) and flag(request, IN_MEMORY):
        return value([str(topic) for topic in broker.non_persistent.of_namespace(name)])
    stored = request.path_params["domain"] == PERSISTENT
    catalog = broker.catalog
    listing = catalog.list_topics if stored else catalog.list_non_persistent_topics
    topics = await listing(name, include_system=flag(request, "includeSystemTopic"))
    bundle = request.query_params.get("bundle")
    if bundle:
        topics = [
            topic
            async for topic in in_turns(topics)
            if await broker.ownership.bundle_of(TopicName.parse(topic)) == bundle
        ]
    return streamed(json_list(topics))


@router.put("/{topic}", needs=namespace(N.CREATE_TOPIC), at=OWNER)
async def create_topic(topic: AnyTopicOf, request: Request, broker: BrokerOf) -> Response:
    """Create a topic without partitions."""
    body = await json_body(request)
    properties = property_map(body)
    if await broker.resources.namespaces.get(topic.namespace_name) is None:
        raise fail(404, "Namespace does not exist")
    if topic.partition >= 0:
        parent = await broker.resources.partitioned_topics.get(topic.base)
        if parent is None or topic.partition >= parent.partitions:
            raise fail(412, "The name is one of a partition that no partitioned topic has")
        if await broker.catalog.exists(topic):
            raise fail(409, "This topic already exists")
    elif await is_there(broker, topic):
        raise fail(409, "This topic already exists")
    await broker.creation.create_topic(topic, properties)
    return done()


@router.delete("/{topic}", needs=namespace(N.DELETE_TOPIC), at=OWNER)
async def delete_topic(topic: AnyTopicOf, request: Request, broker: BrokerOf) -> Response:
    """Delete a topic with its messages and subscriptions."""
    if await broker.resources.partitioned_topics.get(topic) is not None:
        raise fail(409, "Topic is partitioned; delete it with its partitions")
    catalog = broker.catalog
    if topic.is_persistent and not (
        broker.topics.is_loading(topic)
        or await catalog.exists(topic)
        or await catalog.is_stored(topic)
    ):
        raise fail(404, "Topic does not exist")
    try:
        await broker.deletion.delete_topic(topic, force=flag(request, "force"))
    except InUseError as error:
        raise fail(412, "Topic has connected producers or consumers") from error
    return done()


@router.get("/{topic}/internalStats", needs=topic(T.GET_STATS), at=OWNER)
async def internal_stats(
    topic: AnyTopicOf, request: Request, broker: BrokerOf, stats: StatsOf
) -> Response:
    """What is inside a topic: ledgers and cursors."""
    with_metadata = flag(request, "metadata")
    found = await broker.topics.open(topic)
    return long_value(await stats.internal(found, with_metadata=with_metadata))


@router.get("/{topic}/internal-info", needs=topic(T.GET_STATS), at=EachPartition(by_name(_infos)))
async def internal_info(topic: TopicOf, broker: BrokerOf) -> Response:
    """The ledgers and cursors of a topic as they are stored."""
    found = await broker.resources.partitioned_topics.get(topic)
    if found is None:
        return long_value(await _ledger_info(broker, await broker.topics.load(topic)))
    parts = {
        str(part): await _ledger_info(broker, await broker.topics.load(part, create=True))
        for part in parts_of(topic, found)
    }
    return long_value({"version": 0, "partitions": parts})


@router.get("/{topic}/lastMessageId", needs=topic(T.PEEK_MESSAGES), at=OWNER)
async def last_message_id(topic: TopicOf, broker: BrokerOf) -> Response:
    """The id of the last message."""
    last = await (await broker.topics.load(topic)).last_message()
    return value(_message_id(last, topic))


@router.get("/{topic}/messageid/{timestamp}", needs=topic(T.PEEK_MESSAGES), at=OWNER)
async def message_id_by_time(
    topic: TopicOf, timestamp: str, request: Request, broker: BrokerOf
) -> Response:
    """The id of the first message published at or after a time; ``compacted=true``: that stayed."""
    await refuse_base(broker, topic)
    loaded = await broker.topics.load(topic)
    view = loaded.entries.compacted if flag(request, "compacted") else None
    position = await (view or loaded.ledger).find_by_publish_time(number(timestamp))
    return value(_message_id(MessageId(*position), topic))


@router.put("/{topic}/unload", needs=topic(T.UNLOAD), at=EachPartition(all_done))
async def unload_topic(topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """Close a topic; clients connect anew and load it again."""
    for leaf in await leaves(broker, topic):
        await broker.topics.unload(leaf)
    return done()


@router.post("/{topic}/trim", needs=topic(T.TRIM_TOPIC), at=EachPartition(all_empty))
async def trim_topic(topic: TopicOf, broker: BrokerOf) -> Response:
    """Delete the ledgers that are no longer needed, without waiting for the next check."""
    for leaf in await leaves(broker, topic):
        await (await broker.topics.load(leaf, create=True)).retention.trim()
    return empty()


@router.delete("/{topic}/truncate", needs=tenant_admin, at=EachPartition(all_done))
async def truncate_topic(topic: TopicOf, broker: BrokerOf) -> Response:
    """Delete all messages, acknowledged or not, whatever retention says.

    Their rows have left the topic's table when this answers, unless a storage root is away.
    """
    for leaf in await leaves(broker, topic):
        loaded = await broker.topics.load(leaf, create=True)
        await loaded.retention.truncate()
        await broker.sealing.drop_trimmed(loaded)
    return done()


@router.post("/{topic}/terminate", needs=topic(T.TERMINATE), at=OWNER)
async def terminate_topic(topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """Accept no more messages, for ever; answers the id of the last one."""
    _refuse_to_terminate(topic)
    await refuse_base(broker, topic)
    loaded = await broker.topics.load(topic)
    return value(_message_id(MessageId(*await loaded.termination.terminate()), topic))


@router.post(
    "/{topic}/terminate/partitions",
    needs=topic(T.TERMINATE),
    at=EachPartition(_terminated, tail="terminate"),
)
async def terminate_partitions(topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """The same for each partition of a topic."""
    _refuse_to_terminate(topic)
    if await broker.resources.partitioned_topics.get(topic) is None and await broker.catalog.exists(
        topic
    ):
        raise fail(405, "Topic is not partitioned")
    ended: dict[str, Any] = {}
    for part in parts_of(topic, await existing(broker, topic)):
        loaded = await broker.topics.load(part, create=True)
        ended[str(part.partition)] = _message_id(
            MessageId(*await loaded.termination.terminate()), part
        )
    return value(ended)


@router.get("/{topic}/properties", needs=topic(T.GET_METADATA), at=OWNER)
async def get_properties(topic: TopicOf, broker: BrokerOf) -> Response:
    """A topic's properties."""
    found = await broker.resources.partitioned_topics.get(topic)
    if found is not None:
        return value(dict(found.properties))
    return value(dict((await broker.topics.load(topic)).ledger.record.properties))


@router.put("/{topic}/properties", needs=topic(T.UPDATE_METADATA), at=OWNER)
async def set_properties(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """Add to a topic's properties."""
    await _change_properties(broker, topic, partial(property_map, await json_body(request)))
    return done()


@router.delete("/{topic}/properties", needs=topic(T.DELETE_METADATA), at=OWNER)
async def delete_property(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """Remove one of a topic's properties."""
    removed = request.query_params.get("key", "")

    def change(before: Mapping[str, str]) -> dict[str, str]:
        return {key: item for key, item in before.items() if key != removed}

    await _change_properties(broker, topic, change)
    return done()


@router.put("/{topic}/compaction", needs=topic(T.COMPACT), at=EachPartition(done_unless_all(409)))
async def compact(topic: TopicOf, broker: BrokerOf) -> Response:
    """Begin to compact a topic, or each partition of it."""
    started = [
        (await broker.topics.load(leaf)).compactor.start() for leaf in await leaves(broker, topic)
    ]
    if not any(started):
        raise fail(409, "Compaction already in progress")
    return done()


@router.get("/{topic}/compaction", needs=topic(T.COMPACT), at=OWNER)
async def compaction_status(topic: TopicOf, broker: BrokerOf) -> Response:
    """How the last run of this broker went: NOT_RUN, RUNNING, SUCCESS or ERROR."""
    compactor = (await broker.topics.load(topic)).compactor
    return value({"status": compactor.status, "lastError": compactor.last_error})


def _message_id(found: MessageId, topic: TopicName) -> dict[str, int]:
    return {**found._replace(partition=topic.partition).to_json(), "batchSize": 0}


def _refuse_to_terminate(topic: TopicName) -> None:
    if not topic.is_persistent:
        raise fail(406, "A non-persistent topic cannot be terminated")
    check_clients_may_publish(topic)  # nor end what only the broker writes


async def _change_properties(
    broker: Broker, topic: TopicName, change: Callable[[Mapping[str, str]], dict[str, str]]
) -> None:
    topics = broker.resources.partitioned_topics
    if await topics.get(topic) is not None:
        await topics.change_properties(topic, change)
    else:
        await (await broker.topics.load(topic)).ledger.change_properties(change)


async def _ledger_info(broker: Broker, topic: Topic) -> dict[str, Any]:
    created = iso_time(topic.created_ms)
    info: dict[str, Any] = {
        "version": 0,
        "creationDate": created,
        "modificationDate": created,
        "ledgers": [
            {
                "ledgerId": ledger.ledger_id,
                **({} if ledger.open else {"entries": ledger.entries, "size": ledger.size}),
                "timestamp": ledger.timestamp_ms,
                "isOffloaded": False,
            }
            async for ledger in in_turns(topic.ledger.each_ledger(), LEDGERS_PER_TURN_MAX)
        ],
        "cursors": {
            name: {
                "version": 0,
                "creationDate": created,
                "modificationDate": created,
                "cursorsLedgerId": -1,
                "markDelete": {
                    "ledgerId": subscription.cursor.mark_delete.ledger_id,
                    "entryId": subscription.cursor.mark_delete.entry_id,
                },
            }
            for name, subscription in topic.subscriptions.items()
            if subscription.cursor.durable
        },
    }
    if topic.ledger.is_terminated:
        last = topic.ledger.last_confirmed
        info["terminatedPosition"] = last.to_json()
    return info
