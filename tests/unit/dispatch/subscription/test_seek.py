"""Seeks in all forms, the end of a topic, and its last message, as clients see them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from pulsark.dispatch.model.consumer import Consumer
from pulsark.dispatch.subscription.key_shared import KeyShared
from pulsark.errors import ServerError
from pulsark.limits import CONSUMER_RETURN_SECONDS, CONSUMERS_LEAVING_AT_ONCE_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.position import Position
from tests.support.broker_clients import (
    EARLIEST_ID,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    LATEST_ID,
    NAME,
    SHARED,
    TOPIC,
    TYPES,
    BrokerInMemory,
    Client,
    Command,
    consuming,
    replicate,
    scenario,
)
from tests.support.wire_frames import publish


async def ledgers_of_two(broker: BrokerInMemory, client: Client, count: int) -> list[Position]:
    """Two messages in each of several ledgers, published at 0, 1000, 2000, ... ms."""
    ids: list[tuple[int, int]] = []
    for ledger in range(count):
        await client.produce(TOPIC, 0)
        for number in (2 * ledger, 2 * ledger + 1):
            client.send_bytes(publish(1, number, b"%d" % number, publish_time=number * 1000))
            found = (await client.take(Command.SEND_RECEIPT)).send_receipt.message_id
            ids.append((found.ledgerId, found.entryId))
        if ledger < count - 1:
            await broker.broker.topics.unload(NAME)
            await client.take(Command.CLOSE_PRODUCER)
    return [Position(*one) for one in ids]


async def seek(client: Client, command: pb.BaseCommand) -> int:
    """Seek and subscribe again when told to, as clients do; the outcome of the seek."""
    client.send(command)
    return await client.outcome()


def by_time(client: Client, ms: int, consumer_id: int = 1) -> pb.BaseCommand:
    command = client.seek_command((0, 0), consumer_id)
    command.seek.ClearField("message_id")
    command.seek.message_publish_time = ms
    return command


async def after_seek(client: Client, kind: int = EXCLUSIVE) -> list[bytes]:
    """What comes to a consumer that subscribes again."""
    await client.take(Command.CLOSE_CONSUMER)
    await client.deliveries()
    assert await client.subscribe(TOPIC, kind=kind) == 0
    return [delivery.payload for delivery in await client.deliveries()]


# -- where a seek goes ------------------------------------------------------------------------


@pytest.mark.command("SEEK")
@pytest.mark.parametrize("kind", TYPES)
@scenario()
async def test_a_seek_by_id_delivers_that_message_next(broker: BrokerInMemory, kind: int) -> None:
    client = Client(broker)
    ids = await ledgers_of_two(broker, client, 2)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await client.received(4)
    for place in ids[:3]:
        client.send(client.ack_command(place))
    wanted = [b"0", b"1", b"2", b"3"]
    for place, left in [
        (ids[2], wanted[2:]),
        (ids[0], wanted),
        (ids[3], wanted[3:]),
        (EARLIEST_ID, wanted),
        (LATEST_ID, []),
        ((ids[1].ledger_id, ids[1].entry_id + 5), wanted[2:]),  # behind a ledger's end
        ((ids[2].ledger_id, 2**64 - 1), wanted[2:]),  # before its first entry
        ((ids[3].ledger_id + 7, 0), []),
    ]:
        assert await seek(client, client.seek_command(tuple(place))) == 0
        assert await after_seek(client, kind) == left, place


@pytest.mark.command("SEEK")
@pytest.mark.parametrize("kind", TYPES)
@scenario()
async def test_a_seek_by_time_delivers_what_was_published_then_or_later(
    broker: BrokerInMemory, kind: int
) -> None:
    client = Client(broker)
    await ledgers_of_two(broker, client, 2)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await client.received(4)
    for ms, left in [
        (2000, [b"2", b"3"]),
        (2001, [b"3"]),
        (0, [b"0", b"1", b"2", b"3"]),
        (3001, []),
        (2**63, []),
        (500, [b"1", b"2", b"3"]),
    ]:
        assert await seek(client, by_time(client, ms)) == 0
        assert await after_seek(client, kind) == left, ms


@scenario()
async def test_a_seek_on_a_topic_whose_start_was_trimmed(broker) -> None:
    client = Client(broker)
    ids = await ledgers_of_two(broker, client, 3)
    assert await client.subscribe(TOPIC) == 0
    await client.received(6)
    topic = broker.broker.topics.get_loaded(NAME)
    await topic.ledger.trim(ids[2])
    topic.retention.trimmed()
    for place in (EARLIEST_ID, ids[0], ids[1], ids[2]):
        assert await seek(client, client.seek_command(tuple(place))) == 0
        assert await after_seek(client) == [b"2", b"3", b"4", b"5"], place
    assert await seek(client, by_time(client, 500)) == 0
    assert await after_seek(client) == [b"2", b"3", b"4", b"5"]


@pytest.mark.feature("F12")
@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
@scenario(acknowledgmentAtBatchIndexLevelEnabled=True)
async def test_a_seek_into_a_batch(broker: BrokerInMemory, kind: int) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 0)
    place = Position(*await client.publish_batch(4))
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await client.deliveries()
    command = client.seek_command(tuple(place))
    command.seek.message_id.ack_set.append(0b1100)
    assert await seek(client, command) == 0
    await client.take(Command.CLOSE_CONSUMER)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    (delivery,) = await client.deliveries()
    assert list(delivery.message.ack_set) == [0b1100]
    assert client.connection.opened.consumers[1].permits == 998
    client.send(client.ack_command(tuple(place), ack_set=(0b0011,)))
    await client.take(Command.ACK_RESPONSE)
    assert broker.broker.topics.get_loaded(NAME).subscriptions["s"].backlog == 0


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
@scenario(acknowledgmentAtBatchIndexLevelEnabled=True)
async def test_a_seek_into_a_batch_that_was_trimmed_gives_the_next_one_whole(
    broker: BrokerInMemory, kind: int
) -> None:
    client = Client(broker)
    places = []
    for number in range(2):
        await client.produce(TOPIC, 0)
        places.append(Position(*await client.publish_batch(4, number * 4)))
        if number == 0:
            await broker.broker.topics.unload(NAME)
            await client.take(Command.CLOSE_PRODUCER)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await client.deliveries()
    topic = broker.broker.topics.get_loaded(NAME)
    await topic.ledger.trim(places[1])
    topic.retention.trimmed()
    command = client.seek_command(tuple(places[0]))
    command.seek.message_id.ack_set.append(0b1100)
    assert await seek(client, command) == 0
    await client.take(Command.CLOSE_CONSUMER)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    (delivery,) = await client.deliveries()
    found = delivery.message.message_id
    assert (found.ledgerId, found.entryId) == places[1]
    assert list(delivery.message.ack_set) == []
    assert topic.subscriptions["s"].backlog == 1


@scenario()
async def test_a_seek_needs_a_target_and_a_consumer(broker) -> None:
    client, _ = await consuming(broker, 1)
    nowhere = client.seek_command((0, 0))
    nowhere.seek.ClearField("message_id")
    assert await seek(client, nowhere) == ServerError.MetadataError
    unknown = client.seek_command((0, 0), consumer_id=9)
    assert await seek(client, unknown) == ServerError.MetadataError
    assert not client.has(Command.CLOSE_CONSUMER)


@pytest.mark.command("SEEK")
@pytest.mark.parametrize("kind", TYPES)
@scenario()
async def test_a_seek_that_cannot_be_stored_is_an_unknown_error(
    broker: BrokerInMemory, kind: int
) -> None:
    client = Client(broker)
    ids = await ledgers_of_two(broker, client, 1)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await client.received(2)
    broker.bookie.down = True
    code = await seek(client, client.seek_command(tuple(ids[0])))
    assert code == ServerError.UnknownError
    assert client.connection.is_open


@pytest.mark.command("GET_LAST_MESSAGE_ID")
@scenario()
async def test_a_last_message_that_cannot_be_read(broker) -> None:
    client = Client(broker)
    await ledgers_of_two(broker, client, 1)
    assert await client.subscribe(TOPIC) == 0
    await client.received(2)
    broker.broker.topics.get_loaded(NAME).entries.cache.clear()
    broker.bookie.down = True
    client.send(last_id_command())
    answer = await client.take(Command.ERROR, seconds=60)
    assert (answer.error.request_id, answer.error.error) == (900, ServerError.MetadataError)


# -- who is told ------------------------------------------------------------------------------


@pytest.mark.command("SEEK", "CLOSE_CONSUMER")
@pytest.mark.parametrize(("kind", "closed"), [(FAILOVER, 1), (SHARED, 3), (KEY_SHARED, 3)])
@scenario()
async def test_who_is_closed_by_a_seek(broker: BrokerInMemory, kind: int, closed: int) -> None:
    clients = [Client(broker) for _ in range(3)]
    for number, client in enumerate(clients):
        code = await client.subscribe(TOPIC, kind=kind, consumer_name=f"c{number}")
        assert code == 0
    ids = await ledgers_of_two(broker, Client(broker), 1)
    await asyncio.sleep(0.01)
    assert await seek(clients[0], clients[0].seek_command(tuple(ids[1]))) == 0
    assert sum(client.has(Command.CLOSE_CONSUMER) for client in clients) == closed
    if kind == FAILOVER:
        last = [(await client.deliveries())[-1:] for client in clients]
        assert [delivery.payload for found in last for delivery in found][-1] == b"1"


@scenario()
async def test_a_seek_closes_many_consumers_in_turns(broker, monkeypatch) -> None:
    """A thousand of Key_Shared would take half a second of the event loop."""
    client = Client(broker)
    await client.produce(TOPIC, 3)
    for consumer_id in range(1, 41):
        assert await client.subscribe(TOPIC, consumer_id=consumer_id, kind=KEY_SHARED) == 0
    await client.deliveries()
    loop, turns, left = asyncio.get_running_loop(), [0], []
    remove = KeyShared.remove

    def tick() -> None:
        turns[0] += 1
        if len(left) < 40:
            loop.call_soon(tick)

    def noted(type_: KeyShared, consumer: Consumer) -> None:
        left.append(turns[0])
        remove(type_, consumer)

    monkeypatch.setattr(KeyShared, "remove", noted)
    loop.call_soon(tick)
    client.send(client.seek_command(EARLIEST_ID))
    for _ in range(40):
        await client.take(Command.CLOSE_CONSUMER)
    assert await client.outcome() == 0
    assert max(Counter(left).values()) <= CONSUMERS_LEAVING_AT_ONCE_MAX
    assert await client.subscribe(TOPIC, kind=KEY_SHARED) == 0
    assert len(await client.deliveries()) == 3


@scenario()
async def test_a_reader_seeks_and_keeps_its_place_while_it_connects_anew(broker) -> None:
    client = Client(broker)
    ids = await ledgers_of_two(broker, client, 1)
    assert await client.subscribe(TOPIC, "r", durable=False, start=tuple(ids[0])) == 0
    await client.received(2)
    assert await seek(client, client.seek_command(tuple(ids[1]))) == 0
    await client.take(Command.CLOSE_CONSUMER)
    await asyncio.sleep(5)
    assert await client.subscribe(TOPIC, "r", durable=False, start=tuple(ids[0])) == 0
    assert await client.received(1) == [tuple(ids[1])]


@scenario()
async def test_a_second_seek_waits_for_the_consumer_that_the_first_one_closed(broker) -> None:
    """A Go reader that was created at latest inclusive, and seeks at once, sends this order."""
    client = Client(broker)
    ids = await ledgers_of_two(broker, client, 1)
    start = {"durable": False, "start": tuple(ids[0])}
    assert await client.subscribe(TOPIC, "r", **start) == 0
    await client.deliveries()
    assert await seek(client, client.seek_command(tuple(ids[-1]))) == 0
    await client.take(Command.CLOSE_CONSUMER)
    client.send(client.seek_command(tuple(ids[1])))
    client.send(last_id_command())
    await asyncio.sleep(0.5)
    assert not client.has(Command.SUCCESS)
    assert not client.has(Command.ERROR)
    assert await client.subscribe(TOPIC, "r", **start) == 0
    assert await client.outcome() == 0
    await client.take(Command.CLOSE_CONSUMER)
    assert await client.subscribe(TOPIC, "r", **start) == 0
    await client.take(Command.GET_LAST_MESSAGE_ID_RESPONSE)
    first, *_ = await client.deliveries()
    assert (first.message.message_id.ledgerId, first.message.message_id.entryId) == tuple(ids[1])


@scenario()
async def test_a_seek_of_a_consumer_that_does_not_return_ends(broker) -> None:
    client = Client(broker)
    ids = await ledgers_of_two(broker, client, 1)
    assert await client.subscribe(TOPIC, "r", durable=False, start=tuple(ids[0])) == 0
    assert await seek(client, client.seek_command(tuple(ids[1]))) == 0
    await client.take(Command.CLOSE_CONSUMER)
    client.send(client.seek_command(tuple(ids[0])))
    await asyncio.sleep(CONSUMER_RETURN_SECONDS + 0.1)
    assert await client.outcome() == ServerError.MetadataError


# -- the end of a topic -----------------------------------------------------------------------


def last_id_command(consumer_id: int = 1) -> pb.BaseCommand:
    command = Command(type=Command.GET_LAST_MESSAGE_ID)
    command.getLastMessageId.consumer_id, command.getLastMessageId.request_id = consumer_id, 900
    return command


@pytest.mark.command("REACHED_END_OF_TOPIC")
@pytest.mark.parametrize("kind", TYPES)
@scenario()
async def test_the_end_comes_once_everything_is_acknowledged(
    broker: BrokerInMemory, kind: int
) -> None:
    client = Client(broker)
    ids = await ledgers_of_two(broker, client, 1)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await client.received(2)
    topic = broker.broker.topics.get_loaded(NAME)
    assert await topic.termination.terminate() == ids[1]
    await client.take(Command.CLOSE_PRODUCER)
    client.send(client.ack_command(tuple(ids[1])))
    await asyncio.sleep(0.01)
    assert not client.has(Command.REACHED_END_OF_TOPIC)
    client.send(client.ack_command(tuple(ids[0])))
    await client.take(Command.REACHED_END_OF_TOPIC)
    # A seek takes it back, and it comes again.
    assert await seek(client, client.seek_command(tuple(ids[1]))) == 0
    assert await after_seek(client, kind) == [b"1"]
    assert not client.has(Command.REACHED_END_OF_TOPIC)
    client.send(client.ack_command(tuple(ids[1])))
    await client.take(Command.REACHED_END_OF_TOPIC)


@pytest.mark.command("REACHED_END_OF_TOPIC")
@scenario()
async def test_who_comes_after_the_end_is_told_at_once(broker) -> None:
    client = Client(broker)
    await ledgers_of_two(broker, client, 1)
    assert await client.subscribe(TOPIC, "s") == 0
    topic = broker.broker.topics.get_loaded(NAME)
    await topic.termination.terminate()
    client.send(client.producer_command(TOPIC, "late", 5))
    answer = await client.take(Command.ERROR)
    assert answer.error.error == ServerError.TopicTerminatedError
    assert await client.subscribe(TOPIC, "early", consumer_id=2) == 0
    assert not client.has(Command.REACHED_END_OF_TOPIC)
    latest = {"initialPosition": pb.CommandSubscribe.Latest}
    assert await client.subscribe(TOPIC, "late", consumer_id=3, **latest) == 0
    told = await client.take(Command.REACHED_END_OF_TOPIC)
    assert told.reachedEndOfTopic.consumer_id == 3
    topic.subscriptions["early"].acks.pass_over(topic.ledger.last_confirmed)
    told = await client.take(Command.REACHED_END_OF_TOPIC)
    assert told.reachedEndOfTopic.consumer_id == 2
    await broker.broker.topics.unload(NAME)
    assert await client.subscribe(TOPIC, "late", consumer_id=4, **latest) == 0
    told = await client.take(Command.REACHED_END_OF_TOPIC)
    assert told.reachedEndOfTopic.consumer_id == 4


@pytest.mark.command("REACHED_END_OF_TOPIC")
@scenario()
async def test_clients_that_do_not_know_of_the_end_are_not_told(broker) -> None:
    client = Client(broker, handshake=False)
    hello = Command(type=Command.CONNECT)
    hello.connect.client_version, hello.connect.protocol_version = "Pulsar-CPP-v3.7.1", 21
    client.send(hello)
    (position,) = await client.produce(TOPIC, 1)
    assert await client.subscribe(TOPIC, "s") == 0
    await client.received(1)
    topic = broker.broker.topics.get_loaded(NAME)
    await topic.termination.terminate()
    client.send(client.ack_command(position))
    await asyncio.sleep(0.01)
    assert topic.subscriptions["s"].backlog == 0
    latest = {"initialPosition": pb.CommandSubscribe.Latest}
    assert await client.subscribe(TOPIC, "late", consumer_id=2, **latest) == 0
    await asyncio.sleep(2)
    assert not client.has(Command.REACHED_END_OF_TOPIC)
    assert [len(s.type.consumers) for s in topic.subscriptions.values()] == [1, 1]


@pytest.mark.command("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE")
@scenario()
async def test_the_last_message_id_with_the_mark_delete_position(broker) -> None:
    client = Client(broker)
    ids = await ledgers_of_two(broker, client, 2)
    assert await client.subscribe(TOPIC) == 0
    await client.received(4)
    client.send(client.ack_command(tuple(ids[2]), cumulative=True))
    client.send(last_id_command())
    found = (await client.take(Command.GET_LAST_MESSAGE_ID_RESPONSE)).getLastMessageIdResponse
    last, done = found.last_message_id, found.consumer_mark_delete_position
    assert (last.ledgerId, last.entryId, last.batch_index) == (*ids[3], -1)
    assert (done.ledgerId, done.entryId) == tuple(ids[2])
    replicate(client)
    client.send_bytes(publish(1, 9, b"marker", marker_type=10))
    await client.take(Command.SEND_RECEIPT)
    client.send(last_id_command())
    found = (await client.take(Command.GET_LAST_MESSAGE_ID_RESPONSE)).getLastMessageIdResponse
    assert (found.last_message_id.ledgerId, found.last_message_id.entryId) == tuple(ids[3])
    client.send(last_id_command(consumer_id=9))
    assert (await client.take(Command.ERROR)).error.error == ServerError.MetadataError
