"""Failover as consumers see it: who is active, who is told when, and how another one takes over."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario

TOPIC = "persistent://public/default/t"
FAILOVER = pb.CommandSubscribe.Failover
DELAY_SECONDS = 1.0


async def join(client: Client, name: str, topic: str = TOPIC, **fields: object) -> None:
    fields = {"kind": FAILOVER, "consumer_name": name, **fields}
    assert await client.subscribe(topic, **fields) == 0


async def told(client: Client) -> list[bool]:
    """What a consumer has heard of its part since the last call."""
    await asyncio.sleep(0.001)
    client.has(Command.ACTIVE_CONSUMER_CHANGE)
    found = [a for a in client.answers if a.type == Command.ACTIVE_CONSUMER_CHANGE]
    client.answers = [a for a in client.answers if a not in found]
    return [a.active_consumer_change.is_active for a in found]


async def entries(client: Client) -> list[int]:
    return [delivery.message.message_id.entryId for delivery in await client.deliveries()]


@pytest.mark.feature("F30", "F37")
@scenario()
async def test_partitions_are_spread_over_the_consumers_of_the_best_level(broker) -> None:
    clients = {name: Client(broker) for name in ("d", "b", "a", "c", "e")}
    await broker.broker.creation.create_partitioned_topic(TopicName.parse(TOPIC), 7, {})
    publisher = Client(broker)
    for partition in range(7):
        await publisher.produce(f"{TOPIC}-partition-{partition}", 1, partition)
    for name, client in clients.items():
        level = {"e": 0, "a": 1}.get(name, 1)
        for partition in range(7):
            topic = f"{TOPIC}-partition-{partition}"
            fields = {"consumer_id": partition, "priority_level": level}
            await join(client, name, topic, **fields)

    async def spread() -> str:
        active = [""] * 7
        for name, client in clients.items():
            for partition, consumer in client.connection.opened.consumers.items():
                if consumer.subscription.type.active is consumer:
                    active[partition] += name
        return " ".join(active)

    assert await spread() == "e e e e e e e"
    clients.pop("e").hang_up()
    await asyncio.sleep(0.01)
    assert await spread() == "a b c d a b c"
    clients.pop("b").hang_up()
    await asyncio.sleep(0.01)
    assert await spread() == "a c d a c d a"


@pytest.mark.feature("F30")
@scenario(activeConsumerFailoverConsistentHashing=True)
async def test_by_hashes_a_consumer_that_leaves_moves_its_own_partitions_only(broker) -> None:
    await broker.broker.creation.create_partitioned_topic(TopicName.parse(TOPIC), 20, {})
    clients = {name: Client(broker) for name in "abcd"}
    for name, client in clients.items():
        for partition in range(20):
            await join(client, name, f"{TOPIC}-partition-{partition}", consumer_id=partition)

    def active() -> dict[int, str]:
        return {
            partition: name
            for name, client in clients.items()
            for partition, consumer in client.connection.opened.consumers.items()
            if consumer.subscription.type.active is consumer
        }

    before = active()
    assert set(before.values()) == set(clients)
    clients.pop("b").hang_up()
    await asyncio.sleep(0.01)
    after = active()
    assert {p: name for p, name in after.items() if before[p] != "b"}.items() <= before.items()
    assert set(after) == set(range(20))


@pytest.mark.feature("F30")
@pytest.mark.command("ACTIVE_CONSUMER_CHANGE")
@scenario()
async def test_all_hear_of_a_change_and_a_newcomer_after_its_answer(broker) -> None:
    """A partition of index 0: the first name of the best level is active."""
    topic = TOPIC + "-partition-0"
    await broker.broker.creation.create_partitioned_topic(TopicName.parse(TOPIC), 1, {})
    clients = [Client(broker) for _ in range(4)]
    m, a, z, best = clients
    await join(m, "m", topic)
    assert await told(m) == [True]
    await join(z, "z", topic)
    assert [await told(c) for c in clients] == [[], [], [False], []]
    # Some clients drop what comes before they are done with the answer: FLOW shows that they are.
    a.send(a.subscribe_command(topic, kind=FAILOVER, consumer_name="a"))
    await asyncio.sleep(0.5)
    assert [await told(c) for c in clients] == [[False], [], [False], []]
    a.flow(1)
    assert [await told(c) for c in clients] == [[], [True], [], []]
    a.flow(1)
    assert await told(a) == []
    await join(best, "zz", topic, priority_level=-1)
    assert [await told(c) for c in clients] == [[False], [False], [False], [True]]
    await z.close()
    assert [await told(c) for c in clients] == [[], [], [], []]
    best.hang_up()
    await asyncio.sleep(0.01)
    assert [await told(c) for c in (m, a)] == [[False], [True]]


@pytest.mark.command("ACTIVE_CONSUMER_CHANGE", "FLOW")
@scenario()
async def test_who_asks_for_nothing_hears_what_it_is_after_a_moment_and_as_it_is_then(
    broker,
) -> None:
    topic = TOPIC + "-partition-0"
    await broker.broker.creation.create_partitioned_topic(TopicName.parse(TOPIC), 1, {})
    idle, other = Client(broker), Client(broker)
    idle.send(idle.subscribe_command(topic, kind=FAILOVER, consumer_name="m"))
    assert await idle.outcome() == 0
    await asyncio.sleep(0.5)
    await join(other, "a", topic)
    assert [await told(idle), await told(other)] == [[], [True]]
    await asyncio.sleep(0.6)
    assert await told(idle) == [False]
    idle.flow(1)
    assert await told(idle) == []


@pytest.mark.command("ACTIVE_CONSUMER_CHANGE")
@scenario()
async def test_old_clients_are_not_told(broker) -> None:
    old = Client(broker, handshake=False)
    hello = Command(type=Command.CONNECT)
    hello.connect.client_version, hello.connect.protocol_version = "old", 11
    old.send(hello)
    await join(old, "o")
    await asyncio.sleep(0.01)
    assert await told(old) == []


@pytest.mark.feature("F31")
@scenario(activeConsumerFailoverDelayTimeMillis=1000)
async def test_a_takeover_waits_and_begins_with_what_is_not_acknowledged(broker) -> None:
    first, second = Client(broker), Client(broker)
    ids = await first.produce(TOPIC, 4)
    await join(first, "f", priority_level=1)
    assert await entries(first) == [0, 1, 2, 3]  # the first one has nothing to wait for
    await join(second, "s", priority_level=0)
    assert await told(second) == [True]
    assert await told(first) == [True, False]
    # It may still acknowledge, and gets no more.
    await asyncio.sleep(DELAY_SECONDS / 2)
    assert await first.ack(ids[0]) == 0
    assert await first.ack(ids[2]) == 0
    await first.publish(4)
    assert await entries(first) + await entries(second) == []
    await asyncio.sleep(DELAY_SECONDS / 2)
    assert await entries(second) == [1, 3, 4]
    assert await entries(first) == []
    # What it had in permits is what it has when it is active again.
    second.hang_up()
    await asyncio.sleep(DELAY_SECONDS + 0.01)
    assert await entries(first) == [1, 3, 4]
    assert first.connection.opened.consumers[1].permits == 1000 - 4 - 3


@pytest.mark.feature("F31")
@scenario(activeConsumerFailoverDelayTimeMillis=1000)
async def test_consumers_that_come_and_go_do_not_put_a_takeover_off(broker) -> None:
    stable, publisher = Client(broker), Client(broker)
    await publisher.produce(TOPIC, 3)
    await join(stable, "s", priority_level=5)
    assert await entries(stable) == [0, 1, 2]
    got = []
    for _ in range(4):
        restless = Client(broker)
        await join(restless, "r", priority_level=0)
        await asyncio.sleep(DELAY_SECONDS * 0.3)
        got.append(await entries(restless))
        restless.hang_up()
        await asyncio.sleep(DELAY_SECONDS * 0.1)
    assert got == [[], [], [0, 1, 2], []]


@pytest.mark.feature("F31")
@pytest.mark.parametrize("how", ["seek", "redeliver", "all leave"])
def test_during_a_takeover(how: str) -> None:
    @scenario(activeConsumerFailoverDelayTimeMillis=1000)
    async def run(broker: BrokerInMemory) -> None:
        first, second = Client(broker), Client(broker)
        ids = await first.produce(TOPIC, 4)
        await join(first, "f", priority_level=1)
        await entries(first)
        await join(second, "s", priority_level=0)
        assert await first.ack(ids[0]) == 0
        if how == "seek":
            second.send(second.seek_command(ids[2]))
            assert await second.outcome() == 0
            await second.take(Command.CLOSE_CONSUMER)
            await join(second, "s", priority_level=0)
            wanted = [2, 3]
        elif how == "redeliver":
            second.redeliver(consumer_epoch=2)
            wanted = [1, 2, 3]
        else:
            await first.close()
            await second.close()
            await join(second, "s", priority_level=0)
            wanted = [1, 2, 3]
        await asyncio.sleep(DELAY_SECONDS + 0.1)
        assert await entries(second) == wanted

    run()


@pytest.mark.feature("F42")
@scenario(activeConsumerFailoverDelayTimeMillis=200)
async def test_each_consumer_gets_messages_in_order_however_often_they_change(broker) -> None:
    publisher = Client(broker)
    await publisher.produce(TOPIC, 0)
    clients = [Client(broker) for _ in range(3)]
    seen: set[int] = set()
    number = 0
    for turn in range(12):
        client = clients[turn % 3]
        if 1 in client.connection.opened.consumers:
            await client.close()
        await join(client, f"c{turn}", priority_level=turn % 2)
        for _ in range(5):
            await publisher.publish(number)
            number += 1
        await asyncio.sleep(0.15 * (turn % 3))
        for one in clients:
            found = [delivery.message.message_id for delivery in await one.deliveries()]
            run = [i.entryId for i in found]
            assert run == sorted(run)
            seen |= set(run)
            if run and 1 in one.connection.opened.consumers:
                assert await one.ack((found[-1].ledgerId, run[-1]), cumulative=True) == 0
    await asyncio.sleep(1)
    for one in clients:
        seen |= set(await entries(one))
    assert seen == set(range(number))
