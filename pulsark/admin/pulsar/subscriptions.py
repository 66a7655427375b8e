"""Subscriptions of a topic: list, create, delete, skip, reset, acknowledge.

On a topic with partitions each call goes to all of them.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.broker_calls import is_part
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, topic
from pulsark.admin.http.merging import (
    all_done,
    all_names,
    done_unless_all,
    first_found,
    objects_of_those_found,
)
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import OWNER, EachPartition
from pulsark.admin.http.requests import (
    AnyTopicOf,
    BrokerOf,
    SubscriptionOf,
    TopicOf,
    done,
    flag,
    integer,
    json_body,
    json_object,
    number,
    position,
    string_map,
    value,
)
from pulsark.admin.pulsar.partitioned import is_there, leaves, refuse_base
from pulsark.admin.pulsar.past_cursors import past_cursors
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.model.interfaces import AnyTopic
from pulsark.dispatch.policies.policies import auto_topic_creation
from pulsark.dispatch.subscription.stored_topic import EntrySource
from pulsark.dispatch.subscription.subscription import Subscription
from pulsark.dispatch.topic.topic import Topic
from pulsark.limits import ADMIN_ACKS_MAX, TOPIC_PROPERTIES_MAX
from pulsark.security.operations import TopicOperation as T
from pulsark.storage.cursor.cursor import Ack
from pulsark.storage.cursor.owners import CursorOwner, check_new_name, check_owner
from pulsark.wire.ack_set import full_mask, words_of_mask
from pulsark.wire.position import EARLIEST, LATEST, Position
from pulsark.wire.topic_name import TopicName

router = Guarded(prefix=TOPICS, tags=["subscriptions"])

_ONE = "/{topic}/subscription/{subscription}"
SKIP_MAX = 100_000_000
CREATION = EachPartition(done_unless_all(409))


@router.get("/{topic}/subscriptions", needs=topic(T.GET_SUBSCRIPTIONS), at=EachPartition(all_names))
async def list_subscriptions(topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """Names of a topic's subscriptions."""
    names: dict[str, None] = {}
    for loaded in await _served(broker, topic):
        names.update(dict.fromkeys(loaded.subscriptions))
    return value(list(names))


@router.put(_ONE, needs=topic(T.SUBSCRIBE, of_subscription=True), at=CREATION)
async def create_subscription(
    topic: AnyTopicOf, name: SubscriptionOf, request: Request, broker: BrokerOf
) -> Response:
    """Create a subscription; without a message id it starts with the next message."""
    body = await json_body(request)
    if not topic.is_persistent:
        raise fail(400, "Consumers make the subscriptions of a non-persistent topic")
    start, properties = LATEST, {}
    if body is not None:
        start = position(body)
        given = body.get("properties")
        properties = string_map(given, "properties", TOPIC_PROPERTIES_MAX)
    check_new_name(name)
    if is_part(request):  # also of a partition that is to be
        targets = [await broker.topics.load(topic, create=True)]
    else:
        await _make_if_allowed(topic, broker)
        if broker.other_brokers() is not None:
            await CREATION.settle(request, broker.peers())  # it may have partitions since now
        targets = await _loaded(broker, topic)
    if all(name in target.subscriptions for target in targets):
        raise fail(409, "Subscription already exists for topic")
    for target in targets:
        if name not in target.subscriptions:
            await target.registry.create(
                name, start, properties, durable=True, replicated=flag(request, "replicated")
            )
    return done()


async def _make_if_allowed(topic: TopicName, broker: Broker) -> None:
    if await is_there(broker, topic):
        return
    namespace = await broker.ownership.namespace(topic)
    if not auto_topic_creation(broker.settings, namespace.policies).allowed:
        raise fail(412, "Topic does not exist, and automatic creation is switched off")
    if await broker.creation.partition_count(topic, create=True) == 0:
        await broker.creation.topic_for_clients(topic)


