"""Deduplication as producers see it, over storage that fails, restarts and is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from pulsark.dispatch.producer import deduplication
from pulsark.dispatch.producer.deduplication import BULK_PREFIX
from pulsark.dispatch.topic.topic import Topic
from pulsark.errors import ServerError, StorageError
from pulsark.storage.cursor.owners import DEDUPLICATION_CURSOR
from pulsark.wire import batch as batches
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.frames import send_frame
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, held, replicate, scenario
from tests.support.wire_frames import entry_of, publish, send_command

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
DUPLICATE = (2**64 - 1, 2**64 - 1)
KEPT: dict[str, Any] = {"brokerDeleteInactiveTopicsEnabled": False}
ON = KEPT | {"brokerDeduplicationEnabled": True}
FENCING = pb.ProducerAccessMode.ExclusiveWithFencing


def loaded(broker: BrokerInMemory) -> Topic:
    topic = broker.broker.topics.get_loaded(NAME)
    assert topic is not None
    return topic


async def stored(broker: BrokerInMemory) -> list[bytes]:
    """All that the topic has, oldest first."""
    ledger = (await broker.broker.topics.load(NAME)).ledger
    found = await ledger.read(ledger.first_position(), 10_000, 1 << 30)
    return [data for _, data in found]


async def opened(broker: BrokerInMemory, name: str = "p", **fields: Any) -> Client:
    client = Client(broker)
    answer = await client.open_producer(TOPIC, name, seconds=10, **fields)
    assert not isinstance(answer, int), answer
    return client


async def last_of(broker: BrokerInMemory, name: str = "p") -> int:
    """What a new producer of that name is told."""
    client = Client(broker)
    answer = await client.open_producer(TOPIC, name, seconds=10)
    assert not isinstance(answer, int), answer
    client.hang_up()
    await asyncio.sleep(0.01)
    return answer.last_sequence_id


async def last_of_connected(broker: BrokerInMemory, name: str = "p") -> int:
    found = loaded(broker).deduplication
    assert found is not None
    return found.last_sequence_id(name)


async def send(client: Client, sequence_id: int, **metadata: object) -> tuple[int, int] | int:
    """Publish and wait: the id of the message, or the code of the error."""
    client.send_bytes(message(client, sequence_id, **metadata))
    return await outcome(client)


def message(client: Client, sequence_id: int, **metadata: object) -> bytes:
    """The SEND of one message by the client's producer."""
    producer = client.connection.opened.producers.get(1)
    fields = {"producer_name": "p" if producer is None else producer.name} | metadata
    return publish(1, sequence_id, b"%d" % sequence_id, **fields)


async def outcome(client: Client) -> tuple[int, int] | int:
    answer = await client.take(Command.SEND_RECEIPT, Command.SEND_ERROR)
    if answer.type == Command.SEND_ERROR:
        return answer.send_error.error
    found = answer.send_receipt.message_id
    return found.ledgerId, found.entryId


def batch(
    sequence_ids: Iterable[int], compression: pb.CompressionType = pb.NONE, **metadata: object
) -> bytes:
    fields = {"producer_name": "p", "publish_time": 1, **metadata}
    head = pb.MessageMetadata(**fields)  # type: ignore[arg-type]
    singles = [pb.SingleMessageMetadata(sequence_id=i, payload_size=1) for i in sequence_ids]
    return build_batch(head, [(single, b"x") for single in singles], compression)


def send_batch(
    sequence_id: int, sequence_ids: Iterable[int], highest: int = 0, **more: Any
) -> bytes:
    command = send_command(1, sequence_id)
    if highest:
        command.send.highest_sequence_id = highest
        more["highest_sequence_id"] = highest
    return send_frame(command, batch(sequence_ids, sequence_id=sequence_id, **more))


async def restart(broker: BrokerInMemory) -> None:
    await broker.broker.topics.unload(NAME)


async def crash(broker: BrokerInMemory) -> None:
    """The topic is loaded anew as if the process had died: nothing is saved on the way."""
    topic = loaded(broker)
    if topic.deduplication is not None:
        topic.deduplication._unsaved = 0
    await broker.broker.topics.unload(NAME)


# -- what is sent again --------------------------------------------------------------------------


