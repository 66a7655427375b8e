"""The wall clock is put forward or back: nothing goes that was used a minute ago."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.runtime import SureClock
from pulsark.storage.cursor.bundle_record import FormerLedger
from pulsark.storage.cursor.history import HistoryLimits
from pulsark.wire.topic_name import TopicName
from tests.sim.clock import EPOCH_MS, SimClock
from tests.sim.simulation import Simulation
from tests.support.broker_clients import BrokerInMemory, Client, scenario

NAMESPACE = "public/n"
TOPIC = f"persistent://{NAMESPACE}/t"
NAME = TopicName.parse(TOPIC)
OTHER = TopicName.parse(f"persistent://{NAMESPACE}/other")
VOLATILE = f"non-persistent://{NAMESPACE}/v"
POLICIES = {
    "retention_policies": {"retentionTimeInMinutes": 30, "retentionSizeInMB": -1},
    "subscription_expiration_time_minutes": 20,
    "message_ttl_in_seconds": 600,
}
ROLLS = {
    "managedLedgerMaxEntriesPerLedger": 2,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "keepAliveIntervalSeconds": 1_000_000,
    "messageExpiryCheckIntervalInMinutes": 1,
    "retentionCheckIntervalInSeconds": 30,
    "brokerDeleteInactiveTopicsFrequencySeconds": 30,
    "subscriptionExpiryCheckIntervalInMinutes": 1,
    "topicsAtRestCheckIntervalInSeconds": 30,
}
HOUR, YEAR = 3_600_000, 365 * 24 * 3_600_000
STEPS = [HOUR, -HOUR, YEAR, -YEAR]


async def used(broker: BrokerInMemory) -> int:
    """A topic with an idle subscription, one that nobody has loaded, one that stores nothing.

    Returns the entries of the first.
    """
    await broker.broker.resources.namespaces.create(NAMESPACE, policies=POLICIES)
    client = Client(broker)
    ids = await client.produce(TOPIC, 7)
    await client.subscribe(TOPIC, "behind")
    await client.subscribe(TOPIC, "done", consumer_id=2)
    client.send(client.ack_command(ids[-1], cumulative=True, consumer_id=2))
    await client.produce(str(OTHER), 3, 2)
    await client.subscribe(str(OTHER), "s", consumer_id=3)
    await client.produce(VOLATILE, 1, 3)
    client.hang_up()
    await asyncio.sleep(2)
    await broker.broker.topics.unload(OTHER)
    return broker.broker.topics.get_loaded(NAME).ledger.entries


def clock_of(broker: BrokerInMemory) -> SimClock:
    clock = broker._runtime.clock
    assert isinstance(clock, SimClock)
    return clock


@pytest.mark.parametrize("first", STEPS)
@scenario(**ROLLS)
async def test_steps_of_the_clock_delete_nothing(broker, first: int) -> None:
    entries = await used(broker)
    topic = broker.broker.topics.get_loaded(NAME)
    behind = topic.subscriptions["behind"].backlog
    clock_of(broker).step_ms += first
    for step in (0, -2 * first, first, *STEPS):
        clock_of(broker).step_ms += step
        await asyncio.sleep(65)
    assert broker.broker.topics.get_loaded(NAME) is topic
    assert topic.ledger.entries == entries
    assert set(topic.subscriptions) == {"behind", "done"}
    assert topic.subscriptions["behind"].backlog == behind
    assert await broker.broker.catalog.exists(OTHER)
    other = await broker.broker.topics.load(OTHER)
    assert set(other.subscriptions) == {"s"}
    assert other.ledger.entries == 3


@scenario(**ROLLS)
async def test_what_is_old_goes_all_the_same(broker) -> None:
    await used(broker)
    clock_of(broker).step_ms -= YEAR
    await asyncio.sleep(90 * 60)
    assert broker.broker.topics.get_loaded(NAME) is None
    assert not await broker.broker.catalog.exists(NAME)
    assert broker.broker.non_persistent.get(TopicName.parse(VOLATILE)) is None


def test_a_sure_clock_is_never_later_than_either() -> None:
    with Simulation() as sim:

        async def main() -> None:
            clock = SimClock(sim.loop)
            sure = SureClock(clock)
            await asyncio.sleep(10)
            assert sure.now_ms() == EPOCH_MS + 10_000
            clock.step_ms = YEAR
            assert sure.now_ms() == EPOCH_MS + 10_000
            clock.step_ms = -HOUR
            assert sure.now_ms() == clock.now_ms() == EPOCH_MS + 10_000 - HOUR

        sim.run(main())


def test_the_history_of_cursors_is_as_old_as_it_surely_is() -> None:
    former = (FormerLedger(1, 0, 1000, 10), FormerLedger(2, 1000, 2000, 10))
    limits = HistoryLimits(age_ms=500, size=100)
    assert limits.kept(former, 1400) == former
    assert limits.kept(former, 2100) == former[1:]
