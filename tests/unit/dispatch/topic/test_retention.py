"""Ledgers go once every subscription is done with them and retention does not keep them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pulsark.metadata.store import ANY_VERSION
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.position import EARLIEST, Position
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, held, scenario

NAMESPACE = "public/short"
TOPIC = f"persistent://{NAMESPACE}/t"
NAME = TopicName.parse(TOPIC)
ROLLS = {
    "managedLedgerMaxEntriesPerLedger": 3,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "keepAliveIntervalSeconds": 1_000_000,
}
CHECK = 121
"""Seconds in which ledgers are looked at."""
SHARED = pb.CommandSubscribe.Shared
EARLIEST_ID = (2**64 - 1, 2**64 - 1)


async def client_of(broker: BrokerInMemory, **policies: object) -> Client:
    await broker.broker.resources.namespaces.create(NAMESPACE, policies=policies)
    return Client(broker)


def stored(broker: BrokerInMemory) -> list[int]:
    """The topic's ledgers."""
    return [info.ledger_id for info in broker.broker.topics.get_loaded(NAME).ledger.ledgers()]


def retention(minutes: int, megabytes: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


async def acknowledge(client: Client, position: tuple[int, int]) -> None:
    client.send(client.ack_command(position, cumulative=True))
    await asyncio.sleep(1.1)  # until it is durable


@scenario(**ROLLS)
async def test_a_chore_that_fails_for_one_topic_is_done_for_the_others(broker) -> None:
    client = await client_of(broker)
    names = [TopicName.parse(f"{TOPIC}{n}") for n in range(3)]
    trimmed = []
    for producer_id, name in enumerate(names, 1):
        await client.produce(str(name), 1, producer_id)
        retention = broker.broker.topics.get_loaded(name).retention

        async def trim(name: TopicName = name) -> None:
            trimmed.append(name)
            raise ValueError("a bug")

        retention.trim = trim
    await asyncio.sleep(CHECK)
    assert trimmed == names


@pytest.mark.feature("F17", "F51", "F75")
@scenario(**ROLLS)
async def test_a_ledger_goes_when_all_subscriptions_have_acknowledged_it(broker) -> None:
    client = await client_of(broker)
    slow, fast = Client(broker), Client(broker)
    await slow.subscribe(TOPIC, "slow")
    await fast.subscribe(TOPIC, "fast")
    ids = await client.produce(TOPIC, 10)
    before = stored(broker)
    assert len(before) == 4
    await acknowledge(fast, ids[-1])
    await acknowledge(slow, ids[3])
    await asyncio.sleep(CHECK)
    assert stored(broker) == before[1:]
    assert before[0] not in broker.bookie.ledger_ids()
    await acknowledge(slow, ids[-1])
    await asyncio.sleep(CHECK)
    assert stored(broker) == before[3:], "the open ledger stays"
    assert (await slow.received(10)) == ids
    assert broker.broker.topics.get_loaded(NAME).subscriptions["slow"].backlog == 0


@scenario(**ROLLS)
async def test_an_acknowledgement_counts_once_it_is_durable(broker) -> None:
    client = await client_of(broker)
    consumer = Client(broker)
    await consumer.subscribe(TOPIC)
    ids = await client.produce(TOPIC, 7)
    topic = broker.broker.topics.get_loaded(NAME)
    with held(broker):
        consumer.send(consumer.ack_command(ids[-1], cumulative=True))
        await asyncio.sleep(CHECK)
        assert topic.subscriptions["s"].backlog == 0
        assert topic.ledger.entries == 7
    await asyncio.sleep(CHECK)
    assert topic.ledger.entries == 1


@pytest.mark.feature("F17")
@scenario(**ROLLS)
async def test_a_roll_over_trims_without_waiting_for_the_check(broker) -> None:
    client = await client_of(broker)
    consumer = Client(broker)
    await consumer.subscribe(TOPIC)
    ids = await client.produce(TOPIC, 3)
    first = stored(broker)[0]
    await acknowledge(consumer, ids[-1])
    for number in range(3, 6):
        await client.publish(number)
    await asyncio.sleep(0.1)
    assert first not in broker.bookie.ledger_ids()


@pytest.mark.feature("F51")
@scenario(**ROLLS)
async def test_without_subscriptions_there_is_nobody_to_wait_for(broker) -> None:
    client = await client_of(broker)
    await client.produce(TOPIC, 7)
    await asyncio.sleep(CHECK)
    assert len(stored(broker)) == 1


@pytest.mark.feature("F2", "F51")
@scenario(**ROLLS)
async def test_an_absent_subscriber_keeps_everything(broker) -> None:
    client = await client_of(broker)
    consumer = Client(broker)
    await consumer.subscribe(TOPIC)
    consumer.hang_up()
    ids = await client.produce(TOPIC, 7)
    await asyncio.sleep(10 * CHECK)
    again = Client(broker)
    await again.subscribe(TOPIC)
    assert await again.received(7) == ids


@pytest.mark.feature("F52")
@scenario(**ROLLS)
async def test_retention_keeps_what_is_acknowledged(broker) -> None:
    client = await client_of(broker, retention_policies=retention(10, -1))
    consumer = Client(broker)
    await consumer.subscribe(TOPIC)
    ids = await client.produce(TOPIC, 7)
    await acknowledge(consumer, ids[-1])
    await asyncio.sleep(9 * 60)
    assert len(stored(broker)) == 3
    reader = Client(broker)
    await reader.subscribe(TOPIC, "r", durable=False, start=EARLIEST_ID)
    assert await reader.received(7) == ids
    await asyncio.sleep(4 * 60)
    assert len(stored(broker)) == 1


@pytest.mark.feature("F52")
@scenario(**ROLLS)
async def test_a_policy_that_changes_holds_for_what_is_there(broker) -> None:
    client = await client_of(broker, retention_policies=retention(-1, -1))
    await client.produce(TOPIC, 7)
    await asyncio.sleep(CHECK)
    assert len(stored(broker)) == 3
    await broker.broker.resources.namespaces.update(NAMESPACE, lambda n: replace(n, policies={}))
    await asyncio.sleep(CHECK)
    assert len(stored(broker)) == 1


@scenario(**ROLLS)
async def test_the_default_namespace_forgets_nothing(broker) -> None:
    client = Client(broker)
    topic = "persistent://public/default/t"
    await client.produce(topic, 7)
    await asyncio.sleep(10 * CHECK)
    found = broker.broker.topics.get_loaded(TopicName.parse(topic))
    assert found.ledger.entries == 7


@pytest.mark.feature("F51")
@scenario(**ROLLS)
async def test_a_reader_does_not_hold_ledgers_back_and_goes_on_behind_them(broker) -> None:
    client = await client_of(broker)
    reader = Client(broker)
    reader.send(reader.subscribe_command(TOPIC, "r", durable=False, start=EARLIEST_ID))
    assert await reader.outcome() == 0
    reader.flow(2)
    ids = await client.produce(TOPIC, 10)
    assert await reader.received(2) == ids[:2]
    await asyncio.sleep(CHECK)
    subscription = broker.broker.topics.get_loaded(NAME).subscriptions["r"]
    assert subscription.mark_delete == ids[8]
    assert subscription.backlog == 1
    reader.send(reader.ack_command(ids[0]), reader.ack_command(ids[1]))
    reader.flow(10)
    assert await reader.received(1) == ids[9:]
    reader.send(reader.ack_command(ids[9]))
    await asyncio.sleep(0.1)
    assert subscription.backlog == 0


@scenario(**ROLLS)
async def test_what_a_shared_reader_holds_is_released_with_its_ledger(broker) -> None:
    client = await client_of(broker, retention_policies=retention(1, -1))
    reader = Client(broker)
    await reader.subscribe(TOPIC, "r", durable=False, start=EARLIEST_ID, kind=SHARED)
    ids = await client.produce(TOPIC, 7)
    assert await reader.received(7) == ids
    subscription = broker.broker.topics.get_loaded(NAME).subscriptions["r"]
    (consumer,) = subscription.type.consumers
    assert (subscription.dispatcher.unacked.messages, consumer.unacked) == (7, 7)
    await asyncio.sleep(CHECK)
    assert (subscription.dispatcher.unacked.messages, consumer.unacked) == (1, 1)
    assert set(consumer.pending) == {Position(*ids[6])}


@scenario(**ROLLS)
async def test_an_emptied_topic_goes_on(broker) -> None:
    client = await client_of(broker)
    consumer = Client(broker)
    await consumer.subscribe(TOPIC)
    ids = await client.produce(TOPIC, 4)
    await acknowledge(consumer, ids[-1])
    topic = broker.broker.topics.get_loaded(NAME)
    await asyncio.sleep(241 * 60)  # the ledger is closed for its age
    assert stored(broker) == []
    assert topic.ledger.last_confirmed == ids[-1]
    assert (await topic.last_message()).position == EARLIEST
    late = Client(broker)
    assert await late.subscribe(TOPIC, "late") == 0
    number = await client.publish(9)
    await consumer.received(4)
    assert await consumer.received(1) == await late.received(1) == [number]


@scenario(**ROLLS)
async def test_a_terminated_topic_is_trimmed_too(broker) -> None:
    client = await client_of(broker)
    consumer = Client(broker)
    await consumer.subscribe(TOPIC)
    ids = await client.produce(TOPIC, 7)
    await broker.broker.topics.get_loaded(NAME).termination.terminate()
    await acknowledge(consumer, ids[5])
    await asyncio.sleep(CHECK)
    assert len(stored(broker)) == 1
    assert await consumer.received(7) == ids


@scenario(**ROLLS)
async def test_a_failure_concerns_only_its_own_topic(broker) -> None:
    client = await client_of(broker)
    await client.produce(TOPIC, 7)
    other = f"persistent://{NAMESPACE}/a"
    await client.produce(other, 7, producer_id=2)
    failing = broker.broker.topics.get_loaded(TopicName.parse(other))
    path = failing.ledger.path
    record = await broker.metadata.get(path)
    await broker.metadata.put(path, record.value, ANY_VERSION)  # as another owner would
    await asyncio.sleep(CHECK)
    assert len(stored(broker)) == 1
