"""The broker's own compaction: what it keeps, what it lets go, and who reads what."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pulsark.dispatch.spark.topic_entries import FlightEntries
from pulsark.errors import ClientError, ServerError, StorageError
from pulsark.limits import COMPACTED_HOLD_SECONDS
from pulsark.storage.cursor.owners import COMPACTION_CURSOR
from pulsark.storage.managed_ledger import compaction
from pulsark.storage.managed_ledger.erasure import erased_ids
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.compacted_entry import unpack
from pulsark.wire.position import Position
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario
from tests.support.wire_frames import publish

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
EARLIEST = {"initialPosition": pb.CommandSubscribe.Earliest}
Id = tuple[int, int]


async def send(client: Client, *keys: str) -> list[Id]:
    """Publish a message for each key."""
    ids = []
    for number, key in enumerate(keys):
        client.send_bytes(publish(1, number, b"x", partition_key=key))
        receipt = (await client.take(Command.SEND_RECEIPT)).send_receipt.message_id
        ids.append((receipt.ledgerId, receipt.entryId))
    return ids


async def producer(broker: BrokerInMemory) -> Client:
    client = Client(broker)
    await client.produce(TOPIC, 0)
    return client


async def compact(broker: BrokerInMemory) -> str:
    compactor = (await broker.broker.topics.load(NAME)).compactor
    assert compactor.start()
    assert not compactor.start()
    await asyncio.wait([compactor._task])
    return compactor.status


async def read(broker: BrokerInMemory, count: int, *, compacted: bool) -> list[Id]:
    """The first messages of a new reader, and that there are no more."""
    reader = Client(broker)
    assert (
        await reader.subscribe(TOPIC, "r", durable=False, read_compacted=compacted, **EARLIEST) == 0
    )
    found = await reader.received(count)
    await asyncio.sleep(0.01)
    assert not reader.has(Command.MESSAGE)
    reader.hang_up()
    await asyncio.sleep(0.01)
    return found


@scenario()
async def test_trimmed_messages_stay_in_the_compacted_form(broker) -> None:
    client = await producer(broker)
    ids = await send(client, "a", "b", "a")
    topic = await broker.broker.topics.load(NAME)
    assert await compact(broker) == "SUCCESS"
    assert topic.compaction.removed_events == 1
    await broker.broker.topics.unload(NAME)  # closes the ledger
    await client.produce(TOPIC, 0)
    later = await send(client, "c")
    topic = await broker.broker.topics.load(NAME)
    subscription = topic.subscriptions[COMPACTION_CURSOR]
    assert subscription.cursor.mark_delete == ids[-1]
    await topic.ledger.trim(Position(*later[0]))
    assert await read(broker, 1, compacted=False) == later
    assert await read(broker, 3, compacted=True) == [ids[1], ids[2], *later]


@scenario()
async def test_more_keys_than_fit_into_memory_are_for_the_job(broker) -> None:
    client = await producer(broker)
    ids = await send(client, *"abcdefghab")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "COMPACTION_KEYS_MAX", 3)
        assert await compact(broker) == "ERROR"
        compactor = (await broker.broker.topics.load(NAME)).compactor
        assert "run the job compact_topic" in compactor.last_error
        assert await compactor.run() == 2
        assert await read(broker, 8, compacted=True) == ids[2:]
        assert await compactor.run() == 0


@scenario()
async def test_a_second_run_begins_with_what_the_first_one_left(broker) -> None:
    client = await producer(broker)
    ids = await send(client, "a", "b", "a")
    await compact(broker)
    topic = await broker.broker.topics.load(NAME)
    first = topic.ledger.compacted.to
    assert first is not None
    ids += await send(client, "b", "c")
    assert await compact(broker) == "SUCCESS"
    assert await read(broker, 3, compacted=True) == [ids[2], ids[3], ids[4]]
    assert await broker.metadata.get(f"/ledgers/{first.ledger_id}") is None
    assert first.ledger_id not in broker.bookie.ledger_ids()


@scenario()
async def test_a_query_goes_on_reading_what_was_replaced(broker) -> None:
    client = await producer(broker)
    ids = await send(client, "a", "b", "a")
    await compact(broker)
    topic = await broker.broker.topics.load(NAME)
    first = topic.ledger.compacted.to.ledger_id
    assert topic.ledger.compacted.retain(first) is not None
    assert topic.ledger.compacted.retain(first + 100) is None

    async def stored() -> list[Id]:
        found = await FlightEntries(broker.broker.topics).read_compacted(
            TOPIC, Position(first, 0), Position(first, 9), 1000
        )
        return [unpack(data)[0] for _, data in found]

    await send(client, "a", "b")
    await compact(broker)
    assert topic.ledger.compacted.to.ledger_id != first
    assert await stored() == ids[1:]
    await asyncio.sleep(COMPACTED_HOLD_SECONDS - 1)
    assert await stored() == ids[1:]  # held again from here
    await asyncio.sleep(COMPACTED_HOLD_SECONDS + 1)
    with pytest.raises(ClientError, match="compacted again"):
        await stored()
    await topic.ledger.trim(Position(0, 0))
    assert first not in broker.bookie.ledger_ids()


@scenario()
async def test_what_is_erased_is_held_for_nobody(broker) -> None:
    client = await producer(broker)
    ids = await send(client, "a", "b")
    await compact(broker)
    topic = await broker.broker.topics.load(NAME)
    first = topic.ledger.compacted.to.ledger_id
    assert topic.ledger.compacted.retain(first) is not None
    (ledger_id, entry_id) = ids[0]
    await topic.compactor.erase(erased_ids([(ledger_id, entry_id, -1)]))
    await asyncio.sleep(0.01)
    assert topic.ledger.compacted.retain(first) is None
    assert first not in broker.bookie.ledger_ids()


@scenario()
async def test_a_time_is_found_in_what_was_compacted(broker) -> None:
    client = await producer(broker)
    assert await compact(broker) == "SUCCESS"
    ids = []
    for number, key in enumerate("abcab"):
        client.send_bytes(publish(1, number, b"x", partition_key=key, publish_time=number + 1))
        receipt = (await client.take(Command.SEND_RECEIPT)).send_receipt.message_id
        ids.append((receipt.ledgerId, receipt.entryId))
    await compact(broker)
    client.send_bytes(publish(1, 9, b"x", partition_key="a", publish_time=9))
    receipt = (await client.take(Command.SEND_RECEIPT)).send_receipt.message_id
    tail = (receipt.ledgerId, receipt.entryId)
    view = (await broker.broker.topics.load(NAME)).entries.compacted
    found = [await view.find_by_publish_time(ms) for ms in (1, 3, 4, 5, 6, 9, 10)]
    behind = (tail[0], tail[1] + 1)
    assert found == [ids[2], ids[2], ids[3], ids[4], tail, tail, behind]


@scenario()
async def test_a_run_with_nothing_new_does_nothing(broker) -> None:
    client = await producer(broker)
    assert await compact(broker) == "SUCCESS"
    await send(client, "a")
    await compact(broker)
    topic = await broker.broker.topics.load(NAME)
    before = topic.ledger.compacted.to
    assert await compact(broker) == "SUCCESS"
    assert topic.ledger.compacted.to == before


@pytest.mark.parametrize("error", [StorageError("no"), ValueError("no")])
@scenario()
async def test_a_run_that_fails_leaves_what_there_was(
    broker: BrokerInMemory, error: Exception
) -> None:
    client = await producer(broker)
    await send(client, "a", "a")
    await compact(broker)
    topic = await broker.broker.topics.load(NAME)
    before = topic.ledger.compacted.to
    await send(client, "a")

    async def refuse(*_: object) -> None:
        raise error

    topic.ledger.compacted.set = refuse
    ledgers = set(broker.bookie.ledger_ids())
    assert await compact(broker) == "ERROR"
    assert topic.compactor.last_error == "no"
    assert topic.ledger.compacted.to == before
    assert set(broker.bookie.ledger_ids()) == ledgers


@scenario()
async def test_a_topic_is_compacted_when_its_policy_says_so(broker) -> None:
    client = await producer(broker)
    topic = await broker.broker.topics.load(NAME)
    topic.policies = replace(topic.policies, compaction_threshold_bytes=100)
    await send(client, "a")
    topic.compactor.start_if_due()
    assert topic.compactor.status == "NOT_RUN"
    await send(client, *"aaaaaa")
    topic.compactor.start_if_due()
    assert topic.compactor.status == "RUNNING"
    await asyncio.sleep(0.1)
    assert topic.compactor.status == "SUCCESS"
    topic.compactor.start_if_due()
    assert topic.compactor.status == "SUCCESS"


@scenario()
async def test_deleting_a_topic_removes_its_compacted_form(broker) -> None:
    client = await producer(broker)
    await send(client, "a", "a")
    await compact(broker)
    topic = await broker.broker.topics.load(NAME)
    made = topic.ledger.compacted.to
    assert made is not None
    assert made.ledger_id in broker.bookie.ledger_ids()
    await broker.broker.deletion.delete_topic(NAME, force=True)
    assert made.ledger_id not in broker.bookie.ledger_ids()


@scenario()
async def test_nobody_else_uses_its_subscription(broker) -> None:
    client = await producer(broker)
    assert await client.subscribe(TOPIC, COMPACTION_CURSOR) == ServerError.ProducerBusy


@scenario()
async def test_shared_consumers_cannot_read_what_is_compacted(broker) -> None:
    client = Client(broker)
    refused = await client.subscribe(TOPIC, kind=pb.CommandSubscribe.Shared, read_compacted=True)
    assert refused == ServerError.NotAllowedError


@scenario()
async def test_topics_of_one_tenant_are_compacted_one_by_one(broker: BrokerInMemory) -> None:
    client = Client(broker)
    names = [f"{TOPIC}{number}" for number in range(3)]
    for number, name in enumerate(names):
        await client.produce(name, 3, producer_id=number)
    compactors = [
        (await broker.broker.topics.load(TopicName.parse(name))).compactor for name in names
    ]
    turns = compactors[0]._turns
    tasks = []
    async with turns.turn("public"):
        for compactor in compactors:
            assert compactor.start()
            tasks.append(compactor._task)
        await asyncio.sleep(1)
        assert {each.status for each in compactors} == {"RUNNING"}
        async with turns.turn("another"), compactors[0].stopped():
            pass  # neither waits for them
        held = compactors[1].stopped()
        await held.__aenter__()
    await asyncio.wait([tasks[0], tasks[2]])
    assert [each.status for each in compactors] == ["SUCCESS", "RUNNING", "SUCCESS"]
    await held.__aexit__(None, None, None)
    await asyncio.wait([tasks[1]])
    assert compactors[1].status == "SUCCESS"
    assert (turns._tenants, turns._runs) == ({}, {})
