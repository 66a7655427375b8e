"""Subscriptions of a topic: how many there may be, and when they go."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.errors import ClientError, ServerError
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
