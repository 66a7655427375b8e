"""Topics come and go, at the same time, and with errors in between: never half of one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsark.dispatch.topic_making import NamespaceFullError
from pulsark.errors import ClientError, MetadataError, PulsarkError, ServerError
from pulsark.metadata.resources import AlreadyExistsError
from pulsark.storage.ledger_record import managed_ledger_path
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import NAME, TOPIC, BrokerInMemory, Client, scenario
from tests.support.lost_answers import ForgetfulStore

MOST_TURNS = 60


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def used(broker: BrokerInMemory) -> str:
    """A topic with messages and a subscription; its id."""
    client = Client(broker)
    await client.produce(TOPIC, 3)
    await client.subscribe(TOPIC)
    client.hang_up()
    await asyncio.sleep(0.1)
    return broker.broker.loaded_topic(NAME).ledger.topic_id


async def check_gone(broker: BrokerInMemory, topic_id: str) -> None:
    """Nothing is left of the topic."""
    log = await broker.broker._cursor_log(await broker.broker.ownership.own(NAME))
    assert log.subscriptions(topic_id) == []
    assert await broker.metadata.get(managed_ledger_path(NAME)) is None
    assert await broker.metadata.children("/delayed-buckets") == []
    named = [await broker.metadata.get(f"/ledgers/{i}") for i in broker.bookie.ledger_ids()]
    assert all(found is not None and b"/cursors/" in found.value for found in named)


# -- deletion --------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [True, False], ids=["carried out", "not carried out"])
@scenario()
async def test_a_deletion_that_stops_leaves_all_of_the_topic_or_nothing(broker, done: bool) -> None:
    broker.metadata = store = ForgetfulStore(broker._tree, "/managed-ledgers")
    broker.broker = broker._new_broker()
    await broker.start()
    store.done = done
    for number in range(1, 20):
        topic_id = await used(broker)
        store.writes, store.loses = 0, number
        try:
            await broker.broker.topic_admin.delete_topic(NAME)
        except MetadataError:
            stopped = True
        else:
            stopped = False
        store.loses = 0
        if await broker.broker.topic_admin.exists(NAME):
            topic = await broker.broker.topic(NAME)
            assert set(topic.subscriptions) == {"s"}, "a live topic has its subscriptions"
            assert topic.ledger.entries == 3
        if stopped:
            await broker.broker.topic_admin.delete_topic(NAME)
        await check_gone(broker, topic_id)
        if not stopped:
            assert number > 1
            return
    pytest.fail("no deletion came to its end")


@pytest.mark.parametrize("restarted", [False, True])
@scenario()
async def test_whoever_meets_a_deletion_that_stopped_goes_on_with_it(
    broker, restarted: bool
) -> None:
    topic_id = await used(broker)
    broker.bookie.read_only = True
    with pytest.raises(PulsarkError):
        await broker.broker.topic_admin.delete_topic(NAME)
    assert not await broker.broker.topic_admin.exists(NAME)
    broker.bookie.read_only = False
    if restarted:
        await broker.restart()
    await Client(broker).produce(TOPIC, 1)
    topic = broker.broker.loaded_topic(NAME)
    assert topic.ledger.topic_id != topic_id
    assert topic.subscriptions == {}
    await broker.broker.topic_admin.delete_topic(NAME, force=True)
    await check_gone(broker, topic_id)
    with pytest.raises(ClientError) as refused:
        await broker.broker.topic_admin.delete_topic(NAME)
    assert refused.value.code == ServerError.TopicNotFound


@scenario(topicsAtRestCheckIntervalInSeconds=60)
async def test_a_deletion_goes_on_after_a_restart_although_nobody_comes(broker) -> None:
    topic_id = await used(broker)
    broker.bookie.read_only = True
    with pytest.raises(PulsarkError):
        await broker.broker.topic_admin.delete_topic(NAME)
    await broker.restart()
    await asyncio.sleep(70)
    assert await broker.broker.topic_admin.is_stored(NAME), "it cannot be deleted yet"
    broker.bookie.read_only = False
    await asyncio.sleep(70)
    await check_gone(broker, topic_id)


@pytest.mark.parametrize("delete_first", [True, False])
@scenario()
async def test_an_unload_and_a_deletion_at_once_are_one_after_the_other(
    broker, delete_first: bool
) -> None:
    for lead in range(MOST_TURNS):
        topic_id = await used(broker)
        works = [broker.broker.topic_admin.delete_topic(NAME), broker.broker.unload_topic(NAME)]
        first, second = works if delete_first else reversed(works)
        begun = asyncio.ensure_future(first)
        await turns(lead)
        await asyncio.gather(begun, second)
        assert not await broker.broker.topic_admin.exists(NAME), lead
        await check_gone(broker, topic_id)


# -- making ----------------------------------------------------------------------------------------


@scenario()
async def test_a_topic_has_partitions_or_has_none(broker) -> None:
    made = set()
    for lead in range(30):
        name = TopicName.parse(f"persistent://public/default/t{lead}")
        producing = asyncio.ensure_future(broker.broker.topic_for_clients(name))
        await turns(lead)
        try:
            await broker.broker.topic_admin.create_partitioned_topic(name, 2, {})
        except AlreadyExistsError:
            made.add("one")
        else:
            made.add("partitions")
        await asyncio.gather(producing, return_exceptions=True)
        parted = await broker.broker.resources.partitioned_topics.get(name)
        assert (parted is None) == await broker.broker.topic_admin.is_stored(name), lead
    assert made == {"one", "partitions"}


@scenario(maxTopicsPerNamespace=5)
async def test_topics_made_at_once_are_not_too_many(broker) -> None:
    admin, counted = broker.broker.topic_admin, 0
    list_topics = admin.list_topics

    async def counting(*given: Any, **more: Any) -> list[str]:
        nonlocal counted
        counted += 1
        return await list_topics(*given, **more)

    admin.list_topics = counting
    names = [TopicName.parse(f"{TOPIC}{n}") for n in range(20)]
    makers = [broker.broker.topic_for_clients(name) for name in names[:16:2]]
    makers += [admin.create_topic(name, {}) for name in names[1:16:2]]
    makers += [admin.create_partitioned_topic(name, 2, {}) for name in names[16:]]
    answers = await asyncio.gather(*makers, return_exceptions=True)
    assert all(isinstance(a, NamespaceFullError) for a in answers if isinstance(a, Exception))
    assert sum(not isinstance(answer, Exception) for answer in answers) == 5
    assert counted == 1, "they are counted once, not once for each"
    assert len(await list_topics("public/default")) == 5
    await admin.delete_topic(names[0], force=True)
    assert await broker.broker.topic_for_clients(names[0]), "there is room again"
    with pytest.raises(NamespaceFullError):
        await admin.create_topic(names[-1], {})
    await asyncio.sleep(100)
    with pytest.raises(NamespaceFullError):
        await admin.create_topic(names[-1], {})
    assert counted == 3


@scenario()
async def test_a_name_like_a_partitions_is_that_of_a_topic_with_partitions(broker) -> None:
    """All partitions of a topic share its table; a topic of its own would have it, too."""
    client = Client(broker)
    await client.produce(TOPIC, 1)
    refused = await client.open_producer(f"{TOPIC}-partition-7", "p", 2)
    assert refused == ServerError.NotAllowedError
    with pytest.raises(ClientError, match="create it with partitions"):
        await broker.broker.topic_admin.create_topic(TopicName.parse(f"{NAME}-partition-7"), {})
