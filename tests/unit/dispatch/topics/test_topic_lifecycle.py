"""Topics come and go, at the same time, and with errors in between: never half of one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from pulsark.dispatch.topic.topic import Topic
from pulsark.dispatch.topics.bundles import Covered
from pulsark.dispatch.topics.damage import advice
from pulsark.dispatch.topics.deletion import EndedTopics
from pulsark.dispatch.topics.registry import CLOSED_AT_ONCE
from pulsark.dispatch.topics.topic_making import NamespaceFullError
from pulsark.errors import (
    ClientError,
    CorruptEntryError,
    CorruptMetadataError,
    MetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    PulsarkError,
    ServerError,
    StorageError,
    UnreadableTableError,
)
from pulsark.metadata import resources
from pulsark.metadata.paths import managed_ledger_path
from pulsark.metadata.records import AlreadyExistsError, InUseError
from pulsark.storage.cursor.owners import COMPACTION_CURSOR, CursorOwner
from pulsark.wire.position import EARLIEST
from pulsark.wire.topic_name import TopicName
from tests.sim.metadata import HeldStore
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
    return broker.broker.topics.get_loaded(NAME).ledger.topic_id


async def check_gone(broker: BrokerInMemory, topic_id: str) -> None:
    """Nothing is left of the topic."""
    log = await broker.broker.cursor_logs.of(NAME)
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
            await broker.broker.deletion.delete_topic(NAME)
        except MetadataError:
            stopped = True
        else:
            stopped = False
        store.loses = 0
        if await broker.broker.catalog.exists(NAME):
            topic = await broker.broker.topics.load(NAME)
            assert set(topic.subscriptions) == {"s"}, "a live topic has its subscriptions"
            assert topic.ledger.entries == 3
        if stopped:
            with contextlib.suppress(ClientError):  # it ended, and only that was not heard
                await broker.broker.deletion.delete_topic(NAME)
        await check_gone(broker, topic_id)
        if not stopped:
            assert number > 1
            return
    pytest.fail("no deletion came to its end")


@pytest.mark.parametrize("step", ["table", "topic"])
@scenario()
async def test_a_topic_that_stays_because_its_deletion_cannot_begin_is_closed(
    broker, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object) -> None:
        raise MetadataError("the store is gone")

    topic_id = await used(broker)
    topic = broker.broker.topics.get_loaded(NAME)
    if step == "table":
        monkeypatch.setattr(broker.broker.deletion._remains, "doom_table", failing)
    else:
        monkeypatch.setattr(topic, "begin_deletion", failing)
    with pytest.raises(MetadataError):
        await broker.broker.deletion.delete_topic(NAME)
    monkeypatch.undo()
    assert topic.ledger.open_bytes == 0
    assert (await broker.broker.topics.load(NAME)).ledger.entries == 3
    await broker.broker.deletion.delete_topic(NAME)
    await check_gone(broker, topic_id)


@pytest.mark.parametrize("restarted", [False, True])
@scenario()
async def test_the_next_request_goes_on_with_a_deletion_that_stopped(
    broker, restarted: bool
) -> None:
    topic_id = await used(broker)
    broker.bookie.read_only = True
    with pytest.raises(PulsarkError):
        await broker.broker.deletion.delete_topic(NAME)
    assert not await broker.broker.catalog.exists(NAME)
    broker.bookie.read_only = False
    if restarted:
        await broker.restart()
    await Client(broker).produce(TOPIC, 1)
    topic = broker.broker.topics.get_loaded(NAME)
    assert topic.ledger.topic_id != topic_id
    assert topic.subscriptions == {}
    await broker.broker.deletion.delete_topic(NAME, force=True)
    await check_gone(broker, topic_id)
    with pytest.raises(ClientError) as refused:
        await broker.broker.deletion.delete_topic(NAME)
    assert refused.value.code == ServerError.TopicNotFound


@scenario(topicsAtRestCheckIntervalInSeconds=60)
async def test_a_deletion_goes_on_after_a_restart_without_any_client(broker) -> None:
    topic_id = await used(broker)
    broker.bookie.read_only = True
    with pytest.raises(PulsarkError):
        await broker.broker.deletion.delete_topic(NAME)
    await broker.restart()
    await asyncio.sleep(70)
    assert await broker.broker.catalog.is_stored(NAME), "it cannot be deleted yet"
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
        works = [broker.broker.deletion.delete_topic(NAME), broker.broker.topics.unload(NAME)]
        first, second = works if delete_first else reversed(works)
        begun = asyncio.ensure_future(first)
        await turns(lead)
        await asyncio.gather(begun, second)
        assert not await broker.broker.catalog.exists(NAME), lead
        await check_gone(broker, topic_id)


@scenario()
async def test_an_unused_topic_that_is_unloaded_meanwhile_is_not_deleted(broker) -> None:
    await used(broker)
    topic = broker.broker.topics.get_loaded(NAME)
    async with broker.broker.topics.ending(NAME):
        unloading = asyncio.ensure_future(broker.broker.topics.unload(NAME))
        await turns(20)
        deleting = broker.broker.deletion.delete_loaded(topic, lambda _: True)
        deleting = asyncio.ensure_future(deleting)
        await turns(20)
    await unloading
    assert not await deleting
    assert await broker.broker.catalog.exists(NAME)
    assert (await broker.broker.topics.load(NAME)).ledger.entries == 3


@scenario(maxTopicsPerNamespace=1)
async def test_an_unused_topic_that_is_deleted_makes_room_at_once(broker) -> None:
    await used(broker)
    topic = broker.broker.topics.get_loaded(NAME)
    with pytest.raises(NamespaceFullError):
        await broker.broker.creation.create_topic(TopicName.parse(f"{TOPIC}2"), {})
    assert not await broker.broker.deletion.delete_loaded(topic, lambda _: False)
    assert await broker.broker.deletion.delete_loaded(topic, lambda _: True)
    await broker.broker.creation.create_topic(TopicName.parse(f"{TOPIC}2"), {})


@scenario()
async def test_the_ends_of_the_topics_that_were_deleted_last_are_known(broker) -> None:
    ended = broker.broker.deletion.ended = EndedTopics(most=3)
    names = [TopicName.parse(f"{TOPIC}-{number}") for number in range(5)]
    ends = []
    for number, name in enumerate(names):
        await Client(broker).produce(str(name), number)
        ledger = broker.broker.topics.get_loaded(name).ledger
        ends.append((name, ledger.topic_id, ledger.last_confirmed))
    for name in names:
        await broker.broker.deletion.delete_topic(name, force=True)
    for number, (name, topic_id, last) in enumerate(ends):
        assert ended.last_entry(name, topic_id) == (last if number >= 2 else None)
        assert ended.last_entry(name, "another topic of the name") is None


@scenario()
async def test_some_topics_are_closed_at_a_time_when_the_broker_stops(
    broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 3 * CLOSED_AT_ONCE
    for each in range(number):
        await Client(broker).produce(f"{TOPIC}-{each}", 1)
    close = Topic.close

    async def slow(topic: Topic) -> None:
        await asyncio.sleep(1)
        await close(topic)

    monkeypatch.setattr(Topic, "close", slow)
    begun = asyncio.get_running_loop().time()
    await broker.broker.topics.close()
    assert asyncio.get_running_loop().time() - begun == pytest.approx(3, abs=0.5)


@scenario()
async def test_who_waits_for_the_end_of_a_visit_loads_nothing_when_the_broker_stops(
    broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await used(broker)
    topics, close = broker.broker.topics, Topic.close
    await topics.unload(NAME)

    async def slow(topic: Topic) -> None:
        await asyncio.sleep(1)
        await close(topic)

    monkeypatch.setattr(Topic, "close", slow)

    async def visit() -> None:
        async with topics.visit(NAME):
            pass

    visiting = asyncio.create_task(visit())
    await asyncio.sleep(0.5)
    deleting = asyncio.create_task(topics.load_to_delete(NAME))
    await asyncio.sleep(0)
    topics.refuse_all()
    await visiting
    with pytest.raises(ClientError, match="The broker is shutting down"):
        await deleting
    assert topics.loaded() == []


# -- making ----------------------------------------------------------------------------------------


@scenario()
async def test_a_topic_has_partitions_or_has_none(broker) -> None:
    made = set()
    for lead in range(30):
        name = TopicName.parse(f"persistent://public/default/t{lead}")
        producing = asyncio.ensure_future(broker.broker.creation.topic_for_clients(name))
        await turns(lead)
        try:
            await broker.broker.creation.create_partitioned_topic(name, 2, {})
        except AlreadyExistsError:
            made.add("one")
        else:
            made.add("partitions")
        await asyncio.gather(producing, return_exceptions=True)
        parted = await broker.broker.resources.partitioned_topics.get(name)
        assert (parted is None) == await broker.broker.catalog.is_stored(name), lead
    assert made == {"one", "partitions"}


@scenario(maxTopicsPerNamespace=5)
async def test_topics_made_at_once_are_not_too_many(broker) -> None:
    counted = 0
    list_topics = broker.broker.catalog.list_topics

    async def counting(*given: Any, **more: Any) -> list[str]:
        nonlocal counted
        counted += 1
        return await list_topics(*given, **more)

    broker.broker.catalog.list_topics = counting
    names = [TopicName.parse(f"{TOPIC}{n}") for n in range(20)]
    makers = [broker.broker.creation.topic_for_clients(name) for name in names[:16:2]]
    makers += [broker.broker.creation.create_topic(name, {}) for name in names[1:16:2]]
    makers += [broker.broker.creation.create_partitioned_topic(name, 2, {}) for name in names[16:]]
    answers = await asyncio.gather(*makers, return_exceptions=True)
    assert all(isinstance(a, NamespaceFullError) for a in answers if isinstance(a, Exception))
    assert sum(not isinstance(answer, Exception) for answer in answers) == 5
    assert counted == 1, "they are counted once, not once for each"
    assert len(await list_topics("public/default")) == 5
    await broker.broker.deletion.delete_topic(names[0], force=True)
    assert await broker.broker.creation.topic_for_clients(names[0]), "there is room again"
    with pytest.raises(NamespaceFullError):
        await broker.broker.creation.create_topic(names[-1], {})
    await asyncio.sleep(100)
    with pytest.raises(NamespaceFullError):
        await broker.broker.creation.create_topic(names[-1], {})
    assert counted == 3


@scenario(maxTopicsPerNamespace=5)
async def test_two_brokers_together_make_not_too_many(broker) -> None:
    other = await broker.another()
    made = 0
    for number in range(10):
        for each in (broker, other):
            name = TopicName.parse(f"{TOPIC}-{number}-{each is other}")
            try:
                async with each.broker.creation._making.room(name):
                    await each.broker.resources.partitioned_topics.create(name, 1, {})
                made += 1
            except NamespaceFullError:
                pass
    assert made == 5
    await other.broker.close()


@scenario()
async def test_a_name_like_a_partitions_is_that_of_a_topic_with_partitions(broker) -> None:
    """All partitions of a topic share its table; a topic of its own would have it, too."""
    client = Client(broker)
    await client.produce(TOPIC, 1)
    refused = await client.open_producer(f"{TOPIC}-partition-7", "p", 2)
    assert refused == ServerError.NotAllowedError
    with pytest.raises(ClientError, match="create it with partitions"):
        await broker.broker.creation.create_topic(TopicName.parse(f"{NAME}-partition-7"), {})


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@scenario(maxTopicsPerNamespace=2)
async def test_a_missing_partition_is_made_and_counts_once(broker, domain: str) -> None:
    name = TopicName.parse(f"{domain}://public/default/p")
    await broker.broker.creation.create_partitioned_topic(name, 2, {})
    for index in range(2):
        await broker.broker.creation.create_topic(name.with_partition(index), {})
        assert await broker.broker.catalog.is_made(name.with_partition(index))
        with pytest.raises(AlreadyExistsError):
            await broker.broker.creation.create_topic(name.with_partition(index), {})
    refused = NamespaceFullError if domain == "non-persistent" else ClientError
    with pytest.raises(refused):
        await broker.broker.creation.create_topic(name.with_partition(2), {})
    with pytest.raises(NamespaceFullError):
        await broker.broker.creation.create_topic(
            TopicName.parse(f"{domain}://public/default/q"), {}
        )


@scenario(maxTopicsPerNamespace=5)
async def test_new_partitions_count_and_have_the_durable_subscriptions_of_clients(broker) -> None:
    client, part = Client(broker), f"{TOPIC}-partition-0"
    await broker.broker.creation.create_partitioned_topic(NAME, 2, {})
    await client.produce(part, 1)
    await client.subscribe(part)
    await client.subscribe(part, "r", consumer_id=2, durable=False)
    first = broker.broker.topics.get_loaded(NAME.with_partition(0))
    own = {"durable": True, "by": CursorOwner.COMPACTION}
    await first.registry.create(COMPACTION_CURSOR, EARLIEST, {}, **own)
    with pytest.raises(NamespaceFullError):
        await broker.broker.creation.add_partitions(NAME, 6)
    await broker.broker.creation.add_partitions(NAME, 5)
    for index in range(2, 5):
        topic = broker.broker.topics.get_loaded(NAME.with_partition(index))
        assert list(topic.subscriptions) == ["s"]
        assert not topic.ledger.entries
    with pytest.raises(NamespaceFullError):
        await broker.broker.creation.create_topic(TopicName.parse(f"{TOPIC}2"), {})


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@scenario(allowAutoTopicCreation=False)
async def test_a_question_for_a_missing_topic_claims_no_bundle(broker, domain: str) -> None:
    name = TopicName.parse(f"{domain}://public/default/missing")
    for ask in (broker.broker.topics.open, broker.broker.creation.topic_for_clients):
        with pytest.raises(ClientError) as missing:
            await ask(name)
        assert missing.value.code == ServerError.TopicNotFound
    assert broker.broker.ownership.owned() == []


@scenario(maxTopicsPerNamespace=2)
async def test_a_topic_whose_making_fails_after_it_was_stored_counts(broker, monkeypatch) -> None:
    monkeypatch.setattr(resources, "SYSTEM_TOPICS", frozenset({f"{TOPIC}-own"}))
    names = [TopicName.parse(f"{TOPIC}-{number}") for number in range(3)]
    await broker.broker.creation.create_topic(names[0], {})
    with monkeypatch.context() as patched:
        load = broker.broker.loader.load

        async def fail(*given: Any) -> None:
            await (await load(*given)).close()
            raise StorageError("no disk")

        patched.setattr(broker.broker.loader, "load", fail)
        with pytest.raises(StorageError):
            await broker.broker.creation.create_topic(names[1], {})
    assert len(await broker.broker.catalog.list_topics("public/default")) == 2
    with pytest.raises(NamespaceFullError):
        await broker.broker.creation.create_topic(names[2], {})
    await broker.broker.creation.create_topic(TopicName.parse(f"{TOPIC}-own"), {})


@pytest.mark.parametrize("with_partitions", [True, False])
@scenario()
async def test_a_topic_that_is_made_anew_has_nothing_of_one_whose_deletion_stopped(
    broker, with_partitions: bool
) -> None:
    topic_id = await used(broker)
    await broker.broker.resources.topic_policies.update(NAME, lambda _: {"max_producers": 3})
    broker.bookie.read_only = True
    with pytest.raises(PulsarkError):
        await broker.broker.deletion.delete_topic(NAME, force=True)
    broker.bookie.read_only = False
    await broker.broker.resources.topic_policies.update(NAME, lambda _: {"max_producers": 4})
    if with_partitions:
        await broker.broker.creation.create_partitioned_topic(NAME, 2, {})
    else:
        await broker.broker.creation.create_topic(NAME, {})
    assert await broker.broker.resources.topic_policies.get(NAME) == {}
    found = await broker.broker.catalog.record(NAME)
    assert with_partitions == (found is None)
    assert found is None or found.record.topic_id != topic_id
    if with_partitions:
        await check_gone(broker, topic_id)


# -- who comes while all partitions are deleted ----------------------------------------------------


async def holding(broker: BrokerInMemory) -> HeldStore:
    """A broker whose requests to the metadata store can be held back."""
    await broker.metadata.close()
    broker.metadata = store = HeldStore(broker._tree)
    broker.broker = broker._new_broker()
    await broker.start()
    return store


def hold(store: HeldStore, number: int) -> None:
    """Hold back this request from now on."""
    store.requests, store.hold_at = 0, number
    store.reached, store.let_go = asyncio.Event(), asyncio.Event()


@pytest.mark.parametrize("kind", ["producer", "consumer"])
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@scenario()
async def test_who_is_on_the_way_to_a_partition_keeps_the_topic_or_is_told_to_come_again(
    broker, kind: str, domain: str
) -> None:
    store = await holding(broker)
    find = broker.broker.creation.topic_for_clients
    for number in range(1, MOST_TURNS):
        base = TopicName.parse(f"{domain}://public/default/t{number}")
        await broker.broker.creation.create_partitioned_topic(base, 3, {})
        name = base.with_partition(2)
        client, topic = Client(broker), await find(name)
        await turns(5)

        async def found(*_: Any, topic: Any = topic, **__: Any) -> Any:
            return topic  # it was asked for before the deletion began

        broker.broker.creation.topic_for_clients = found
        hold(store, number)
        deleting = asyncio.ensure_future(broker.broker.deletion.delete_partitioned_topic(base))
        await asyncio.sleep(0.1)
        if kind == "producer":
            admitted = not isinstance(await client.open_producer(str(name), "p"), int)
        else:
            admitted = await client.subscribe(str(name)) == 0
        store.hold_at = 0
        store.let_go.set()
        (failed,) = await asyncio.gather(deleting, return_exceptions=True)
        broker.broker.creation.topic_for_clients = find
        assert failed is None or isinstance(failed, InUseError)
        assert admitted == (failed is not None), number
        assert await broker.broker.catalog.exists(name) == admitted, number
        client.hang_up()
        if not store.reached.is_set():
            assert number > 3
            return
    pytest.fail("the deletion makes more requests")


async def delete_as_told(broker: BrokerInMemory, base: TopicName) -> None:
    """Delete a topic as if another broker did, which tells this one to delete its partition."""
    records = broker.broker.resources.partitioned_topics
    await records.begin_delete(base)
    with contextlib.suppress(ClientError):
        await broker.broker.deletion.delete_topic(base.with_partition(0), force=True)
    if await broker.broker.catalog.is_stored(base.with_partition(0)):
        await broker.broker.deletion.delete_topic(base.with_partition(0), force=True)
    await records.delete(base)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("by_clients", [True, False])
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@scenario(allowAutoTopicCreation=False)
async def test_who_asks_for_a_partition_while_it_is_deleted_does_not_make_it_again(
    broker, domain: str, by_clients: bool, told: bool
) -> None:
    store = await holding(broker)
    for number in range(1, MOST_TURNS):
        base = TopicName.parse(f"{domain}://public/default/t{number}")
        await broker.broker.creation.create_partitioned_topic(base, 1, {})
        partition = base.with_partition(0)
        await broker.broker.creation.topic_for_clients(partition)
        await broker.broker.topics.unload(partition)
        hold(store, number)
        ask = broker.broker.creation.topic_for_clients if by_clients else broker.broker.topics.open
        asking = asyncio.ensure_future(ask(partition))
        await asyncio.sleep(0.1)
        delete = broker.broker.deletion.delete_partitioned_topic
        deleting = asyncio.ensure_future(delete_as_told(broker, base) if told else delete(base))
        await asyncio.sleep(0.1)
        store.hold_at = 0
        store.let_go.set()
        await asyncio.gather(asking, return_exceptions=True)
        await deleting
        assert not await broker.broker.catalog.is_stored(partition), number
        assert broker.broker.topics.get(partition) is None, number
        if not store.reached.is_set():
            assert number > 3
            return
    pytest.fail("loading makes more requests")


@scenario()
async def test_a_refused_deletion_leaves_all_partitions_open(broker) -> None:
    client = Client(broker)
    await broker.broker.creation.create_partitioned_topic(NAME, 3, {})
    await broker.broker.creation.topic_for_clients(NAME.with_partition(0))
    await client.produce(f"{TOPIC}-partition-2", 1, 2)
    with pytest.raises(InUseError):
        await broker.broker.deletion.delete_partitioned_topic(NAME)
    assert await client.produce(f"{TOPIC}-partition-0", 1)
    await broker.broker.deletion.delete_partitioned_topic(NAME, force=True)
    assert await broker.broker.resources.partitioned_topics.get(NAME) is None


@scenario()
async def test_the_deletion_of_a_topic_with_partitions_goes_on_when_it_is_asked_for_again(
    broker,
) -> None:
    client, late = Client(broker), Client(broker)
    await broker.broker.creation.create_partitioned_topic(NAME, 3, {})
    for partition in NAME.partitions(3):
        await client.produce(str(partition), 1, partition.partition)
        await client.subscribe(str(partition), consumer_id=partition.partition)
    client.hang_up()
    await asyncio.sleep(0.1)
    broker.bookie.read_only = True
    with pytest.raises(PulsarkError):
        await broker.broker.deletion.delete_partitioned_topic(NAME)
    assert not await broker.broker.catalog.exists(NAME.with_partition(2))
    assert await broker.broker.catalog.list_topics("public/default") == []
    refused = await late.open_producer(f"{TOPIC}-partition-2", "p")
    assert refused == ServerError.ServiceNotReady
    broker.bookie.read_only = False
    await broker.broker.deletion.delete_partitioned_topic(NAME)
    with pytest.raises(ClientError) as missing:
        await broker.broker.deletion.delete_partitioned_topic(NAME)
    assert missing.value.code == ServerError.TopicNotFound
    await broker.broker.creation.create_partitioned_topic(NAME, 2, {})
    assert await late.produce(f"{TOPIC}-partition-1", 1, 2)


# -- what cannot be loaded -------------------------------------------------------------------------


@scenario()
async def test_a_topic_whose_journal_is_damaged_is_named_in_the_log_once_a_minute(
    broker, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(broker)
    ids = await client.produce(TOPIC, 3)
    ledger_id, last = ids[-1]
    await holding(broker)  # another process: the one before was killed
    broker.bookie.corrupt(ledger_id, last)

    def said() -> list[str]:
        return [line for line in caplog.messages if "pulsark doctor" in line]

    for _ in range(5):
        with pytest.raises(StorageError):
            await broker.broker.topics.load(NAME)
        await asyncio.sleep(1)
    (line,) = said()
    assert TOPIC in line
    assert f"{ledger_id}:{last}" in line
    await asyncio.sleep(60)
    with pytest.raises(StorageError):
        await broker.broker.topics.load(NAME)
    assert len(said()) == 2


@scenario()
async def test_a_topic_whose_record_is_damaged_is_named_in_the_log(
    broker, caplog: pytest.LogCaptureFixture
) -> None:
    await Client(broker).produce(TOPIC, 3)
    await broker.broker.topics.unload(NAME)
    path = managed_ledger_path(NAME)
    found = await broker.metadata.get(path)
    await broker.metadata.put(path, b"{}", found.version)
    for _ in range(3):
        with pytest.raises(MetadataError):
            await broker.broker.topics.load(NAME)
    (line,) = [line for line in caplog.messages if "cannot be loaded" in line]
    assert line.startswith(f"{TOPIC} cannot be loaded: the record {path}")
    assert "pulsark doctor" in line


@pytest.mark.parametrize(
    ("error", "to_do"),
    [
        (UnreadableTableError("f.parquet"), f"pulsark tables repair {TOPIC}"),
        (CorruptEntryError("1:2"), "what is damaged and what can be done"),
        (NoSuchLedgerError("ledger 7 does not exist"), "what is missing"),
        (NoSuchEntryError("7:1"), "what is missing"),
        (CorruptMetadataError("the record"), "a backup of the metadata store"),
        (StorageError("a bookie is away"), None),
        (MetadataError("the metadata store is closed"), None),
        (ClientError(ServerError.TopicNotFound, "none"), None),
    ],
)
def test_each_kind_of_damage_has_its_own_advice(error: PulsarkError, to_do: str | None) -> None:
    found = advice(NAME.with_partition(3), error)
    assert found is None if to_do is None else to_do in str(found)


# -- what stopped for good -------------------------------------------------------------------------


@scenario()
async def test_a_topic_that_cannot_be_closed_keeps_no_other_one_without_its_cursors(broker) -> None:
    one = broker.broker
    bundle = await one.ownership.bundle_named(NAME)
    names = (NAME.parse(f"{TOPIC}-{number}") for number in range(200))
    other = next(name for name in names if name in Covered(bundle))
    client = Client(broker)
    await client.produce(TOPIC, 1)
    await client.produce(str(other), 1, producer_id=2)
    log = await one.cursor_logs.of(NAME)
    async with one.topics.get_loaded(NAME).ledger.reservation():  # a bulk publish takes long
        log._writer.stop(StorageError("which ledger has the cursors is not known"))
        await asyncio.sleep(5)
        assert await Client(broker).subscribe(str(other)) == 0
        assert not one.topics.get_loaded(other).is_lost
    await asyncio.sleep(5)
    assert await Client(broker).subscribe(TOPIC) == 0


@scenario()
async def test_a_topic_that_lost_its_cursors_is_not_loaded_with_the_same_log(broker) -> None:
    one = broker.broker
    client = Client(broker)
    assert await client.subscribe(TOPIC) == 0
    log = await one.cursor_logs.of(NAME)
    unload, again = one.topics.unload, []

    async def unloaded(name: TopicName) -> None:
        await unload(name)
        await one.topics.load(name)  # its clients come back before others are unloaded
        again.append(name)

    one.topics.unload = unloaded
    log._writer.stop(StorageError("which ledger has the cursors is not known"))
    await asyncio.sleep(10)
    assert again == [NAME]
    assert not one.topics.get_loaded(NAME).is_lost


@scenario()
async def test_a_topic_that_was_stopped_by_a_bug_is_loaded_anew(broker) -> None:
    await Client(broker).produce(TOPIC, 1)
    stopped = broker.broker.topics.get_loaded(NAME)

    async def change() -> None:
        raise AssertionError("a bug")

    stopped.ledger._changes.start(change)
    await asyncio.sleep(5)
    assert stopped.ledger._last.life.story().count("bug") == 1
    await Client(broker).produce(TOPIC, 1)
    assert broker.broker.topics.get_loaded(NAME).ledger.entries == 2
