"""What a connection leaves behind goes in many turns, and all of it goes."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from pulsark.dispatch.run_queue import RunQueue
from pulsark.limits import CONSUMERS_LEAVING_AT_ONCE_MAX, CONSUMERS_TOLD_AT_ONCE_MAX, TURN_SECONDS
from tests.support.broker_clients import (
    FAILOVER,
    KEY_SHARED,
    NAME,
    SHARED,
    TOPIC,
    BrokerInMemory,
    Client,
    Command,
    scenario,
)
from tests.support.ticking_clock import TickingClock

STEPS_PER_TURN = 2


def use_slow_steps(broker: BrokerInMemory) -> None:
    """Each step of what stands in the run queue takes half a turn. For topics loaded later."""
    broker.broker.run_queue = RunQueue(TickingClock(TURN_SECONDS / STEPS_PER_TURN))


async def join_all(client: Client, count: int, kind: int, topic: str = TOPIC) -> None:
    for number in range(count):
        fields = {"kind": kind, "consumer_id": number, "consumer_name": f"c{number}"}
        client.send(client.subscribe_command(topic, **fields))
    for _ in range(count):
        await client.take(Command.SUCCESS)


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("kind", [FAILOVER, SHARED, KEY_SHARED])
def test_many_consumers_leave_some_in_each_turn(kind: int, domain: str) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        use_slow_steps(broker)
        topic = TOPIC.replace("persistent", domain)
        client, other = Client(broker), Client(broker)
        await other.subscribe(topic, kind=kind, consumer_name="d")
        await join_all(client, 100, kind, topic)
        subscription = other.connection.consumers[1].subscription
        count = [subscription.type.consumer_count]
        client.connection.connection_lost(None)
        while len(broker.broker.run_queue):
            count.append(subscription.type.consumer_count)
            await asyncio.sleep(0)
        assert count[0] == 101
        most = max(before - after for before, after in pairwise(count))
        assert most <= STEPS_PER_TURN * CONSUMERS_LEAVING_AT_ONCE_MAX
        assert subscription.consumers == [other.connection.consumers[1]]

    run()


@scenario()
async def test_many_producers_leave_some_in_each_turn(broker: BrokerInMemory) -> None:
    use_slow_steps(broker)
    client = Client(broker)
    for number in range(100):
        await client.open_producer(TOPIC, f"p{number}", number)
    producers = (await broker.broker.topic(NAME)).producers
    count = [len(producers)]
    client.connection.connection_lost(None)
    while producers:
        count.append(len(producers))
        await asyncio.sleep(0)
    assert count[0] == 100
    assert max(before - after for before, after in pairwise(count)) <= STEPS_PER_TURN


@scenario()
async def test_many_hear_of_a_new_active_one_some_in_each_turn_and_the_last_word_is_right(
    broker: BrokerInMemory,
) -> None:
    use_slow_steps(broker)
    client, first, best = Client(broker), Client(broker), Client(broker)
    await join_all(client, 400, FAILOVER)
    for one, level in ((first, -1), (best, -2)):
        fields = {"kind": FAILOVER, "consumer_name": "best", "priority_level": level}
        await one.subscribe(TOPIC, **fields)
    await asyncio.sleep(1)
    client.has(Command.ACTIVE_CONSUMER_CHANGE)
    client.answers.clear()
    told = []
    first.connection.connection_lost(None)
    best.connection.connection_lost(None)
    while not told or len(broker.broker.run_queue):
        await asyncio.sleep(0)
        client.has(Command.ACTIVE_CONSUMER_CHANGE)
        told.append(len(client.answers))
    await asyncio.sleep(0.001)
    client.has(Command.ACTIVE_CONSUMER_CHANGE)
    most = max(after - before for before, after in pairwise([0, *told]))
    assert most <= STEPS_PER_TURN * CONSUMERS_TOLD_AT_ONCE_MAX
    last_words = {}
    for answer in client.answers:
        change = answer.active_consumer_change
        last_words[change.consumer_id] = change.is_active
    active = next(iter(client.connection.consumers.values())).subscription.type.active
    assert last_words == {n: n == active.consumer_id for n in range(400)}
