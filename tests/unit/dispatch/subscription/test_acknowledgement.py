"""ACK as the protocol describes it, against a broker in memory: sentence by sentence."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.errors import ServerError
from pulsark.limits import IDS_PER_STEP_MAX, TURN_SECONDS
from pulsark.wire import pulsar_pb2 as pb
from tests.support.broker_clients import (
    KEY_SHARED,
    NAME,
    SHARED,
    SINGLE_ACTIVE,
    TOPIC,
    TYPES,
    BrokerInMemory,
    Client,
    Command,
    consuming,
    held,
    scenario,
)
from tests.support.ticking_clock import TickingClock, use_queue_of
from tests.support.wire_frames import publish

OTHER = "persistent://public/default/other"
ALL_BITS = -1
"""A word of an ack set that acknowledges nothing."""


def backlog(broker: BrokerInMemory, name: str = "s") -> int:
    return broker.broker.topics.get_loaded(NAME).subscriptions[name].backlog


async def ack_sets(client: Client) -> list[list[int]]:
    """Of what was delivered since the last call: what is left of each entry, [] for all of it."""
    return [list(delivery.message.ack_set) for delivery in await client.deliveries()]


async def come_back(client: Client, broker: BrokerInMemory, how: str, kind: int) -> Client:
    """The consumer of a client connects anew; returns the client that has it."""
    if how == "reconnect":
        await client.close()
    elif how == "unload":
        await broker.broker.topics.unload(NAME)
        await client.take(Command.CLOSE_CONSUMER)
    else:
        await broker.restart()
        client = Client(broker)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    return client


# -- messages of a batch ------------------------------------------------------------------------


@pytest.mark.feature("F12")
@pytest.mark.command("ACK", "MESSAGE")
@pytest.mark.parametrize("how", ["reconnect", "unload", "restart"])
@pytest.mark.parametrize("kind", TYPES)
@scenario(acknowledgmentAtBatchIndexLevelEnabled=True)
async def test_what_is_left_of_a_batch_survives(
    broker: BrokerInMemory, kind: int, how: str
) -> None:
    """Each ack set is made from a full one, as C++ does: the broker ANDs them, always."""
    client = Client(broker)
    await client.produce(TOPIC, 0)
    small = await client.publish_batch(4)
    large = await client.publish_batch(130, 1)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    assert await ack_sets(client) == [[], []]
    assert await client.ack(small, ack_set=(0b1110,)) == 0
    assert await client.ack(large, ack_set=(ALL_BITS ^ 1, ALL_BITS, 0b11)) == 0
    client = await come_back(client, broker, how, kind)
    assert await client.ack(small, ack_set=(0b1011,)) == 0
    assert await client.ack(large, ack_set=(ALL_BITS, 0, 0b10)) == 0
    await ack_sets(client)
    client = await come_back(client, broker, how, kind)
    assert await ack_sets(client) == [[0b1010], [ALL_BITS ^ 1, 0, 0b10]]
    assert client.connection.opened.consumers[1].permits == 1000 - 2 - 64
    assert backlog(broker) == 2
    # Trailing words that are zero are left out, on both sides.
    assert await client.ack(large, ack_set=(0b10,)) == 0
    client = await come_back(client, broker, how, kind)
    assert await ack_sets(client) == [[0b1010], [0b10]]
    assert await client.ack(small, ack_set=(0b0101,)) == 0
    assert backlog(broker) == 1
    client = await come_back(client, broker, how, kind)
    assert await ack_sets(client) == [[0b10]]
    assert await client.ack(large) == 0
    client = await come_back(client, broker, how, kind)
    assert await ack_sets(client) == []
    assert backlog(broker) == 0


@pytest.mark.feature("F11", "F12")
@pytest.mark.parametrize("how", ["reconnect", "restart"])
@pytest.mark.parametrize("kind", TYPES)
@scenario()
async def test_without_the_switch_acks_of_single_messages_are_answered_and_ignored(
    broker: BrokerInMemory, kind: int, how: str
) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 0)
    place = await client.publish_batch(3)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await ack_sets(client)
    for word in (0b110, 0b101, 0b011):
        assert await client.ack(place, ack_set=(word,)) == 0
    assert backlog(broker) == 1
    client = await come_back(client, broker, how, kind)
    assert await ack_sets(client) == [[]]
    assert client.connection.opened.consumers[1].permits == 997
    assert await client.ack(place) == 0
    assert backlog(broker) == 0


@pytest.mark.feature("F12", "F18")
@pytest.mark.parametrize("switch", [True, False])
@pytest.mark.parametrize("kind", SINGLE_ACTIVE)
def test_a_cumulative_ack_inside_a_batch(kind: int, switch: bool) -> None:
    """Everything before the batch, and its beginning if that is kept at all."""

    @scenario(acknowledgmentAtBatchIndexLevelEnabled=switch)
    async def run(broker: BrokerInMemory) -> None:
        client = Client(broker)
        await client.produce(TOPIC, 2)
        place = await client.publish_batch(4, 2)
        await client.publish(3)
        assert await client.subscribe(TOPIC, kind=kind) == 0
        assert len(await ack_sets(client)) == 4
        assert await client.ack(place, cumulative=True, ack_set=(0b1100,)) == 0
        assert backlog(broker) == 2
        # An older one changes nothing: what has the higher first message stays.
        assert await client.ack(place, cumulative=True, ack_set=(0b1110,)) == 0
        client = await come_back(client, broker, "restart", kind)
        assert await ack_sets(client) == [[0b1100] if switch else [], []]
        assert await client.ack(place, cumulative=True, ack_set=(0b1000,)) == 0
        client = await come_back(client, broker, "reconnect", kind)
        assert await ack_sets(client) == [[0b1000] if switch else [], []]
        assert await client.ack(place, cumulative=True) == 0
        assert backlog(broker) == 1

    run()


@pytest.mark.feature("F12", "F18")
@pytest.mark.parametrize("switch", [True, False])
def test_a_cumulative_ack_inside_the_first_batch_of_a_ledger(switch: bool) -> None:
    @scenario(acknowledgmentAtBatchIndexLevelEnabled=switch)
    async def run(broker: BrokerInMemory) -> None:
        client = Client(broker)
        await client.produce(TOPIC, 2)
        await broker.broker.topics.unload(NAME)
        await client.produce(TOPIC, 0)
        place = await client.publish_batch(2)
        assert place[1] == 0
        assert await client.subscribe(TOPIC) == 0
        assert len(await ack_sets(client)) == 3
        assert await client.ack(place, cumulative=True, ack_set=(0b10,)) == 0
        assert backlog(broker) == 1
        # "Everything before entry 0", as clients say that whose batch index is 0.
        assert await client.ack((place[0], 2**64 - 1), cumulative=True) == 0
        assert backlog(broker) == 1
        assert await client.ack(place, cumulative=True) == 0
        assert backlog(broker) == 0

    run()


@pytest.mark.feature("F18")
@scenario()
async def test_a_cumulative_ack_of_the_entry_before_the_first(broker) -> None:
    client = Client(broker)
    first, *_ = await client.produce(TOPIC, 2)
    await broker.broker.topics.unload(NAME)
    later, _ = await client.produce(TOPIC, 2)
    assert await client.subscribe(TOPIC) == 0
    assert await client.ack((first[0], 2**64 - 1), cumulative=True) == 0
    assert backlog(broker) == 4
    assert await client.ack((later[0], 2**64 - 1), cumulative=True) == 0
    assert backlog(broker) == 2


@pytest.mark.feature("F12")
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@scenario(acknowledgmentAtBatchIndexLevelEnabled=True)
async def test_acks_in_part_count_towards_what_is_unacknowledged(
    broker: BrokerInMemory, kind: int
) -> None:
    client, other = Client(broker), Client(broker)
    await client.produce(TOPIC, 0)
    place = await client.publish_batch(5, partition_key="k")
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await client.deliveries()
    assert await other.subscribe(TOPIC, kind=kind) == 0
    consumer = client.connection.opened.consumers[1]
    left = [5]
    for by, word in [
        (client, 0b11110),
        (client, 0b11110),
        (other, 0b11101),
        (client, 0b01111),
        (other, ALL_BITS),
    ]:
        assert await by.ack(place, ack_set=(word,)) == 0
        left.append(consumer.unacked)
    assert left == [5, 4, 4, 3, 2, 2]
    client.redeliver(place)
    assert (await client.deliveries() + await other.deliveries())[0].message.ack_set == [0b1100]
    assert await other.ack(place) == 0
    assert consumer.unacked == other.connection.opened.consumers[1].unacked == 0
    assert consumer.subscription.dispatcher.unacked.messages == 0


@pytest.mark.command("CONSUMER_STATS")
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@scenario(acknowledgmentAtBatchIndexLevelEnabled=True)
async def test_the_rate_of_acknowledgements_counts_messages_once(
    broker: BrokerInMemory, kind: int
) -> None:
    client = Client(broker)
    (single,) = await client.produce(TOPIC, 1)
    batch = await client.publish_batch(5, 1)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await client.deliveries()
    consumer = client.connection.opened.consumers[1]
    for place, words, acked in [
        (single, (), 1),
        (single, (), 1),
        (batch, (0b11101,), 2),
        (batch, (0b11101,), 2),
        (batch, (), 6),
        ((10**9, 0), (), 6),
    ]:
        assert await client.ack(place, ack_set=words) == 0
        assert consumer.messages_acked == consumer.subscription.totals.messages_acked == acked


# -- what an ack may name -----------------------------------------------------------------------


@pytest.mark.feature("F16")
@pytest.mark.command("ACK", "ACK_RESPONSE")
@pytest.mark.parametrize("kind", TYPES)
@scenario(acknowledgmentAtBatchIndexLevelEnabled=True)
async def test_what_is_acknowledged_already_unknown_or_foreign_is_no_error(
    broker: BrokerInMemory, kind: int
) -> None:
    client, stranger = Client(broker), Client(broker)
    ids = await client.produce(TOPIC, 3)
    (foreign,) = await stranger.produce(OTHER, 1)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await client.deliveries()
    ledger_id = ids[0][0]
    strange = [foreign, (ledger_id, 3), (ledger_id, 2**40), (10**9, 0), (2**64 - 1, 0)]
    for place in (*strange, (ledger_id, 2**64 - 1), (2**63 - 1, 2**63 - 1)):
        assert await client.ack(place) == 0
        assert await client.ack(place, ack_set=(1,)) == 0
        assert backlog(broker) == 3, place
    for _ in range(2):
        assert await client.ack(ids[1]) == 0
        assert await client.ack(ids[1], ack_set=(1,)) == 0
        assert backlog(broker) == 2
    assert await client.ack(ids[1], *strange, ids[0], ids[0]) == 0
    assert await client.ack() == 0
    assert backlog(broker) == 1
    consumer = client.connection.opened.consumers[1]
    assert consumer.unacked == len(consumer.pending) == (kind in (SHARED, KEY_SHARED))
    # What did not exist when it was acknowledged is delivered.
    assert await client.publish(3) == (ledger_id, 3)
    assert [d.message.message_id.entryId for d in await client.deliveries()] == [3]
    assert stranger.connection.is_open


@pytest.mark.feature("F19")
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@scenario()
async def test_a_cumulative_ack_is_an_error_where_consumers_share(
    broker: BrokerInMemory, kind: int
) -> None:
    client, ids = await consuming(broker, 3, kind=kind)
    await client.received(3)
    assert await client.ack(ids[2], cumulative=True) == ServerError.NotAllowedError
    assert client.connection.opened.consumers[1].unacked == backlog(broker) == 3
    quiet = client.ack_command(ids[2], cumulative=True)
    quiet.ack.ClearField("request_id")
    client.send(quiet)
    await asyncio.sleep(0.01)
    assert not client.has(Command.ACK_RESPONSE)
    assert client.connection.is_open


@pytest.mark.parametrize("count", [0, 2])
@scenario()
async def test_a_cumulative_ack_has_one_id(broker: BrokerInMemory, count: int) -> None:
    client, ids = await consuming(broker, 2)
    assert await client.ack(*ids[:count], cumulative=True) == ServerError.NotAllowedError
    assert backlog(broker) == 2


@pytest.mark.command("ACK_RESPONSE")
@scenario()
async def test_without_a_request_id_or_a_consumer_there_is_no_answer(broker) -> None:
    client, ids = await consuming(broker, 3)
    await client.received(3)
    quiet = client.ack_command(ids[0])
    quiet.ack.ClearField("request_id")
    client.send(quiet, client.ack_command(ids[1], consumer_id=2))
    await asyncio.sleep(0.01)
    assert backlog(broker) == 2
    closing = client.close_command("consumer")
    client.send(closing, client.ack_command(ids[1]))
    assert await client.outcome() == 0
    await asyncio.sleep(0.01)
    assert not client.has(Command.ACK_RESPONSE)
    assert backlog(broker) == 2


@scenario()
async def test_an_ack_that_says_why_a_message_was_discarded_is_one(broker) -> None:
    client = Client(broker)
    (place,) = await client.produce(TOPIC, 1)
    assert await client.subscribe(TOPIC) == 0
    command = client.ack_command(place)
    command.ack.validation_error = pb.CommandAck.ChecksumMismatch
    client.send(command)
    await client.take(Command.ACK_RESPONSE)
    assert backlog(broker) == 0


@scenario()
async def test_acks_on_their_way_during_a_seek_count_for_nothing(broker) -> None:
    client, other = Client(broker), Client(broker)
    ids = await client.produce(TOPIC, 3)
    for one in (client, other):
        assert await one.subscribe(TOPIC, kind=SHARED) == 0
    await asyncio.sleep(0.01)
    with held(broker):
        client.send(client.seek_command(ids[0]))
        await asyncio.sleep(0.01)
        for one in (client, other):
            one.send(one.ack_command(*ids))
        await asyncio.sleep(0.01)
    assert await client.outcome() == 0
    assert backlog(broker) == 3
    await client.deliveries()
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    assert [d.message.message_id.entryId for d in await client.deliveries()] == [0, 1, 2]
    assert await client.ack(*ids) == 0
    assert backlog(broker) == 0


# -- receipts -----------------------------------------------------------------------------------


@pytest.mark.command("ACK_RESPONSE")
@pytest.mark.parametrize("cumulative", [False, True])
@scenario()
async def test_an_answer_comes_when_the_acknowledgement_is_durable(
    broker: BrokerInMemory, cumulative: bool
) -> None:
    client, ids = await consuming(broker, 3)
    await client.received(3)
    with held(broker):
        first = client.ack_command(ids[1], cumulative=cumulative)
        again = client.ack_command(ids[1], cumulative=cumulative)
        client.send(first, again)
        await asyncio.sleep(0.1)
        assert not client.has(Command.ACK_RESPONSE)
    for command in (first, again):
        answer = (await client.take(Command.ACK_RESPONSE)).ackResponse
        assert answer.request_id == command.ack.request_id


@pytest.mark.command("ACK_RESPONSE")
@pytest.mark.parametrize("kind", TYPES)
@scenario()
async def test_an_acknowledgement_that_cannot_be_stored_is_answered_with_an_error(
    broker: BrokerInMemory, kind: int
) -> None:
    client, ids = await consuming(broker, 3, kind=kind)
    await client.received(3)
    broker.bookie.down = True
    assert await client.ack(ids[0], ids[2]) in (
        ServerError.PersistenceError,
        ServerError.MetadataError,
    )
    if kind in SINGLE_ACTIVE:
        assert await client.ack(ids[2], cumulative=True) != 0
    broker.bookie.down = False


# -- many ids in one command --------------------------------------------------------------------


async def publish_many(client: Client, count: int) -> list[tuple[int, int]]:
    (first,) = await client.produce(TOPIC, 1)
    client.send_bytes(b"".join(publish(1, number, b"x") for number in range(1, count)))
    for _ in range(1, count):
        await client.take(Command.SEND_RECEIPT)
    return [(first[0], number) for number in range(count)]


@pytest.mark.parametrize("kind", TYPES)
@scenario()
async def test_a_command_with_very_many_ids_leaves_time_for_others(
    broker: BrokerInMemory, kind: int
) -> None:
    """What comes behind it on its connection waits."""
    use_queue_of(broker, TickingClock(TURN_SECONDS))
    client, other = Client(broker), Client(broker)
    ids = await publish_many(client, 1000)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await client.deliveries()
    strangers = [(ids[0][0] + 1 + n % 7, n) for n in range(10 * IDS_PER_STEP_MAX)]
    command = client.ack_command(*strangers, *ids[:999])
    close = client.close_command("consumer")
    client.send(command, close)
    assert client.transport.paused
    client.send(client.subscribe_command(TOPIC, kind=kind))
    turns = 0
    while not client.has(Command.ACK_RESPONSE):
        ping = Command(type=Command.PING)
        ping.ping.SetInParent()
        other.send(ping)
        await asyncio.sleep(0.001)  # a heavy command rests in between
        turns += other.has(Command.PONG)
        other.answers.clear()
    assert turns >= 10
    assert await client.outcome() == 0
    assert await client.outcome() == 0
    assert backlog(broker) == 1
    client.flow(10)
    assert [d.message.message_id.entryId for d in await client.deliveries()] == [999]
    assert not client.transport.paused


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("how", ["hang up", "unload"])
@scenario()
async def test_a_consumer_that_goes_in_the_middle_of_its_acknowledgement(
    broker: BrokerInMemory, kind: int, how: str
) -> None:
    use_queue_of(broker, TickingClock(TURN_SECONDS))
    client = Client(broker)
    ids = await publish_many(client, 1000)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await client.deliveries()
    ledger_id = ids[0][0]
    strangers = [(ledger_id + 1, n) for n in range(10 * IDS_PER_STEP_MAX)]
    client.send(client.ack_command(*ids[:500], *strangers, *ids[500:]))
    if how == "hang up":
        client.hang_up()
        await asyncio.sleep(0.1)
        assert backlog(broker) == 500
    else:
        await broker.broker.topics.unload(NAME)
        await asyncio.sleep(0.1)
        assert not client.has(Command.ACK_RESPONSE)
        assert await client.subscribe(TOPIC, kind=kind) == 0
        assert backlog(broker) == 500
        assert not client.transport.paused


@pytest.mark.parametrize("kind", TYPES)
@scenario()
async def test_a_redelivery_of_very_many_ids(broker: BrokerInMemory, kind: int) -> None:
    client = Client(broker)
    ids = await publish_many(client, 900)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    await client.deliveries()
    client.flow(900)
    client.redeliver(*[(9, n) for n in range(10 * IDS_PER_STEP_MAX)], *ids)
    assert client.transport.paused == (kind not in SINGLE_ACTIVE)
    found: list[int] = []
    for _ in range(20):
        found += [d.message.redelivery_count for d in await client.deliveries()]
    assert found == [int(kind not in SINGLE_ACTIVE)] * 900
    assert not client.transport.paused
