"""Dispatch rates: of a subscription, of a topic, of the broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pulsark.dispatch.model.subscription_stats import ExcessKind, Level
from pulsark.dispatch.policies.policies import (
    DISPATCH_RATE,
    NO_DISPATCH_RATE,
    OWN_DISPATCH_RATES,
    SUBSCRIPTION_DISPATCH_RATE,
    DispatchRate,
)
from pulsark.dispatch.spark.topic_entries import FlightEntries
from pulsark.dispatch.subscription.dispatch_limit import DispatchLimit
from pulsark.dispatch.subscription.dispatcher import Dispatcher
from pulsark.dispatch.subscription.storage_read import StorageRead
from pulsark.dispatch.subscription.subscription import Subscription
from pulsark.errors import ClientError, ServerError
from pulsark.metadata import resources
from pulsark.wire.position import Position
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    NAME,
    SHARED,
    SHARING,
    TOPIC,
    TYPES,
    BrokerInMemory,
    Client,
    consuming,
    scenario,
)
from tests.support.wire_frames import publish

OTHER = "persistent://public/default/other"


def rate(messages: int = 0, size: int = 0, **fields: Any) -> dict[str, Any]:
    """A rate as it is stored."""
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
        **fields,
    }


async def set_policies(broker: BrokerInMemory, **policies: Any) -> None:
    """Those of the topic."""
    await broker.broker.resources.topic_policies.update(NAME, lambda _: policies)
    await broker.broker.policy_updates.refresh_topic(NAME)


def subscription(broker: BrokerInMemory, name: str = "s", topic: str = TOPIC) -> Subscription:
    loaded = broker.broker.topics.get_loaded(TopicName.parse(topic))
    assert loaded is not None
    return loaded.subscriptions[name]


async def entries(client: Client) -> list[int]:
    """Entry ids of what was delivered since the last call."""
    return [delivery.message.message_id.entryId for delivery in await client.deliveries()]


async def in_steps(client: Client, steps: int, seconds: float = 1.0) -> list[int]:
    """How many messages come at once, and in each of so many steps of time."""
    counts = [len(await client.deliveries())]
    for _ in range(steps):
        await asyncio.sleep(seconds)
        counts.append(len(await client.deliveries()))
    return counts


def limits(broker: BrokerInMemory, name: str = "s") -> list[DispatchLimit]:
    throttle = subscription(broker, name).dispatcher._throttle
    assert throttle is not None
    return list(throttle._limits)


# -- one subscription ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
@scenario(dispatchThrottlingRatePerSubscriptionInMsg=10)
async def test_a_subscription_keeps_to_its_rate_in_order(broker, kind) -> None:
    client, ids = await consuming(broker, 35, kind=kind)
    found = [await entries(client)]
    for _ in range(3):
        await asyncio.sleep(1)
        found.append(await entries(client))
    assert [len(one) for one in found] == [10, 10, 10, 5]
    assert [one for part in found for one in part] == [entry_id for _, entry_id in ids]
    # After a pause there are as many tokens as at the beginning, and no more.
    await asyncio.sleep(20)
    for number in range(35, 50):
        await client.publish(number)
    assert len(await client.deliveries()) == 10
    await asyncio.sleep(1)
    assert len(await client.deliveries()) == 5


@pytest.mark.parametrize("kind", TYPES)
@scenario(dispatchThrottlingRatePerSubscriptionInByte=1000)
async def test_bytes_have_a_rate_and_a_large_message_is_owed(broker, kind) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 0)
    for number in range(4):
        client.send_bytes(publish(1, number, bytes(2400)))
    assert await client.subscribe(TOPIC, kind=kind) == 0
    # The first one leaves about 1.5 s of debt, each following one needs about 2.5 s.
    assert await in_steps(client, 8) == [1, 0, 1, 0, 1, 0, 0, 1, 0]
    assert subscription(broker).dispatcher.throttled == {(ExcessKind.BYTES, Level.SUBSCRIPTION): 4}


@pytest.mark.parametrize(("per_batch", "at_once"), [(False, 2), (True, 8)])
def test_a_batch_counts_as_its_messages_or_as_one(per_batch: bool, at_once: int) -> None:
    @scenario(
        dispatchThrottlingRatePerSubscriptionInMsg=8,
        dispatchThrottlingOnBatchMessageEnabled=per_batch,
    )
    async def run(broker: BrokerInMemory) -> None:
        client = Client(broker)
        await client.produce(TOPIC, 0)
        for number in range(10):
            await client.publish_batch(4, number * 4)
        assert await client.subscribe(TOPIC, kind=SHARED) == 0
        assert len(await client.deliveries()) == at_once

    run()


@scenario(dispatchThrottlingRatePerSubscriptionInMsg=10)
async def test_what_is_left_of_a_batch_counts(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 0)
    ids = [await client.publish_batch(4, number * 4) for number in range(10)]
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    assert len(await client.deliveries()) == 3  # twelve messages: two are owed
    await client.ack(*ids[:3], ack_set=(0b1000,))
    await asyncio.sleep(1)
    assert len(await client.deliveries()) == 2


@pytest.mark.parametrize("kind", TYPES)
@scenario(dispatchThrottlingRatePerSubscriptionInMsg=10)
async def test_redeliveries_count_too(broker, kind) -> None:
    client, ids = await consuming(broker, 8, kind=kind)
    assert await entries(client) == [entry_id for _, entry_id in ids]
    client.redeliver()
    assert await entries(client) == [0, 1]
    await asyncio.sleep(1)
    assert len(await entries(client)) == 6


@pytest.mark.parametrize("kind", TYPES)
@scenario(dispatchThrottlingRatePerSubscriptionInMsg=5)
async def test_a_consumer_that_leaves_while_it_waits_leaves_nothing(broker, kind) -> None:
    client, ids = await consuming(broker, 12, kind=kind)
    assert len(await client.deliveries()) == 5
    (limit,) = limits(broker)
    assert len(limit._waiting) == 1
    await client.close()
    await asyncio.sleep(0.5)
    assert not limit._waiting
    assert limit._timer is None
    other = Client(broker)
    assert await other.subscribe(TOPIC, kind=kind) == 0
    found = await in_steps(other, 2)
    assert sum(found) == len(ids)
    assert found[0] in (2, 3)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("change", ["lifted", "higher", "lower", "longer", "bytes"])
def test_a_rate_that_changes_while_dispatch_waits(kind: int, change: str) -> None:
    rates = {
        "lifted": (rate(), 95),
        "higher": (rate(1000), 95),
        "lower": (rate(2), 1),
        "longer": (rate(5, ratePeriodInSecond=10), 0),
        "bytes": (rate(0, 10_000_000), 95),
    }

    @scenario(dispatchThrottlingRatePerSubscriptionInMsg=5)
    async def run(broker: BrokerInMemory) -> None:
        client, _ = await consuming(broker, 100, kind=kind)
        assert len(await client.deliveries()) == 5
        changed, expected = rates[change]
        await set_policies(broker, **{SUBSCRIPTION_DISPATCH_RATE: changed})
        await asyncio.sleep(0.9)
        assert len(await client.deliveries()) == expected
        if change == "lifted":
            dispatcher = subscription(broker).dispatcher
            assert dispatcher._deliver == dispatcher._deliveries.deliver
        else:
            (limit,) = limits(broker)
            assert len(limit._waiting) == (expected < 95)

    run()


@pytest.mark.parametrize("end", ["deleted", "unloaded", "topic deleted"])
def test_a_subscription_that_ends_while_it_waits_leaves_no_timer(end: str) -> None:
    @scenario(dispatchThrottlingRatePerSubscriptionInMsg=5, dispatchThrottlingRateInMsg=1000)
    async def run(broker: BrokerInMemory) -> None:
        client, _ = await consuming(broker, 12)
        await client.deliveries()
        own, shared = limits(broker)
        assert own._timer is not None
        if end == "deleted":
            await subscription(broker).delete(force=True)
        elif end == "unloaded":
            await broker.broker.topics.unload(NAME)
        else:
            await broker.broker.deletion.delete_topic(NAME, force=True)
        assert own._timer is None
        assert not own._waiting
        assert not shared._waiting
        await asyncio.sleep(5)

    run()


@scenario()
async def test_where_no_rate_is_set_nothing_is_there(broker) -> None:
    await consuming(broker, 3)
    dispatcher = subscription(broker).dispatcher
    assert dispatcher._throttle is None
    assert dispatcher._deliver == dispatcher._deliveries.deliver
    assert dispatcher.throttled == {}
    policies = broker.broker.topics.get_loaded(NAME).policies
    assert policies.dispatch_rate is policies.subscription_dispatch_rate is NO_DISPATCH_RATE


@scenario(dispatchThrottlingRatePerSubscriptionInMsg=10)
async def test_the_limit_of_unacknowledged_messages_holds_beside_the_rate(broker) -> None:
    await set_policies_of_namespace(broker, max_unacked_messages_per_subscription=15)
    client, ids = await consuming(broker, 40, kind=SHARED)
    assert await in_steps(client, 3) == [10, 5, 0, 0]
    unacked = subscription(broker).dispatcher.unacked
    assert (unacked.too_many, subscription(broker).backlog_stats().blocked) == (True, True)
    await client.ack(*ids[:15])
    assert len(await client.deliveries()) == 10
    assert not subscription(broker).backlog_stats().blocked
    assert unacked.blocked


async def set_policies_of_namespace(broker: BrokerInMemory, **policies: Any) -> None:
    namespace = "public/default"
    await broker.broker.resources.namespaces.update(
        namespace, lambda old: replace(old, policies={**old.policies, **policies})
    )
    await broker.broker.policy_updates.refresh_namespace(namespace)


@scenario(dispatchThrottlingRatePerSubscriptionInMsg=5)
async def test_a_subscription_that_waits_neither_looks_nor_reads(broker) -> None:
    """It reads ahead once, and looks again when it has tokens."""
    client, _ = await consuming(broker, 300)
    await client.deliveries()
    pumps, reads = [], []
    pump, start = Dispatcher.pump, StorageRead.start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dispatcher, "pump", lambda self: [pumps.append(1), pump(self)][1])
        patch.setattr(StorageRead, "start", lambda self, *a: [reads.append(1), start(self, *a)][1])
        await asyncio.sleep(10)
    assert len(await client.deliveries()) == 50
    assert len(pumps) <= 60
    assert len(reads) <= 1


# -- several subscriptions ----------------------------------------------------------------------


@scenario()
async def test_a_subscription_without_tokens_does_not_stop_others(broker) -> None:
    client, _ = await consuming(broker, 1)
    other = Client(broker)
    assert await other.subscribe(TOPIC, "u") == 0
    assert [len(await one.deliveries()) for one in (client, other)] == [1, 1]
    await set_policies(broker, **{OWN_DISPATCH_RATES: {"s": rate(2)}})
    for number in range(20):
        await client.publish(number + 1)
    assert [len(await one.deliveries()) for one in (client, other)] == [2, 20]
    await asyncio.sleep(1)
    assert [len(await one.deliveries()) for one in (client, other)] == [2, 0]


@pytest.mark.parametrize("level", [Level.TOPIC, Level.BROKER])
def test_subscriptions_share_a_rate_evenly(level: Level) -> None:
    key = "dispatchThrottlingRatePerTopicInMsg"
    key = key if level is Level.TOPIC else "dispatchThrottlingRateInMsg"

    @scenario(**{key: 100})
    async def run(broker: BrokerInMemory) -> None:
        client = Client(broker)
        await client.produce(TOPIC, 600)
        readers = [Client(broker) for _ in range(4)]
        for number, reader in enumerate(readers):
            kind = [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED][number]
            assert await reader.subscribe(TOPIC, f"s{number}", kind=kind) == 0
        await asyncio.sleep(1)
        for reader in readers:
            await reader.deliveries()
        await asyncio.sleep(10)
        counts = [len(await reader.deliveries()) for reader in readers]
        assert 990 <= sum(counts) <= 1010
        assert max(counts) - min(counts) <= 20, counts
        events = subscription(broker, "s0").dispatcher.throttled
        assert set(events) == {(ExcessKind.MESSAGES, level)}

    run()


@scenario(dispatchThrottlingRateInMsg=50, dispatchThrottlingRatePerTopicInMsg=10)
async def test_the_lowest_of_the_rates_holds(broker) -> None:
    client, _ = await consuming(broker, 100)
    other = Client(broker)
    await other.produce(OTHER, 100)
    assert await other.subscribe(OTHER) == 0
    await asyncio.sleep(1)
    for one in (client, other):
        await one.deliveries()
    await asyncio.sleep(4)
    assert [len(await one.deliveries()) for one in (client, other)] == [40, 40]


@scenario(dispatchThrottlingRateInMsg=100)
async def test_who_waits_for_a_shared_rate_is_woken_in_turn(broker) -> None:
    """However many there are, about one of them is for each message."""
    client = Client(broker)
    await client.produce(TOPIC, 50)
    number_of_readers = 60
    for number in range(number_of_readers):
        await client.subscribe(TOPIC, f"s{number}", consumer_id=number)
    await asyncio.sleep(5)
    (limit,) = limits(broker, "s0")
    assert len(limit._waiting) > number_of_readers / 2
    await client.deliveries()
    served = []
    serve = DispatchLimit._serve
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DispatchLimit, "_serve", lambda self: [served.append(1), serve(self)][1])
        await asyncio.sleep(5)
    delivered = len(await client.deliveries())
    assert 490 <= delivered <= 510
    assert len(served) <= delivered


# -- what is spared -----------------------------------------------------------------------------


@scenario(
    dispatchThrottlingRatePerSubscriptionInMsg=5,
    dispatchThrottlingOnNonBacklogConsumerEnabled=False,
)
async def test_who_is_caught_up_may_be_spared(broker) -> None:
    client, _ = await consuming(broker, 1020)
    assert len(await client.deliveries()) == 5
    client.flow(1000)
    await asyncio.sleep(4)  # the last thousand are free
    assert len(await client.deliveries()) == 1015
    for number in range(50):
        await client.publish(number + 1020)
    assert len(await client.deliveries()) == 50


@scenario(dispatchThrottlingRatePerTopicInMsg=1, dispatchThrottlingRateInMsg=1)
async def test_topics_of_the_system_have_no_rates(broker, monkeypatch) -> None:
    client = Client(broker)
    topic = "persistent://pulsar/system/own"
    monkeypatch.setattr(resources, "SYSTEM_TOPICS", frozenset({topic}))
    await client.produce(topic, 20)
    assert await client.subscribe(topic) == 0
    assert len(await client.deliveries()) == 20
    assert subscription(broker, "s", topic).dispatcher._throttle is None


# -- other periods, and rates that follow what is published -------------------------------------


@scenario()
async def test_a_rate_of_a_longer_period(broker) -> None:
    await set_policies_of_namespace(
        broker,
        **{DISPATCH_RATE: rate(10, ratePeriodInSecond=20), SUBSCRIPTION_DISPATCH_RATE: None},
    )
    client, _ = await consuming(broker, 30)
    assert len(await client.deliveries()) == 10
    await asyncio.sleep(1.9)
    assert len(await client.deliveries()) == 0
    await asyncio.sleep(0.2)
    assert len(await client.deliveries()) == 1
    await asyncio.sleep(20)
    assert len(await client.deliveries()) == 10


@pytest.mark.parametrize("kind", SHARING)
@scenario()
async def test_a_rate_on_top_of_what_is_published(broker, kind) -> None:
    relative = rate(10, relativeToPublishRate=True)
    await set_policies_of_namespace(broker, **{SUBSCRIPTION_DISPATCH_RATE: relative})
    client, _ = await consuming(broker, 500, kind=kind)
    assert len(await client.deliveries()) == 10
    await asyncio.sleep(3)
    await client.deliveries()
    await asyncio.sleep(5)
    assert 45 <= len(await client.deliveries()) <= 55
    published = 0
    for second in range(10):
        for _ in range(20):
            await client.publish(500 + published)
            published += 1
            await asyncio.sleep(0.05)
        if second == 3:
            await client.deliveries()
    # Six seconds, each with 20 that are published and 10 more.
    assert 160 <= len(await client.deliveries()) <= 200


@scenario()
async def test_what_is_read_over_flight_counts_and_waits_its_turn(broker) -> None:
    client, _ = await consuming(broker, 0)
    for number in range(30):
        client.send_bytes(publish(1, number, bytes(200)))
    found = await client.deliveries()
    ledger_id = found[0].message.message_id.ledgerId
    assert len(found) == 30
    first, last = Position(ledger_id, 0), Position(ledger_id, 29)
    source = FlightEntries(broker.broker.topics)
    await set_policies(broker, **{DISPATCH_RATE: rate(0, 1000)})
    begun, read = broker.broker.clock.monotonic(), []
    while first <= last:
        read += await source.read_entries(TOPIC, first, last, 4 << 20)
        first = Position(ledger_id, read[-1][0].entry_id + 1)
    size = sum(len(data) for _, data in read)
    passed = broker.broker.clock.monotonic() - begun
    assert len(read) == 30
    assert size / 1000 - 2.5 <= passed <= size / 1000
    # The next one waits for what Flight took.
    for number, expected in ((30, 1), (31, 0)):
        client.send_bytes(publish(1, number, b"x"))
        await asyncio.sleep(0.01)
        assert len(await client.deliveries()) == expected
    # A reader that gives up while it waits leaves nothing.
    (limit,) = limits(broker)
    task = asyncio.ensure_future(source.read_entries(TOPIC, last, last, 4 << 20))
    await asyncio.sleep(0.001)
    assert len(limit._waiting) == 2
    task.cancel()
    await asyncio.sleep(0.001)
    assert len(limit._waiting) == 1


def test_a_rate_below_one_is_none() -> None:
    assert not DispatchRate(0, -1, relative=True).limits
    assert DispatchRate(0, 1).limits


async def waits_over_flight(broker: BrokerInMemory) -> asyncio.Task[list[tuple[Position, bytes]]]:
    """A read that waits for minutes, because of the one before it."""
    client = Client(broker)
    await client.produce(TOPIC, 1)
    client.send_bytes(publish(1, 0, b"x" * 500))
    await asyncio.sleep(0.01)
    loaded = broker.broker.topics.get_loaded(TopicName.parse(TOPIC))
    assert loaded is not None
    last = loaded.ledger.last_confirmed
    await set_policies(broker, **{DISPATCH_RATE: rate(0, 1)})
    source = FlightEntries(broker.broker.topics)
    await source.read_entries(TOPIC, last, last, 4 << 20)
    task = asyncio.ensure_future(source.read_entries(TOPIC, last, last, 4 << 20))
    await asyncio.sleep(10)
    assert not task.done()
    return task


@scenario()
async def test_a_reader_over_flight_does_not_wait_for_a_rate_that_is_gone(
    broker: BrokerInMemory,
) -> None:
    task = await waits_over_flight(broker)
    await set_policies(broker)
    assert len(await asyncio.wait_for(task, 1)) == 1


@scenario()
async def test_nor_for_that_of_a_topic_that_is_unloaded(broker: BrokerInMemory) -> None:
    task = await waits_over_flight(broker)
    await broker.broker.topics.unload(TopicName.parse(TOPIC))
    with pytest.raises(ClientError) as told:  # come again
        await asyncio.wait_for(task, 1)
    assert told.value.code is ServerError.ServiceNotReady
