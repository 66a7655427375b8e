"""Backlogs: their exact counts, messages that are too old, and quotas with three policies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsark.config.settings import Settings
from pulsark.dispatch.policies.policies import BY_AGE, BY_SIZE, effective
from pulsark.dispatch.topic.backlog import Exceeded, exceeded
from pulsark.errors import ServerError
from pulsark.storage.cursor.owners import CursorOwner
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.position import EARLIEST, Position
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario
from tests.support.wire_frames import publish

NAMESPACE = "public/n"
TOPIC = f"persistent://{NAMESPACE}/t"
NAME = TopicName.parse(TOPIC)
QUIET = {"keepAliveIntervalSeconds": 1_000_000}
SHARED = pb.CommandSubscribe.Shared
TTL_CHECK, QUOTA_CHECK = 301, 61
HOLD, EXCEPTION, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"


def quota(kind: str, limit: int, policy: str) -> dict[str, Any]:
    size, seconds = (limit, -1) if kind == BY_SIZE else (-1, limit)
    return {
        "backlog_quota_map": {kind: {"limitSize": size, "limitTime": seconds, "policy": policy}}
    }


async def namespace(broker: BrokerInMemory, **policies: Any) -> None:
    keep = {"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}
    await broker.broker.resources.namespaces.create(NAMESPACE, policies={**keep, **policies})


class Publisher(Client):
    """A client whose messages carry the broker's time."""

    def __init__(self, broker: BrokerInMemory) -> None:
        super().__init__(broker)
        self._clock = broker.broker.clock
        self._sequence = 0

    async def open(self, producer_id: int = 1) -> int:
        """Open a producer; 0 or the code of the refusal."""
        self.send(self.producer_command(TOPIC, f"p{producer_id}", producer_id))
        answer = await self.take(Command.PRODUCER_SUCCESS, Command.ERROR)
        return answer.error.error if answer.type == Command.ERROR else 0

    async def put(self, count: int, size: int = 10) -> list[tuple[int, int]]:
        ids = []
        for _ in range(count):
            self._sequence += 1
            self.send_bytes(
                publish(1, self._sequence, b"x" * size, publish_time=self._clock.now_ms())
            )
            receipt = (await self.take(Command.SEND_RECEIPT)).send_receipt
            ids.append((receipt.message_id.ledgerId, receipt.message_id.entryId))
        return ids


def subscription(broker: BrokerInMemory, name: str = "s") -> Any:
    return broker.broker.topics.get_loaded(NAME).subscriptions[name]


async def absent(broker: BrokerInMemory, *names: str) -> None:
    """Subscriptions whose consumers have left."""
    for name in names:
        client = Client(broker)
        assert await client.subscribe(TOPIC, name) == 0
        client.hang_up()
    await asyncio.sleep(0.1)


# -- time to live --------------------------------------------------------------------------------


@pytest.mark.feature("F53")
@scenario(**QUIET)
async def test_messages_that_are_too_old_count_as_acknowledged(broker) -> None:
    await namespace(broker, message_ttl_in_seconds=100)
    await absent(broker, "s", "t")
    client = Publisher(broker)
    await client.open()
    await client.put(150)
    await asyncio.sleep(TTL_CHECK - 60)
    kept = await client.put(3)
    await asyncio.sleep(60)
    for name in ("s", "t"):
        found = subscription(broker, name)
        assert found.backlog == 3
        assert (found.totals.entries_expired, found.totals.last_expire_ms > 0) == (150, True)
    consumer = Client(broker)
    await consumer.subscribe(TOPIC)
    assert await consumer.received(3) == kept


@pytest.mark.feature("F53")
@scenario(**QUIET)
async def test_who_has_acknowledged_further_stays_where_it_is(broker) -> None:
    await namespace(broker, message_ttl_in_seconds=100)
    await absent(broker, "s")
    consumer = Client(broker)
    await consumer.subscribe(TOPIC, "fast")
    client = Publisher(broker)
    await client.open()
    ids = await client.put(10)
    consumer.send(consumer.ack_command(ids[-1], cumulative=True))
    await asyncio.sleep(TTL_CHECK)
    assert subscription(broker, "s").totals.entries_expired == 10
    assert subscription(broker, "fast").totals.entries_expired == 0
    assert subscription(broker, "fast").mark_delete == ids[-1]