@router.delete(
    _ONE, needs=topic(T.UNSUBSCRIBE, of_subscription=True), at=EachPartition(done_unless_all(404))
)
async def delete_subscription(
    topic: AnyTopicOf, name: SubscriptionOf, request: Request, broker: BrokerOf
) -> Response:
    """Delete a subscription without consumers, or any with ``force``."""
    served = await _served(broker, topic)
    found = [one.subscriptions[name] for one in served if name in one.subscriptions]
    if not found:
        raise fail(404, "Subscription not found")
    force = flag(request, "force")
    if not force:
        for subscription in found:
            subscription.members.check_unused()  # of none, or of all
    for subscription in found:
        await subscription.delete(force=force)
    return done()


@router.post(
    _ONE + "/skip_all",
    needs=topic(T.SKIP, of_subscription=True),
    at=EachPartition(done_unless_all(404)),
)
async def skip_all(topic: TopicOf, name: SubscriptionOf, broker: BrokerOf) -> Response:
    """Acknowledge everything there is."""
    for subscription in await _subscriptions(broker, topic, name):
        await subscription.acks.administered_through(LATEST)
    return done()


@router.post(_ONE + "/skip/{count}", needs=topic(T.SKIP, of_subscription=True), at=OWNER)
async def skip(topic: TopicOf, name: SubscriptionOf, count: str, broker: BrokerOf) -> Response:
    """Acknowledge the next ``count`` entries."""
    skipped = number(count, high=SKIP_MAX)
    check_owner(name, CursorOwner.CLIENTS)  # also if there is nothing to skip
    subscription = await _single(broker, topic, name)
    _, target = subscription.cursor.state.nth_unacked(skipped)
    if target is not None:
        await subscription.acks.administered_through(target)
    return done()


@router.post(
    _ONE + "/resetcursor/{timestamp}",
    needs=topic(T.RESET_CURSOR, of_subscription=True),
    at=EachPartition(done_unless_all(404)),
)
async def reset_by_time(
    topic: TopicOf, name: SubscriptionOf, timestamp: str, broker: BrokerOf
) -> Response:
    """Go on with the first message published at or after a time."""
    published_ms = number(timestamp)
    for subscription in await _subscriptions(broker, topic, name):
        await subscription.seeking.to_time(published_ms)
    return done()


@router.post(_ONE + "/resetcursor", needs=topic(T.RESET_CURSOR, of_subscription=True), at=OWNER)
async def reset_by_id(
    topic: TopicOf, name: SubscriptionOf, request: Request, broker: BrokerOf
) -> Response:
    """Go on with a message, or with the one after it (``excluded``); also within a batch."""
    body = await json_object(request)
    target = position(body)
    batch_index = integer(body.get("batchIndex"), "batchIndex", -1)
    excluded = body.get("excluded") is True or body.get("isExcluded") is True
    subscription = await _single(broker, topic, name)
    ledger = subscription.topic.ledger
    last = ledger.last_confirmed
    ack_set: list[int] = []
    if target > last:
        target = Position(last.ledger_id, last.entry_id + 1)
    elif batch_index >= 0:
        passed = batch_index + excluded
        ack_set = await _batch_from(subscription.topic.entries, target, passed)
        if not ack_set and passed:
            target = ledger.next_position(target)
    elif excluded:
        target = ledger.next_position(target)
    await subscription.seeking.to(target, ack_set or None)
    return done()


@router.post(
    _ONE + "/expireMessages/{seconds}",
    needs=topic(T.EXPIRE_MESSAGES, of_subscription=True),
    at=EachPartition(done_unless_all(404)),
)
async def expire_by_age(
    topic: TopicOf, name: SubscriptionOf, seconds: str, broker: BrokerOf
) -> Response:
    """Acknowledge messages that are at least this old; 409 if that cannot do anything."""
    _expire(await _with_topics(broker, topic, name), number(seconds, low=1))
    return done()


@router.post(
    "/{topic}/all_subscription/expireMessages/{seconds}",
    needs=topic(T.EXPIRE_MESSAGES),
    at=EachPartition(all_done),
)
async def expire_all_by_age(topic: TopicOf, seconds: str, broker: BrokerOf) -> Response:
    """Acknowledge messages that are at least this old for all subscriptions."""
    age = number(seconds, low=1)
    loaded = await _loaded(broker, topic)
    _expire([(one, s) for one in loaded for s in one.backlog.subscriptions], age)
    return done()


