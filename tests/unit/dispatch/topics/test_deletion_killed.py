"""A deletion that a kill breaks off leaves all of a topic, or nothing to the next of its name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from pulsark.errors import ClientError, OutcomeUnknownError, PulsarkError
from pulsark.metadata.changes import Change, Put
from pulsark.metadata.namespaces import Namespace
from pulsark.metadata.paths import managed_ledger_path
from pulsark.metadata.records import InUseError
from pulsark.metadata.resources import Tenant
from pulsark.metadata.store import Versioned
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.strategies import SchemaCompatibilityStrategy
from pulsark.security.grants import TOPICS, grant_on_topic, granted
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, scenario
from tests.support.lost_answers import MortalStore

NAMESPACE = "public/n"
MOST_WRITES = 80
SETTINGS: dict[str, Any] = {
    "keepAliveIntervalSeconds": 1_000_000,
    "topicsAtRestCheckIntervalInSeconds": 60,
    "brokerDeleteInactiveTopicsEnabled": False,
}
NOTHING = (False, {}, {})

Deletion = Callable[[BrokerInMemory, TopicName], Awaitable[object]]


async def mortal(broker: BrokerInMemory) -> MortalStore:
    """Another process, over what the one before left."""
    await broker.metadata.close()
    broker.metadata = store = MortalStore(broker._tree)
    broker.broker = broker._new_broker()
    await broker.start()
    return store


async def give(broker: BrokerInMemory, name: TopicName) -> None:
    """Schemas, policies and grants."""
    await share_schema(broker, name, b"1")
    await share_schema(broker, name, b"2")
    await broker.broker.resources.topic_policies.update(name, lambda _: {"max_producers": 3})

    def with_grant(old: Namespace) -> Namespace:
        policies = dict(old.policies)
        grant_on_topic(policies, str(name), "somebody", ["produce"])
        return replace(old, policies=policies)

    await broker.broker.resources.namespaces.update(NAMESPACE, with_grant)
    await asyncio.sleep(0.1)  # loaded topics follow


async def share_schema(broker: BrokerInMemory, name: TopicName, label: bytes) -> None:
    definition = (
        b'{"type": "record", "name": "r", "fields": '
        b'[{"name": "f%s", "type": ["null", "int"], "default": null}]}' % label
    )
    schema = SchemaData(SchemaType.AVRO, definition, {})
    await broker.broker.schemas.register(
        name, schema, SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE
    )


async def given(broker: BrokerInMemory, name: TopicName) -> tuple[bool, Any, Any]:
    """What a topic shares with its partitions."""
    resources = broker.broker.resources
    namespace = await resources.namespaces.get(NAMESPACE)
    assert namespace is not None
    return (
        await broker.broker.schemas.exist(name),
        await resources.topic_policies.get(name),
        granted(namespace.policies, TOPICS).get(str(name), {}),
    )


async def made(broker: BrokerInMemory, name: TopicName, partitions: int) -> list[TopicName]:
    """A topic; those that have messages."""
    if partitions:
        await broker.broker.creation.create_partitioned_topic(name, partitions, {})
    return list(name.partitions(partitions)) or [name]


async def used(broker: BrokerInMemory, name: TopicName, partitions: int) -> list[TopicName]:
    """A topic that has everything."""
    leaves = await made(broker, name, partitions)
    client = Client(broker)
    for number, leaf in enumerate(leaves):
        await client.produce(str(leaf), 3, number)
        await client.subscribe(str(leaf), consumer_id=number)
    await give(broker, name)
    client.hang_up()
    await asyncio.sleep(2)
    return leaves


async def is_there(broker: BrokerInMemory, name: TopicName) -> bool:
    if await broker.broker.resources.namespaces.get(NAMESPACE) is None:
        return False
    if await broker.broker.resources.partitioned_topics.get(name) is not None:
        return True
    return await broker.broker.catalog.exists(name)


async def asked(broker: BrokerInMemory, name: TopicName) -> None:
    if await broker.broker.resources.partitioned_topics.get(name) is not None:
        await broker.broker.deletion.delete_partitioned_topic(name)
    else:
        await broker.broker.deletion.delete_topic(name)


async def unused(broker: BrokerInMemory, name: TopicName) -> None:
    if await broker.broker.resources.partitioned_topics.get(name) is not None:
        await broker.broker.deletion.delete_partitioned_if_empty(name)
    else:
        await broker.broker.deletion.delete_loaded(
            await broker.broker.topics.load(name), lambda _: True
        )


async def with_namespace(broker: BrokerInMemory, name: TopicName) -> None:
    await broker.broker.namespace_deletion.delete(NAMESPACE, force=True)


@pytest.mark.parametrize("next_partitions", [0, 2])
@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("delete", [asked, unused, with_namespace])
@scenario(**SETTINGS)
async def test_the_next_topic_of_the_name_begins_with_nothing(
    broker, delete: Deletion, partitions: int, next_partitions: int
) -> None:
    for last in range(MOST_WRITES):
        store = await mortal(broker)
        if await broker.broker.resources.namespaces.get(NAMESPACE) is None:
            await broker.broker.resources.namespaces.create(NAMESPACE)
        name = TopicName.parse(f"persistent://{NAMESPACE}/t{last}")
        leaves = await used(broker, name, partitions)
        if partitions and delete is unused:
            for leaf in leaves:
                await broker.broker.deletion.delete_topic(leaf)
        store.writes, store.last = 0, last
        try:
            await delete(broker, name)
        except PulsarkError:
            assert store.is_dead
        ended = not store.is_dead
        await mortal(broker)
        resources = broker.broker.resources
        namespace = await resources.namespaces.get(NAMESPACE)
        if namespace is not None and namespace.emptying:  # as the leader does
            await broker.broker.namespace_deletion.settle("public")
            assert not await is_there(broker, name)
        if await is_there(broker, name):
            assert await given(broker, name) == (
                True,
                {"max_producers": 3},
                {"somebody": ["produce"]},
            ), last
            if delete is not unused:
                for leaf in leaves:
                    assert (await broker.broker.topics.load(leaf)).ledger.entries == 3, last
        else:
            if await resources.namespaces.get(NAMESPACE) is None:
                await resources.namespaces.create(NAMESPACE)
            for leaf in leaves:
                assert not await broker.broker.catalog.exists(leaf)
            assert await broker.broker.catalog.list_topics(NAMESPACE) == []
            if next_partitions:
                leaves = await made(broker, name, next_partitions)
            else:
                leaves = [(await broker.broker.creation.topic_for_clients(name)).name]
            assert await given(broker, name) == NOTHING, last
            assert await broker.metadata.children(f"/schemas/{NAMESPACE}/t{last}") == [], last
            for leaf in leaves:
                topic = await broker.broker.creation.topic_for_clients(leaf)
                assert (topic.ledger.entries, topic.subscriptions) == (0, {})
            await give(broker, name)
            await asyncio.sleep(70)  # what was broken off goes on, and leaves the new one alone
            assert all(await given(broker, name)), last
            assert await is_there(broker, name)
        if ended:
            assert last > 5
            return
        await with_namespace(broker, name)
    pytest.fail("no deletion came to its end")


@scenario(**SETTINGS)
async def test_a_deletion_that_is_noted_late_leaves_nothing_to_the_next_topic_either(
    broker,
) -> None:
    """Its answer was lost, and a client that comes then has seen that the topic is there."""
    store = broker.metadata
    await broker.broker.resources.namespaces.create(NAMESPACE)
    name = TopicName.parse(f"persistent://{NAMESPACE}/t")
    await used(broker, name, 0)
    commit, get = store.commit, store.get
    late: list[Sequence[Change]] = []

    async def unheard(changes: Sequence[Change]) -> Sequence[int]:
        if any(isinstance(each, Put) and b'"DELETING"' in each.value for each in changes):
            late.append(changes)
            raise OutcomeUnknownError("no answer")
        found: Sequence[int] = await commit(changes)
        return found

    async def seen_before(path: str) -> Versioned | None:
        found: Versioned | None = await get(path)
        if late and path == managed_ledger_path(name):
            await commit(late.pop())
        return found

    store.commit = unheard
    with pytest.raises(OutcomeUnknownError):
        await broker.broker.deletion.delete_topic(name)
    store.commit, store.get = commit, seen_before
    with suppress(PulsarkError):
        await broker.broker.creation.topic_for_clients(name)
    assert not late
    topic = await broker.broker.creation.topic_for_clients(name)
    assert (topic.ledger.entries, topic.subscriptions) == (0, {})
    assert await given(broker, name) == NOTHING


@scenario(**SETTINGS)
async def test_a_non_persistent_topic_leaves_nothing(broker) -> None:
    await broker.broker.resources.namespaces.create(NAMESPACE)
    name = TopicName.parse(f"non-persistent://{NAMESPACE}/v")
    for restarted in (False, True):
        await broker.broker.creation.topic_for_clients(name)
        await give(broker, name)
        if restarted:  # the topic was in memory, and what was set for it was not
            await broker.restart()
        await broker.broker.deletion.delete_topic(name)
        assert (await given(broker, name))[1:] == NOTHING[1:]
    with pytest.raises(ClientError, match="does not exist"):
        await broker.broker.deletion.delete_topic(name)


@scenario(**SETTINGS)
async def test_a_non_persistent_topic_leaves_the_schemas_that_it_shares(broker) -> None:
    await broker.broker.resources.namespaces.create(NAMESPACE)
    name = TopicName.parse(f"non-persistent://{NAMESPACE}/v")
    twin = TopicName.parse(f"persistent://{NAMESPACE}/v")
    await broker.broker.creation.topic_for_clients(twin)
    for there in (True, False):
        await broker.broker.creation.topic_for_clients(name)
        await give(broker, name)
        if not there:
            await broker.broker.deletion.delete_topic(twin)
            await give(broker, name)
        await broker.broker.deletion.delete_topic(name)
        assert await broker.broker.schemas.exist(name) is there


@scenario(**SETTINGS)
async def test_a_topic_with_partitions_that_stores_nothing_is_gone_at_once(broker) -> None:
    for last in range(MOST_WRITES):
        store = await mortal(broker)
        if last == 0:
            await broker.broker.resources.namespaces.create(NAMESPACE)
        name = TopicName.parse(f"non-persistent://{NAMESPACE}/v{last}")
        await broker.broker.creation.create_partitioned_topic(name, 2, {})
        await broker.broker.creation.topic_for_clients(name.with_partition(1))
        await give(broker, name)
        store.writes, store.last = 0, last
        try:
            await broker.broker.deletion.delete_partitioned_topic(name)
        except PulsarkError:
            assert store.is_dead
        ended = not store.is_dead
        await mortal(broker)
        if await broker.broker.resources.partitioned_topics.get(name) is not None:
            assert all(await given(broker, name)), last
        else:
            await broker.broker.creation.topic_for_clients(name)
            assert await given(broker, name) == NOTHING, last
        if ended:
            return
    pytest.fail("no deletion came to its end")


@scenario(**SETTINGS)
async def test_a_hidden_namespace_is_removed_or_shown_again(broker) -> None:
    namespaces = broker.broker.resources.namespaces
    await broker.broker.resources.tenants.create("other", Tenant())
    for name in ("other/empty", NAMESPACE):
        await namespaces.create(name)
    name = TopicName.parse(f"persistent://{NAMESPACE}/t")
    await used(broker, name, 0)
    for each in ("other/empty", NAMESPACE):
        await namespaces.begin_delete(each)  # and the process is killed
    await broker.restart()
    await asyncio.sleep(610)
    namespaces = broker.broker.resources.namespaces
    assert await namespaces.get(NAMESPACE) is not None
    assert all(await given(broker, name))
    await broker.broker.resources.tenants.delete("other")  # it has no namespaces any more
    with pytest.raises(InUseError):
        await broker.broker.namespace_deletion.delete(NAMESPACE, force=False)
    assert await namespaces.get(NAMESPACE) is not None


@scenario(**SETTINGS)
async def test_the_next_namespace_has_nothing_of_topics_that_were_not_there(broker) -> None:
    await broker.broker.resources.namespaces.create(NAMESPACE)
    name = TopicName.parse(f"non-persistent://{NAMESPACE}/v")
    await give(broker, name)
    await broker.broker.namespace_deletion.delete(NAMESPACE, force=False)
    await broker.broker.resources.namespaces.create(NAMESPACE)
    assert await given(broker, name) == NOTHING