@pytest.mark.feature("F54", "F55")
@pytest.mark.command("SEND", "SEND_RECEIPT")
@scenario(**ON)
async def test_what_is_sent_again_is_confirmed_and_not_stored_again(broker) -> None:
    client = await opened(broker)
    first = await send(client, 0)
    assert await send(client, 0) == DUPLICATE
    second = await send(client, 7)
    assert [await send(client, n) for n in (3, 7, 0)] == [DUPLICATE] * 3
    assert first < second < await send(client, 8)
    assert len(await stored(broker)) == 3


@scenario()
async def test_without_deduplication_it_is_stored_again(broker) -> None:
    client = await opened(broker)
    assert len({await send(client, 5), await send(client, 5)}) == 2
    assert await last_of(broker, "p2") == -1
    assert loaded(broker).deduplication is None
    assert len(await stored(broker)) == 2


@scenario(**ON)
async def test_every_name_has_its_own_numbers(broker) -> None:
    one, two = await opened(broker, "one"), await opened(broker, "two")
    assert await send(one, 5) != DUPLICATE
    assert await send(two, 5) != DUPLICATE
    assert await send(one, 4) == DUPLICATE
    assert (await last_of(broker, "three"), await last_of(broker, "four")) == (-1, -1)


@pytest.mark.feature("F54", "F56")
@pytest.mark.parametrize("how", [restart, crash])
@pytest.mark.parametrize("interval", [3, 1000])
def test_a_producer_that_comes_back_is_told_where_it_was(how, interval: int) -> None:
    @scenario(**ON, brokerDeduplicationEntriesInterval=interval)
    async def run(broker) -> None:
        for first in (0, 10, 20):
            client = await opened(broker)
            for sequence in range(first, first + 10):
                assert await send(client, sequence) != DUPLICATE
                assert await send(client, sequence) == DUPLICATE
            client.hang_up()
            await how(broker)
            assert await last_of(broker) == first + 9
        assert len(await stored(broker)) == 30

    run()


@scenario(**ON)
async def test_receipts_of_duplicates_keep_the_order_of_what_was_sent(broker) -> None:
    client = await opened(broker)
    await send(client, 0)
    with held(broker):
        for sequence in (1, 0, 2, 0, 1, 0, 3):
            client.send_bytes(message(client, sequence))
        await asyncio.sleep(0.01)
        assert (await client.take(Command.SEND_ERROR)).send_error.sequence_id == 1
        assert not client.has(Command.SEND_RECEIPT)
    receipts = [(await client.take(Command.SEND_RECEIPT)).send_receipt for _ in range(6)]
    assert [r.sequence_id for r in receipts] == [1, 0, 2, 0, 0, 3]
    repeated = [(r.message_id.ledgerId, r.message_id.entryId) == DUPLICATE for r in receipts]
    assert repeated == [False, True, False, True, True, False]
    client.send(client.close_command("producer"))
    assert await client.outcome() == 0


@scenario(**ON)
async def test_what_is_under_way_is_neither_confirmed_nor_stored_again(broker) -> None:
    """A receipt would be a promise before anything is durable."""
    first = await opened(broker)
    await send(first, 0)
    with held(broker):
        first.send_bytes(message(first, 1))
        first.send_bytes(message(first, 1))
        assert await outcome(first) == ServerError.PersistenceError
        first.hang_up()
        await asyncio.sleep(0.01)
        second = Client(broker)
        second.send(second.producer_command(TOPIC, "p"))
        await asyncio.sleep(1)
        assert not second.has(Command.PRODUCER_SUCCESS)
    told = (await second.take(Command.PRODUCER_SUCCESS)).producer_success
    assert told.last_sequence_id == 1
    assert await send(second, 1) == DUPLICATE
    assert len(await stored(broker)) == 2


@scenario(**ON)
async def test_a_producer_does_not_wait_for_ever_for_what_is_under_way(broker) -> None:
    first = await opened(broker)
    await send(first, 0)
    with held(broker):
        first.send_bytes(message(first, 1))
        first.hang_up()
        await asyncio.sleep(0.01)
        second = Client(broker)
        refused = await second.open_producer(TOPIC, "p", seconds=10)
        assert refused == ServerError.ServiceNotReady
        assert not loaded(broker).producers
        assert (await second.open_producer(TOPIC, "q", seconds=10)).last_sequence_id == -1
    second.send(second.close_command("producer"))
    await second.outcome()
    assert (await second.open_producer(TOPIC, "p", seconds=10)).last_sequence_id == 1


