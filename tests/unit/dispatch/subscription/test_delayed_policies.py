"""Delayed messages that expire, are evicted, skipped back to, compacted, or trimmed."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.broker_clients import BrokerInMemory, Client, scenario
from tests.support.delayed import (
    KEY_SHARED,
    SHARED,
    TOPIC,
    Id,
    arrivals,
    now_ms,
    sender,
    shown,
    small_buckets,
    topic_of,
)

QUIET = {"keepAliveIntervalSeconds": 1_000_000, "isDelayedDeliveryDeliverAtTimeStrict": True}
TTL = {"ttlDurationDefaultInSeconds": 100, "messageExpiryCheckIntervalInMinutes": 1}
EVICT = {
    "backlogQuotaDefaultLimitBytes": 2000,
    "backlogQuotaDefaultRetentionPolicy": "consumer_backlog_eviction",
    "backlogQuotaCheckIntervalInSeconds": 60,
}
SMALL_LEDGERS = {
    "managedLedgerMaxEntriesPerLedger": 10,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}


async def consumer(broker: BrokerInMemory, kind: int = SHARED) -> Client:
    client = Client(broker)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    return client


def places_of(found: list[tuple[float, Id, int]]) -> list[Id]:
    """In the order of the topic: those due together come as their buckets are read."""
    return sorted(place for _, place, _ in found)


def buckets_listed(broker: BrokerInMemory) -> int:
    return len(topic_of(broker).delayed.tracker._stored)


@pytest.mark.feature("F53", "F57")
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_a_delayed_message_that_expires_is_never_delivered(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its age counts from its publication, whenever it is due."""
    small_buckets(monkeypatch)

    @scenario(**QUIET, **TTL)
    async def run(broker) -> None:
        client, producer = await consumer(broker, kind), await sender(broker)
        published = now_ms()
        in_time, _ = [
            [
                await producer.publish(
                    i, publish_time=published, deliver_at_time=published + delay * 1000
                )
                for i in range(20)
            ]
            for delay in (50, 400)
        ]
        assert places_of(await arrivals(client, 90)) == in_time
        client.send(*map(client.ack_command, in_time))
        await asyncio.sleep(1)
        assert (await shown(broker))["msgDelayed"] == 20
        assert await arrivals(client, 400) == []
        stats = await shown(broker)
        assert (stats["msgBacklog"], stats["msgDelayed"]) == (0, 0)
        assert topic_of(broker).subscriptions["s"].totals.entries_expired == 20
        assert topic_of(broker).delayed.tracker.memory_bytes == 0
        assert buckets_listed(broker) == 0
        fresh = await producer.publish(1, publish_time=now_ms(), deliver_at_time=now_ms() + 5000)
        assert await arrivals(client, 10) == [(5.0, fresh, 0)]

    run()


@pytest.mark.feature("F53", "F57")
def test_messages_that_expire_while_the_broker_is_down_stay_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_buckets(monkeypatch)

    @scenario(**QUIET, **TTL)
    async def run(broker) -> None:
        await consumer(broker)
        producer = await sender(broker)
        published = now_ms()
        for i in range(20):
            await producer.publish(i, publish_time=published, deliver_at_time=published + 500_000)
        await asyncio.sleep(1)
        await broker.broker.close()
        await asyncio.sleep(110)
        await broker.restart()
        client, producer = await consumer(broker), await sender(broker)
        fresh = await producer.publish(1, publish_time=now_ms(), deliver_at_time=now_ms() + 70_000)
        assert (await shown(broker))["msgDelayed"] >= 20
        assert places_of(await arrivals(client, 500)) == [fresh]
        assert (await shown(broker))["msgDelayed"] == 0

    run()


