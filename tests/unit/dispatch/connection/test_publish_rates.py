"""Connections that publish faster than a rate allows are not read for a while."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pulsark.dispatch.connection.reading import State
from pulsark.dispatch.policies.policies import BYTE_RATE, MESSAGE_RATE, PUBLISH_RATE
from pulsark.metadata import resources
from pulsark.metadata.namespaces import even_boundaries
from pulsark.metadata.resource_groups import RESOURCE_GROUP
from pulsark.rates.limits import PUBLISH_HOLD_SECONDS_MAX
from pulsark.wire.frames import encode_command
from pulsark.wire.topic_name import TopicName
from tests.sim.simulation import Simulation
from tests.support.broker_clients import TOPIC, BrokerInMemory, Client, Command, scenario
from tests.support.wire_frames import publish

OTHER = "persistent://public/default/other"
TRANSIENT = "non-persistent://public/default/t"
SYSTEM = "persistent://pulsar/system/t"


def rate(messages: int = -1, size: int = -1) -> Mapping[str, Any]:
    return {PUBLISH_RATE: {MESSAGE_RATE: messages, BYTE_RATE: size}}


async def limit(broker: BrokerInMemory, topic: str = TOPIC, **given: int) -> None:
    """Give a topic a rate, in force when this returns."""
    name = TopicName.parse(topic)
    policies = rate(**given) if given else {}
    await broker.broker.resources.topic_policies.update(name, lambda _: policies)
    await broker.broker.policy_updates.refresh_topic(name)


async def producing(broker: BrokerInMemory, topic: str = TOPIC) -> Client:
    client = Client(broker)
    await client.produce(topic, 0)
    return client


def batch(first: int, count: int, size: int = 1, producer_id: int = 1) -> bytes:
    return b"".join(publish(producer_id, first + i, bytes(size)) for i in range(count))


def receipts(client: Client) -> int:
    client._read()
    return sum(answer.type == Command.SEND_RECEIPT for answer in client.answers)


def ping() -> bytes:
    command = Command(type=Command.PING)
    command.ping.SetInParent()
    return encode_command(command)


def held(broker: BrokerInMemory) -> int:
    return broker.broker.publish_rates.held


def throttle(broker: BrokerInMemory, topic: str = TOPIC) -> Any:
    found = broker.broker.topics.get(TopicName.parse(topic))
    assert found is not None
    return found.throttle


@pytest.mark.parametrize("topic", [TOPIC, TRANSIENT])
def test_what_is_too_much_is_stored_and_the_next_waits(topic: str) -> None:
    @scenario(maxPublishRatePerTopicInMessages=10)
    async def run(broker: BrokerInMemory) -> None:
        client, neighbour = await producing(broker, topic), await producing(broker, OTHER)
        client.send_bytes(batch(0, 30))
        client.send_bytes(batch(30, 1) + ping())
        await asyncio.sleep(0.5)
        assert receipts(client) == 30
        assert client.transport.paused
        assert held(broker) == 1
        assert throttle(broker, topic).times == 1
        neighbour.send_bytes(batch(0, 5) + ping())
        await asyncio.sleep(0.01)
        assert receipts(neighbour) == 5
        assert neighbour.has(Command.PONG)
        await asyncio.sleep(1.4)
        assert client.transport.paused
        await asyncio.sleep(0.3)
        assert not client.transport.paused
        assert held(broker) == 0
        assert receipts(client) == 31
        assert client.has(Command.PONG)

    run()


@scenario(maxPublishRatePerTopicInBytes=1000)
async def test_who_keeps_to_the_rate_is_never_held(broker: BrokerInMemory) -> None:
    client = await producing(broker)
    for number in range(100):
        client.send_bytes(batch(number, 1, 400))
        await asyncio.sleep(0.5)
        assert not client.transport.paused
    assert throttle(broker).times == 0


@scenario(maxPublishRatePerTopicInMessages=100)
async def test_who_does_not_gets_the_rate(broker: BrokerInMemory) -> None:
    client = await producing(broker)
    client.send_bytes(batch(0, 200))
    await asyncio.sleep(1)
    sent, before = 200, receipts(client)
    for _ in range(1000):
        if not client.transport.paused:
            client.send_bytes(batch(sent, 10))
            sent += 10
        await asyncio.sleep(0.01)
    assert 970 <= receipts(client) - before <= 1030


@scenario(maxPublishRatePerTopicInMessages=1)
async def test_topics_of_the_system_are_free_and_none_that_clients_call_so(
    broker: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "SYSTEM_TOPICS", frozenset({SYSTEM}))
    free = await producing(broker, SYSTEM)
    free.send_bytes(batch(0, 500))
    assert not free.transport.paused
    for name in ("persistent://public/default/__change_events", f"{SYSTEM}2"):
        named = await producing(broker, name)
        named.send_bytes(batch(0, 500))
        assert named.transport.paused


@scenario()
async def test_without_a_rate_nothing_is_kept(broker: BrokerInMemory) -> None:
    client = await producing(broker)
    client.send_bytes(batch(0, 100))
    assert client.connection.intake.hold is None
    assert not client.connection.opened.producers[1].inspected
    assert throttle(broker) is None


@scenario()
async def test_a_rate_is_set_changed_and_removed_under_a_live_producer(
    broker: BrokerInMemory,
) -> None:
    client = await producing(broker)
    client.send_bytes(batch(0, 100))
    assert not client.transport.paused
    await limit(broker, messages=1)
    client.send_bytes(batch(100, 11))
    assert client.transport.paused
    await limit(broker, messages=10)  # what is owed stays, as far as it is one second's
    await asyncio.sleep(0.9)
    assert client.transport.paused
    await asyncio.sleep(0.2)
    assert not client.transport.paused
    client.send_bytes(batch(111, 300))
    assert client.transport.paused
    await limit(broker)
    await asyncio.sleep(0.01)
    assert not client.transport.paused
    assert held(broker) == 0
    client.send_bytes(batch(411, 300))
    assert not client.transport.paused
    await asyncio.sleep(0.01)
    assert receipts(client) == 711


@scenario(maxPublishRatePerTopicInMessages=1)
async def test_a_namespace_has_a_rate_that_its_topics_may_replace(broker: BrokerInMemory) -> None:
    one, other = await producing(broker), await producing(broker, OTHER)
    resources, updates = broker.broker.resources, broker.broker.policy_updates
    await resources.namespaces.update(
        "public/default", lambda old: replace(old, policies=rate(messages=50))
    )
    await updates.refresh_namespace("public/default")
    await limit(broker, OTHER, messages=0)
    await asyncio.sleep(1)
    for client in (one, other):
        client.send_bytes(batch(0, 49))
        assert not client.transport.paused
        client.send_bytes(batch(49, 20))
    assert one.transport.paused
    assert not other.transport.paused


@scenario(brokerPublisherThrottlingMaxByteRate=200_000)
async def test_the_rate_of_the_broker_is_shared_and_nobody_is_served_twice_before_others(
    broker: BrokerInMemory,
) -> None:
    clients = [await producing(broker, f"{TOPIC}-{n}") for n in range(5)]
    for client in clients:
        client.send_bytes(batch(0, 1000, 2000))
    await asyncio.sleep(15)  # what the first reads brought is made up for
    began = [receipts(client) for client in clients]
    await asyncio.sleep(20)
    after = [receipts(client) - before for client, before in zip(clients, began, strict=True)]
    assert sum(after) * 2000 == pytest.approx(20 * 200_000, rel=0.05)
    assert max(after) - min(after) <= 17  # the messages of two reads
    assert held(broker) == 5


@scenario(brokerPublisherThrottlingMaxMessageRate=1000, maxPublishRatePerTopicInMessages=10)
async def test_the_slowest_of_several_rates_holds(broker: BrokerInMemory) -> None:
    client = await producing(broker)
    client.send_bytes(batch(0, 20) + batch(20, 1))
    assert client.transport.paused
    await asyncio.sleep(1)
    assert client.transport.paused
    await asyncio.sleep(0.2)
    assert not client.transport.paused


@scenario(maxPublishRatePerTopicInBytes=1)
async def test_at_a_byte_a_second_each_message_of_five_megabytes_takes_the_longest_hold(
    broker: BrokerInMemory,
) -> None:
    client = await producing(broker)
    for number in range(3):
        client.send_bytes(batch(number, 1, 5_000_000))
    client.send_bytes(ping())
    await asyncio.sleep(0.1)
    assert receipts(client) == 1
    for count in (2, 3):
        await asyncio.sleep(PUBLISH_HOLD_SECONDS_MAX)
        assert receipts(client) == count
    assert not client.has(Command.PONG)
    await asyncio.sleep(PUBLISH_HOLD_SECONDS_MAX)
    assert client.has(Command.PONG)


@scenario(maxPublishRatePerTopicInBytes=1, keepAliveIntervalSeconds=5)
async def test_a_held_client_is_pinged_and_not_closed(broker: BrokerInMemory) -> None:
    """It cannot answer, but that there are pings tells it that the broker is there."""
    client = await producing(broker)
    client.mute = True
    pings = 0
    for second in range(120):
        client.send_bytes(batch(second, 1, 1000))
        await asyncio.sleep(1)
        pings += bytes(client.transport.written).count(ping())
        client.transport.written.clear()
        assert not client.transport.closed
    assert pings >= 20


@scenario(maxPublishRatePerTopicInMessages=1)
async def test_who_hangs_up_while_held_leaves_nothing(broker: BrokerInMemory) -> None:
    clients = [await producing(broker) for _ in range(3)]
    for client in clients:
        client.send_bytes(batch(0, 50))
    assert held(broker) == 3
    kept = throttle(broker)
    for client in clients:
        client.hang_up()
    await asyncio.sleep(0.01)
    assert held(broker) == 0
    assert not kept._waiting
    assert kept._timer is None
    assert all(client.connection.intake.hold is None for client in clients)


@scenario(maxPublishRatePerTopicInMessages=1)
async def test_who_comes_back_finds_what_it_owes(broker: BrokerInMemory) -> None:
    client = await producing(broker)
    client.send_bytes(batch(0, 15))
    client.hang_up()
    await asyncio.sleep(1)
    again = await producing(broker)
    again.send_bytes(batch(0, 1))
    assert again.transport.paused


@scenario(maxPublishRatePerTopicInBytes=20_000)
async def test_who_always_comes_back_gets_no_more_than_others(broker: BrokerInMemory) -> None:
    stored = 0
    for _ in range(600):
        client = await producing(broker)
        client.send_bytes(batch(0, 100, 1000))
        await asyncio.sleep(0.1)
        stored += receipts(client)
        client.hang_up()
    assert 60 * 20 <= stored <= 60 * 20 + 400


@scenario(maxPublishRatePerTopicInBytes=20_000)
async def test_a_new_client_makes_all_its_requests_before_it_is_held(
    broker: BrokerInMemory,
) -> None:
    held_one = await producing(broker)
    held_one.send_bytes(batch(0, 100, 1000))
    assert held_one.transport.paused
    client = Client(broker)
    for number in range(5):
        await client.produce(TOPIC, 0, producer_id=number)
    assert not client.transport.paused


@pytest.mark.parametrize("topic", [TOPIC, TRANSIENT])
def test_a_topic_that_goes_away_holds_nobody(topic: str) -> None:
    @scenario(maxPublishRatePerTopicInMessages=1)
    async def run(broker: BrokerInMemory) -> None:
        client = await producing(broker, topic)
        await client.produce(OTHER, 0, producer_id=2)
        client.send_bytes(batch(0, 50))
        await asyncio.sleep(0.01)
        assert client.transport.paused
        await broker.broker.deletion.delete_topic(TopicName.parse(topic), force=True)
        await asyncio.sleep(0.01)
        assert not client.transport.paused
        assert held(broker) == 0
        client.send_bytes(batch(0, 1, producer_id=2))
        await asyncio.sleep(0.01)
        assert receipts(client) == 51

    run()


@scenario()
async def test_a_connection_with_many_producers_waits_for_all_it_overdrew(
    broker: BrokerInMemory,
) -> None:
    client = Client(broker)
    for number in range(20):
        topic = f"{TOPIC}-{number}"
        await client.produce(topic, 0, producer_id=number)
        await limit(broker, topic, messages=10 * (number + 1))
    assert not client.transport.paused
    client.send_bytes(b"".join(batch(0, 20, producer_id=number) for number in range(20)))
    assert client.transport.paused
    assert sum(len(throttle(broker, f"{TOPIC}-{n}")._waiting) for n in range(20)) == 1
    await asyncio.sleep(1.05)
    assert not client.transport.paused
    assert receipts(client) == 400


@scenario(maxPublishRatePerTopicInMessages=5, maxPendingPublishRequestsPerConnection=10)
async def test_who_has_no_room_and_is_too_fast_waits_for_both(broker: BrokerInMemory) -> None:
    client = await producing(broker)
    intake = client.connection.intake
    broker.bookie.held = True
    client.send_bytes(batch(0, 15))
    assert intake._reading.state is State.FULL
    broker.bookie.held = False
    broker.bookie.release_held()
    await asyncio.sleep(0.01)
    assert intake._reading.state is State.OVER_RATE
    broker.bookie.held = True
    await asyncio.sleep(2.1)
    assert intake._reading.state is State.READING


@pytest.mark.parametrize("seed", range(10))
def test_whatever_clients_do_all_is_answered_and_nothing_is_kept(seed: int) -> None:
    with Simulation(seed) as sim:
        broker = BrokerInMemory(
            sim,
            maxMessagePublishBufferSizeInMB=1,
            maxPublishRatePerTopicInMessages=200,
            brokerPublisherThrottlingMaxByteRate=500_000,
        )
        rng = random.Random(seed)

        async def main() -> None:
            await broker.start()
            topics = [TOPIC, OTHER, TRANSIENT]
            clients = [await producing(broker, topics[n % 3]) for n in range(9)]
            sent = dict.fromkeys(clients, 0)
            was_held = False
            for step in range(300):
                client = rng.choice(list(sent))
                chance = rng.random()
                if chance < 0.02 and len(sent) > 3:
                    client.hang_up()
                    del sent[client]
                    continue
                if chance < 0.05:
                    await limit(broker, rng.choice(topics[:2]), messages=rng.choice([0, 5, 500]))
                count = rng.choice([1, 10, 100])
                client.send_bytes(batch(sent[client], count, rng.choice([10, 1000])))
                sent[client] += count
                was_held |= held(broker) > 0
                if step % 40 == 0:
                    broker.bookie.held = not broker.bookie.held
                    if not broker.bookie.held:
                        broker.bookie.release_held()
                await asyncio.sleep(rng.choice([0, 0.01, 0.3]))
            assert was_held
            broker.bookie.held = False
            broker.bookie.release_held()
            await asyncio.sleep(3600)
            assert {client: receipts(client) for client in sent} == sent
            assert held(broker) == 0
            assert not any(client.transport.paused for client in sent)
            throttles = [topic.throttle for topic in broker.broker.topics.served()]
            assert not any(t._waiting or t._timer for t in throttles if t is not None)

        sim.run(main())


# -- resource groups ---------------------------------------------------------------------------


async def in_group(broker: BrokerInMemory, namespace: str, group: str) -> None:
    await broker.broker.resources.namespaces.update(
        namespace, lambda old: replace(old, policies={RESOURCE_GROUP: group}), by_super_user=True
    )


@scenario()
async def test_namespaces_of_a_group_share_its_rate(
    broker: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when another broker sets it: nobody here is told but by the metadata store."""
    monkeypatch.setattr(resources, "SYSTEM_TOPICS", frozenset({SYSTEM}))
    stored = broker.broker.resources
    await stored.namespaces.create("public/b", boundaries=even_boundaries(4))
    await stored.resource_groups.put("gold", {"publishRateInMsgs": 100})
    one, two = await producing(broker), await producing(broker, "persistent://public/b/t")
    free = await producing(broker, SYSTEM)
    await in_group(broker, "public/default", "gold")
    await in_group(broker, "public/b", "gold")
    await asyncio.sleep(0.1)
    one.send_bytes(batch(0, 90))
    two.send_bytes(batch(0, 110))
    one.send_bytes(batch(90, 1))
    free.send_bytes(batch(0, 500))
    assert one.transport.paused
    assert two.transport.paused
    assert not free.transport.paused
    await stored.resource_groups.put("gold", {"publishRateInMsgs": 100_000})
    await asyncio.sleep(0.2)
    assert held(broker) == 0
    one.send_bytes(batch(91, 500))
    assert not one.transport.paused


@scenario()
async def test_who_waits_for_a_group_goes_on_when_it_is_deleted(broker: BrokerInMemory) -> None:
    groups = broker.broker.resources.resource_groups
    await groups.put("gold", {"publishRateInBytes": 1})
    await in_group(broker, "public/default", "gold")
    client = await producing(broker)
    client.send_bytes(batch(0, 10))
    assert client.transport.paused
    await groups.delete("gold")
    await asyncio.sleep(0.01)
    assert not client.transport.paused
    client.send_bytes(batch(10, 500))
    assert not client.transport.paused


@scenario()
async def test_groups_are_known_after_a_restart(broker: BrokerInMemory) -> None:
    await broker.broker.resources.resource_groups.put("gold", {"publishRateInBytes": 1})
    await in_group(broker, "public/default", "gold")
    await broker.restart()
    client = await producing(broker)
    client.send_bytes(batch(0, 10))
    assert client.transport.paused