# -- batches, pieces, markers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_command", "highest"),
    [(10, 0), (30, 0), (10, 30)],
    ids=["the first id", "the last id", "both"],
)
@pytest.mark.parametrize("compression", [pb.NONE, pb.LZ4])
def test_a_batch_counts_with_what_its_send_says_and_is_told_with_its_last_message(
    in_command, highest, compression
) -> None:
    """Clients differ in what they say of a batch."""
    counts = max(in_command, highest)

    @scenario(**ON)
    async def run(broker) -> None:
        client = await opened(broker)
        ids = {"sequence_id": in_command, "highest_sequence_id": highest}
        data = batch((10, 20, 30), compression, **ids)
        command = send_command(1, in_command)
        if highest:
            command.send.highest_sequence_id = highest
        for expected in (False, True):
            client.send_bytes(send_frame(command, data))
            assert (await outcome(client) == DUPLICATE) is expected
        for sequence in (10, 20, 29, 30):
            if sequence <= counts:
                assert await send(client, sequence) == DUPLICATE
        client.hang_up()
        for how in (crash, restart):
            await how(broker)
            assert await last_of(broker) == 30
        assert len(await stored(broker)) == 1
        client = await opened(broker)
        assert await send(client, 31) != DUPLICATE
        assert await last_of_connected(broker) == 31

    run()


@scenario(**ON)
async def test_batches_whose_ids_interleave_are_all_stored(broker) -> None:
    """As clients send them that batch by key: one flush is a batch for each key."""
    client = await opened(broker)
    keyed = [(0, 3), (1, 5), (2, 4), (6,)]
    with held(broker):
        for ids in keyed:
            client.send_bytes(send_batch(ids[0], ids))
    for _ in keyed:
        assert await outcome(client) != DUPLICATE
    for ids in keyed:
        client.send_bytes(send_batch(ids[0], ids))
        assert await outcome(client) == DUPLICATE
    client.hang_up()
    assert await last_of(broker) == 6
    await crash(broker)
    assert await last_of(broker) == 6
    assert len(await stored(broker)) == len(keyed)


@pytest.mark.parametrize("how", ["too large", "too many", "damaged", "trimmed"])
def test_of_a_batch_that_cannot_be_looked_into_the_id_in_its_send_is_told(how, monkeypatch) -> None:
    """No client is told of an id that may never have been sent. Nothing is decompressed for it."""

    @scenario(**ON)
    async def run(broker) -> None:
        if how == "too large":
            monkeypatch.setattr(deduplication, "DEDUPLICATION_BATCH_BYTES_MAX", 4)
        if how == "too many":
            monkeypatch.setattr(deduplication, "DEDUPLICATION_BATCH_MESSAGES_MAX", 2)
        decompressed: list[bytes] = []
        real = batches.decompress
        monkeypatch.setattr(
            batches, "decompress", lambda *a: [r := real(*a), decompressed.append(r)][0]
        )
        client = await opened(broker)
        if how == "damaged":
            entry = entry_of(b"?" * 100, 10, producer_name="p", num_messages_in_batch=3)
        else:
            entry = batch((10, 20, 30), pb.LZ4, sequence_id=10)
        client.send_bytes(send_frame(send_command(1, 10, 3), entry))
        assert await outcome(client) != DUPLICATE
        assert decompressed == []
        if how == "trimmed":
            monkeypatch.setattr(loaded(broker).entries, "read", AsyncMock(return_value=[]))
        client.hang_up()
        assert await last_of(broker) == 10
        assert decompressed == ([b"?" * 100] if how == "damaged" else [])
        client = await opened(broker)
        assert await send(client, 11) != DUPLICATE

    run()


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_a_number_that_no_client_can_be_told_is_refused(number: int) -> None:
    @scenario(**ON)
    async def run(broker) -> None:
        client = await opened(broker)
        client.send_bytes(message(client, number))
        error = (await client.take(Command.SEND_ERROR)).send_error
        assert error.error == ServerError.NotAllowedError
        assert error.message == (
            f"Sequence id {number} of p is above 2^63-1: number messages from 0 on"
        )
        client.send_bytes(send_batch(1, range(1, 3), highest=number))
        assert await outcome(client) == ServerError.NotAllowedError
        assert await send(client, 0) != DUPLICATE
        assert await send(client, 2**63 - 1) != DUPLICATE
        client.hang_up()
        assert await last_of(broker) == 2**63 - 1

    run()


