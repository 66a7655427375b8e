"""Subscriptions of a topic: how many there may be, and when they go."""

from __future__ import annotations

import asyncio
import gc
from unittest.mock import patch

import pytest

from pulsark.dispatch.subscription.subscription import Subscription
from pulsark.dispatch.topic.topic import Topic
from pulsark.errors import ClientError, ServerError
from pulsark.limits import SUBSCRIPTION_PROPERTIES_BYTES_MAX, SUBSCRIPTIONS_PER_TURN_MAX
from pulsark.storage.cursor.owners import CursorOwner
from pulsark.wire.position import EARLIEST, LATEST, Position
from tests.support.broker_clients import NAME, TOPIC, Client, scenario


@scenario(maxSubscriptionsPerTopic=1)
async def test_the_brokers_own_subscriptions_do_not_count(broker) -> None:
    await Client(broker).produce(TOPIC, 1)
    registry = broker.broker.topics.get_loaded(NAME).registry
    first = await registry.create("a", EARLIEST, {}, durable=True)
    await registry.create("__compaction", EARLIEST, {}, durable=True, by=CursorOwner.COMPACTION)
    assert await registry.create("a", EARLIEST, {}, durable=True) is first
    with pytest.raises(ClientError, match="maximum number of subscriptions") as refused:
        await registry.create("b", EARLIEST, {}, durable=True)
    assert refused.value.code is ServerError.NotAllowedError
    assert set(registry.by_name) == {"a", "__compaction"}


@scenario()
async def test_only_a_readers_subscription_goes_with_its_last_consumer(broker) -> None:
    await Client(broker).produce(TOPIC, 1)
    topic = broker.broker.topics.get_loaded(NAME)
    durable = await topic.registry.create("d", EARLIEST, {}, durable=True)
    reader = await topic.registry.create("r", EARLIEST, {}, durable=False)
    await asyncio.sleep(5)
    for subscription in (durable, reader):
        topic.registry.idle(subscription)
    assert topic.subscriptions == {"d": durable}
    assert (durable.members.closed, reader.members.closed) == (False, True)
    assert durable.idle_since == topic.last_used == topic.clock.monotonic()


@scenario()
async def test_a_former_subscription_does_not_take_its_successor_along(broker) -> None:
    await Client(broker).produce(TOPIC, 1)
    registry = broker.broker.topics.get_loaded(NAME).registry
    former = await registry.create("r", EARLIEST, {}, durable=False)
    registry.idle(former)
    latter = await registry.create("r", EARLIEST, {}, durable=False)
    registry.idle(former)
    assert registry.by_name == {"r": latter}
    assert not latter.members.closed


@scenario(maxSubscriptionsPerTopic=1)
async def test_no_client_touches_the_brokers_own_subscription(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 3)
    topic = broker.broker.topics.get_loaded(NAME)
    own = await topic.registry.create(
        "__compaction", EARLIEST, {"kept": "1"}, durable=True, by=CursorOwner.COMPACTION
    )
    before = own.cursor.reached, dict(own.properties.given)
    for attempt in (
        lambda: topic.registry.create("__compaction", LATEST, {}, durable=True),
        lambda: topic.registry.create("__compaction", LATEST, {}, durable=False),
        lambda: topic.registry.create("pulsar.dedup", LATEST, {}, durable=True),
        lambda: topic.registry.create("pulsar.repl.x", LATEST, {}, durable=True),
        lambda: topic.registry.create("s", LATEST, {}, durable=True, by=CursorOwner.COMPACTION),
        lambda: topic.registry.create("a\nb", LATEST, {}, durable=False),
        lambda: topic.registry.create("", LATEST, {}, durable=True),
        lambda: own.acks.administered([(Position(0, 0), None, None)]),
        lambda: own.acks.administered_through(LATEST),
        lambda: own.seeking.to(LATEST),
        lambda: own.seeking.to_time(0),
        lambda: own.seeking.rollback(0),
        lambda: own.seeking.restore(own.cursor.state),
        lambda: own.properties.replace({}),
        lambda: own.properties.set_replicated(True),
        lambda: own.delete(),
        lambda: own.delete(force=True),
        lambda: own.delete_if(lambda _: True),
    ):
        with pytest.raises(ClientError):
            await attempt()
    for change in (
        lambda: own.acks.expire(LATEST),
        lambda: own.check_joinable(durable=True),
        lambda: topic.cursors.delete("__compaction", CursorOwner.CLIENTS).send(None),
    ):
        with pytest.raises(ClientError):
            change()
    assert await client.subscribe(TOPIC, "__compaction") == ServerError.ProducerBusy
    assert (own.cursor.reached, dict(own.properties.given)) == before
    assert topic.subscriptions == {"__compaction": own}
    assert not own.members.closed


