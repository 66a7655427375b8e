"""What is known of a topic as rows of a table, for the views of Spark. Pulsark's own.

The answer is a list of objects whose keys are columns: names, numbers, texts, times in
milliseconds since the epoch, ``null`` for what there is none of. `docs/spark.md` says what each
column means.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, topic
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import EachPartition
from pulsark.admin.http.requests import BrokerOf, StatsOf, TopicOf, number, value
from pulsark.admin.http.spreading import Part, failure
from pulsark.admin.http.streams import long_value
from pulsark.admin.pulsar.partitioned import leaves
from pulsark.admin.pulsar.past_cursors import past_cursors
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.stats.stats import Stats
from pulsark.dispatch.subscription.subscription import Subscription
from pulsark.dispatch.topic.topic import Topic
from pulsark.limits import CURSOR_CHANGES_MAX, LEDGERS_PER_TURN_MAX, UNACKED_RANGES_MAX
from pulsark.security.operations import TopicOperation as T
from pulsark.storage.cursor.state import CursorState
from pulsark.wire.entry import parse_entry
from pulsark.wire.position import LATEST, Position
from pulsark.wire.topic_name import TopicName

router = Guarded(prefix=TOPICS, tags=["pulsark"])

Row = dict[str, Any]


def _rows(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    failed = failure(parts)
    if failed is not None:
        return failed
    rows = [row for part in parts for row in part.json]
    if request.path_params["view"] == "schemas":  # partitions have those of their topic
        rows = parts[0].json
    return long_value(rows)


_YIELD_EVERY = 1000


@router.get("/{topic}/views/{view}", needs=topic(T.PEEK_MESSAGES), at=EachPartition(_rows))
async def get_view(
    topic: TopicOf, view: str, request: Request, broker: BrokerOf, stats: StatsOf
) -> Response:
    """The rows of one view of a topic, all its partitions together.

    ``?at=`` milliseconds since the epoch: of the view ``cursors``, as they were at that time.
    """
    at = request.query_params.get("at")
    if view == "schemas":
        return value([row async for row in _schemas(broker, topic.base)])
    rows_of = _VIEWS.get(view)
    if at is not None:
        if view != "cursors":
            raise fail(400, f"Of the view {view[:40]} no past is known; of cursors it is")
        rows_of = partial(_past_cursors, number(at))
    if rows_of is None:
        raise fail(404, f"There is no view {view[:40]}; there are schemas, {', '.join(_VIEWS)}")
    rows: list[Row] = []
    for leaf in await leaves(broker, topic):
        loaded = await broker.topics.load(leaf, create=True)
        place = {"topic": str(leaf.base), "partition": leaf.partition}
        rows += [place | row for row in await rows_of(broker, stats, loaded)]
    return long_value(rows)


async def _schemas(broker: Broker, topic: TopicName) -> AsyncIterator[Row]:
    for stored in await broker.schemas.all(topic):
        yield {
            "topic": str(topic),
            "version": stored.version,
            "type": stored.schema.type.name,
            "definition": stored.schema.data.decode("utf-8", "replace"),
            "properties": dict(stored.schema.properties),
            "created_at": stored.timestamp,
        }


async def _topics(broker: Broker, stats: Stats, topic: Topic) -> list[Row]:
    ledger, policies = topic.ledger, topic.policies
    first, last = ledger.first_position(), ledger.last_confirmed
    schemas = await broker.schemas.all(topic.name.base)
    return [
        {
            "tenant": topic.name.tenant,
            "namespace": topic.name.namespace,
            "first_message_id": str(first) if ledger.entries else None,
            "last_message_id": str(last) if ledger.entries else None,
            "entries": ledger.entries,
            "bytes": ledger.total_size,
            "ledgers": ledger.ledger_count,
            "subscriptions": len(topic.subscriptions),
            "producers": len(topic.producers),
            "schema_type": schemas[-1].schema.type.name if schemas else None,
            "retention_minutes": policies.retention_minutes,
            "retention_mb": policies.retention_mb,
            "terminated": ledger.is_terminated,
            "properties": dict(ledger.record.properties),
            "created_at": topic.created_ms,
            "last_publish_time": await _published(topic, last) if ledger.entries else None,
        }
    ]


async def _cursors(broker: Broker, stats: Stats, topic: Topic) -> list[Row]:
    return [
        {
            **_cursor_name(subscription),
            "type": subscription.type.sub_type.name if subscription.members.spec else None,
            "durable": subscription.durable,
            "mark_delete_message_id": str(subscription.mark_delete),
            "read_message_id": str(subscription.dispatcher.reader.position),
            "unacked": _unacked(subscription.name, subscription.cursor.state),
            "backlog": subscription.backlog,
            "unacked_messages": sum(consumer.unacked for consumer in subscription.type.consumers),
            "consumers": subscription.type.consumer_count,
            "last_ack_time": subscription.totals.last_acked_ms or None,
            "properties": dict(subscription.properties.given),
        }
        for subscription in list(topic.subscriptions.values())
    ]


async def _past_cursors(at_ms: int, broker: Broker, stats: Stats, topic: Topic) -> list[Row]:
    """The cursors as they were at a time; nothing is known of their consumers then."""
    return [
        {
            "subscription": name,
            "type": None,
            "durable": True,
            "mark_delete_message_id": str(state.mark_delete),
            "read_message_id": None,
            "unacked": _unacked(name, state),
            "backlog": state.backlog(),
            "unacked_messages": None,
            "consumers": None,
            "last_ack_time": None,
            "properties": dict(properties),
        }
        for name, (state, properties) in (await past_cursors(topic, at_ms)).items()
    ]


async def _cursor_history(broker: Broker, stats: Stats, topic: Topic) -> list[Row]:
    rows = [
        {
            "subscription": change.subscription,
            "time": change.time_ms,
            "change": change.kind,
            "mark_delete_message_id": str(change.mark_delete),
            "acked_entries": change.acked_entries,
        }
        async for change in topic.cursors.changes()
    ]
    return rows[-CURSOR_CHANGES_MAX:]


def _unacked(name: str, state: CursorState) -> list[Row]:
    """Everything not acknowledged, in order: runs of whole entries, and entries in part.

    ``batch_indexes`` has the messages of a batch that are left, if some are not.
    """
    parts = list(state.masks)
    found: list[Row] = []
    for first, last in state.unacked_runs(state.mark_delete, LATEST):
        entry_id = first.entry_id
        for part in parts[bisect_left(parts, first) :]:
            if part > last:
                break
            if entry_id < part.entry_id:
                found.append(_run(first.ledger_id, entry_id, part.entry_id - 1))
            left = state.masks.get(part)
            found.append(_run(*part, part.entry_id, left and _set_bits(left)))
            entry_id = part.entry_id + 1
        if entry_id <= last.entry_id:
            found.append(_run(first.ledger_id, entry_id, last.entry_id))
        if len(found) > UNACKED_RANGES_MAX:
            raise fail(
                413,
                f"Subscription {name} has more than {UNACKED_RANGES_MAX} unacknowledged ranges",
            )
    return found


def _run(ledger_id: int, first: int, last: int, left: Any = None) -> Row:
    return {
        "ledger_id": ledger_id,
        "first_entry_id": first,
        "last_entry_id": last,
        "batch_indexes": left,
    }


def _set_bits(mask: int) -> list[int]:
    digits = bin(mask)[:1:-1]  # in linear time, as shifting a large number bit by bit is not
    return [index for index, digit in enumerate(digits) if digit == "1"]


async def _backlog(broker: Broker, stats: Stats, topic: Topic) -> list[Row]:
    rows = []
    for subscription in list(topic.subscriptions.values()):
        oldest = None
        if subscription.backlog:
            state = subscription.cursor.state
            oldest = await _published(topic, state.next_unacked(state.mark_delete))
        waited = None if oldest is None else max(broker.clock.now_ms() - oldest, 0) / 1000
        rows.append(
            {
                **_cursor_name(subscription),
                "backlog_entries": subscription.backlog,
                "backlog_bytes": subscription.backlog_size,
                "oldest_unacked_time": oldest,
                "lag_seconds": waited if subscription.backlog else 0.0,
            }
        )
    return rows


async def _producers(broker: Broker, stats: Stats, topic: Topic) -> list[Row]:
    return [
        {
            "producer_name": said["producerName"],
            "access_mode": said["accessMode"],
            **_client(said),
            "connected_at": producer.connected_since_ms,
        }
        for producer in list(topic.producers.values())
        if (said := stats.publisher(producer))
    ]


async def _consumers(broker: Broker, stats: Stats, topic: Topic) -> list[Row]:
    return [
        {
            **_cursor_name(subscription),
            "consumer_name": said["consumerName"],
            **_client(said),
            "connected_at": consumer.connected_since_ms,
            "unacked_messages": said["unackedMessages"],
            "available_permits": said["availablePermits"],
            "last_ack_time": said["lastAckedTimestamp"] or None,
        }
        for subscription in list(topic.subscriptions.values())
        for consumer in subscription.type.consumers
        if (said := stats.consumer(consumer))
    ]


def _client(said: Row) -> Row:
    return {
        "address": said["address"],
        "client_version": said["clientVersion"],
        "metadata": said["metadata"],
        "messages_per_second": said.get("msgRateIn", said.get("msgRateOut")),
        "bytes_per_second": said.get("msgThroughputIn", said.get("msgThroughputOut")),
    }


async def _ledgers(broker: Broker, stats: Stats, topic: Topic) -> list[Row]:
    return [
        {
            "ledger_id": info.ledger_id,
            "entries": info.entries,
            "bytes": info.size,
            "open": info.open,
            "changed_at": info.timestamp_ms,
        }
        async for info in in_turns(topic.ledger.each_ledger(), LEDGERS_PER_TURN_MAX)
    ]


def _cursor_name(subscription: Subscription) -> Row:
    return {"subscription": subscription.name}


async def _published(topic: Topic, position: Position) -> int | None:
    """When an entry was published, as its producer says; ``None`` if it cannot tell."""
    entries = await topic.entries.read(position, 1, 1)
    if not entries:
        return None
    return parse_entry(entries[0].data).metadata.publish_time or None


_VIEWS: dict[str, Callable[[Broker, Stats, Topic], Awaitable[list[Row]]]] = {
    "topics": _topics,
    "cursors": _cursors,
    "cursor_history": _cursor_history,
    "backlog": _backlog,
    "producers": _producers,
    "consumers": _consumers,
    "ledgers": _ledgers,
}