@scenario(**ON)
async def test_a_batch_that_cannot_be_looked_into_by_a_defect_stops_no_producer(
    broker,
) -> None:
    names = ["p", "q", "r"]
    clients = [await opened(broker, name) for name in names]
    for client, name in zip(clients, names, strict=True):
        client.send_bytes(send_batch(0, (0, 1), producer_name=name))
        assert await outcome(client) != DUPLICATE
    with patch.object(deduplication, "sequence_ids", side_effect=ValueError("a defect")):
        clients[0].hang_up()
        await asyncio.sleep(0.01)
    for client in clients[1:]:
        client.hang_up()
    await asyncio.sleep(0.01)
    assert not loaded(broker).deduplication._curious
    assert [await last_of_connected(broker, name) for name in names] == [0, 1, 1]


@scenario()
async def test_numbers_from_before_deduplication_was_on_stop_no_producer(broker) -> None:
    client = await opened(broker)
    with held(broker):
        client.send_bytes(message(client, 2**64 - 1))
        await asyncio.sleep(0.01)
        turning_on = asyncio.ensure_future(set_policy(broker, True))
        await asyncio.sleep(0.01)
    assert await outcome(client) != DUPLICATE
    await turning_on
    assert await last_of(broker, "q") == -1
    assert await send(client, 7) != DUPLICATE
    client.hang_up()
    assert await last_of(broker) == 7


@scenario(**ON)
async def test_a_batch_that_was_cut_anew_goes_by_the_id_in_its_send(broker) -> None:
    """As in Pulsar, for a batch of which the first messages are stored already."""
    client = await opened(broker)
    await send(client, 5)
    for highest in (7, 0):
        client.send_bytes(send_batch(4, range(4, 8), highest=highest))
        assert await outcome(client) == DUPLICATE
    assert await last_of(broker, "q") == -1
    assert len(await stored(broker)) == 1
    client.send_bytes(send_batch(7, range(4, 8)))  # a client that sends the last id
    assert await outcome(client) != DUPLICATE
    assert await send(client, 7) == DUPLICATE
    with held(broker):
        client.send_bytes(send_batch(8, range(8, 10), highest=9))
        client.send_bytes(send_batch(9, range(9, 12), highest=11))
        assert await outcome(client) == ServerError.PersistenceError


@scenario(**ON)
async def test_an_unreadable_batch_counts_with_what_its_send_says(broker) -> None:
    client = await opened(broker)
    entry = entry_of(b"?" * 100, 10, producer_name="p", num_messages_in_batch=3)
    for expected in (False, True):
        client.send_bytes(send_frame(send_command(1, 10, 3), entry))
        assert (await outcome(client) == DUPLICATE) is expected
    assert await send(client, 11) != DUPLICATE


def piece(sequence_id: int, index: int, count: int = 3) -> dict[str, object]:
    return {
        "uuid": f"p-{sequence_id}",
        "chunk_id": index,
        "num_chunks_from_msg": count,
        "total_chunk_msg_size": count,
    }


@pytest.mark.parametrize("how", [restart, crash])
def test_a_message_in_pieces_is_stored_with_its_last_piece(how) -> None:
    @scenario(**ON)
    async def run(broker) -> None:
        client = await opened(broker)
        for index in range(2):
            assert await send(client, 4, **piece(4, index)) != DUPLICATE
        client.hang_up()
        await how(broker)
        assert await last_of(broker) == -1  # it has to be sent again, from its first piece on
        client = await opened(broker)
        for index in range(3):
            assert await send(client, 4, **piece(4, index)) != DUPLICATE
        for index in range(3):
            assert await send(client, 4, **piece(4, index)) == DUPLICATE
        assert await send(client, 5, **piece(5, 0)) != DUPLICATE
        client.hang_up()
        await how(broker)
        assert await last_of(broker) == 4
        assert len(await stored(broker)) == 6

    run()


@scenario(**ON)
async def test_markers_and_bulk_publishing_do_not_count(broker) -> None:
    client = await opened(broker)
    for _ in range(2):
        replicate(client)
        assert await send(client, 0, marker_type=21) != DUPLICATE
    assert await send(client, 0) != DUPLICATE
    client.hang_up()
    bulk = await opened(broker, f"{BULK_PREFIX}1")
    for _ in range(2):
        assert await send(bulk, 9, producer_name=f"{BULK_PREFIX}1") != DUPLICATE
    bulk.hang_up()
    await crash(broker)
    assert await last_of(broker) == 0
    assert await last_of(broker, f"{BULK_PREFIX}1") == -1


