"""Subscriptions of a topic: how many there may be, and when they go."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.errors import ClientError, ServerError
from pulsark.wire.position import EARLIEST
from tests.support.broker_clients import NAME, TOPIC, Client, scenario


@scenario(maxSubscriptionsPerTopic=1)
async def test_the_brokers_own_subscriptions_do_not_count(broker) -> None:
    await Client(broker).produce(TOPIC, 1)
    registry = broker.broker.topics.get_loaded(NAME).registry
    first = await registry.create("a", EARLIEST, {}, durable=True)
    await registry.create("__compaction", EARLIEST, {}, durable=True)
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
