"""Delayed messages, from SEND to MESSAGE, in virtual time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from pulsark.errors import ServerError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.position import Position
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario
from tests.support.delayed import (
    KEY_SHARED,
    SHARED,
    TOPIC,
    Id,
    Sender,
    arrivals,
    now_ms,
    sender,
    shown,
    small_buckets,
    topic_of,
)
from tests.support.wire_frames import publish

# -- when they come ------------------------------------------------------------------------------


@pytest.mark.feature("F57", "F59")
@scenario(isDelayedDeliveryDeliverAtTimeStrict=True)
async def test_a_message_comes_when_it_is_due_and_those_behind_it_at_once(broker) -> None:
    client, producer = Client(broker), await sender(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    late, live, later, early = await producer.delayed(5, 0, 20, 2)
    assert await arrivals(client, 30) == [
        (0.1, live, 0),
        (2.0, early, 0),
        (5.0, late, 0),
        (20.0, later, 0),
    ]


@pytest.mark.feature("F59")
@scenario(delayedDeliveryTickTimeMillis=4000)
async def test_unless_times_are_strict_a_message_may_come_a_tick_early(broker) -> None:
    client, producer = Client(broker), await sender(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    within, first, with_it, after = await producer.delayed(3.9, 10, 13.5, 14.5)
    assert await arrivals(client, 30) == [
        (0.1, within, 0),
        (10.0, first, 0),
        (10.0, with_it, 0),
        (14.5, after, 0),
    ]


@pytest.mark.feature("F59")
@scenario(delayedDeliveryTickTimeMillis=4000, isDelayedDeliveryDeliverAtTimeStrict=True)
async def test_a_tick_is_the_accuracy(broker) -> None:
    client, producer = Client(broker), await sender(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    first, second, third = await producer.delayed(10, 11, 15)
    assert await arrivals(client, 30) == [(10.0, first, 0), (14.0, second, 0), (18.0, third, 0)]


@pytest.mark.feature("F58")
@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover])
def test_one_active_consumer_gets_everything_at_once(kind: int) -> None:
    @scenario()
    async def run(broker) -> None:
        client, producer = Client(broker), await sender(broker)
        assert await client.subscribe(TOPIC, kind=kind) == 0
        ids = await producer.delayed(100, 0)
        assert [place for _, place, _ in await arrivals(client, 0.2)] == ids

    run()


@pytest.mark.feature("F58")
@scenario()
async def test_key_shared_waits_too(broker) -> None:
    clients, producer = [Client(broker), Client(broker)], await sender(broker)
    for client in clients:
        assert await client.subscribe(TOPIC, kind=KEY_SHARED) == 0
    producer.delayed_at_once(50, 10, partition_key="k")
    producer.send_bytes(b"".join(publish(1, i, b"x", partition_key=str(i)) for i in range(50)))
    await asyncio.sleep(1)
    live = [len(await client.deliveries()) for client in clients]
    assert sum(live) == 50
    assert min(live) > 0
    await asyncio.sleep(10)
    assert sorted([len(await client.deliveries()) for client in clients]) == [0, 50]


@scenario(delayedDeliveryEnabled=False)
async def test_without_the_feature_everything_comes_at_once(broker) -> None:
    client, producer = Client(broker), await sender(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    ids = await producer.delayed(100, 0)
    assert [place for _, place, _ in await arrivals(client, 0.2)] == ids


@scenario()
async def test_switching_it_off_releases_what_is_held_and_on_holds_what_is_not_delivered(
    broker,
) -> None:
    client, producer = Client(broker), await sender(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    ids = await producer.delayed(100, 200)
    assert await arrivals(client, 1) == []
    await set_delayed(broker, active=False)
    assert [place for _, place, _ in await arrivals(client, 0.3)] == ids
    client.send(client.close_command("consumer"))
    await client.outcome()
    await set_delayed(broker, active=True)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    found = await arrivals(client, 300)
    assert [place for _, place, _ in found] == ids
    assert found[0][0] == pytest.approx(98, abs=2)


async def set_delayed(broker: BrokerInMemory, **changed: Any) -> None:
    value = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 0, **changed}
    await broker.broker.resources.namespaces.update(
        "public/default",
        lambda it: replace(it, policies={**it.policies, "delayed_delivery_policies": value}),
        by_super_user=True,
    )
    await asyncio.sleep(0.1)


@scenario(delayedDeliveryMaxDelayInMillis=60_000)
async def test_a_delay_over_the_limit_is_refused(broker) -> None:
    producer = await sender(broker)
    fields = {"publish_time": now_ms()}
    producer.delayed_at_once(1, 60, **fields)
    await producer.take(Command.SEND_RECEIPT)
    producer.delayed_at_once(1, 61, **fields)
    refused = (await producer.take(Command.SEND_ERROR)).send_error
    assert refused.error == ServerError.NotAllowedError
    assert "60000 milliseconds" in refused.message


@scenario()
async def test_a_clock_that_is_set_is_followed_within_a_minute(broker) -> None:
    client, producer = Client(broker), await sender(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    (hour,) = await producer.delayed(3600)
    await asyncio.sleep(1)
    broker.broker.clock.step_ms = 3_600_000
    assert [place for _, place, _ in await arrivals(client, 61)] == [hour]


# -- once, and not less --------------------------------------------------------------------------


@pytest.mark.feature("F57")
@scenario()
async def test_what_was_delivered_is_delivered_again_at_once(broker) -> None:
    client, producer = Client(broker), await sender(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    (place,) = await producer.delayed(10)
    assert len(await arrivals(client, 11)) == 1
    redeliver = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    redeliver.redeliverUnacknowledgedMessages.consumer_id = 1
    redeliver.redeliverUnacknowledgedMessages.message_ids.add(ledgerId=place[0], entryId=place[1])
    client.send(redeliver)
    assert [found[1:] for found in await arrivals(client, 0.2)] == [(place, 1)]


@scenario()
async def test_who_comes_later_gets_it_once_at_its_time(broker) -> None:
    first, producer = Client(broker), await sender(broker)
    assert await first.subscribe(TOPIC, kind=SHARED) == 0
    places = await producer.delayed(10, 12)
    await asyncio.sleep(5)
    first.hang_up()
    second = Client(broker)
    assert await second.subscribe(TOPIC, kind=SHARED) == 0
    assert [place for _, place, _ in await arrivals(second, 20)] == places


@scenario()
async def test_due_messages_wait_for_permits_and_come_in_the_order_of_the_topic(broker) -> None:
    client, producer = Client(broker), await sender(broker)
    client.send(client.subscribe_command(TOPIC, kind=SHARED))
    await client.outcome()
    places = await producer.delayed(14, 12, 10)
    await asyncio.sleep(20)
    assert await client.deliveries() == []
    for place in places:
        client.flow(1)
        assert [found[1] for found in await arrivals(client, 0.2)] == [place]


@scenario()
async def test_a_consumer_without_a_queue_gets_past_many_delayed_messages(broker) -> None:
    client, producer = Client(broker), await sender(broker)
    client.send(client.subscribe_command(TOPIC, kind=SHARED))
    await client.outcome()
    producer.delayed_at_once(20_000, 100)
    producer.send_bytes(publish(1, 9, b"live"))
    await asyncio.sleep(1)
    client.flow(1)
    await asyncio.sleep(0.1)
    assert [found.payload for found in await client.deliveries()] == [b"live"]
    assert (await shown(broker))["msgDelayed"] == 20_000


@pytest.mark.feature("F9", "F57")
@scenario()
async def test_delays_leave_the_backlog_as_it_is(broker) -> None:
    client, producer = Client(broker), await sender(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    first, second, live = await producer.delayed(10, 60, 0)
    await asyncio.sleep(0.1)
    stats = await shown(broker)
    assert (stats["msgBacklog"], stats["msgDelayed"], stats["msgBacklogNoDelayed"]) == (3, 2, 1)
    assert (await broker.broker.stats.topic(topic_of(broker)))["delayedMessageIndexSizeInBytes"] > 0
    client.send(client.ack_command(live), client.ack_command(second))
    await asyncio.sleep(0.1)
    stats = await shown(broker)
    assert (stats["msgBacklog"], stats["msgDelayed"]) == (1, 1)
    assert [place for _, place, _ in await arrivals(client, 100)] == [live, first]


@scenario()
async def test_what_was_expired_or_skipped_does_not_come_later(broker) -> None:
    client, producer = Client(broker), await sender(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    ids = await producer.delayed(10, 10, 10)
    await asyncio.sleep(0.1)
    topic_of(broker).subscriptions["s"].acks.expire(Position(*ids[1]))
    assert (await shown(broker))["msgDelayed"] == 1
    assert [place for _, place, _ in await arrivals(client, 20)] == [ids[2]]


@scenario()
async def test_a_seek_begins_again(broker) -> None:
    client, producer = Client(broker), await sender(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    early, late = await producer.delayed(5, 30)
    assert len(await arrivals(client, 10)) == 1
    client.send(client.seek_command(early))
    assert await client.outcome() == 0
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    assert [place for _, place, _ in await arrivals(client, 40)] == [early, late]


@scenario()
async def test_subscriptions_of_a_topic_do_not_disturb_each_other(broker) -> None:
    clients, producer = [Client(broker) for _ in range(3)], await sender(broker)
    for number, client in enumerate(clients):
        assert await client.subscribe(TOPIC, f"s{number}", kind=SHARED) == 0
    ids = await producer.delayed(10, 20)
    await asyncio.sleep(1)
    unsubscribe = Command(type=Command.UNSUBSCRIBE)
    unsubscribe.unsubscribe.consumer_id, unsubscribe.unsubscribe.request_id = 1, 77
    clients[0].send(unsubscribe)
    assert await clients[0].outcome() == 0
    clients[1].send(clients[1].seek_command(ids[0]))
    assert await clients[1].outcome() == 0
    assert await clients[1].subscribe(TOPIC, "s1", kind=SHARED) == 0
    for client in clients[1:]:
        await asyncio.sleep(15)
        assert [found[1] for found in await arrivals(client, 10)] == ids


# -- what is stored ------------------------------------------------------------------------------


@pytest.mark.feature("F57")
@scenario(managedLedgerCacheSizeMB=1)
async def test_after_a_restart_delayed_messages_are_not_read_again(broker) -> None:
    client, producer = Client(broker), await sender(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    producer.delayed_at_once(5000, 100)
    producer.send_bytes(publish(1, 9, b"live"))
    await asyncio.sleep(1)
    assert len(await client.deliveries()) == 1
    await broker.restart()
    reads = broker.bookie.reads
    client = Client(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    await asyncio.sleep(1)
    assert [found.payload for found in await client.deliveries()] == [b"live"]
    assert broker.bookie.reads - reads < 5
    assert (await shown(broker))["msgDelayed"] == 5000
    client.flow(10_000)
    assert len(await arrivals(client, 101)) == 5000


def test_buckets_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    small_buckets(monkeypatch)

    @scenario(isDelayedDeliveryDeliverAtTimeStrict=True)
    async def run(broker) -> None:
        client, producer = Client(broker), await sender(broker)
        assert await client.subscribe(TOPIC, kind=SHARED) == 0
        delays = [(i * 37) % 100 + 5 for i in range(100)]
        places = await producer.delayed(*delays)
        await asyncio.sleep(1)
        ledgers = len(broker.bookie.ledger_ids())
        assert ledgers > 10  # that of the topic, and the buckets
        await broker.restart()
        client = Client(broker)
        assert await client.subscribe(TOPIC, kind=SHARED) == 0
        start = asyncio.get_running_loop().time()
        found = await arrivals(client, 120)
        assert sorted(place for _, place, _ in found) == sorted(places)
        delay_of = dict(zip(places, delays, strict=True))
        for when, place, _ in found:
            assert delay_of[place] - 2 <= when + start - 1 <= delay_of[place] + 2
        await asyncio.sleep(1)
        assert len(broker.bookie.ledger_ids()) <= 3  # no bucket is left
        assert topic_of(broker).delayed.tracker.memory_bytes == 0

    run()


@pytest.mark.parametrize("what", ["ledger", "page", "header", "record"])
def test_a_bucket_that_is_lost_costs_reading_only(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    small_buckets(monkeypatch, 10)

    @scenario(isDelayedDeliveryDeliverAtTimeStrict=True)
    async def run(broker) -> None:
        client, producer = Client(broker), await sender(broker)
        assert await client.subscribe(TOPIC, kind=SHARED) == 0
        places = await producer.delayed(*[20 + i for i in range(30)])
        await asyncio.sleep(1)
        path = topic_of(broker).delayed._buckets.path
        listed = topic_of(broker).delayed._buckets
        buckets = (await listed._list()).buckets
        assert len(buckets) >= 3
        await broker.restart()
        if what == "record":
            await broker.metadata.delete(path)
        elif what == "ledger":
            await broker.bookie.delete(buckets[0])
        else:
            broker.bookie.corrupt(buckets[0], 0 if what == "header" else 2)
        client = Client(broker)
        assert await client.subscribe(TOPIC, kind=SHARED) == 0
        found = await arrivals(client, 80)
        assert [place for _, place, _ in found] == places
        first = found[0][0]
        assert all(abs(when - first - i) < 0.3 for i, (when, _, _) in enumerate(found))

    run()


def test_nothing_is_left_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    small_buckets(monkeypatch)

    @scenario()
    async def run(broker) -> None:
        client, producer = Client(broker), await sender(broker)
        assert await client.subscribe(TOPIC, kind=SHARED) == 0
        await producer.delayed(*[20] * 30)
        path = topic_of(broker).delayed._buckets.path
        assert await broker.metadata.get(path) is not None
        name = TopicName.parse(TOPIC)
        await broker.broker.deletion.delete_topic(name, force=True)
        assert await broker.metadata.get(path) is None
        assert await broker.metadata.children("/ledgers") == [
            str(i) for i in broker.bookie.ledger_ids()
        ]
        assert len(broker.bookie.ledger_ids()) == 1  # the cursors of the bundle

    run()


def test_what_was_trimmed_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    small_buckets(monkeypatch)

    @scenario(managedLedgerMaxEntriesPerLedger=10, managedLedgerMinLedgerRolloverTimeMinutes=0)
    async def run(broker) -> None:
        client, producer = Client(broker), await sender(broker)
        assert await client.subscribe(TOPIC, kind=SHARED) == 0
        places = await producer.delayed(*[1000] * 35)
        topic = topic_of(broker)
        last = places[29]
        topic.subscriptions["s"].acks.expire(Position(*last))
        await asyncio.sleep(0.1)
        await topic.ledger.trim(Position(last[0] + 1, 0))
        topic.retention.trimmed()
        await asyncio.sleep(2)
        assert {p.ledger_id for p in topic.delayed.tracker.positions} == {places[-1][0]}
        assert (await shown(broker))["msgDelayed"] == 5
        listed = await topic.delayed._buckets._list()
        assert len(listed.buckets) <= 2
        assert listed.to_delete == ()

    run()


def test_the_disk_may_be_full_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    small_buckets(monkeypatch)

    @scenario(isDelayedDeliveryDeliverAtTimeStrict=True)
    async def run(broker) -> None:
        client, producer = Client(broker), await sender(broker)
        places = await producer.delayed(*[20] * 30)
        broker.bookie.full = True
        assert await client.subscribe(TOPIC, kind=SHARED) == 0
        await asyncio.sleep(5)
        broker.bookie.full = False
        places += await producer.delayed(*[16] * 30)
        await asyncio.sleep(5)
        listed = await topic_of(broker).delayed._buckets._list()
        assert listed.buckets
        assert listed.to_delete == () or len(listed.to_delete) == 1
        assert sorted(place for _, place, _ in await arrivals(client, 20)) == places

    run()


# -- at random -----------------------------------------------------------------------------------

TICK_MS = 1000


class Life:
    """Consumers of one subscription that come, take, acknowledge, nack and leave."""

    def __init__(self, broker: BrokerInMemory, producer: Sender, kind: int, seed: int) -> None:
        self.broker, self.producer, self.kind = broker, producer, kind
        self.rng = random.Random(seed)
        self.consumers: list[Client] = []
        self.due: dict[Id, int] = {}
        self.held: dict[Id, Client] = {}
        """Delivered and not acknowledged."""
        self.acked: set[Id] = set()

    async def step(self) -> None:
        actions = [self.publish] * 4 + [self.wait] * 3 + [self.ack] * 3
        actions += [self.connect, self.leave, self.nack, self.restart]
        await self.rng.choice(actions)()
        await self.look()

    async def publish(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            delay = self.rng.choice([0, 0, 3, 10, 30, 90])
            at = now_ms() + delay * 1000 if delay else 0
            key = str(self.rng.randrange(5))
            place = await self.producer.publish(0, deliver_at_time=at, partition_key=key)
            self.due[place] = at

    async def wait(self) -> None:
        await asyncio.sleep(self.rng.choice([0, 0.01, 1, 5, 20]))

    async def connect(self) -> None:
        if len(self.consumers) < 3:
            client = Client(self.broker)
            assert await client.subscribe(TOPIC, kind=self.kind) == 0
            self.consumers.append(client)

    async def leave(self) -> None:
        if self.consumers:
            await self.look()
            gone = self.consumers.pop(self.rng.randrange(len(self.consumers)))
            gone.hang_up()
            self.held = {p: c for p, c in self.held.items() if c is not gone}
            await asyncio.sleep(0)

    async def ack(self) -> None:
        for place in self.some():
            client = self.held.pop(place)
            client.send(client.ack_command(place))
            self.acked.add(place)

    async def nack(self) -> None:
        for place in self.some():
            client = self.held.pop(place)
            command = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
            request = command.redeliverUnacknowledgedMessages
            request.consumer_id = 1
            request.message_ids.add(ledgerId=place[0], entryId=place[1])
            client.send(command)

    def some(self) -> list[Id]:
        return self.rng.sample(sorted(self.held), self.rng.randint(0, len(self.held)))

    async def restart(self) -> None:
        if self.rng.random() < 0.5:
            while self.consumers:
                await self.leave()
            await asyncio.sleep(1.1)  # acknowledgements reach the cursor log
            await self.broker.restart()
            self.producer = await sender(self.broker)

    async def look(self) -> None:
        for client in self.consumers:
            for each in await client.deliveries():
                place = (each.message.message_id.ledgerId, each.message.message_id.entryId)
                assert place not in self.held, "delivered to two"
                assert place not in self.acked, "delivered after it was acknowledged"
                assert self.due[place] <= now_ms() + TICK_MS, "too early"
                self.held[place] = client
                client.flow(1)

    async def end(self) -> None:
        await self.connect()
        for _ in range(300):
            await asyncio.sleep(0.5)
            await self.look()
            for place in list(self.held):
                client = self.held.pop(place)
                client.send(client.ack_command(place))
                self.acked.add(place)
        assert self.acked == set(self.due), "lost"
        await asyncio.sleep(0.1)
        assert (await shown(self.broker))["msgBacklog"] == 0
        assert not topic_of(self.broker).subscriptions["s"].dispatcher.held_back


@pytest.mark.feature("F57", "F58")
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("seed", range(8))
def test_at_random_nothing_is_lost_nor_early_nor_twice(
    monkeypatch: pytest.MonkeyPatch, kind: int, seed: int
) -> None:
    small_buckets(monkeypatch)
    changed = {
        "managedLedgerMaxEntriesPerLedger": 20,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
        "maxUnackedMessagesPerConsumer": 30,
    }

    @scenario(**changed)
    async def run(broker) -> None:
        life = Life(broker, await sender(broker), kind, seed)
        await life.connect()
        for _ in range(70):
            await life.step()
        await life.end()

    run()