@scenario(**ON)
async def test_nobody_publishes_under_the_name_of_another_producer(broker) -> None:
    """After a crash its message would count to that one, whose next messages were dropped."""
    client = await opened(broker, "mallory")
    for name in ("victim", "", "mallor", "mallory2"):
        assert await send(client, 2**61, producer_name=name) == ServerError.NotAllowedError
    assert await send(client, 0) != DUPLICATE
    client.hang_up()
    await crash(broker)
    client = await opened(broker, "victim")
    assert await last_of_connected(broker, "victim") == -1
    assert await send(client, 0) != DUPLICATE


@scenario(**ON)
async def test_a_replicator_publishes_under_the_names_in_its_messages(broker) -> None:
    client = await opened(broker, "pulsar.repl.east")
    for name in ("a", "b"):
        assert await send(client, 3, producer_name=name) != DUPLICATE
        assert await send(client, 3, producer_name=name) == DUPLICATE
    client.hang_up()
    await asyncio.sleep(0.01)
    assert [await last_of(broker, name) for name in ("a", "b", "pulsar.repl.east")] == [3, 3, -1]


# -- failures ------------------------------------------------------------------------------------


@pytest.mark.feature("F54")
@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_retry_of_a_failed_write_is_stored_once(kept: int) -> None:
    """Of three appends that fail, the storage may have kept any first part."""

    @scenario(**ON)
    async def run(broker) -> None:
        client = await opened(broker)
        await send(client, 0)
        broker.bookie.held = True
        for sequence in (1, 2, 3):
            client.send_bytes(message(client, sequence))
            await asyncio.sleep(0.001)
        queue = broker.bookie._queue
        assert len(queue) == 3
        # The bookie stores some, and answers none of them but with an error.
        for number in range(3):
            run_, answer, recovery, reserve = queue.popleft()
            if number < kept:
                broker.bookie._store(run_, recovery, reserve)
            queue.append((run_, answer, recovery, reserve))
        broker.bookie.read_only = True
        broker.bookie.release_held()
        for _ in range(3):
            assert await outcome(client) == ServerError.PersistenceError
        await client.take(Command.CLOSE_PRODUCER)
        # The client comes back at once, before anybody knows what the bookie kept.
        client.send(client.producer_command(TOPIC, "p", epoch=1))
        await asyncio.sleep(0.5)
        assert not client.has(Command.PRODUCER_SUCCESS)
        broker.bookie.held = broker.bookie.read_only = False
        broker.bookie.release_held()
        told = (await client.take(Command.PRODUCER_SUCCESS, seconds=10)).producer_success
        assert told.last_sequence_id == kept
        found = [await send(client, sequence) == DUPLICATE for sequence in (1, 2, 3)]
        assert found == [sequence <= kept for sequence in (1, 2, 3)]
        client.hang_up()
        await crash(broker)
        assert await last_of(broker) == 3
        assert len(await stored(broker)) == 4

    run()


@scenario(**ON)
async def test_a_failed_write_does_not_hold_up_other_names(broker) -> None:
    failing, other = await opened(broker), await opened(broker, "q")
    await send(failing, 0)
    broker.bookie.read_only = True
    assert await send(failing, 1) == ServerError.PersistenceError
    again = Client(broker)
    assert await again.open_producer(TOPIC, "p", seconds=10) == ServerError.ServiceNotReady
    assert (await again.open_producer(TOPIC, "r", 2)).producer_ready
    broker.bookie.read_only = False
    await asyncio.sleep(2)
    assert await send(other, 1) != DUPLICATE
    assert (await again.open_producer(TOPIC, "p", seconds=10)).last_sequence_id == 0
    assert await send(again, 1) != DUPLICATE


@scenario(**ON)
async def test_what_failed_is_not_stored_for_those_who_come_after_a_full_disk(broker) -> None:
    client = await opened(broker)
    await send(client, 0)
    broker.bookie.full = True
    assert isinstance(await send(client, 1), int)
    broker.bookie.full = False
    await asyncio.sleep(5)
    again = await opened(broker)
    assert [await send(again, n) == DUPLICATE for n in (0, 1, 2)] == [True, False, False]


