"""What is known of a topic as rows of a table, for the views of Spark. Pulsark's own.

The answer is a list of objects whose keys are columns: names, numbers, texts, times in
milliseconds since the epoch, ``null`` for what there is none of. `docs/spark.md` says what each
column means.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.budgets import Account, account_of
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, topic
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import EachPartition
from pulsark.admin.http.requests import BrokerOf, StatsOf, TopicOf, flag, number, value
from pulsark.admin.http.spreading import Part, failure
from pulsark.admin.http.streams import (
    ITEMS_PER_PIECE,
    ITEMS_PER_TURN,
    EncodedList,
    encoded,
    long_value,
)
from pulsark.admin.pulsar.partitioned import leaves
from pulsark.admin.pulsar.past_cursors import past_cursors
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.turns import Pace, in_turns
from pulsark.dispatch.stats.stats import Stats
from pulsark.dispatch.subscription.subscription import Subscription
from pulsark.dispatch.subscription.unacked_runs import unacked_runs
from pulsark.dispatch.topic.topic import Topic
from pulsark.limits import (
    CURSOR_CHANGES_MAX,
    LEDGERS_PER_TURN_MAX,
    RUNS_PER_TURN_MAX,
    SUBSCRIPTIONS_PER_TURN_MAX,
    UNACKED_BYTES_MAX,
    UNACKED_INDEXES_MAX,
    UNACKED_RANGES_MAX,
)
from pulsark.security.operations import TopicOperation as T
from pulsark.storage.cursor.history import CursorChange
from pulsark.storage.cursor.state import CursorState
from pulsark.wire.ack_set import bit_indexes
from pulsark.wire.entry import parse_entry
from pulsark.wire.position import Position
from pulsark.wire.topic_name import TopicName

router = Guarded(prefix=TOPICS, tags=["pulsark"])

Row = dict[str, Any]


def _rows(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    failed = failure(parts)
    if failed is not None:
        return failed
    if request.path_params["view"] == "schemas":  # partitions have those of their topic
        parts = parts[:1]
    rows = (part.body.strip()[1:-1] for part in parts)
    return Response(b"[%s]" % b",".join(filter(None, rows)), media_type="application/json")


@router.get("/{topic}/views/{view}", needs=topic(T.PEEK_MESSAGES), at=EachPartition(_rows))
async def get_view(
    topic: TopicOf, view: str, request: Request, broker: BrokerOf, stats: StatsOf
) -> Response:
    """The rows of one view of a topic, all its partitions together.

    Of the view ``cursors``, each row of one moment: ``?at=`` milliseconds since the epoch, as they
    were at that time; ``?subscription=NAME``, only that one; ``?masks=true``, batches in part as
    ``batch_mask`` (bits of a number in hexadecimal digits) in place of ``batch_indexes``. An answer
    that would be very large is refused (413).
    """
    at = request.query_params.get("at")
    if view == "schemas":
        return value([row async for row in _schemas(broker, topic.base)])
    wanted = request.query_params.get("subscription")
    rows_of = _VIEWS.get(view)
    if view == "cursors":
        unacked = _Unacked(account_of(request), masks=flag(request, "masks"))
        now = partial(_cursors, wanted, unacked)
        rows_of = now if at is None else partial(_past_cursors, number(at), wanted, unacked)
    elif at is not None:
        raise fail(400, f"Of the view {view[:40]} no past is known; of cursors it is")
    if rows_of is None:
        known = ", ".join(["schemas", "cursors", *_VIEWS])
        raise fail(404, f"There is no view {view[:40]}; there are {known}")
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


async def _cursors(
    wanted: str | None, unacked: _Unacked, broker: Broker, stats: Stats, topic: Topic
) -> list[Row]:
    rows: list[Row] = []
    async for subscription in _each_subscription(topic):
        if wanted not in (None, subscription.name):
            continue
        state = subscription.cursor.state.frozen()
        row = {
            **_cursor_name(subscription),
            "type": subscription.type.sub_type.name if subscription.members.spec else None,
            "durable": subscription.durable,
            "mark_delete_message_id": str(subscription.mark_delete),
            "read_message_id": str(subscription.dispatcher.reader.position),
            "unacked": None,
            "backlog": subscription.backlog,
            "unacked_messages": sum(consumer.unacked for consumer in subscription.type.consumers),
            "consumers": subscription.type.consumer_count,
            "last_ack_time": subscription.totals.last_acked_ms or None,
            "properties": dict(subscription.properties.given),
        }
        row["unacked"] = await unacked.of(subscription.name, state)
        rows.append(row)
    return rows


async def _past_cursors(
    at_ms: int, wanted: str | None, unacked: _Unacked, broker: Broker, stats: Stats, topic: Topic
) -> list[Row]:
    """The cursors as they were at a time; nothing is known of their consumers then."""
    return [
        {
            "subscription": name,
            "type": None,
            "durable": True,
            "mark_delete_message_id": str(state.mark_delete),
            "read_message_id": None,
            "unacked": await unacked.of(name, state),
            "backlog": state.backlog(),
            "unacked_messages": None,
            "consumers": None,
            "last_ack_time": None,
            "properties": dict(properties),
        }
        async for name, (state, properties) in in_turns(
            (await past_cursors(topic, at_ms)).items(), SUBSCRIPTIONS_PER_TURN_MAX
        )
        if wanted in (None, name)
    ]


async def _cursor_history(broker: Broker, stats: Stats, topic: Topic) -> list[Row]:
    newest: deque[CursorChange] = deque(maxlen=CURSOR_CHANGES_MAX)
    async for change in topic.cursors.changes():
        newest.append(change)
    return [
        {
            "subscription": change.subscription,
            "time": change.time_ms,
            "change": change.kind,
            "mark_delete_message_id": str(change.mark_delete),
            "acked_entries": change.acked_entries,
        }
        async for change in in_turns(newest, ITEMS_PER_TURN)
    ]


class _Unacked:
    """What the subscriptions in one answer have not acknowledged, within the limits of an answer.

    It is encoded at once, to a quarter of the memory, and counts to the client from then on.
    """

    def __init__(self, account: Account, *, masks: bool) -> None:
        """``masks``: of batches in part, show the bits that are left and not their indexes."""
        self._account = account
        self._masks = masks
        self._pace = Pace(RUNS_PER_TURN_MAX)
        self._ranges = self._indexes = self._bytes = 0
        self._waiting: list[Row] = []

    async def of(self, name: str, state: CursorState) -> EncodedList:
        """Return runs of whole entries, and entries in part, in order; 413 beyond the limits.

        ``batch_indexes`` has the messages of a batch that are left, if some are not; ``batch_mask``
        has them as bits of a number.
        """
        pieces: list[str] = []
        async for run in self._runs(name, state):
            self._waiting.append(run)
            self._ranges += 1
            self._check(name, "ranges", self._ranges, UNACKED_RANGES_MAX)
            if len(self._waiting) == ITEMS_PER_PIECE:
                self._encode(name, pieces)
        if self._waiting:
            self._encode(name, pieces)
        return EncodedList(pieces)

    async def _runs(self, name: str, state: CursorState) -> AsyncIterator[Row]:
        ledger_id, parts = -1, list[int]()
        async for first, last in unacked_runs(state):
            if first.ledger_id != ledger_id:
                ledger_id = first.ledger_id
                parts = sorted(state.masks.ledgers.get(ledger_id, ()))
            entry_id = first.entry_id
            for index in range(bisect_left(parts, entry_id), bisect_right(parts, last.entry_id)):
                part = parts[index]
                if entry_id < part:
                    yield self._run(ledger_id, entry_id, part - 1, None)
                left = state.masks.get(Position(ledger_id, part))
                if left is not None and not self._masks:
                    self._indexes += left.bit_count()
                    self._check(name, "indexes of batches", self._indexes, UNACKED_INDEXES_MAX)
                yield self._run(ledger_id, part, part, left)
                entry_id = part + 1
                await self._pace.step()
            if entry_id <= last.entry_id:
                yield self._run(ledger_id, entry_id, last.entry_id, None)

    def _run(self, ledger_id: int, first: int, last: int, left: int | None) -> Row:
        run: Row = {"ledger_id": ledger_id, "first_entry_id": first, "last_entry_id": last}
        if self._masks:
            run["batch_mask"] = None if left is None else f"{left:x}"
        else:
            run["batch_indexes"] = None if left is None else bit_indexes(left)
        return run

    def _encode(self, name: str, pieces: list[str]) -> None:
        piece = encoded(self._waiting)[1:-1]
        self._waiting.clear()
        self._bytes += len(piece)
        self._check(name, "bytes of ranges", self._bytes, UNACKED_BYTES_MAX)
        self._account.expect_answer(self._bytes)
        pieces.append(piece)

    def _check(self, name: str, what: str, count: int, most: int) -> None:
        if count > most:
            raise fail(
                413,
                f"The subscriptions up to {name[:100]} have more than {most} unacknowledged "
                f"{what}; ask for one with ?subscription=NAME, and for short forms of batches "
                "with ?masks=true",
            )


async def _backlog(broker: Broker, stats: Stats, topic: Topic) -> list[Row]:
    rows = []
    async for subscription in _each_subscription(topic):
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


def _each_subscription(topic: Topic) -> AsyncIterator[Subscription]:
    return in_turns(list(topic.subscriptions.values()), SUBSCRIPTIONS_PER_TURN_MAX)


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
    "cursor_history": _cursor_history,
    "backlog": _backlog,
    "producers": _producers,
    "consumers": _consumers,
    "ledgers": _ledgers,
}