@pytest.mark.parametrize("wrong_s", [-86_400, 86_400])
@scenario(**QUIET)
async def test_a_client_with_a_wrong_clock_expires_nothing_and_keeps_nothing(
    broker: BrokerInMemory, wrong_s: int
) -> None:
    await namespace(broker, message_ttl_in_seconds=400, **quota(BY_AGE, 450, EVICT))
    await absent(broker, "s")
    client, wrong = Publisher(broker), Publisher(broker)
    await client.open()
    await wrong.open(2)
    clock = broker.broker.clock
    for number in range(200):  # more of them than any search looks at
        await client.put(1)
        await wrong.publish(number, producer_id=2, publish_time=clock.now_ms() + wrong_s * 1000)
    await asyncio.sleep(TTL_CHECK)
    assert subscription(broker).backlog == 400
    await asyncio.sleep(TTL_CHECK)
    assert subscription(broker).backlog == 0


@scenario(**QUIET)
async def test_after_a_restart_messages_are_as_old_as_the_end_of_their_ledger(broker) -> None:
    await namespace(broker, message_ttl_in_seconds=400)
    await absent(broker, "s")
    client = Publisher(broker)
    await client.open()
    await client.put(3)
    await asyncio.sleep(200)
    await broker.restart()
    client = Publisher(broker)
    await client.open()
    await client.put(1)
    await asyncio.sleep(TTL_CHECK)
    assert subscription(broker).backlog == 4
    await asyncio.sleep(TTL_CHECK)
    assert subscription(broker).backlog == 0


@scenario(**QUIET)
async def test_a_reader_sees_what_has_expired(broker) -> None:
    await namespace(broker, message_ttl_in_seconds=100)
    reader = Client(broker)
    reader.send(reader.subscribe_command(TOPIC, "r", durable=False, start=(2**64 - 1, 2**64 - 1)))
    assert await reader.outcome() == 0
    client = Publisher(broker)
    await client.open()
    ids = await client.put(3)
    await asyncio.sleep(TTL_CHECK)
    reader.flow(10)
    assert await reader.received(3) == ids


@pytest.mark.feature("F53")
@scenario(**QUIET)
async def test_a_consumer_that_holds_expired_messages_gets_new_ones(broker) -> None:
    await namespace(broker, message_ttl_in_seconds=100, max_unacked_messages_per_consumer=5)
    consumer = Client(broker)
    await consumer.subscribe(TOPIC, kind=SHARED)
    client = Publisher(broker)
    await client.open()
    ids = await client.put(8)
    assert await consumer.received(5) == ids[:5]
    held = subscription(broker)
    assert held.dispatcher.unacked.messages == 5
    await asyncio.sleep(TTL_CHECK)
    assert (held.dispatcher.unacked.messages, held.backlog, held.totals.entries_expired) == (
        0,
        0,
        8,
    )
    new = await client.put(5)
    assert await consumer.received(5) == new
    consumer.send(consumer.ack_command(ids[0]))
    await asyncio.sleep(0.1)
    assert held.dispatcher.unacked.messages == 5


@scenario(**QUIET, ttlDurationDefaultInSeconds=100, messageExpiryCheckIntervalInMinutes=1)
async def test_the_brokers_own_time_to_live(broker) -> None:
    await namespace(broker)
    await absent(broker, "s")
    client = Publisher(broker)
    await client.open()
    await client.put(1)
    await asyncio.sleep(90)
    assert subscription(broker).backlog == 1
    await asyncio.sleep(60)
    assert subscription(broker).backlog == 0


