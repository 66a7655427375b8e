"""A full disk frees itself: what everybody has consumed goes, although nothing is appended."""

from __future__ import annotations

import asyncio

from pulsark.errors import StorageFullError
from pulsark.metadata.paths import managed_ledger_path
from pulsark.storage.managed_ledger.record import read_record
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, scenario

NAMESPACE = "public/short"
TOPIC = f"persistent://{NAMESPACE}/t"
OTHER = f"persistent://{NAMESPACE}/other"
QUIET = {"keepAliveIntervalSeconds": 1_000_000}
SOON = 7.0
"""Seconds within which a full disk is looked at, and what was freed is used."""


async def client_of(broker: BrokerInMemory, **policies: object) -> Client:
    await broker.broker.resources.namespaces.create(NAMESPACE, policies=policies)
    return Client(broker)


def stored(broker: BrokerInMemory, topic: str = TOPIC) -> list[int]:
    loaded = broker.broker.topics.get_loaded(TopicName.parse(topic))
    return [info.ledger_id for info in loaded.ledger.ledgers()]


async def acknowledge(client: Client, position: tuple[int, int]) -> None:
    client.send(client.ack_command(position, cumulative=True))
    await asyncio.sleep(1.1)


def fill(broker: BrokerInMemory) -> None:
    """An append of some topic was refused."""
    broker.bookie.full = True
    broker.broker.ledgers._bookies.failed("b1", StorageFullError("b1 is full"))


@scenario(**QUIET)
async def test_a_consumed_open_ledger_goes_while_the_disk_is_full(broker) -> None:
    client = await client_of(broker)
    consumer = Client(broker)
    await consumer.subscribe(TOPIC)
    ids = await client.produce(TOPIC, 5)
    await acknowledge(consumer, ids[-1])
    await asyncio.sleep(300)
    assert len(stored(broker)) == 1  # nothing is short: it goes on being written
    fill(broker)
    await asyncio.sleep(SOON)
    assert stored(broker) == []
    broker.bookie.full = False
    assert len(await client.produce(OTHER, 1, producer_id=2)) == 1


@scenario(**QUIET)
async def test_what_somebody_has_not_consumed_stays(broker) -> None:
    client = await client_of(broker)
    consumer = Client(broker)
    await consumer.subscribe(TOPIC)
    ids = await client.produce(TOPIC, 5)
    await acknowledge(consumer, ids[-2])
    fill(broker)
    await asyncio.sleep(SOON)
    assert len(stored(broker)) == 1
    assert await consumer.received(5) == ids
    await acknowledge(consumer, ids[-1])
    fill(broker)
    await asyncio.sleep(SOON)
    assert stored(broker) == []


@scenario(**QUIET)
async def test_what_retention_keeps_stays(broker) -> None:
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    client = await client_of(broker, retention_policies=kept)
    await client.produce(TOPIC, 5)
    fill(broker)
    await asyncio.sleep(SOON)
    assert len(stored(broker)) == 1


@scenario(**QUIET, brokerDeduplicationEnabled=True)
async def test_deduplication_does_not_hold_consumed_messages_on_a_full_disk(broker) -> None:
    client = await client_of(broker)
    await client.produce(TOPIC, 5)
    fill(broker)
    await asyncio.sleep(SOON)
    assert stored(broker) == []


@scenario(**QUIET)
async def test_an_unloaded_topic_is_trimmed_while_the_disk_is_full(broker) -> None:
    client = await client_of(broker)
    consumer = Client(broker)
    await consumer.subscribe(TOPIC)
    ids = await client.produce(TOPIC, 5)
    await acknowledge(consumer, ids[-1])
    await broker.restart()
    fill(broker)
    await asyncio.sleep(SOON)
    path = managed_ledger_path(TopicName.parse(TOPIC))
    record = await read_record(path, broker.metadata)
    assert record is not None
    assert record.ledgers == ()