@scenario(**ON, brokerDeduplicationEntriesInterval=1)
async def test_no_snapshot_leaves_recovered_entries_out(broker) -> None:
    client, other = await opened(broker), await opened(broker, "q")
    await send(client, 0)
    before = await send(client, 1)
    await asyncio.sleep(2)  # its snapshot is taken
    topic = loaded(broker)
    deduplication = topic.deduplication
    read = topic.entries.read

    async def unreadable(*args: Any) -> Any:
        raise StorageError("no bookie answers")

    topic.entries.read = unreadable
    broker.bookie.held = True
    client.send_bytes(message(client, 2))
    await asyncio.sleep(0.01)
    queue = broker.bookie._queue
    run, _, recovery, reserve = queue[0]
    broker.bookie._store(run, recovery, reserve)  # kept, and answered with an error
    broker.bookie.read_only = True
    broker.bookie.release_held()
    await asyncio.sleep(0.01)
    broker.bookie.held = broker.bookie.read_only = False
    broker.bookie.release_held()
    await asyncio.sleep(3)
    assert topic.ledger.last_confirmed == (before[0], 2)
    for number in range(5):  # more than there are names: a snapshot would be due with each
        await send(other, number)
        assert deduplication.cursor.mark_delete == before
    deduplication.look_after()
    await asyncio.sleep(2)
    assert deduplication.cursor.mark_delete == before
    topic.entries.read = read
    await asyncio.sleep(3)
    await send(other, 5)
    assert deduplication.cursor.mark_delete == topic.ledger.last_confirmed
    assert deduplication.cursor.properties == {"p": "2", "q": "5"}
    client.hang_up()
    other.hang_up()
    await crash(broker)
    assert await last_of(broker) == 2


@scenario(**ON)
async def test_a_topic_whose_past_cannot_be_read_is_not_served(broker) -> None:
    client = await opened(broker)
    first = await send(client, 0)
    client.hang_up()
    await crash(broker)
    broker.bookie.corrupt(*first)
    client = Client(broker)
    assert await client.open_producer(TOPIC, "p", seconds=10) == ServerError.PersistenceError
    assert broker.broker.topics.get_loaded(NAME) is None
    broker.bookie._ledgers[first[0]].corrupt.clear()
    assert await last_of(broker) == 0


# -- snapshots -----------------------------------------------------------------------------------


@scenario(**ON, brokerDeduplicationEntriesInterval=10)
async def test_only_what_came_after_the_last_snapshot_is_read(broker) -> None:
    client = await opened(broker)
    ids = [await send(client, sequence) for sequence in range(25)]
    await asyncio.sleep(2)
    assert loaded(broker).deduplication.cursor.mark_delete == ids[19]
    client.hang_up()
    await crash(broker)
    broker.bookie.corrupt(*ids[5])
    assert await last_of(broker) == 24
    assert loaded(broker).deduplication._unsaved == 5


@pytest.mark.feature("F54")
@pytest.mark.parametrize("how", [restart, crash])
def test_more_producers_than_are_remembered_lose_nothing_by_a_restart(how) -> None:
    changed = {
        "brokerDeduplicationMaxNumberOfProducers": 3,
        "brokerDeduplicationEntriesInterval": 5,
    }

    @scenario(**ON, **changed)
    async def run(broker) -> None:
        everyone = [f"p{number}" for number in range(20)]
        clients = [await opened(broker, name) for name in everyone]
        for sequence in range(3):
            for client in clients:
                assert isinstance(await send(client, sequence), tuple)
        await asyncio.sleep(2)
        await how(broker)
        for name in everyone:
            client = await opened(broker, name)
            assert await send(client, 2) == DUPLICATE
            assert isinstance(await send(client, 3), tuple)
        assert len(await stored(broker)) == 4 * len(everyone)

    run()


@scenario(**ON, brokerDeduplicationEntriesInterval=10)
async def test_with_many_producers_snapshots_are_as_much_rarer(broker) -> None:
    """Each has all of their names: it must not be written every few entries."""
    client = await opened(broker)
    topic = loaded(broker)
    for number in range(1000):
        topic.deduplication.table.joined(f"other-{number}")
        topic.deduplication.table.of(f"other-{number}").store(5)
    saved = []
    snapshot = topic.deduplication.table.snapshot
    topic.deduplication.table.snapshot = lambda: saved.append(1) or snapshot()
    for first in range(0, 1100, 100):
        for sequence in range(first, first + 100):
            client.send_bytes(message(client, sequence))
        await asyncio.sleep(1)
    assert len(saved) == 1
    client.hang_up()
    await crash(broker)
    assert await last_of(broker) == 1099
    assert loaded(broker).deduplication.last_sequence_id("other-999") == 5