@scenario(**QUIET, managedLedgerMaxEntriesPerLedger=2, managedLedgerMinLedgerRolloverTimeMinutes=0)
async def test_expired_messages_leave_the_disk(broker) -> None:
    forget = {"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}}
    await namespace(broker, message_ttl_in_seconds=100, **forget)
    await absent(broker, "s")
    client = Publisher(broker)
    await client.open()
    await client.put(5)
    await asyncio.sleep(TTL_CHECK + 121)
    assert broker.broker.topics.get_loaded(NAME).ledger.entries == 1


# -- exact counts ----------------------------------------------------------------------------------


@scenario(**QUIET, acknowledgmentAtBatchIndexLevelEnabled=True)
async def test_the_backlog_is_exact_with_holes(broker) -> None:
    await namespace(broker)
    consumer = Client(broker)
    await consumer.subscribe(TOPIC, kind=SHARED)
    client = Publisher(broker)
    await client.open()
    ids = await client.put(100)
    for position in ids[10:90:2]:
        consumer.send(consumer.ack_command(position))
    consumer.send(consumer.ack_command(ids[91], ack_set=(1,)))
    await asyncio.sleep(0.1)
    assert subscription(broker).backlog == 60
    subscription(broker).acks.expire(Position(*ids[50]))
    assert subscription(broker).backlog == 100 - 51 - 19
    assert subscription(broker).totals.entries_expired == 51 - 21


# -- quotas ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "seconds", "backlog", "age", "expected"),
    [
        (-1, -1, 10**12, 1e9, None),
        (1000, -1, 999, 1e9, None),
        (1000, -1, 1000, 0, "size"),
        (0, -1, 0, 0, "size"),
        (-1, 60, 10**12, 60, None),
        (-1, 60, 0, 60.1, "age"),
        (-1, 0, 0, 60, None),
        (1000, 60, 2000, 61, "size"),
    ],
)
def test_what_is_over_a_quota(
    size: int, seconds: int, backlog: int, age: float, expected: str | None
) -> None:
    policies = effective(
        Settings(backlogQuotaDefaultLimitBytes=size, backlogQuotaDefaultLimitSecond=seconds), {}, {}
    )
    wanted = {
        None: None,
        "size": Exceeded(policies.backlog_by_size, by_age=False),
        "age": Exceeded(policies.backlog_by_age, by_age=True),
    }
    assert exceeded(policies, backlog, age) == wanted[expected]


CODES = {
    HOLD: ServerError.ProducerBlockedQuotaExceededError,
    EXCEPTION: ServerError.ProducerBlockedQuotaExceededException,
}


def check_producers_come_back(policy: str, kind: str, limit: int) -> None:
    @scenario(**QUIET)
    async def run(broker: BrokerInMemory) -> None:
        await namespace(broker, **quota(kind, limit, policy))
        consumer = Client(broker)
        await consumer.subscribe(TOPIC)
        client = Publisher(broker)
        assert await client.open() == 0
        ids = await client.put(20, size=100)
        await asyncio.sleep(2 * QUOTA_CHECK)
        closed = await client.take(Command.CLOSE_PRODUCER)
        assert closed.close_producer.producer_id == 1
        assert await client.open() == CODES[policy]
        assert await Publisher(broker).open(2) == CODES[policy]
        # Nobody has to wait for the next look at quotas.
        consumer.send(consumer.ack_command(ids[-1], cumulative=True))
        await asyncio.sleep(0.1)
        assert await client.open() == 0
        await client.put(1)
        await asyncio.sleep(QUOTA_CHECK)
        assert not client.has(Command.CLOSE_PRODUCER) or kind == BY_AGE

    run()


@pytest.mark.parametrize("policy", [HOLD, EXCEPTION])
def test_producers_are_sent_away_until_the_backlog_has_shrunk(policy: str) -> None:
    check_producers_come_back(policy, BY_SIZE, 2000)


@pytest.mark.parametrize("policy", [HOLD, EXCEPTION])
def test_producers_are_sent_away_until_the_backlog_is_young(policy: str) -> None:
    check_producers_come_back(policy, BY_AGE, 60)


@scenario(**QUIET)
async def test_who_is_refused_by_a_quota_can_still_acknowledge(broker) -> None:
    """One connection produces and consumes: its acknowledgement does not wait for room."""
    await namespace(broker, **quota(BY_SIZE, 2000, HOLD))
    client = Publisher(broker)
    await client.subscribe(TOPIC)
    assert await client.open() == 0
    ids = await client.put(30, size=100)
    await asyncio.sleep(QUOTA_CHECK)
    await client.take(Command.CLOSE_PRODUCER)
    assert await client.open() == ServerError.ProducerBlockedQuotaExceededError
    client.send(client.ack_command(ids[-1], cumulative=True))
    client.send(client.producer_command(TOPIC, "p1", 1))
    answer = await client.take(Command.PRODUCER_SUCCESS, Command.ERROR)
    assert answer.type == Command.PRODUCER_SUCCESS


@scenario(**QUIET)
async def test_the_slowest_subscription_decides(broker) -> None:
    await namespace(broker, **quota(BY_SIZE, 2000, EXCEPTION))
    await absent(broker, "slow")
    consumer = Client(broker)
    await consumer.subscribe(TOPIC, "fast")
    client = Publisher(broker)
    assert await client.open() == 0
    ids = await client.put(20, size=100)
    consumer.send(consumer.ack_command(ids[-1], cumulative=True))
    await asyncio.sleep(0.1)
    assert await Publisher(broker).open(2) == ServerError.ProducerBlockedQuotaExceededException
    await subscription(broker, "slow").delete(force=True)
    assert await Publisher(broker).open(2) == 0


