"""A bulk publish as the broker's clients see it: messages at the end of all partitions, at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pulsark.dispatch.model.entry import stored_entry
from pulsark.dispatch.producer.deduplication import BULK_PREFIX
from pulsark.dispatch.tables.bulk_publishing import Staging
from pulsark.dispatch.tables.tidying import STAGED_MS
from pulsark.errors import ClientError
from pulsark.schemas.definition import IncompatibleSchemaError, SchemaData, SchemaType
from pulsark.schemas.strategies import SchemaCompatibilityStrategy
from pulsark.storage.table.staging.staged_ledger import STAGING, StagedLedger
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch, read_messages
from pulsark.wire.entry import build_entry
from pulsark.wire.position import EARLIEST
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, scenario
from tests.support.staged import stage
from tests.support.tables import entry

NAME = TopicName.parse("persistent://public/default/t")
PRODUCER = f"{BULK_PREFIX}q"


def message(number: int, deliver_at: int = 0) -> bytes:
    head = pb.MessageMetadata(producer_name=PRODUCER, sequence_id=number, publish_time=1)
    if deliver_at:
        head.deliver_at_time = deliver_at
    return build_entry(head, b"bulk %d" % number)


def batch(first: int, count: int) -> bytes:
    head = pb.MessageMetadata(producer_name=PRODUCER, sequence_id=first, publish_time=1)
    single = [
        (pb.SingleMessageMetadata(payload_size=0, partition_key="k"), b"bulk %d" % i)
        for i in range(first, first + count)
    ]
    return build_batch(head, single)


async def published(
    broker: BrokerInMemory, number: int, *ledgers: tuple[int, list[bytes]], ident: str = "q"
) -> bool:
    publishing = broker.broker.bulk_publishing
    staging = await publishing.staging(NAME)
    return await publishing.publish(
        NAME, staging.topic_id, staging.partitions, ident, number,
        staged(broker, staging, number, *ledgers),
    )  # fmt: skip


def staged(
    broker: BrokerInMemory, staging: Staging, number: int, *ledgers: tuple[int, list[bytes]]
) -> list[StagedLedger]:
    roots = [directory.removesuffix(f"/{STAGING}") for directory in staging.directories]
    disk = broker.broker.runtime.disk
    return [
        stage(disk, roots, partition, entries, f"n{number}l{i}")
        for i, (partition, entries) in enumerate(ledgers)
    ]


async def append(broker: BrokerInMemory, *numbers: int) -> None:
    topic = await broker.broker.topics.load(NAME, create=True)
    for number in numbers:
        data = entry(number, value=b"sent %d" % number)
        topic.ledger.append(data, stored_entry(EARLIEST, data))
    await asyncio.sleep(0.01)


async def values(client: Client) -> list[bytes]:
    await asyncio.sleep(0.1)
    found = await client.deliveries()
    return [value for one in found for _, value in read_messages(one.entry, 1 << 20)]


@scenario(sealEnabled=True)
async def test_connected_consumers_receive_it_in_its_place_at_once(broker: BrokerInMemory) -> None:
    await append(broker, 0, 1)
    client = Client(broker)
    await client.subscribe(str(NAME))
    late = Client(broker)
    await late.subscribe(str(NAME), "latest", initialPosition=pb.CommandSubscribe.Latest)
    assert await values(client) == [b"sent 0", b"sent 1"]
    assert await published(broker, 0, (-1, [message(0), batch(1, 3)]), (-1, [message(4)]))
    bulk = [b"bulk %d" % i for i in range(5)]
    assert await values(client) == bulk
    await append(broker, 2)
    assert await values(client) == [b"sent 2"]
    assert await values(late) == [*bulk, b"sent 2"]
    topic = await broker.broker.topics.load(NAME)
    assert topic.subscriptions["s"].backlog == 6
    assert topic.ledger.entries == 6
    assert topic.messages_in >= 5


@scenario(sealEnabled=True, brokerDeduplicationEnabled=True)
async def test_it_is_there_after_a_restart_and_the_same_again_is_nothing(
    broker: BrokerInMemory,
) -> None:
    await append(broker, 0)
    assert await published(broker, 3, (-1, [message(0), message(1)]))
    assert not await published(broker, 3, (-1, [message(0), message(1)]))
    assert not await published(broker, 2, (-1, [message(9)]))
    await broker.restart()
    process: Any = broker.broker.tables.processes.reading
    await broker.broker.topics.load(NAME)
    assert process.requests == [], "deduplication read what it need not know"
    assert not await published(broker, 3, (-1, [message(0), message(1)]))
    assert await published(broker, 4, (-1, [message(2)]))
    assert await published(broker, 0, (-1, [message(3)]), ident="another")
    client = Client(broker)
    await client.subscribe(str(NAME))
    assert await values(client) == [b"sent 0", *(b"bulk %d" % i for i in range(4))]
    publishing = broker.broker.bulk_publishing
    assert await publishing.is_published(NAME, "q", 4)
    assert not await publishing.is_published(NAME, "q", 5)


@scenario(sealEnabled=True)
async def test_all_partitions_get_it(broker: BrokerInMemory) -> None:
    await broker.broker.creation.create_partitioned_topic(NAME, 3, {})
    assert await published(broker, 0, *((p, [message(p)]) for p in (2, 0, 1)))
    for partition in range(3):
        client = Client(broker)
        await client.subscribe(str(NAME.with_partition(partition)))
        assert await values(client) == [b"bulk %d" % partition]


@scenario(sealEnabled=True)
async def test_rows_that_are_to_be_delivered_later_are(broker: BrokerInMemory) -> None:
    await append(broker, 0)
    client = Client(broker)
    await client.subscribe(str(NAME), kind=pb.CommandSubscribe.Shared)
    due = broker.broker.clock.now_ms() + 10_000
    assert await published(broker, 0, (-1, [message(0, due), message(1)]))
    assert await values(client) == [b"sent 0", b"bulk 1"]
    await asyncio.sleep(12)
    assert await values(client) == [b"bulk 0"]


@scenario(sealEnabled=True)
async def test_what_cannot_be_published_is_refused_and_leaves_nothing(
    broker: BrokerInMemory,
) -> None:
    await append(broker, 0)
    publishing = broker.broker.bulk_publishing
    staging = await publishing.staging(NAME)
    good = staged(broker, staging, 0, (-1, [message(0)]))
    damaged = [replace(good[0], files=(replace(good[0].files[0], rows=7),))]
    gone = [replace(good[0], files=(replace(good[0].files[0], path="1-a-0.parquet"),))]
    wrong = staged(broker, staging, 1, (2, [message(0)]))
    for topic_id, partitions, ledgers, reason in (
        ("another", 0, good, "deleted and created again"),
        (staging.topic_id, 4, good, "has 0 partitions"),
        (staging.topic_id, 0, wrong, "no partition 2"),
        (staging.topic_id, 0, damaged, "has 1 rows"),
        (staging.topic_id, 0, gone, "is not there"),
    ):
        with pytest.raises(ClientError, match=reason):
            await publishing.publish(NAME, topic_id, partitions, "q", 0, ledgers)
    with pytest.raises(ClientError, match="schema is another one"):
        await publishing.publish(NAME, staging.topic_id, 0, "q", 0, good, "string")
    topic = await broker.broker.topics.load(NAME)
    assert topic.ledger.entries == 1
    await append(broker, 1)
    await topic.termination.terminate()
    with pytest.raises(ClientError, match="terminated"):
        await publishing.publish(NAME, staging.topic_id, 0, "q", 0, good)
    with pytest.raises(ClientError, match="terminated"):
        await publishing.staging(NAME)


@scenario(sealEnabled=True)
async def test_who_leaves_a_publish_that_fails_leaves_no_defect(broker: BrokerInMemory) -> None:
    """The simulation fails for an error that nobody retrieves."""
    await append(broker, 0)
    staging = await broker.broker.bulk_publishing.staging(NAME)
    good = staged(broker, staging, 0, (-1, [message(0)]))
    gone = [replace(good[0], files=(replace(good[0].files[0], path="1-a-0.parquet"),))]
    for steps in range(40):
        publishing = asyncio.create_task(
            broker.broker.bulk_publishing.publish(NAME, staging.topic_id, 0, "q", 0, gone)
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        publishing.cancel()
        with pytest.raises((ClientError, asyncio.CancelledError)):
            await publishing
        await asyncio.sleep(1)


@scenario(sealEnabled=True)
async def test_unpublished_files_are_deleted_after_a_day(broker: BrokerInMemory) -> None:
    await append(broker, 0)
    staging = await broker.broker.bulk_publishing.staging(NAME)
    disk = broker.broker.runtime.disk
    directory = staging.directories[0]
    staged(broker, staging, 0, (-1, [message(0)]))
    await asyncio.sleep(2000)
    assert len(disk.list(directory)) == 1
    await asyncio.sleep(STAGED_MS / 1000)
    assert disk.list(directory) == []


@scenario(sealEnabled=True, isSchemaValidationEnforced=True)
async def test_where_schemas_are_enforced_files_have_one(broker: BrokerInMemory) -> None:
    await append(broker, 0)
    publishing = broker.broker.bulk_publishing
    await publishing.staging(NAME)
    schema = SchemaData(SchemaType.STRING, b"")
    await broker.broker.schemas.register(NAME, schema, SchemaCompatibilityStrategy.FULL)
    with pytest.raises(IncompatibleSchemaError, match="without a schema"):
        await publishing.staging(NAME)
    assert await publishing.staging(NAME, with_schema=True)