@pytest.mark.feature("F54")
@scenario(**ON)
async def test_five_times_the_producers_that_are_remembered_are_kept_over_a_restart(broker) -> None:
    """A snapshot of them is a megabyte in one entry, and no publish fails for it."""
    client = await opened(broker)
    table = loaded(broker).deduplication.table
    for number in range(50_000):
        table.joined(f"standalone-7-{number}")
        table.of(f"standalone-7-{number}").store(number)
    assert isinstance(await send(client, 0), tuple)
    loaded(broker).deduplication.save(loaded(broker).ledger.last_confirmed)
    assert isinstance(await send(client, 1), tuple)
    client.hang_up()
    await restart(broker)
    assert await last_of(broker) == 1
    found = loaded(broker).deduplication
    assert len(found.table) == 50_001
    assert found.last_sequence_id("standalone-7-49999") == 49_999
    await asyncio.sleep(600)
    assert len(found.table) <= 10_001


@scenario(**ON, brokerDeduplicationSnapshotIntervalSeconds=60)
async def test_a_quiet_topic_gets_its_snapshot_too(broker) -> None:
    client = await opened(broker)
    last = await send(client, 0)
    await asyncio.sleep(300)
    cursor = loaded(broker).deduplication.cursor
    assert (cursor.trim_position, cursor.properties) == (last, {"p": "0"})


@scenario(**ON, brokerDeduplicationProducerInactivityTimeoutMinutes=10)
async def test_a_producer_that_stays_away_is_forgotten(broker) -> None:
    client, other = await opened(broker), await opened(broker, "q")
    await send(client, 5)
    await send(other, 5)
    client.hang_up()
    for _ in range(30):
        await asyncio.sleep(30)
        other.has(Command.PING)  # answers it
    assert await last_of(broker) == -1
    assert await send(other, 5) == DUPLICATE


@scenario(**ON)
async def test_after_an_unloading_nothing_has_to_be_read(broker) -> None:
    client = await opened(broker)
    ids = [await send(client, sequence) for sequence in range(5)]
    client.hang_up()
    await restart(broker)
    for position in ids:
        broker.bookie.corrupt(*position)
    assert await last_of(broker) == 4


@scenario(**ON)
async def test_the_cursor_is_no_subscription_and_does_not_stop_trimming_for_ever(broker) -> None:
    client = await opened(broker)
    await send(client, 0)
    topic = loaded(broker)
    assert not topic.subscriptions
    (cursor,) = topic.retention.durable_cursors()
    assert cursor.name == DEDUPLICATION_CURSOR
    assert cursor.trim_position < topic.ledger.last_confirmed
    await asyncio.sleep(300)
    assert cursor.trim_position == topic.ledger.last_confirmed


# -- switched on and off -------------------------------------------------------------------------


async def set_policy(broker: BrokerInMemory, on: bool | None) -> None:
    await broker.broker.resources.namespaces.update(
        NAME.namespace_name, lambda old: replace(old, policies={"deduplicationEnabled": on})
    )
    await asyncio.sleep(0.1)


@scenario()
async def test_it_is_switched_on_and_off_under_producers(broker) -> None:
    client = await opened(broker)
    await send(client, 0)
    await set_policy(broker, True)
    assert loaded(broker).deduplication_status == "Enabled"
    assert await send(client, 0) != DUPLICATE  # it was there before: nobody knows
    assert await send(client, 0) == DUPLICATE
    client.hang_up()
    await crash(broker)
    client = await opened(broker)
    assert await send(client, 0) == DUPLICATE
    await set_policy(broker, False)
    assert loaded(broker).deduplication_status == "Disabled"
    assert await send(client, 0) != DUPLICATE
    assert not loaded(broker).retention.durable_cursors()
    await set_policy(broker, True)
    assert await send(client, 0) != DUPLICATE  # what it knew was dropped with the cursor
    assert await send(client, 0) == DUPLICATE
    await set_policy(broker, None)
    assert loaded(broker).deduplication is None


@scenario()
async def test_while_it_is_switched_on_what_is_published_is_not_overlooked(broker) -> None:
    client = await opened(broker)
    await send(client, 0)
    turning_on = asyncio.ensure_future(set_policy(broker, True))
    sent = 60
    for sequence in range(1, sent + 1):
        client.send_bytes(message(client, sequence))
        await asyncio.sleep(0)
    await turning_on
    assert loaded(broker).deduplication is not None
    for _ in range(sent):
        assert await outcome(client) != DUPLICATE
    assert await send(client, sent) == DUPLICATE
    client.hang_up()
    assert await last_of(broker) == sent