@router.post(
    _ONE + "/expireMessages", needs=topic(T.EXPIRE_MESSAGES, of_subscription=True), at=OWNER
)
async def expire_by_id(
    topic: TopicOf, name: SubscriptionOf, request: Request, broker: BrokerOf
) -> Response:
    """Acknowledge everything up to a message, or up to the one before it (``excluded``)."""
    body = await json_object(request)
    target = position(body)
    subscription = await _single(broker, topic, name)
    ledger = subscription.topic.ledger
    if body.get("excluded") is True or body.get("isExcluded") is True:
        target = ledger.previous_position(target)
    subscription.acks.expire(min(target, ledger.last_confirmed))
    return done()


@router.post(_ONE + "/acknowledge", needs=topic(T.CONSUME, of_subscription=True), at=OWNER)
async def acknowledge(
    topic: TopicOf, name: SubscriptionOf, request: Request, broker: BrokerOf
) -> Response:
    """Acknowledge everything up to a message, or each message of a list, durably. Pulsark's own.

    For subscriptions that have no consumers of their own, as those that move with a Spark query.
    """
    body = await json_body(request)
    subscription = await _single(broker, topic, name)
    if subscription.type.consumer_count:
        raise fail(412, "Subscription has connected consumers, who acknowledge by themselves")
    if isinstance(body, list):
        acks = [await _ack_of(subscription.topic.entries, found) for found in _few(body)]
        await subscription.acks.administered(acks)
    else:
        await subscription.acks.administered_through(position(body or {}))
    return done()


@router.post(
    _ONE + "/restore/{timestamp}",
    needs=topic(T.RESET_CURSOR, of_subscription=True),
    at=EachPartition(done_unless_all(404)),
)
async def restore(
    topic: TopicOf, name: SubscriptionOf, timestamp: str, broker: BrokerOf
) -> Response:
    """Acknowledged is what was acknowledged at a past time, message by message. Pulsark's own.

    A subscription that was deleted since then is made again.
    """
    at_ms = number(timestamp)
    found = []
    for loaded in await _loaded(broker, topic):
        past = (await past_cursors(loaded, at_ms)).get(name)
        if past is not None:
            found.append((loaded, past))
    if not found:
        raise fail(404, f"Subscription {name} did not exist at that time")
    for loaded, past in found:
        subscription = await loaded.registry.create(
            name, EARLIEST, dict(past.properties), durable=True
        )
        await subscription.seeking.restore(past.state)
    return done()


@router.get(
    _ONE + "/properties",
    needs=topic(T.CONSUME, of_subscription=True),
    at=EachPartition(first_found),
)
async def get_properties(topic: AnyTopicOf, name: SubscriptionOf, broker: BrokerOf) -> Response:
    """A subscription's properties. Where nothing is stored they are not, either."""
    if not topic.is_persistent:
        await refuse_base(broker, topic)
        if name not in (await broker.topics.open(topic)).subscriptions:
            raise fail(404, "Subscription not found")
        return value({})
    found = await _subscriptions(broker, topic, name)
    return value(dict(found[0].properties.given))


@router.put(
    _ONE + "/properties",
    needs=topic(T.SUBSCRIBE, of_subscription=True),
    at=EachPartition(done_unless_all(404)),
)
async def set_properties(
    topic: TopicOf, name: SubscriptionOf, request: Request, broker: BrokerOf
) -> Response:
    """Replace a subscription's properties."""
    given = string_map(await json_body(request), "properties", TOPIC_PROPERTIES_MAX)
    for subscription in await _subscriptions(broker, topic, name):
        await subscription.properties.replace(given)
    return done()


