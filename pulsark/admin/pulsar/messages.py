"""Stored messages over HTTP: peek into a subscription, get one by its id, measure a backlog."""

from __future__ import annotations

from functools import partial

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.budgets import account_of
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, topic
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import OWNER
from pulsark.admin.http.requests import (
    BrokerOf,
    SubscriptionOf,
    TopicOf,
    json_object,
    number,
    position,
    value,
)
from pulsark.admin.http.streams import long_value
from pulsark.admin.pulsar.message_headers import message_response, shown_bytes
from pulsark.admin.pulsar.partitioned import refuse_base
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.stats.iso_time import iso_time
from pulsark.dispatch.subscription.subscription import Subscription
from pulsark.dispatch.topic.topic import Topic
from pulsark.limits import ANALYZED_ENTRIES_MAX, LEDGERS_PER_TURN_MAX, SHOWN_PAYLOAD_BYTES_MAX
from pulsark.security.operations import TopicOperation as T
from pulsark.wire.position import Position
from pulsark.wire.topic_name import TopicName

router = Guarded(at=OWNER, prefix=TOPICS, tags=["messages"])

_ONE = "/{topic}/subscription/{subscription}"
_READ_ENTRIES = 500
_READ_BYTES = 4 << 20


@router.get(_ONE + "/position/{place}", needs=topic(T.PEEK_MESSAGES, of_subscription=True))
async def peek(
    topic: TopicOf, name: SubscriptionOf, place: str, request: Request, broker: BrokerOf
) -> Response:
    """The entry at a place among those that are not acknowledged; the first has place 1.

    A subscription that does not exist is one that has acknowledged nothing.
    """
    wanted = number(place, low=1)
    loaded = await _single(broker, topic)
    subscription = loaded.subscriptions.get(name)
    if subscription is None:
        if wanted > loaded.ledger.entries:
            raise fail(404, "The topic has fewer messages")
        return await _message(request, loaded, loaded.ledger.position_at(wanted - 1))
    there, found = subscription.cursor.state.nth_unacked(wanted)
    if found is None or there < wanted:
        raise fail(404, "The subscription has fewer messages that are not acknowledged")
    return await _message(request, loaded, found)


@router.get("/{topic}/ledger/{ledger}/entry/{entry}", needs=topic(T.PEEK_MESSAGES))
async def message_by_id(
    topic: TopicOf, ledger: str, entry: str, request: Request, broker: BrokerOf
) -> Response:
    """The entry with an id; 404 unless the topic has it."""
    wanted = Position(number(ledger), number(entry))
    return await _message(request, await _single(broker, topic), wanted)