@scenario(**QUIET, managedLedgerMaxEntriesPerLedger=8, managedLedgerMinLedgerRolloverTimeMinutes=0)
async def test_eviction_takes_the_oldest_from_whoever_is_behind(broker) -> None:
    await namespace(broker, **quota(BY_SIZE, 5000, EVICT))
    await absent(broker, "slow")
    consumer = Client(broker)
    await consumer.subscribe(TOPIC, "fast")
    client = Publisher(broker)
    assert await client.open() == 0
    ids = await client.put(100, size=100)
    consumer.send(consumer.ack_command(ids[89], cumulative=True))
    await asyncio.sleep(QUOTA_CHECK)
    slow, fast = subscription(broker, "slow"), subscription(broker, "fast")
    assert 4300 < slow.backlog_size <= 4500
    entry = broker.broker.topics.get_loaded(NAME).ledger.total_size / 100
    assert slow.backlog == 4500 // entry
    assert (fast.backlog, fast.mark_delete) == (10, ids[89])
    assert not client.has(Command.CLOSE_PRODUCER)
    assert await Publisher(broker).open(2) == 0


@scenario(**QUIET)
async def test_eviction_by_age(broker) -> None:
    await namespace(broker, **quota(BY_AGE, 100, EVICT))
    await absent(broker, "s")
    client = Publisher(broker)
    assert await client.open() == 0
    await client.put(150)
    await asyncio.sleep(80)
    await client.put(3)
    await asyncio.sleep(50)
    assert subscription(broker).backlog == 3


@scenario(**QUIET, managedLedgerMaxEntriesPerLedger=2, managedLedgerMinLedgerRolloverTimeMinutes=0)
async def test_the_brokers_own_subscriptions_keep_messages_and_count_for_nothing_else(
    broker,
) -> None:
    await namespace(
        broker,
        retention_policies={"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
        message_ttl_in_seconds=100,
        max_subscriptions_per_topic=1,
        subscription_expiration_time_minutes=1,
        **quota(BY_SIZE, 300, EXCEPTION),
    )
    client = Publisher(broker)
    await client.open()
    topic = broker.broker.topics.get_loaded(NAME)
    own = await topic.registry.create(
        "__compaction", EARLIEST, {}, durable=True, by=CursorOwner.COMPACTION
    )
    ids = await client.put(7, size=100)
    await asyncio.sleep(TTL_CHECK)
    assert (own.backlog, topic.ledger.entries) == (7, 7)
    assert not client.has(Command.CLOSE_PRODUCER)
    assert await Client(broker).subscribe(TOPIC) == 0
    await topic.subscriptions["s"].delete(force=True)
    own.cursor.ack_cumulative(Position(*ids[-1]))
    await asyncio.sleep(121)
    assert topic.ledger.entries <= 1


# -- limits of producers, consumers and subscriptions --------------------------------------------


@scenario()
async def test_limits_of_producers_consumers_and_subscriptions(broker) -> None:
    await namespace(
        broker,
        max_producers_per_topic=1,
        max_consumers_per_topic=3,
        max_consumers_per_subscription=2,
        max_subscriptions_per_topic=2,
    )
    client = Publisher(broker)
    assert await client.open(1) == 0
    assert await client.open(2) == ServerError.ProducerBusy
    client.send(client.close_command("producer", 1))
    await client.take(Command.SUCCESS)
    assert await client.open(2) == 0
    assert await Client(broker).subscribe(TOPIC, "a", kind=SHARED) == 0
    assert await Client(broker).subscribe(TOPIC, "a", kind=SHARED) == 0
    assert await Client(broker).subscribe(TOPIC, "a", kind=SHARED) == ServerError.ConsumerBusy
    third = Client(broker)
    assert await third.subscribe(TOPIC, "b", kind=SHARED) == 0
    assert await Client(broker).subscribe(TOPIC, "b", kind=SHARED) == ServerError.ConsumerBusy
    await third.close()
    assert await Client(broker).subscribe(TOPIC, "c") == ServerError.NotAllowedError


@scenario()
async def test_producers_that_do_not_encrypt_are_refused_where_that_is_required(broker) -> None:
    await namespace(broker, encryption_required=True)
    client = Publisher(broker)
    assert await client.open() == ServerError.MetadataError
    command = client.producer_command(TOPIC, "p")
    command.producer.encrypted = True
    client.send(command)
    await client.take(Command.PRODUCER_SUCCESS)