@pytest.mark.feature("F57", "F91")
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_eviction_takes_delayed_messages_as_any_others(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_buckets(monkeypatch)

    @scenario(**QUIET, **EVICT, **SMALL_LEDGERS)
    async def run(broker) -> None:
        client, producer = await consumer(broker, kind), await sender(broker)
        places = await producer.delayed(*[300] * 150)
        await asyncio.sleep(61)
        topic = topic_of(broker)
        left = (await shown(broker))["msgBacklog"]
        assert 0 < left < 150
        assert topic.subscriptions["s"].backlog_size <= 2000
        assert (await shown(broker))["msgDelayed"] == left
        assert places_of(await arrivals(client, 300)) == places[-left:]

    run()


@pytest.mark.feature("F57")
@pytest.mark.command("SEEK")
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_after_a_seek_back_what_was_due_comes_at_once_and_the_rest_at_its_time(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_buckets(monkeypatch)

    @scenario(**QUIET)
    async def run(broker) -> None:
        client, producer = await consumer(broker, kind), await sender(broker)
        start = asyncio.get_running_loop().time()
        places = await producer.delayed(*[10] * 20, *[100] * 20, *[200] * 20)
        assert places_of(await arrivals(client, 20)) == places[:20]
        client.send(*map(client.ack_command, places[:20] + places[50:]))
        await asyncio.sleep(2)
        assert (await shown(broker))["msgDelayed"] == 30
        await broker.restart()
        client = await consumer(broker, kind)
        client.send(client.seek_command(places[5]))
        assert await client.outcome() == 0
        client = await consumer(broker, kind)
        elapsed = asyncio.get_running_loop().time() - start
        found = await arrivals(client, 250)
        assert places_of(found) == places[5:], "those acknowledged before the seek, too"
        for when, place, _ in found:
            delay = 0 if place in places[:20] else 100 if place in places[:40] else 200
            due = max(delay - elapsed, 0)
            assert due - 0.1 <= when <= due + 1.5

    run()


@pytest.mark.feature("F57")
def test_a_seek_forward_forgets_what_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    small_buckets(monkeypatch)

    @scenario(**QUIET)
    async def run(broker) -> None:
        client, producer = await consumer(broker), await sender(broker)
        places = await producer.delayed(*[30] * 40)
        client.send(client.seek_command(places[25]))
        assert await client.outcome() == 0
        client = await consumer(broker)
        await asyncio.sleep(1)
        assert (await shown(broker))["msgDelayed"] == 15
        assert places_of(await arrivals(client, 60)) == places[25:]

    run()


@pytest.mark.feature("F57")
def test_compaction_leaves_delayed_messages_to_who_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compacted form drops earlier values of a key; a queue still gets each, at its time."""
    small_buckets(monkeypatch)

    @scenario(**QUIET, **SMALL_LEDGERS)
    async def run(broker) -> None:
        await consumer(broker)
        producer = await sender(broker)
        places = [
            await producer.publish(i, partition_key="k", deliver_at_time=now_ms() + 60_000)
            for i in range(30)
        ]
        await asyncio.sleep(1)
        assert buckets_listed(broker) >= 3
        compactor = topic_of(broker).compactor
        assert compactor.start()
        assert compactor._task is not None
        await asyncio.wait([compactor._task])
        assert compactor.status == "SUCCESS"
        await broker.restart()
        client = await consumer(broker)
        assert await arrivals(client, 50) == []
        assert places_of(await arrivals(client, 20)) == places

    run()


@pytest.mark.feature("F57")
@scenario(**QUIET)
async def test_a_batch_is_due_as_a_whole(broker) -> None:
    """What the entry says counts: a client sends delayed messages alone."""
    client, producer = await consumer(broker), await sender(broker)
    place = await producer.publish_batch(3, deliver_at_time=now_ms() + 5000)
    assert await arrivals(client, 10) == [(5.0, place, 0)]


@pytest.mark.feature("F57", "F58")
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_who_leaves_takes_nothing_along(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subscribers come and go between publication and delivery, and nobody is there meanwhile."""
    small_buckets(monkeypatch)

    @scenario(**QUIET)
    async def run(broker) -> None:
        first, producer = await consumer(broker, kind), await sender(broker)
        places = await producer.delayed(*[20] * 20)
        first.hang_up()
        await asyncio.sleep(10)
        second = await consumer(broker, kind)
        await asyncio.sleep(5)
        second.hang_up()
        await asyncio.sleep(20)
        third = await consumer(broker, kind)
        found = await arrivals(third, 5)
        assert places_of(found) == places
        assert {count for _, _, count in found} == {0}

    run()
