"""The memory of publishes that wait to be stored: bounded, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import random

import pytest

from pulsark.dispatch.loop.run_queue import RunQueue
from pulsark.dispatch.publish_buffer import PublishBuffer
from pulsark.limits import PUBLISH_OVERHEAD_BYTES, READ_WHILE_FULL_BYTES
from pulsark.wire.frames import encode_command
from tests.sim.simulation import Simulation
from tests.support.broker_clients import TOPIC, BrokerInMemory, Client, Command, held, scenario
from tests.support.ticking_clock import TickingClock
from tests.support.wire_frames import publish

MIB = 1 << 20
OTHER = "persistent://public/default/other"
TRANSIENT = "non-persistent://public/default/t"


class Waiting:
    """A connection that publishes more as soon as it may."""

    def __init__(self, name: str, went_on: list[str], brings: int = 0) -> None:
        self.name = name
        self._went_on = went_on
        self._brings = brings
        self.buffer: PublishBuffer

    def publishes_have_room(self) -> None:
        self._went_on.append(self.name)
        self.buffer.change(self._brings)


def buffer_of(limit: int) -> PublishBuffer:
    return PublishBuffer(limit, RunQueue(TickingClock(0)))


def test_it_is_full_from_its_limit_on_until_it_is_half_of_that() -> None:
    buffer = buffer_of(10_000)
    seen = []
    for _ in range(12):
        buffer.change(1000)
        seen.append(buffer.is_full)
    assert seen == [False] * 10 + [True] * 2
    seen = []
    for _ in range(12):
        buffer.change(-1000)
        seen.append(buffer.is_full)
    assert seen == [True] * 6 + [False] * 6
    assert buffer.bytes == 0


@pytest.mark.parametrize("limit", [0, -MIB])
def test_without_a_limit_it_only_counts(limit: int) -> None:
    buffer = buffer_of(limit)
    buffer.change(1 << 50)
    assert buffer.bytes == 1 << 50
    assert not buffer.is_full


def test_who_waited_longest_goes_on_first_and_only_while_there_is_room() -> None:
    buffer, went_on = buffer_of(10_000), []
    size = 4000
    for name in "abcde":
        connection = Waiting(name, went_on, size)
        connection.buffer = buffer
        buffer.wait(connection)
    for _ in range(3):
        buffer.change(size)
    assert buffer.is_full
    buffer.change(-2 * size)
    assert went_on == ["a", "b"]
    assert buffer.is_full
    buffer.change(-size)
    assert went_on == ["a", "b"]
    buffer.change(-2 * size)
    assert went_on == ["a", "b", "c", "d", "e"]
    assert buffer.waiting == 0


def test_who_is_closed_is_not_called() -> None:
    buffer, went_on = buffer_of(1000), []
    buffer.change(1001)
    gone, there = Waiting("gone", went_on), Waiting("there", went_on)
    for connection in (gone, there):
        connection.buffer = buffer
        buffer.wait(connection)
    buffer.forget(gone)
    assert buffer.waiting == 1
    buffer.change(-1001)
    assert went_on == ["there"]
    assert buffer.waiting == 0


# -- connections -------------------------------------------------------------------------------


async def producing(broker: BrokerInMemory, topic: str = TOPIC) -> Client:
    client = Client(broker)
    await client.produce(topic, 0)
    return client


def ping() -> Command:
    command = Command(type=Command.PING)
    command.ping.SetInParent()
    return command


def receipts(client: Client) -> int:
    client._read()
    return sum(answer.type == Command.SEND_RECEIPT for answer in client.answers)


def publishes(count: int, size: int) -> bytes:
    return b"".join(publish(1, i, bytes(size)) for i in range(count))


@scenario(maxMessagePublishBufferSizeInMB=1)
async def test_full_connections_with_producers_are_not_read_and_all_others_are(broker) -> None:
    one, two, third = [await producing(broker) for _ in range(3)]
    consumer = Client(broker)
    assert await consumer.subscribe(TOPIC, "s") == 0
    buffer = broker.broker.publish_buffer
    with held(broker):
        one.send_bytes(publishes(20, 100_000))
        assert one.transport.paused
        assert MIB < buffer.bytes < MIB + 600_000  # and what one read brings
        before = buffer.bytes
        for client in (two, third):
            client.send_bytes(publishes(200, 1000))
            assert client.transport.paused
        assert before < buffer.bytes < before + 2 * READ_WHILE_FULL_BYTES
        assert buffer.waiting == 3
        consumer.send(ping())
        await consumer.take(Command.PONG)
        assert not consumer.transport.paused
    await asyncio.sleep(0.1)
    assert [receipts(client) for client in (one, two, third)] == [20, 200, 200]
    assert not any(client.transport.paused for client in (one, two, third))
    assert (buffer.bytes, buffer.waiting, buffer.is_full) == (0, 0, False)


@scenario(maxMessagePublishBufferSizeInMB=1)
async def test_a_message_that_is_larger_than_all_of_it_is_stored(broker) -> None:
    client = await producing(broker)
    client.send_bytes(publishes(3, 2 * MIB))
    await asyncio.sleep(0.1)
    assert receipts(client) == 3
    assert broker.broker.publish_buffer.bytes == 0


@scenario(maxMessagePublishBufferSizeInMB=1)
async def test_what_a_lost_connection_published_counts_until_it_is_stored(broker) -> None:
    """Its client could come back again and again."""
    lost, other, gone = [await producing(broker) for _ in range(3)]
    buffer = broker.broker.publish_buffer
    with held(broker):
        lost.send_bytes(publishes(5, 300_000))
        other.send_bytes(publishes(2, 100))
        gone.send_bytes(publishes(2, 100))
        before = buffer.bytes
        lost.hang_up()
        gone.hang_up()
        await asyncio.sleep(0.1)
        assert buffer.bytes == before
        assert buffer.waiting == 1
        assert other.transport.paused
    await asyncio.sleep(0.1)
    assert buffer.bytes == 0
    assert not other.transport.paused
    assert receipts(other) == 2


@scenario(maxMessagePublishBufferSizeInMB=1)
async def test_what_came_before_an_error_in_the_same_read_counts_until_it_is_stored(broker) -> None:
    """Its client could do so again and again."""
    client = await producing(broker)
    buffer = broker.broker.publish_buffer
    with held(broker):
        client.send_bytes(publishes(2, 1000) + encode_command(Command(type=Command.CONNECT)))
        assert client.transport.closed
        assert buffer.bytes > 2 * (1000 + PUBLISH_OVERHEAD_BYTES)
    await asyncio.sleep(0.1)
    assert buffer.bytes == 0


@scenario(maxMessagePublishBufferSizeInMB=1)
async def test_publishes_that_fail_make_room(broker) -> None:
    failing, other = await producing(broker), await producing(broker, OTHER)
    with held(broker):
        failing.send_bytes(publishes(5, 300_000))
        other.send_bytes(publishes(2, 100))
        assert other.transport.paused
        broker.bookie.full = True
    broker.bookie.full = False
    await asyncio.sleep(0.1)
    assert broker.broker.publish_buffer.bytes == 0
    assert not failing.transport.paused
    assert not other.transport.paused


@scenario(maxMessagePublishBufferSizeInMB=1, maxPendingPublishRequestsPerConnection=10)
async def test_who_waits_for_more_than_one_reason_goes_on_after_the_last(broker) -> None:
    full, many = await producing(broker), await producing(broker, OTHER)
    with held(broker):
        many.send_bytes(publishes(10, 100))
        assert many.transport.paused
        full.send_bytes(publishes(5, 300_000))
        await asyncio.sleep(0.01)
        broker.bookie.release_held(1)  # of ``many``, which waits for the others from now on
        assert receipts(many) == 10
        assert many.transport.paused
        many.send_bytes(publish(1, 10, b"x"))
        await asyncio.sleep(0.01)
        assert broker.broker.publish_buffer.waiting == 2
    await asyncio.sleep(0.1)
    assert receipts(many) == 11


@pytest.mark.parametrize("seed", range(20))
def test_whatever_clients_do_all_that_they_published_is_answered(seed: int) -> None:
    """Some hang up, storage stops and fails: who is left is read on in the end."""
    with Simulation(seed) as sim:
        broker = BrokerInMemory(
            sim, maxMessagePublishBufferSizeInMB=1, brokerDeduplicationEnabled=seed % 2 == 0
        )
        rng = random.Random(seed)

        async def main() -> None:
            await broker.start()
            topics = [TOPIC, OTHER, TRANSIENT]
            clients = [await producing(broker, topics[n % 3]) for n in range(9)]
            names = {c: p.name for c in clients for p in c.connection.opened.producers.values()}
            sent = dict.fromkeys(clients, 0)
            was_full = False
            for _ in range(200):
                client = rng.choice(list(sent))
                if rng.random() < 0.02:
                    client.hang_up()
                    del sent[client]
                    continue
                size = rng.choice([10, 1000, 200_000])
                name = names[client]
                client.send_bytes(publish(1, sent[client], bytes(size), producer_name=name))
                sent[client] += 1
                was_full |= broker.broker.publish_buffer.is_full
                if rng.random() < (0.03 if broker.bookie.held else 0.3):
                    broker.bookie.held = not broker.bookie.held
                    if not broker.bookie.held:
                        broker.bookie.release_held()
                if rng.random() < 0.3:
                    await asyncio.sleep(0)
            assert was_full
            broker.bookie.held = False
            broker.bookie.release_held()
            await asyncio.sleep(1)
            buffer = broker.broker.publish_buffer
            assert (buffer.bytes, buffer.waiting, buffer.is_full) == (0, 0, False)
            assert {client: receipts(client) for client in sent} == sent

        sim.run(main())
