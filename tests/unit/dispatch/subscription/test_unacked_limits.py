"""Limits of unacknowledged messages: of a consumer, of a subscription, of the broker."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.dispatch.subscription.broker_unacked import BrokerUnacked
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import (
    EXCLUSIVE,
    FAILOVER,
    SHARED,
    SHARING,
    TOPIC,
    BrokerInMemory,
    Client,
    Command,
    consuming,
    scenario,
)

OTHER = "persistent://public/default/other"

Ids = list[tuple[int, int]]


async def taken(client: Client) -> Ids:
    """Ids of what was delivered since the last call."""
    ids = [delivery.message.message_id for delivery in await client.deliveries()]
    return [(i.ledgerId, i.entryId) for i in ids]


async def stats(client: Client) -> pb.CommandConsumerStatsResponse:
    ask = Command(type=Command.CONSUMER_STATS)
    ask.consumerStats.consumer_id, ask.consumerStats.request_id = 1, 99
    client.send(ask)
    return (await client.take(Command.CONSUMER_STATS_RESPONSE)).consumerStatsResponse


def subscription(broker: BrokerInMemory, topic: str = TOPIC):
    return broker.broker.topics.get_loaded(TopicName.parse(topic)).subscriptions["s"]


# -- one consumer -------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [3, 7, 8, 0])
@pytest.mark.parametrize("kind", SHARING)
def test_a_blocked_consumer_goes_on_once_its_limit_is_twice_what_it_has(
    kind: int, limit: int
) -> None:
    @scenario(maxUnackedMessagesPerConsumer=4)
    async def run(broker: BrokerInMemory) -> None:
        client, ids = await consuming(broker, 20, kind=kind)
        assert await taken(client) == ids[:4]
        policies = {"max_unacked_messages_per_consumer": limit}
        await broker.broker.resources.topic_policies.update(
            TopicName.parse(TOPIC), lambda _: policies
        )
        await asyncio.sleep(0.1)
        assert await taken(client) == (ids[4:8] if limit == 8 else [] if limit else ids[4:])

    run()


@pytest.mark.feature("F13")
@pytest.mark.command("CONSUMER_STATS", "FLOW")
@pytest.mark.parametrize("kind", SHARING)
@scenario(maxUnackedMessagesPerConsumer=4)
async def test_a_consumer_at_its_limit_waits_until_it_is_at_half(
    broker: BrokerInMemory, kind: int
) -> None:
    client, ids = await consuming(broker, 9, kind=kind)
    assert await taken(client) == ids[:4]
    assert (await stats(client)).blockedConsumerOnUnackedMsgs
    assert (await stats(client)).unackedMessages == 4
    client.flow(5)  # kept for later
    assert await client.ack(ids[0]) == 0
    assert await taken(client) == []
    assert await client.ack(ids[1]) == 0
    assert await taken(client) == ids[4:6]
    found = await stats(client)
    assert (found.blockedConsumerOnUnackedMsgs, found.availablePermits) == (True, 999)
    assert await client.ack(*ids[2:6]) == 0
    assert await taken(client) == ids[6:]
    assert not (await stats(client)).blockedConsumerOnUnackedMsgs


@pytest.mark.parametrize("kind", SHARING)
@scenario(maxUnackedMessagesPerConsumer=4)
async def test_a_redelivery_lets_a_consumer_at_its_limit_go_on(
    broker: BrokerInMemory, kind: int
) -> None:
    client, ids = await consuming(broker, 6, kind=kind)
    assert await taken(client) == ids[:4]
    client.redeliver(ids[1])
    assert await taken(client) == [ids[1]]
    assert (await stats(client)).blockedConsumerOnUnackedMsgs
    client.redeliver()
    assert await taken(client) == ids[:4]
    client.redeliver(ids[5])  # it does not have that
    assert await taken(client) == []
    assert (await stats(client)).blockedConsumerOnUnackedMsgs
    assert await client.ack(*ids[:4]) == 0
    assert await taken(client) == ids[4:]


@pytest.mark.parametrize("kind", SHARING)
@scenario(maxUnackedMessagesPerConsumer=4, acknowledgmentAtBatchIndexLevelEnabled=True)
async def test_a_batch_goes_over_the_limit_as_a_whole(broker: BrokerInMemory, kind: int) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 0)
    first, large, last = [await client.publish_batch(n, n) for n in (3, 7, 2)]
    assert await client.subscribe(TOPIC, kind=kind) == 0
    assert await taken(client) == [first, large]
    assert (await stats(client)).unackedMessages == 10
    assert await client.ack(large, ack_set=(0,)) == 0
    assert await taken(client) == []
    assert await client.ack(first, ack_set=(0b011,)) == 0
    assert await taken(client) == [last]


@pytest.mark.parametrize(
    ("kind", "durable"), [(EXCLUSIVE, True), (FAILOVER, True), (SHARED, False)]
)
def test_who_has_no_limit(kind: int, durable: bool) -> None:
    @scenario(
        maxUnackedMessagesPerConsumer=2,
        maxUnackedMessagesPerSubscription=2,
        maxUnackedMessagesPerBroker=2,
    )
    async def run(broker: BrokerInMemory) -> None:
        client = Client(broker)
        ids = await client.produce(TOPIC, 9)
        start = {} if durable else {"start": (2**64 - 1, 2**64 - 1)}
        assert await client.subscribe(TOPIC, kind=kind, durable=durable, **start) == 0
        assert await taken(client) == ids
        assert broker.broker.loader.unacked.total == 0

    run()


# -- all consumers of a subscription ------------------------------------------------------------


@pytest.mark.parametrize("kind", SHARING)
@scenario(maxUnackedMessagesPerSubscription=6)
async def test_a_subscription_at_its_limit_waits_until_it_is_at_half(
    broker: BrokerInMemory, kind: int
) -> None:
    clients = [Client(broker) for _ in range(2)]
    await clients[0].produce(TOPIC, 14)
    for client in clients:
        command = client.subscribe_command(TOPIC, kind=kind)
        client.send(command)
        assert await client.outcome() == 0
    for client in clients:
        client.flow(4 if kind == SHARED else 100)
    got = [await taken(client) for client in clients]
    assert len(set(got[0] + got[1])) == 6
    assert subscription(broker).dispatcher.unacked.blocked
    for client in clients:
        client.flow(100)
    acked = 0
    for client, mine in zip(clients, got, strict=True):
        for place in mine:
            assert await client.ack(place) == 0
            acked += 1
            more = [*await taken(clients[0]), *await taken(clients[1])]
            assert len(more) == (3 if acked == 3 else 0)
            if acked == 3:
                return


@pytest.mark.parametrize("kind", SHARING)
@scenario(maxUnackedMessagesPerSubscription=4)
async def test_a_consumer_that_leaves_frees_its_subscription(
    broker: BrokerInMemory, kind: int
) -> None:
    client, other = Client(broker), Client(broker)
    ids = await client.produce(TOPIC, 8)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    assert await taken(client) == ids[:4]
    assert await other.subscribe(TOPIC, kind=kind) == 0
    assert await taken(other) == []
    await client.close()
    assert await taken(other) == ids[:4]
    assert subscription(broker).dispatcher.unacked.messages == 4


# -- all subscriptions of a broker --------------------------------------------------------------


BROKER = {
    "maxUnackedMessagesPerBroker": 20,
    "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": 0.2,
}


@pytest.mark.parametrize("kind", SHARING)
@scenario(**BROKER)
async def test_at_the_brokers_limit_those_with_much_unacknowledged_wait(
    broker: BrokerInMemory, kind: int
) -> None:
    greedy, modest = Client(broker), Client(broker)
    many = await greedy.produce(TOPIC, 30)
    few = await modest.produce(OTHER, 12)
    assert await modest.subscribe(OTHER, kind=kind) == 0
    assert await taken(modest) == few
    assert await modest.ack(*few[2:]) == 0
    assert await greedy.subscribe(TOPIC, kind=kind) == 0
    assert await taken(greedy) == many[:18]
    assert broker.broker.loader.unacked.total == 20
    assert subscription(broker).dispatcher.unacked.blocked
    assert not subscription(broker, OTHER).dispatcher.unacked.blocked
    # The other one has little, and stands still when it has more than a fifth of the limit.
    more = [await modest.publish(12 + n) for n in range(5)]
    assert await taken(modest) == more[:3]
    assert subscription(broker, OTHER).dispatcher.unacked.blocked
    assert await modest.ack(*few[:2], more[0]) == 0
    assert await taken(modest) == more[3:]
    # All go on at half of the broker's limit.
    assert await greedy.ack(*many[:11]) == 0
    assert await taken(greedy) == []
    assert await greedy.ack(many[11]) == 0
    assert await taken(greedy) == many[18:28]
    assert broker.broker.loader.unacked.total == 20
    # And one goes on at half of what one may have, though the broker is at its limit.
    assert await greedy.ack(*many[12:25]) == 0
    await asyncio.sleep(0.01)
    assert broker.broker.loader.unacked.total == 9


@scenario(**BROKER)
async def test_who_disconnects_does_not_count_any_more(broker) -> None:
    client, other = Client(broker), Client(broker)
    ids = await client.produce(TOPIC, 30)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    assert await taken(client) == ids[:20]
    assert await other.subscribe(TOPIC, kind=SHARED) == 0
    assert await taken(other) == []
    client.hang_up()
    assert await taken(other) == ids[:20]
    await broker.broker.topics.unload(TopicName.parse(TOPIC))
    assert broker.broker.loader.unacked.total == 0


class Held:
    """A subscription that only counts."""

    def __init__(self) -> None:
        self.messages = 0
        self.held = False

    def hold_for_broker(self, held: bool) -> None:
        assert held != self.held
        self.held = held


def test_the_brokers_limit() -> None:
    unacked = BrokerUnacked(100, 0.16)
    a, b, c = subscriptions = [Held(), Held(), Held()]

    def after(one: Held, count: int) -> str:
        one.messages = count
        unacked.report(one)
        assert unacked.total == sum(s.messages for s in subscriptions)
        return "".join(name for name, s in zip("abc", subscriptions, strict=True) if s.held)

    assert after(a, 83) == ""
    assert after(b, 16) == ""
    assert after(c, 1) == "a"  # nobody is held who has 16 of 100
    assert after(b, 17) == "ab"
    assert after(b, 9) == "ab"
    assert after(b, 8) == "a"
    assert after(a, 41) == ""  # half of all
    assert after(a, 90) == ""
    assert after(c, 2) == "a"
    assert after(a, 0) == ""
    assert after(b, 0) == ""
    assert after(c, 0) == ""