@scenario(maxSubscriptionsPerTopic=1)
async def test_a_non_persistent_topic_has_no_more_subscriptions_either(broker) -> None:
    name = TOPIC.replace("persistent", "non-persistent")
    assert await Client(broker).subscribe(name, "a") == 0
    assert await Client(broker).subscribe(name, "b") == ServerError.NotAllowedError
    assert await Client(broker).subscribe(name, "pulsar.dedup") == ServerError.ProducerBusy


@scenario(subscriptionPropertiesMaxBytesPerTopic=100)
async def test_the_properties_of_all_subscriptions_together_are_bounded(broker) -> None:
    await Client(broker).produce(TOPIC, 1)
    registry = broker.broker.topics.get_loaded(NAME).registry
    first = await registry.create("a", EARLIEST, {"k": "v" * 59}, durable=True)
    with pytest.raises(ClientError, match="subscriptionPropertiesMaxBytesPerTopic") as refused:
        await registry.create("b", EARLIEST, {"k": "v" * 59}, durable=True)
    assert refused.value.code is ServerError.NotAllowedError
    second = await registry.create("b", EARLIEST, {"k": "v" * 39}, durable=True)
    with pytest.raises(ClientError, match="would have 101 bytes"):
        await second.properties.replace({"k": "v" * 40})
    await first.properties.replace({"k": "v" * 58})
    await second.properties.replace({"k": "v" * 40})
    await registry.delete(first)
    await second.properties.replace({"k": "v" * 99})
    await broker.broker.topics.unload(NAME)
    registry = (await broker.broker.topics.load(NAME)).registry
    with pytest.raises(ClientError, match="would have 102 bytes"):
        await registry.create("c", EARLIEST, {"k": "v"}, durable=True)


@scenario(subscriptionPropertiesMaxBytesPerTopic=0)
async def test_the_properties_of_one_subscription_are_bounded_at_every_door(broker) -> None:
    await Client(broker).produce(TOPIC, 1)
    registry = broker.broker.topics.get_loaded(NAME).registry
    too_many = {"k": "v" * SUBSCRIPTION_PROPERTIES_BYTES_MAX}
    with pytest.raises(ClientError, match="make them shorter"):
        await registry.create("a", EARLIEST, too_many, durable=True)
    subscription = await registry.create("a", EARLIEST, {}, durable=True)
    with pytest.raises(ClientError, match="make them shorter"):
        await subscription.properties.replace(too_many)


@scenario()
async def test_a_topic_with_many_subscriptions_is_loaded_in_steps(broker) -> None:
    await Client(broker).produce(TOPIC, 1)
    registry = broker.broker.topics.get_loaded(NAME).registry
    count = 4 * SUBSCRIPTIONS_PER_TURN_MAX
    for number in range(count):
        await registry.create(f"s{number}", EARLIEST, {}, durable=True)
    await broker.broker.topics.unload(NAME)
    largest = before = 0
    loading = asyncio.ensure_future(broker.broker.topics.load(NAME))
    made = []
    with patch.object(Subscription, "policies_changed", lambda self: made.append(self)):
        while not loading.done():
            await asyncio.sleep(0)
            topics = [t for t in gc.get_objects() if isinstance(t, Topic) and not t.closed]
            now = max((len(topic.subscriptions) for topic in topics), default=0)
            largest, before = max(largest, now - before), now
    assert len(loading.result().subscriptions) == len(made) == count
    assert largest == SUBSCRIPTIONS_PER_TURN_MAX
