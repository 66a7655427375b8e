"""Policies hold for topics that nobody has loaded, and what has nothing due is not loaded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pulsark.config.settings import Settings
from pulsark.dispatch.broker_chores import chores_of
from pulsark.dispatch.policies.policies import (
    BacklogQuota,
    InactiveTopics,
    TopicPolicies,
    effective,
)
from pulsark.dispatch.topic.backlog import EVICT, HOLD
from pulsark.dispatch.topics.inactivity import CAUGHT_UP
from pulsark.dispatch.upkeep.unloaded_policies import forgets, has_work
from pulsark.errors import StorageError
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedgerRecord, read_record
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.position import EARLIEST, Position
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario

MINUTE = 60_000
NOW = 1_000 * MINUTE
NAMESPACE = "public/n"
TOPIC = f"persistent://{NAMESPACE}/t"
NAME = TopicName.parse(TOPIC)
PATH = f"/managed-ledgers/{NAMESPACE}/persistent/t"
ROUND = 1000
SETTINGS: dict[str, Any] = {
    "keepAliveIntervalSeconds": 1_000_000,
    "topicsAtRestCheckIntervalInSeconds": ROUND,
    "brokerDeleteInactiveTopicsEnabled": False,
}

# -- what is due ---------------------------------------------------------------------------------

KEEPS_ALL = replace(
    effective(Settings(), {}, {}),
    retention_minutes=-1,
    retention_mb=-1,
    inactive=InactiveTopics(False, "delete_when_no_subscriptions", 60),
)
LEDGERS = (LedgerInfo(3, 10, 1000, NOW - 20 * MINUTE), LedgerInfo(5, 10, 1000, NOW - 10 * MINUTE))
BEGIN, MIDDLE, END = EARLIEST, Position(3, 9), Position(5, 9)


def rules(**changed: Any) -> TopicPolicies:
    return replace(KEEPS_ALL, **changed)


DELETE = InactiveTopics(True, "delete_when_no_subscriptions", 60)
DELETE_CAUGHT_UP = InactiveTopics(True, CAUGHT_UP, 60)
NO_RETENTION = {"retention_minutes": 0, "retention_mb": 0}


@pytest.mark.parametrize(
    ("policies", "cursors", "rest_minutes", "expected"),
    [
        (rules(), {}, 999, False),
        (rules(), {"s": BEGIN}, 999, False),
        # Retention, by what everybody has acknowledged.
        (rules(**NO_RETENTION), {}, 0, True),
        (rules(**NO_RETENTION), {"s": BEGIN}, 0, False),
        (rules(**NO_RETENTION), {"s": MIDDLE}, 0, True),
        (rules(**NO_RETENTION), {"s": END, "pulsar.dedup": BEGIN}, 0, False),
        (rules(retention_minutes=15), {"s": END}, 0, True),
        (rules(retention_minutes=25), {"s": END}, 0, False),
        # Messages that are too old, whole ledgers of them.
        (rules(message_ttl_seconds=19 * 60), {"s": BEGIN}, 0, True),
        (rules(message_ttl_seconds=21 * 60), {"s": BEGIN}, 0, False),
        (rules(message_ttl_seconds=19 * 60), {"s": MIDDLE}, 0, False),
        (rules(message_ttl_seconds=9 * 60), {"s": MIDDLE}, 0, True),
        (rules(message_ttl_seconds=1), {"s": END}, 0, False),
        (rules(message_ttl_seconds=1), {"__compaction": BEGIN}, 0, False),
        # Backlogs that are too large or too old, where that takes messages away.
        (rules(backlog_by_age=BacklogQuota(19 * 60, EVICT)), {"s": BEGIN}, 0, True),
        (rules(backlog_by_age=BacklogQuota(19 * 60, HOLD)), {"s": BEGIN}, 0, False),
        (rules(backlog_by_size=BacklogQuota(1500, EVICT)), {"s": BEGIN}, 0, True),
        (rules(backlog_by_size=BacklogQuota(1500, EVICT)), {"s": MIDDLE, "r": END}, 0, False),
        # Topics and subscriptions that nobody uses.
        (rules(retention_minutes=0, inactive=DELETE), {"__compaction": BEGIN}, 1, True),
        (rules(retention_minutes=0, inactive=DELETE), {"s": BEGIN}, 1, False),
        (rules(retention_minutes=5, inactive=DELETE), {"s": BEGIN}, 4, False),
        (rules(retention_minutes=0, inactive=DELETE_CAUGHT_UP), {"s": END}, 1, True),
        (rules(retention_minutes=0, inactive=DELETE_CAUGHT_UP), {"s": BEGIN}, 1, False),
        (rules(subscription_expiration_minutes=5), {"s": BEGIN}, 5, True),
        (rules(subscription_expiration_minutes=5), {"s": BEGIN}, 4, False),
        (rules(subscription_expiration_minutes=5), {}, 5, False),
    ],
)
def test_what_is_due(
    policies: TopicPolicies, cursors: dict[str, Position], rest_minutes: int, expected: bool
) -> None:
    record = ManagedLedgerRecord("id", 0, ledgers=LEDGERS)
    assert has_work(record, cursors, policies, NOW, rest_minutes * MINUTE) is expected
    if expected:
        assert forgets(policies), "it would not even be looked at"


def test_what_was_left_unfinished_is_due() -> None:
    left = ManagedLedgerRecord("id", 0, ledgers=(LedgerInfo(3, 0, 0, NOW, open=True),))
    assert has_work(left, {}, KEEPS_ALL, NOW, 0)
    assert has_work(ManagedLedgerRecord("id", 0, removing=(3,)), {}, KEEPS_ALL, NOW, 0)
    assert not has_work(ManagedLedgerRecord("id", 0), {}, rules(**NO_RETENTION), NOW, 0)


# -- rounds --------------------------------------------------------------------------------------


async def namespace(broker: BrokerInMemory, **policies: Any) -> None:
    await broker.broker.resources.namespaces.create(NAMESPACE, policies=policies)


async def left_alone(broker: BrokerInMemory, *, subscriptions: int = 1, messages: int = 3) -> None:
    """A topic with messages that nobody has loaded since the broker started."""
    client = Client(broker)
    for number in range(subscriptions):
        await client.subscribe(TOPIC, f"s{number}", consumer_id=number + 1)
    await client.produce(TOPIC, messages)
    client.hang_up()
    await asyncio.sleep(1)
    await broker.restart()


async def entries(broker: BrokerInMemory) -> int | None:
    record = await read_record(PATH, broker.metadata)
    return None if record is None else sum(info.entries for info in record.ledgers)


@pytest.mark.feature("F52", "F53")
@scenario(**SETTINGS)
async def test_messages_of_a_topic_at_rest_expire_and_are_deleted(broker) -> None:
    await namespace(broker, message_ttl_in_seconds=ROUND + 60)
    await left_alone(broker)
    await asyncio.sleep(ROUND + 1)
    assert await entries(broker) == 3, "they are not old enough"
    await asyncio.sleep(ROUND)
    assert await entries(broker) == 0
    assert not broker.broker.topics.is_loading(NAME), "it is unloaded again"
    topic = await broker.broker.topics.load(NAME)
    assert topic.subscriptions["s0"].backlog == 0


@scenario(**SETTINGS)
async def test_a_topic_with_nothing_due_is_not_loaded(broker) -> None:
    await namespace(broker)
    await left_alone(broker)
    loads: list[TopicName] = []
    load = broker.broker.loader.load

    async def counted(name: TopicName, *given: Any) -> Any:
        loads.append(name)
        return await load(name, *given)

    broker.broker.loader.load = counted
    await asyncio.sleep(5 * ROUND)
    assert await entries(broker) == 3
    assert loads == []


@scenario(**SETTINGS)
async def test_policies_of_the_topic_itself_hold_too(broker) -> None:
    await namespace(broker, retention_policies=FOR_EVER)
    await left_alone(broker, subscriptions=0)
    await asyncio.sleep(ROUND + 1)
    assert await entries(broker) == 3
    await broker.broker.resources.topic_policies.update(
        NAME, lambda _: {"retention_policies": {**FOR_EVER, "retentionSizeInMB": 0}}
    )
    await asyncio.sleep(ROUND)
    assert await entries(broker) == 0


FOR_EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


@scenario(**SETTINGS)
async def test_a_ledger_that_was_left_open_is_closed(broker) -> None:
    """Its broker was killed."""
    await namespace(broker)
    client = Client(broker)
    await client.produce(TOPIC, 3)
    topic = broker.broker.topics.get_loaded(NAME)
    record = await read_record(PATH, broker.metadata)
    assert record.ledgers[-1].open
    topic.ledger.close = lambda: asyncio.sleep(0)  # it dies
    await broker.restart()
    await asyncio.sleep(ROUND + 1)
    assert await entries(broker) == 0
    assert not broker.broker.topics.is_loading(NAME)


@scenario(**SETTINGS | {"brokerDeleteInactiveTopicsEnabled": True})
async def test_a_topic_at_rest_without_subscriptions_is_deleted(broker) -> None:
    await namespace(broker)
    await left_alone(broker, subscriptions=0)
    await asyncio.sleep(ROUND - 1)
    assert await entries(broker) is not None
    await asyncio.sleep(2)
    assert await entries(broker) is None
    assert await Client(broker).produce(TOPIC, 1)


@scenario(**SETTINGS)
async def test_subscriptions_of_a_topic_at_rest_expire(broker) -> None:
    await namespace(broker, subscription_expiration_time_minutes=2 * ROUND // 60)
    await left_alone(broker, subscriptions=2)
    await asyncio.sleep(ROUND + 1)
    cursors = await broker.broker.cursor_logs.mark_deletes(NAME, await topic_id(broker))
    assert set(cursors) == {"s0", "s1"}
    await asyncio.sleep(ROUND)
    assert await broker.broker.cursor_logs.mark_deletes(NAME, await topic_id(broker)) == {}


async def topic_id(broker: BrokerInMemory) -> str:
    record = await read_record(PATH, broker.metadata)
    return record.topic_id


@scenario(**SETTINGS)
async def test_an_unloading_begins_the_time_of_rest_anew(broker) -> None:
    await namespace(broker, subscription_expiration_time_minutes=2 * ROUND // 60)
    await left_alone(broker)
    await asyncio.sleep(ROUND + 1)
    await broker.broker.topics.load(NAME)
    await broker.broker.topics.unload(NAME)
    await asyncio.sleep(2 * ROUND - 10)
    assert await broker.broker.cursor_logs.mark_deletes(NAME, await topic_id(broker)) != {}


# -- who comes meanwhile -------------------------------------------------------------------------


@scenario(**SETTINGS)
async def test_who_comes_during_a_visit_keeps_the_topic(broker) -> None:
    await namespace(broker)
    await left_alone(broker)
    async with broker.broker.topics.visit(NAME) as topic:
        client = Client(broker)
        assert await client.subscribe(TOPIC, "s0") == 0
    assert not topic.closed
    assert broker.broker.topics.get_loaded(NAME) is topic
    assert len(await client.received(3)) == 3


@scenario(**SETTINGS)
async def test_who_comes_at_the_end_of_a_visit_waits_and_gets_another_topic(broker) -> None:
    await namespace(broker)
    await left_alone(broker)
    async with broker.broker.topics.visit(NAME) as topic:
        close = topic.close

        async def slow() -> None:
            await asyncio.sleep(1)
            await close()

        topic.close = slow
        client = Client(broker)
        asyncio.get_running_loop().call_later(
            0.5, client.send, client.subscribe_command(TOPIC, "s0", kind=pb.CommandSubscribe.Shared)
        )
    assert await client.outcome(seconds=5) == 0
    assert broker.broker.topics.get_loaded(NAME) is not topic


@scenario(**SETTINGS)
async def test_a_topic_in_use_is_not_visited(broker) -> None:
    await namespace(broker)
    await left_alone(broker)
    await broker.broker.topics.load(NAME)
    async with broker.broker.topics.visit(NAME) as topic:
        assert topic is None
    assert broker.broker.topics.get_loaded(NAME) is not None
    async with broker.broker.topics.visit(NAME.with_partition(3)) as topic:
        assert topic is None, "it does not exist, and is not made"


@scenario(**SETTINGS)
async def test_a_topic_whose_visit_fails_is_left_and_the_next_one_has_its_turn(broker) -> None:
    await namespace(broker)
    other = f"persistent://{NAMESPACE}/u"
    client = Client(broker)
    await client.produce(TOPIC, 3)
    await client.produce(other, 3, 2)
    client.hang_up()
    await broker.restart()
    load = broker.broker.loader.load

    async def failing(name: TopicName, *given: Any) -> Any:
        loaded = await load(name, *given)
        if name == NAME:

            def fail() -> None:
                raise StorageError("broken")

            loaded.backlog.expire = fail
        return loaded

    broker.broker.loader.load = failing
    (chore,) = [c for c in chores_of(broker.broker) if c.name == "policies of unloaded topics"]
    await chore.run()
    assert await entries(broker) == 3
    record = await read_record(PATH[:-1] + "u", broker.metadata)
    assert record.ledgers == ()
    assert not broker.broker.topics.is_loading(NAME)


# -- partitioned topics --------------------------------------------------------------------------

PARTITIONED = SETTINGS | {
    "brokerDeleteInactiveTopicsEnabled": True,
    "brokerDeleteInactivePartitionedTopicMetadataEnabled": True,
}


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("switch", [True, False])
def test_a_partitioned_topic_goes_with_its_last_partition(domain: str, switch: bool) -> None:
    @scenario(**PARTITIONED | {"brokerDeleteInactivePartitionedTopicMetadataEnabled": switch})
    async def run(broker) -> None:
        await namespace(broker)
        base = TopicName.parse(f"{domain}://{NAMESPACE}/p")
        await broker.broker.creation.create_partitioned_topic(base, 3, {})
        first, second = Client(broker), Client(broker)
        await first.open_producer(str(base.with_partition(0)), "a")
        await second.open_producer(str(base.with_partition(1)), "b")
        first.hang_up()
        await asyncio.sleep(200)
        assert await broker.broker.catalog.partition_names(base), "one of its partitions is in use"
        second.hang_up()
        await asyncio.sleep(200)
        assert bool(await broker.broker.catalog.partition_names(base)) is not switch

    run()


@scenario(**PARTITIONED)
async def test_a_partitioned_topic_at_rest_goes_too(broker) -> None:
    await namespace(broker)
    base = TopicName.parse(f"persistent://{NAMESPACE}/p")
    await broker.broker.creation.create_partitioned_topic(base, 2, {})
    client = Client(broker)
    for number in range(2):
        await client.produce(str(base.with_partition(number)), 1, number + 1)
    client.hang_up()
    await broker.restart()
    await asyncio.sleep(ROUND + 1)
    assert await broker.broker.catalog.partition_names(base) == []
    assert await broker.broker.catalog.list_topics(NAMESPACE) == []


@pytest.mark.command("WATCH_TOPIC_UPDATE")
@scenario(**PARTITIONED)
async def test_who_watches_topics_hears_that_they_went_for_lack_of_use(broker) -> None:
    await namespace(broker)
    base = TopicName.parse(f"persistent://{NAMESPACE}/p")
    await broker.broker.creation.create_partitioned_topic(base, 2, {})
    watcher, client = Client(broker), Client(broker)
    command = Command(type=Command.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.request_id, request.watcher_id = 1, 7
    request.namespace, request.topics_pattern = NAMESPACE, f"{NAMESPACE}/.*"
    watcher.send(command)
    found = (await watcher.take(Command.WATCH_TOPIC_LIST_SUCCESS)).watchTopicListSuccess
    partitions = [str(base.with_partition(number)) for number in range(2)]
    assert list(found.topic) == partitions
    await client.produce(TOPIC, 1)
    update = (await watcher.take(Command.WATCH_TOPIC_UPDATE)).watchTopicUpdate
    assert list(update.new_topics) == [TOPIC]
    await client.produce(partitions[0], 1, 2)
    client.hang_up()
    gone: set[str] = set()
    while len(gone) < 3:
        update = (await watcher.take(Command.WATCH_TOPIC_UPDATE, seconds=300)).watchTopicUpdate
        assert not update.new_topics
        gone |= set(update.deleted_topics)
    assert gone == {TOPIC, *partitions}
    assert update.topics_hash == "00000000"
