"""Topics and subscriptions that nobody uses end; what is used, or kept by retention, stays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pulsark.config.settings import Settings
from pulsark.dispatch.policies.policies import InactiveTopics, effective
from pulsark.dispatch.spark.topic_entries import FlightEntries
from pulsark.dispatch.topics.inactivity import is_due
from pulsark.errors import ServerError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.position import Position
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario

NAMESPACE = "public/n"
TOPIC = f"persistent://{NAMESPACE}/t"
NAME = TopicName.parse(TOPIC)
QUIET = {"keepAliveIntervalSeconds": 1_000_000}
EARLIEST_ID = (2**64 - 1, 2**64 - 1)
CAUGHT_UP = {
    "inactive_topic_policies": {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": True,
    }
}
DEFAULTS = effective(Settings(), {}, {})
MINUTE = 60_000


@pytest.mark.parametrize(
    ("delete", "seconds", "retention_minutes", "unused_ms", "expected"),
    [
        (True, 60, 0, 59_999, False),
        (True, 60, 0, 60_000, True),
        (False, 60, 0, 10**12, False),
        (True, 60, 5, 5 * MINUTE - 1, False),
        (True, 60, 5, 5 * MINUTE, True),
        (True, 600, 5, 5 * MINUTE, False),
        (True, 60, -1, 10**12, False),
    ],
)
def test_when_an_unused_topic_is_due(
    delete: bool, seconds: int, retention_minutes: int, unused_ms: int, expected: bool
) -> None:
    policies = replace(
        DEFAULTS,
        inactive=InactiveTopics(delete, "delete_when_no_subscriptions", seconds),
        retention_minutes=retention_minutes,
    )
    assert is_due(policies, unused_ms) is expected


async def namespace(broker: BrokerInMemory, **policies: Any) -> None:
    await broker.broker.resources.namespaces.create(NAMESPACE, policies=policies)


async def exists(broker: BrokerInMemory, name: TopicName = NAME) -> bool:
    return await broker.broker.catalog.exists(name)


@scenario(**QUIET)
async def test_an_unused_topic_is_deleted(broker) -> None:
    await namespace(broker)
    client = Client(broker)
    await client.produce(TOPIC, 3)
    await broker.broker.resources.topic_policies.update(NAME, lambda _: {"max_producers": 3})
    await asyncio.sleep(300)
    assert await exists(broker), "a producer is connected"
    client.send(client.close_command("producer"))
    await client.take(Command.SUCCESS)
    await asyncio.sleep(59)
    assert await exists(broker)
    await asyncio.sleep(62)
    assert not await exists(broker)
    assert broker.broker.topics.get_loaded(NAME) is None
    assert await broker.broker.resources.topic_policies.get(NAME) == {}
    assert await Client(broker).produce(TOPIC, 1), "and begins anew with the next use"


@scenario(**QUIET, sealEnabled=True)
async def test_who_comes_while_an_unused_topic_is_deleted_is_told_to_come_again(broker) -> None:
    await namespace(broker)
    client, late = Client(broker), Client(broker)
    await client.produce(TOPIC, 3)
    client.hang_up()
    outcomes: list[Any] = []
    doom = broker.broker.topic_tables.doom

    async def slow(base: TopicName) -> None:
        outcomes.append(await late.open_producer(TOPIC, "p"))
        await doom(base)

    broker.broker.topic_tables.doom = slow
    await asyncio.sleep(121)
    assert outcomes == [ServerError.ServiceNotReady]
    assert not await exists(broker)


@scenario(**QUIET)
async def test_a_client_that_comes_while_the_deletion_of_an_unused_topic_waits_keeps_it(
    broker,
) -> None:
    await namespace(broker)
    client, late = Client(broker), Client(broker)
    await client.produce(TOPIC, 3)
    client.hang_up()
    async with broker.broker.topics.ending(NAME):
        await asyncio.sleep(121)
        assert len(await late.produce(TOPIC, 1)) == 1
    await asyncio.sleep(1)
    assert await late.publish(1) >= (0, 0)
    assert await exists(broker)


@scenario(**QUIET)
async def test_subscriptions_and_readers_keep_a_topic(broker) -> None:
    await namespace(broker)
    consumer, reader = Client(broker), Client(broker)
    other = f"persistent://{NAMESPACE}/r"
    await consumer.subscribe(TOPIC)
    consumer.hang_up()
    await reader.subscribe(other, "r", durable=False, start=EARLIEST_ID)
    await asyncio.sleep(300)
    assert await exists(broker)
    assert await exists(broker, TopicName.parse(other))
    await broker.broker.topics.get_loaded(NAME).subscriptions["s"].delete()
    reader.hang_up()
    await asyncio.sleep(121)
    assert not await exists(broker)
    assert not await exists(broker, TopicName.parse(other))


@scenario(**QUIET)
async def test_with_caught_up_subscriptions_if_the_policy_says_so(broker) -> None:
    await namespace(broker, **CAUGHT_UP)
    consumer, client = Client(broker), Client(broker)
    await consumer.subscribe(TOPIC)
    ids = await client.produce(TOPIC, 3)
    client.hang_up()
    consumer.hang_up()
    await asyncio.sleep(300)
    assert await exists(broker), "there is a backlog"
    again = Client(broker)
    await again.subscribe(TOPIC)
    again.send(again.ack_command(ids[-1], cumulative=True))
    await asyncio.sleep(300)
    assert await exists(broker), "a consumer is connected"
    again.hang_up()
    await asyncio.sleep(121)
    assert not await exists(broker)


@scenario(**QUIET)
async def test_retention_keeps_the_topic_too(broker) -> None:
    await namespace(
        broker, retention_policies={"retentionTimeInMinutes": 10, "retentionSizeInMB": -1}
    )
    client = Client(broker)
    await client.produce(TOPIC, 3)
    client.hang_up()
    await asyncio.sleep(10 * 60 - 5)
    assert await exists(broker)
    await asyncio.sleep(125)
    assert not await exists(broker)


@scenario(**QUIET)
async def test_topics_of_the_default_namespace_stay(broker) -> None:
    topic = "persistent://public/default/t"
    client = Client(broker)
    await client.produce(topic, 3)
    client.hang_up()
    await asyncio.sleep(6 * 3600)
    assert broker.broker.topics.get_loaded(TopicName.parse(topic)).ledger.entries == 3


@scenario(**QUIET, brokerDeleteInactiveTopicsEnabled=False)
async def test_the_switch_of_the_broker(broker) -> None:
    await namespace(broker)
    client = Client(broker)
    await client.produce(TOPIC, 1)
    client.hang_up()
    await asyncio.sleep(1000)
    assert await exists(broker)


@scenario(**QUIET)
async def test_who_reads_without_being_connected_keeps_a_topic(broker) -> None:
    await namespace(broker)
    client = Client(broker)
    ids = await client.produce(TOPIC, 1)
    client.hang_up()
    for _ in range(10):
        await asyncio.sleep(30)
        found = await FlightEntries(broker.broker.topics).topic_range(TOPIC)
        assert found.last == ids[-1]


@scenario(**QUIET)
async def test_a_partition_goes_and_comes_back(broker) -> None:
    await namespace(broker)
    base = TopicName.parse(TOPIC)
    await broker.broker.creation.create_partitioned_topic(base, 2, {})
    client = Client(broker)
    await client.produce(str(base.with_partition(1)), 1)
    client.hang_up()
    await asyncio.sleep(121)
    assert broker.broker.topics.get_loaded(base.with_partition(1)) is None
    assert await exists(broker, base.with_partition(1)), "it belongs to its topic"
    assert await Client(broker).produce(str(base.with_partition(1)), 1)


# -- subscriptions ---------------------------------------------------------------------------------


@scenario(**QUIET)
async def test_an_unused_subscription_expires(broker) -> None:
    keep = {"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}
    await namespace(broker, subscription_expiration_time_minutes=10, **keep)
    gone, there = Client(broker), Client(broker)
    await gone.subscribe(TOPIC, "gone", kind=pb.CommandSubscribe.Shared)
    await there.subscribe(TOPIC, "there")
    await asyncio.sleep(3600)
    gone.hang_up()
    await asyncio.sleep(9 * 60)
    topic = broker.broker.topics.get_loaded(NAME)
    assert set(topic.subscriptions) == {"gone", "there"}
    await asyncio.sleep(6 * 60 + 1)
    assert set(topic.subscriptions) == {"there"}


@scenario(**QUIET)
async def test_acknowledging_is_using(broker) -> None:
    await namespace(broker, subscription_expiration_time_minutes=10)
    client = Client(broker)
    await client.subscribe(TOPIC)
    ids = await client.produce(TOPIC, 10)
    client.send(client.close_command("consumer"))
    await client.outcome()
    subscription = broker.broker.topics.get_loaded(NAME).subscriptions["s"]
    for position in ids:
        await asyncio.sleep(8 * 60)
        subscription.cursor.ack_cumulative(Position(*position))  # as Spark does, without a consumer
    assert "s" in broker.broker.topics.get_loaded(NAME).subscriptions
    await asyncio.sleep(16 * 60)
    assert "s" not in broker.broker.topics.get_loaded(NAME).subscriptions


@scenario(**QUIET)
async def test_a_subscription_that_was_used_while_its_expiry_waited_stays(broker) -> None:
    await namespace(broker, subscription_expiration_time_minutes=10)
    client = Client(broker)
    await client.subscribe(TOPIC)
    (position,) = await client.produce(TOPIC, 1)
    client.send(client.close_command("consumer"))
    await client.outcome()
    subscription = broker.broker.topics.get_loaded(NAME).subscriptions["s"]
    async with subscription.members.changing:  # a seek, for instance
        await asyncio.sleep(15 * 60)
        subscription.cursor.ack_cumulative(Position(*position))
    await asyncio.sleep(1)
    assert "s" in broker.broker.topics.get_loaded(NAME).subscriptions
    await asyncio.sleep(16 * 60)
    assert "s" not in broker.broker.topics.get_loaded(NAME).subscriptions