@router.get("/{topic}/examinemessage", needs=topic(T.PEEK_MESSAGES))
async def examine(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """The entry at a place from either end of a topic; the first and the last have place 1."""
    end = request.query_params.get("initialPosition", "latest")
    if end not in ("earliest", "latest"):
        raise fail(412, "initialPosition is earliest or latest")
    place = max(number(request.query_params.get("messagePosition", "1")), 1)
    loaded = await _single(broker, topic)
    total = loaded.ledger.entries
    if not total:
        raise fail(412, "The topic has no messages")
    if place > total:
        raise fail(404, f"The topic has only {total} messages")
    index = place - 1 if end == "earliest" else total - place
    return await _message(request, loaded, loaded.ledger.position_at(index))


@router.get("/{topic}/backlog", needs=topic(T.GET_BACKLOG_SIZE))
async def offline_stats(topic: TopicOf, broker: BrokerOf) -> Response:
    """What is stored, and what not acknowledged, in the shape of Pulsar's offline statistics."""
    loaded = await _single(broker, topic)
    backlogs = {s.name: s.backlog for s in loaded.backlog.subscriptions}
    return long_value(
        {
            "storageSize": loaded.total_size,
            "totalMessages": loaded.ledger.entries,
            "messageBacklog": sum(backlogs.values()),
            "brokerName": broker.ownership.web_url,
            "topicName": topic.local,
            "dataLedgerDetails": [
                {
                    "entries": info.entries,
                    "timestamp": info.timestamp_ms,
                    "size": info.size,
                    "ledgerId": info.ledger_id,
                }
                async for info in in_turns(loaded.ledger.each_ledger(), LEDGERS_PER_TURN_MAX)
            ],
            "cursorDetails": {
                name: {"cursorBacklog": backlog, "cursorLedgerId": -1}
                for name, backlog in backlogs.items()
            },
            "statGeneratedAt": broker.clock.now_ms(),
        }
    )


@router.put("/{topic}/backlogSize", needs=topic(T.GET_BACKLOG_SIZE))
async def backlog_size(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """Bytes from a message on, about."""
    start = position(await json_object(request))
    ledger = (await _single(broker, topic)).ledger
    return value(ledger.bytes_after(Position(start.ledger_id, start.entry_id - 1)))


@router.post(_ONE + "/analyzeBacklog", needs=topic(T.CONSUME, of_subscription=True))
async def analyze_backlog(
    topic: TopicOf, name: SubscriptionOf, request: Request, broker: BrokerOf
) -> Response:
    """Count what a subscription has not acknowledged, from its first such entry or a given one.

    It reads a bounded number of entries; ``aborted`` says that there are more.
    """
    body = await json_object(request)
    loaded, subscription = await _subscription(broker, topic, name)
    ledger, state = loaded.ledger, subscription.cursor.state
    start = ledger.next_position(state.mark_delete)
    if body:
        start = max(start, position(body))
    entries = messages = 0
    first = last = None
    while entries < ANALYZED_ENTRIES_MAX:
        found = await loaded.entries.read(
            start, min(_READ_ENTRIES, ANALYZED_ENTRIES_MAX - entries), _READ_BYTES
        )
        if not found:
            break
        for entry in found:
            if state.is_acked(entry.position):
                continue
            left = state.ack_set_of(entry.position)
            entries += 1
            messages += (
                entry.messages
                if left is None
                else sum((word & (2**64 - 1)).bit_count() for word in left)
            )
            first = first or entry.position
            last = entry.position
        start = ledger.next_position(found[-1].position)
    return value(
        {
            "entries": entries,
            "messages": messages,
            "filterRejectedEntries": 0,
            "filterAcceptedEntries": entries,
            "filterRescheduledEntries": 0,
            "filterRejectedMessages": 0,
            "filterAcceptedMessages": messages,
            "filterRescheduledMessages": 0,
            "aborted": start <= ledger.last_confirmed,
            **({} if first is None else {"firstMessageId": str(first)}),
            **({} if last is None else {"lastMessageId": str(last)}),
        }
    )


async def _single(broker: Broker, topic: TopicName) -> Topic:
    await refuse_base(broker, topic)
    return await broker.topics.load(topic)


async def _subscription(broker: Broker, topic: TopicName, name: str) -> tuple[Topic, Subscription]:
    loaded = await _single(broker, topic)
    subscription = loaded.subscriptions.get(name)
    if subscription is None:
        raise fail(404, "Subscription not found")
    return loaded, subscription


async def _message(request: Request, topic: Topic, wanted: Position) -> Response:
    """The entry as an answer. A large one counts to its client before it is decompressed."""
    found = await topic.entries.read(wanted, 1, 1)
    if not found or found[0].position != wanted:
        raise fail(404, "Message not found")
    data = found[0].data
    account_of(request).expect_answer(shown_bytes(data, SHOWN_PAYLOAD_BYTES_MAX))
    make = partial(message_response, wanted, data, iso_time, SHOWN_PAYLOAD_BYTES_MAX)
    broker: Broker = request.app.state.broker
    headers, body = await broker.large_jobs.run(make)
    return Response(body, headers=headers, media_type="application/octet-stream")