@router.get(
    _ONE + "/replicatedSubscriptionStatus",
    needs=topic(T.GET_REPLICATED_SUBSCRIPTION_STATUS, of_subscription=True),
    at=EachPartition(objects_of_those_found),
)
async def get_replicated(topic: TopicOf, name: SubscriptionOf, broker: BrokerOf) -> Response:
    """Whether the subscription's state is to be replicated, for each partition."""
    found = await _subscriptions(broker, topic, name)
    return value({str(one.topic.name): one.properties.replicated for one in found})


@router.post(
    _ONE + "/replicatedSubscriptionStatus",
    needs=topic(T.SET_REPLICATED_SUBSCRIPTION_STATUS, of_subscription=True),
    at=EachPartition(done_unless_all(404)),
)
async def set_replicated(
    topic: TopicOf, name: SubscriptionOf, request: Request, broker: BrokerOf
) -> Response:
    """Say whether the subscription's state is to be replicated."""
    wanted = await json_body(request)
    if not isinstance(wanted, bool):
        raise fail(400, "The body is true or false")
    for subscription in await _subscriptions(broker, topic, name):
        await subscription.properties.set_replicated(wanted)
    return done()


async def _served(broker: Broker, topic: TopicName) -> list[AnyTopic]:
    return [await broker.topics.open(leaf, create=True) for leaf in await leaves(broker, topic)]


async def _loaded(broker: Broker, topic: TopicName) -> list[Topic]:
    return [await broker.topics.load(leaf, create=True) for leaf in await leaves(broker, topic)]


async def _subscriptions(broker: Broker, topic: TopicName, name: str) -> list[Subscription]:
    """The subscription on the topic, or on each partition that has it; 404 if none has."""
    return [subscription for _, subscription in await _with_topics(broker, topic, name)]


async def _with_topics(
    broker: Broker, topic: TopicName, name: str
) -> list[tuple[Topic, Subscription]]:
    found = [
        (loaded, loaded.subscriptions[name])
        for loaded in await _loaded(broker, topic)
        if name in loaded.subscriptions
    ]
    if not found:
        raise fail(404, "Subscription not found")
    return found


async def _single(broker: Broker, topic: TopicName, name: str) -> Subscription:
    await refuse_base(broker, topic)
    (found,) = await _subscriptions(broker, topic, name)
    return found


_SMALL_BACKLOG = 1000
"""Entries below which Pulsar takes a backlog for one that consumers are about to receive."""


def _expire(found: list[tuple[Topic, Subscription]], seconds: int) -> None:
    """Expire messages of this age.

    As in Pulsar, 409 for a subscription without a backlog, and for one with consumers that are
    about to receive what there is, unless it has a message of this age.
    """
    refused = False
    for loaded, one in found:
        expired = loaded.backlog.expire_older_than(seconds, [one])
        is_followed = bool(one.type.consumers) and one.backlog < _SMALL_BACKLOG
        refused |= not expired and (not one.backlog or is_followed)
    if refused:
        raise fail(409, "Nothing to expire: a subscription has no message that is so old")


async def _batch_from(entries: EntrySource, place: Position, index: int) -> list[int]:
    """The ack set of a batch from a message on; empty if that is all of it, or nothing."""
    found = await entries.read(place, 1, 1)
    if not index or not found or found[0].position != place or index >= found[0].messages:
        return []
    return words_of_mask(full_mask(found[0].messages) >> index << index)


def _few(found: list[Any]) -> list[Any]:
    if len(found) > ADMIN_ACKS_MAX:
        raise fail(413, f"At most {ADMIN_ACKS_MAX} messages are acknowledged at once")
    return found


async def _ack_of(source: EntrySource, found: Any) -> Ack:
    """A message id as an acknowledgement: the entry, or with ``batchIndex`` a part of it."""
    place = position(found)
    index = integer(found.get("batchIndex"), "batchIndex", -1)
    if index < 0:
        return place, None, None
    entries = await source.read(place, 1, 1)
    if not entries or entries[0].position != place or index >= entries[0].messages:
        raise fail(404, f"There is no message {place} with batch index {index}")
    size = entries[0].messages
    return place, words_of_mask(full_mask(size) & ~(1 << index)), size
