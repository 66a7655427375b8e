"""One publish for many subscriptions: each has its turn, and no turn of the loop is long."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from pulsark.dispatch.subscription.reader import READ_ENTRIES
from pulsark.limits import SUBSCRIPTIONS_AT_ONCE_MAX, TURN_SECONDS
from tests.support.broker_clients import NAME, TOPIC, BrokerInMemory, Client, scenario
from tests.support.ticking_clock import TickingClock, use_queue_of
from tests.support.wire_frames import publish

PUMPS_PER_TURN = 2


async def subscribers(broker: BrokerInMemory, count: int) -> list[Client]:
    """Each with a subscription of its own, and with permits."""
    use_queue_of(broker, TickingClock(TURN_SECONDS / PUMPS_PER_TURN))
    clients = [Client(broker) for _ in range(count)]
    for number, client in enumerate(clients):
        assert await client.subscribe(TOPIC, f"s{number}") == 0
        client.flow(100_000)
    return clients


async def progress(broker: BrokerInMemory) -> list[int]:
    """Deliveries so far, looked at in each turn of the loop until nobody has more to send."""
    topic = await broker.broker.topics.load(NAME)
    sent, quiet = [0], 0
    while quiet < 20:
        await asyncio.sleep(0)
        sent.append(sum(s.members.sent().entries for s in topic.subscriptions.values()))
        quiet = 0 if len(broker.broker.run_queue) or sent[-1] != sent[-2] else quiet + 1
    return sent


@pytest.mark.parametrize("count", [SUBSCRIPTIONS_AT_ONCE_MAX, SUBSCRIPTIONS_AT_ONCE_MAX + 32])
def test_beyond_some_subscriptions_each_gets_a_new_entry_in_its_turn(count: int) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        clients = await subscribers(broker, count)
        publisher = Client(broker)
        await publisher.produce(TOPIC, 0)
        sending = asyncio.create_task(publisher.publish(0))
        sent = await progress(broker)
        await sending
        assert sent[-1] == count
        most = max(after - before for before, after in pairwise(sent))
        assert most <= max(PUMPS_PER_TURN, SUBSCRIPTIONS_AT_ONCE_MAX)
        for client in clients:
            assert len(await client.deliveries()) == 1

    run()


@scenario()
async def test_a_backlog_goes_out_a_read_at_a_time_for_each_subscription(
    broker: BrokerInMemory,
) -> None:
    clients = await subscribers(broker, 3)
    topic = await broker.broker.topics.load(NAME)
    for subscription in topic.subscriptions.values():
        subscription.dispatcher.pause()
    publisher = Client(broker)
    await publisher.produce(TOPIC, 0)
    publisher.send_bytes(b"".join(publish(1, i, b"x") for i in range(3 * READ_ENTRIES)))
    await asyncio.sleep(1)
    for subscription in topic.subscriptions.values():
        subscription.dispatcher.go_on()
    sent = await progress(broker)
    assert sent[-1] == 3 * 3 * READ_ENTRIES
    most = max(after - before for before, after in pairwise(sent))
    assert most <= PUMPS_PER_TURN * READ_ENTRIES
    for client in clients:
        found = [d.message.message_id.entryId for d in await client.deliveries()]
        assert found == list(range(3 * READ_ENTRIES))
