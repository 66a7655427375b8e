"""What a connection had is gone with it: its memory at once, and its places in topics."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import weakref
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from pulsark.dispatch.subscription.subscription import Subscription
from pulsark.errors import ServerError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import encode_command
from tests.sim.simulation import Simulation
from tests.support.broker_clients import (
    EXCLUSIVE,
    FAILOVER,
    SHARED,
    TOPIC,
    BrokerInMemory,
    Client,
    Command,
    held,
    pong,
    scenario,
)
from tests.support.wire_frames import publish

TRANSIENT = "non-persistent://public/default/t"
OTHER = "persistent://public/default/other"
NO_REQUEST = 2**64 - 1


def watch_command(client: Client) -> pb.BaseCommand:
    command = Command(type=Command.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.request_id, request.watcher_id = next(client._ids), 1
    request.namespace, request.topics_pattern = "public/default", "t.*"
    return command


def left_behind(broker: BrokerInMemory) -> list[object]:
    """What of clients the broker still knows."""
    found: list[object] = list(broker.broker.connections)
    topics = [*broker.broker.topics.loaded(), *broker.broker.non_persistent.all()]
    for topic in topics:
        found += topic.producers.values()
        found += topic._admission.waiting
        found += [topic._admission._holder] if topic._admission._holder else []
        for subscription in topic.subscriptions.values():
            found += subscription.type.consumers
            if isinstance(subscription, Subscription):
                assert not subscription.dispatcher.unacked.messages
    for feed in broker.broker.topic_feeds._feeds.values():
        for selection in feed._selections.values():
            found += selection.watchers
    return found


# -- memory ------------------------------------------------------------------------------------


async def idle(broker: BrokerInMemory, client: Client) -> None:
    """Nothing but the handshake."""


async def half_a_frame(broker: BrokerInMemory, client: Client) -> None:
    client.send_bytes(publish(1, 0, bytes(1 << 20))[: 1 << 19])


async def half_a_small_frame(broker: BrokerInMemory, client: Client) -> None:
    client.send_bytes(encode_command(pong())[:7])


async def publishes_that_wait(broker: BrokerInMemory, client: Client) -> None:
    await client.produce(TOPIC, 1)
    broker.bookie.held = True
    for sequence_id in range(1, 5):
        client.send_bytes(publish(1, sequence_id, b"x"))
    client.send(client.close_command("producer"))


async def requests_that_wait(broker: BrokerInMemory, client: Client) -> None:
    await client.produce(TOPIC, 1)
    broker.bookie.held = True
    client.send(client.subscribe_command(TOPIC), client.producer_command(OTHER, "p", 2))
    await asyncio.sleep(0.01)


async def a_request_that_has_not_begun(broker: BrokerInMemory, client: Client) -> None:
    client.send(client.subscribe_command(TOPIC), client.producer_command(TOPIC, "p"))


async def consumers(broker: BrokerInMemory, client: Client) -> None:
    await client.produce(TOPIC, 3)
    for number, kind in enumerate([EXCLUSIVE, FAILOVER, SHARED, pb.CommandSubscribe.Key_Shared]):
        code = await client.subscribe(TOPIC, f"s{number}", consumer_id=number, kind=kind)
        assert code == 0
    await client.received(12)


async def waiting_producers(broker: BrokerInMemory, client: Client) -> None:
    modes = pb.ProducerAccessMode
    await client.open_producer(TOPIC, "a", producer_access_mode=modes.Exclusive)
    waiting = client.producer_command(TOPIC, "b", 2, producer_access_mode=modes.WaitForExclusive)
    client.send(waiting)
    await client.take(Command.PRODUCER_SUCCESS)


async def watchers(broker: BrokerInMemory, client: Client) -> None:
    client.send(watch_command(client))
    await client.take(Command.WATCH_TOPIC_LIST_SUCCESS)


async def commands_left_over(broker: BrokerInMemory, client: Client) -> None:
    ask = Command(type=Command.LOOKUP)
    ask.lookupTopic.topic, ask.lookupTopic.request_id = TOPIC, 1
    client.send(*[ask] * 500)


async def does_not_read(broker: BrokerInMemory, client: Client) -> None:
    client.transport.reads = False
    client.connection.output.write(bytes(2 << 20))
    await consumers_and_backlog(broker, client)


async def consumers_and_backlog(broker: BrokerInMemory, client: Client) -> None:
    other = Client(broker)
    await other.produce(TOPIC, 3)
    client.send(client.subscribe_command(TOPIC))
    client.flow(1000)
    await asyncio.sleep(0.01)
    other.hang_up()
    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "state",
    [
        idle,
        half_a_frame,
        half_a_small_frame,
        publishes_that_wait,
        requests_that_wait,
        a_request_that_has_not_begun,
        consumers,
        waiting_producers,
        watchers,
        commands_left_over,
        does_not_read,
    ],
)
@pytest.mark.parametrize("end", ["hang_up", "protocol error", "bug"])
def test_a_closed_connection_is_freed_by_counting_references(state: Any, end: str) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        client = Client(broker)
        await state(broker, client)
        connection = weakref.ref(client.connection)
        gc.disable()
        try:
            if end == "hang_up":
                client.hang_up()
            elif end == "protocol error":
                client.connection.close()
            else:
                client.connection.abort()
            await asyncio.sleep(0)
            broker.bookie.held = False
            broker.bookie.release_held()
            await asyncio.sleep(0.1)
            del client
            await asyncio.sleep(0)
            assert connection() is None, gc.get_referrers(connection())
        finally:
            gc.enable()
        assert left_behind(broker) == []

    run()


@scenario()
async def test_what_has_come_of_a_frame_is_freed_although_answers_wait_to_be_read(broker) -> None:
    client = Client(broker)
    await half_a_frame(broker, client)
    decoder = client.connection.turns._decoder
    assert len(decoder._partial) >= 1 << 18
    client.connection.close()
    assert client.connection.turns._decoder is not decoder


# -- places in topics --------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [TOPIC, TRANSIENT])
@pytest.mark.parametrize("turns", range(4))
def test_a_producer_that_was_being_closed_leaves_with_its_connection(topic, turns) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        client, other = Client(broker), Client(broker)
        exclusive = {"producer_access_mode": pb.ProducerAccessMode.Exclusive}
        await client.open_producer(topic, "p", **exclusive)
        with held(broker):
            client.send_bytes(
                publish(1, 0, b"x") + encode_command(client.close_command("producer"))
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            client.hang_up()
            await asyncio.sleep(0.01)
        assert len(client.connection.client.holdings) == 0
        assert not isinstance(await other.open_producer(topic, "q", **exclusive), int)

    run()


@scenario(maxProducersPerConnection=3, maxConsumersPerConnection=2)
async def test_a_connection_has_so_many_producers_and_consumers(broker) -> None:
    client = Client(broker)
    for number in range(3):
        assert not isinstance(await client.open_producer(TOPIC, f"p{number}", number), int)
    assert await client.open_producer(TOPIC, "p3", 3) == ServerError.NotAllowedError
    await client.close("producer", 0)
    assert not isinstance(await client.open_producer(TOPIC, "p3", 3), int)
    for number in range(2):
        assert await client.subscribe(TOPIC, consumer_id=number, kind=SHARED) == 0
    code = await client.subscribe(TOPIC, consumer_id=2, kind=SHARED)
    assert code == ServerError.NotAllowedError
    assert await Client(broker).subscribe(TOPIC, kind=SHARED) == 0
    await client.close("consumer", 0)
    assert await client.subscribe(TOPIC, consumer_id=2, kind=SHARED) == 0


@scenario(brokerMaxConnections=3, brokerMaxConnectionsPerIp=2)
async def test_connections_are_counted_in_all_and_by_address(broker) -> None:
    first, _second = Client(broker), Client(broker)
    refused = Client(broker, handshake=False)
    error = (await refused.take(Command.ERROR)).error
    assert (error.request_id, error.error) == (NO_REQUEST, ServerError.NotAllowedError)
    assert error.message == "Reached the maximum number of connections on address 10.0.0.1"
    assert refused.transport.closed
    first.hang_up()
    await asyncio.sleep(0.01)
    third = Client(broker)
    await third.take(Command.CONNECTED)
    await broker.broker.dynamic_settings.set("brokerMaxConnections", "2")
    full = Client(broker, handshake=False)
    error = (await full.take(Command.ERROR)).error
    assert error.message == "Reached the maximum number of connections"
    assert len(broker.broker.connections) == 2


@scenario(brokerMaxConnections=2)
async def test_the_oldest_connection_without_connect_makes_room(broker) -> None:
    known, silent = Client(broker), Client(broker, handshake=False)
    await known.take(Command.CONNECTED)
    third = Client(broker)
    await third.take(Command.CONNECTED)
    assert silent.transport.closed
    assert not known.transport.closed
    refused = Client(broker, handshake=False)
    assert (await refused.take(Command.ERROR)).error.message.startswith("Reached the maximum")


@scenario(brokerMaxConnectionsPerIp=1)
async def test_refused_connections_fill_no_log(broker, caplog: pytest.LogCaptureFixture) -> None:
    await Client(broker).take(Command.CONNECTED)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            Client(broker, handshake=False)
    (said,) = caplog.messages
    assert "Reached the maximum number of connections on address 10.0.0.1" in said


@pytest.mark.parametrize("end", ["hang_up", "close", "abort"])
def test_a_topic_that_fails_as_a_producer_leaves_keeps_nothing_else_of_its_connection(end) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        client = Client(broker)
        for number, topic in enumerate([TOPIC, OTHER, TRANSIENT]):
            await client.open_producer(topic, "p", number)
            assert await client.subscribe(topic, consumer_id=number, kind=SHARED) == 0
        client.send(watch_command(client))
        await client.take(Command.WATCH_TOPIC_LIST_SUCCESS)
        producer = next(iter(client.connection.opened.producers.values()))
        producer.topic.remove_producer = Mock(side_effect=ZeroDivisionError)
        connection, transport = client.connection, client.transport
        (client.hang_up if end == "hang_up" else getattr(connection, end))()
        await asyncio.sleep(0.1)
        assert [type(one["exception"]) for one in told] == [ZeroDivisionError]
        assert transport.closed
        assert left_behind(broker) == [producer]

    run()


# -- anything, and then nobody is there --------------------------------------------------------


def commands(client: Client, rng: random.Random) -> Iterator[bytes]:
    """Commands as no client would send them: few numbers, so that they get in each other's way."""
    modes = list(pb.ProducerAccessMode.values())
    sequence = 0
    while True:
        number, topic = rng.randrange(3), rng.choice([TOPIC, TRANSIENT])
        kind = rng.randrange(9)
        if kind in (0, 1):
            name, mode = rng.choice(["", "p", "q"]), rng.choice(modes)
            fields = {"producer_access_mode": mode, "epoch": rng.randrange(3)}
            command = client.producer_command(topic, name, number, **fields)
        elif kind in (2, 3):
            name = rng.choice(["s", "u"])
            fields = {"kind": rng.randrange(4), "durable": rng.random() < 0.7}
            command = client.subscribe_command(topic, name, number, **fields)
        elif kind == 4:
            command = client.close_command(rng.choice(["producer", "consumer"]), number)
        elif kind == 5:
            command = watch_command(client)
            command.watchTopicList.watcher_id = number
        elif kind == 6:
            command = Command(type=Command.UNSUBSCRIBE)
            command.unsubscribe.consumer_id, command.unsubscribe.request_id = number, 7
            command.unsubscribe.force = rng.random() < 0.5
        elif kind == 7:
            command = client.seek_command((0, 0), number)
        else:
            for number in list(client.connection.opened.producers):
                sequence += 1
                yield publish(number, sequence, b"x")
            continue
        yield encode_command(command)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_clients_did_nothing_of_them_is_left(seed: int, caplog: Any) -> None:
    with Simulation(seed) as sim:
        broker = BrokerInMemory(sim)
        rng = random.Random(seed)

        async def main() -> None:
            await broker.start()
            clients = [Client(broker) for _ in range(3)]
            sources = [commands(client, rng) for client in clients]
            for client in clients:
                client.mute = rng.random() < 0.3
            for _ in range(40):
                at = rng.randrange(len(clients))
                if not clients[at].transport.closed:
                    clients[at].send_bytes(next(sources[at]))
                if rng.random() < 0.1:
                    broker.bookie.held = not broker.bookie.held
                    if not broker.bookie.held:
                        broker.bookie.release_held()
                if rng.random() < 0.6:
                    await asyncio.sleep(rng.choice([0, 0, 0, 0.001, 0.01]))
                for client in clients:
                    client._read()
            for client in clients:
                client.hang_up()
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
            broker.bookie.held = False
            broker.bookie.release_held()
            await asyncio.sleep(6)  # a probe may be under way
            assert left_behind(broker) == []
            assert [len(client.connection.client.holdings) for client in clients] == [0, 0, 0]
            assert not any(map(len, (client.connection.requests for client in clients)))
            assert broker.broker.publish_buffer.bytes == 0

        sim.run(main())
        assert not [r for r in caplog.records if r.levelname in ("ERROR", "CRITICAL")]