@scenario(**ON)
async def test_switched_off_with_duplicates_under_way(broker) -> None:
    client = await opened(broker)
    await send(client, 0)
    with held(broker):
        client.send_bytes(message(client, 1) + message(client, 0))
        switch = asyncio.ensure_future(set_policy(broker, False))
        await asyncio.sleep(0.01)
        assert loaded(broker).deduplication is None
        await client.take(Command.CLOSE_PRODUCER)
    await switch
    assert (await client.open_producer(TOPIC, "p")).last_sequence_id == -1


@scenario(**ON, maxPendingPublishRequestsPerConnection=4)
async def test_duplicates_that_wait_as_it_is_switched_off_weigh_on_nothing(broker) -> None:
    client = await opened(broker)
    await send(client, 0)
    with held(broker):
        client.send_bytes(message(client, 1) + 4 * message(client, 0))
        assert client.transport.paused
        switch = asyncio.ensure_future(set_policy(broker, False))
        await asyncio.sleep(0.01)
    await switch
    await asyncio.sleep(0.01)
    assert not client.transport.paused


@scenario(**ON)
async def test_a_producer_is_closed_although_its_duplicates_are_not_confirmed_any_more(
    broker,
) -> None:
    client = await opened(broker)
    await send(client, 0)
    with held(broker):
        client.send_bytes(message(client, 1) + message(client, 0))
        client.send(client.close_command("producer"))
        await set_policy(broker, False)
        await asyncio.sleep(0.01)
    assert await client.outcome() == 0


@scenario(**KEPT)
async def test_a_switch_that_fails_is_tried_again(broker) -> None:
    client = await opened(broker)
    await send(client, 0)
    broker.bookie.read_only = True
    await set_policy(broker, True)
    assert loaded(broker).deduplication_status == "Recovering"
    broker.bookie.read_only = False
    await asyncio.sleep(300)
    assert loaded(broker).deduplication_status == "Enabled"


@scenario(**ON)
async def test_a_policy_that_changes_while_the_topic_is_loaded_counts(broker) -> None:
    client = await opened(broker)
    await send(client, 0)
    client.hang_up()
    await crash(broker)
    read, gate = broker.bookie.read, asyncio.Event()

    async def slow(*args: Any) -> Any:
        await gate.wait()
        return await read(*args)

    broker.bookie.read = slow
    loading = asyncio.ensure_future(broker.broker.topics.load(NAME))
    await asyncio.sleep(0.01)
    await set_policy(broker, False)
    gate.set()
    await loading
    assert loaded(broker).deduplication_status == "Disabled"


@scenario()
async def test_what_was_under_way_when_it_was_switched_on_counts(broker) -> None:
    client = await opened(broker)
    await send(client, 0)
    broker.bookie.held = True
    client.send_bytes(message(client, 1))
    await asyncio.sleep(0.01)
    under_way = broker.bookie._queue.popleft()
    broker.bookie.held = False
    await set_policy(broker, True)
    assert loaded(broker).deduplication is not None
    broker.bookie._queue.append(under_way)
    broker.bookie.release_held()
    assert await outcome(client) != DUPLICATE
    assert await send(client, 1) == DUPLICATE


@scenario(**ON)
async def test_a_producer_that_is_fenced_before_it_is_ready_never_is(broker) -> None:
    first, second, third = await opened(broker), Client(broker), Client(broker)
    await send(first, 0)
    with held(broker):
        first.send_bytes(message(first, 1))
        first.hang_up()
        await asyncio.sleep(0.01)
        second.send(second.producer_command(TOPIC, "p"))
        await asyncio.sleep(0.01)
        fencing = {"producer_access_mode": FENCING}
        assert (await third.open_producer(TOPIC, "t", **fencing)).producer_ready
    assert await second.outcome() == ServerError.ProducerFenced
    assert not second.connection.opened.producers
    assert list(loaded(broker).producers) == ["t"]


@scenario(**ON)
async def test_a_fenced_producer_and_the_one_after_it_do_not_repeat(broker) -> None:
    first = await opened(broker)
    await send(first, 0)
    with held(broker):
        first.send_bytes(message(first, 1))
        second = Client(broker)
        second.send(second.producer_command(TOPIC, "p", producer_access_mode=FENCING))
        await asyncio.sleep(0.1)
    told = (await second.take(Command.PRODUCER_SUCCESS)).producer_success
    assert told.last_sequence_id == 1
    assert await send(second, 1) == DUPLICATE
