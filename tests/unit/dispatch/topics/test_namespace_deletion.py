"""A namespace is deleted with its topics, whatever clients, kills and failures do meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsark.dispatch.topics.deletion import TopicDeletion
from pulsark.errors import ClientError, MetadataError, ServerError
from pulsark.metadata.namespaces import Namespaces
from pulsark.metadata.paths import policies_path
from pulsark.metadata.records import InUseError
from pulsark.metadata.store import ABSENT
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, scenario
from tests.support.two_brokers import TwoBrokers

NAMESPACE = "public/n"
TOPICS = [TopicName.parse(f"persistent://{NAMESPACE}/t-{number}") for number in range(20)]
PARTITIONED = TopicName.parse(f"persistent://{NAMESPACE}/p")
MISSING = TopicName.parse(f"persistent://{NAMESPACE}/missing")
OTHER = "public/o"
ROUND = 610.0
"""After it the leader has looked for deletions that were broken off."""
SETTINGS: dict[str, Any] = {
    "keepAliveIntervalSeconds": 1_000_000,
    "topicsAtRestCheckIntervalInSeconds": 0,
    "brokerDeleteInactiveTopicsEnabled": False,
}


async def filled(broker: BrokerInMemory) -> None:
    await broker.broker.resources.namespaces.create(NAMESPACE)
    for name in TOPICS:
        await broker.broker.creation.topic_for_clients(name)


@scenario(**SETTINGS)
async def test_clients_that_come_again_make_no_topics_meanwhile(broker, monkeypatch) -> None:
    await filled(broker)
    told = set()
    delete_topic = TopicDeletion.delete_topic

    async def delete_slowly(deletion: TopicDeletion, name: TopicName, *, force: bool) -> None:
        await delete_topic(deletion, name, force=force)
        await asyncio.sleep(0.01)

    monkeypatch.setattr(TopicDeletion, "delete_topic", delete_slowly)

    async def come_again(name: TopicName) -> None:
        while True:
            try:
                await broker.broker.creation.topic_for_clients(name)
                await broker.broker.creation.partition_count(name, create=True)
            except ClientError as error:
                told.add(error.code)
            await asyncio.sleep(0.001)

    clients = [asyncio.create_task(come_again(name)) for name in TOPICS]
    await asyncio.sleep(1)
    await broker.broker.namespace_deletion.delete(NAMESPACE, force=True)
    assert await broker.broker.resources.namespaces.get(NAMESPACE) is None
    assert ServerError.ServiceNotReady in told  # they try again, until they hear that it is gone
    await asyncio.sleep(1)
    assert ServerError.TopicNotFound in told
    for client in clients:
        client.cancel()


@scenario(**SETTINGS)
async def test_it_goes_on_after_a_kill(broker) -> None:
    await filled(broker)
    await broker.broker.resources.namespaces.begin_emptying(NAMESPACE)
    await broker.broker.deletion.delete_topic(TOPICS[0], force=True)  # and it is killed
    await broker.restart()
    assert await broker.broker.resources.namespaces.get(NAMESPACE) is not None
    for make in (
        broker.broker.creation.topic_for_clients(TOPICS[1]),
        broker.broker.creation.create_topic(TOPICS[0], {}),
        broker.broker.creation.create_partitioned_topic(TOPICS[0], 2, {}),
    ):
        with pytest.raises(ClientError, match="Namespace public/n is being deleted"):
            await make
    await asyncio.sleep(ROUND)
    assert await broker.broker.resources.namespaces.get(NAMESPACE) is None
    await broker.broker.resources.namespaces.create(NAMESPACE)
    assert await broker.broker.catalog.list_topics(NAMESPACE) == []


@scenario(**SETTINGS)
async def test_what_is_there_and_what_is_not_can_be_asked_meanwhile(broker) -> None:
    await filled(broker)
    creation = broker.broker.creation
    await creation.create_partitioned_topic(PARTITIONED, 3, {})
    await broker.broker.resources.namespaces.begin_emptying(NAMESPACE)
    for create in (True, False):
        assert await creation.partition_count(PARTITIONED, create=create) == 3
        assert await creation.partition_count(TOPICS[0], create=create) == 0
    with pytest.raises(ClientError, match="does not exist"):
        await creation.partition_count(MISSING, create=False)
    with pytest.raises(ClientError, match="Namespace public/n is being deleted"):
        await creation.partition_count(MISSING, create=True)


@scenario(**SETTINGS)
async def test_clients_may_come_again_if_it_fails(broker, monkeypatch) -> None:
    await filled(broker)

    async def fail(deletion: TopicDeletion, name: TopicName, *, force: bool) -> None:
        raise ClientError(ServerError.PersistenceError, "no")

    with monkeypatch.context() as patched:
        patched.setattr(TopicDeletion, "delete_topic", fail)
        with pytest.raises(ClientError, match="no"):
            await broker.broker.namespace_deletion.delete(NAMESPACE, force=True)
    await broker.broker.creation.topic_for_clients(TOPICS[1])
    await broker.broker.namespace_deletion.delete(NAMESPACE, force=True)


@scenario(**SETTINGS)
async def test_the_leader_goes_on_with_it_when_another_broker_is_gone(broker) -> None:
    """Also of one that came and went between two rounds."""
    await filled(broker)
    await asyncio.sleep(ROUND)
    two = await broker.another()
    await two.broker.resources.namespaces.begin_emptying(NAMESPACE)
    assert broker.broker.leader.is_here
    two.metadata.expire()
    await asyncio.sleep(ROUND)
    assert await broker.broker.resources.namespaces.get(NAMESPACE) is None


@scenario(**SETTINGS)
async def test_it_goes_on_if_it_fails_and_not_even_that_can_be_noted(broker, monkeypatch) -> None:
    await filled(broker)
    await asyncio.sleep(ROUND)

    async def fail(*_: Any, **__: Any) -> None:
        raise MetadataError("no")

    with monkeypatch.context() as patched:
        patched.setattr(TopicDeletion, "delete_topic", fail)
        patched.setattr(Namespaces, "end_emptying", fail)
        with pytest.raises(MetadataError, match="no"):
            await broker.broker.namespace_deletion.delete(NAMESPACE, force=True)
        await asyncio.sleep(ROUND)  # this fails, too
    await asyncio.sleep(ROUND)
    assert await broker.broker.resources.namespaces.get(NAMESPACE) is None


@scenario(**SETTINGS)
async def test_one_that_cannot_go_on_yet_keeps_no_others_back(broker, monkeypatch) -> None:
    await filled(broker)
    namespaces = broker.broker.resources.namespaces
    await namespaces.create(OTHER)
    for name in (NAMESPACE, OTHER):
        await namespaces.begin_emptying(name)  # and it is killed
    await broker.metadata.put(policies_path("public/damaged"), b"[]", ABSENT)
    delete_topic = TopicDeletion.delete_topic

    async def fail(deletion: TopicDeletion, name: TopicName, *, force: bool) -> None:
        if name == TOPICS[3]:
            raise ClientError(ServerError.ServiceNotReady, "its broker does not answer")
        await delete_topic(deletion, name, force=force)

    with monkeypatch.context() as patched:
        patched.setattr(TopicDeletion, "delete_topic", fail)
        await asyncio.sleep(ROUND)
    assert await namespaces.get(OTHER) is None
    with pytest.raises(ClientError, match="is being deleted"):
        await broker.broker.creation.topic_for_clients(TOPICS[0])
    await asyncio.sleep(ROUND)
    assert await namespaces.get(NAMESPACE) is None


@scenario(**SETTINGS)
async def test_who_goes_on_with_it_while_it_goes_on_does_no_harm(broker) -> None:
    await filled(broker)
    await broker.broker.creation.create_partitioned_topic(PARTITIONED, 3, {})
    deletion = broker.broker.namespace_deletion
    deleting = asyncio.create_task(deletion.delete(NAMESPACE, force=True))
    await asyncio.sleep(0)
    await asyncio.gather(deletion.settle("public"), deleting)
    assert await broker.broker.resources.namespaces.get(NAMESPACE) is None


@scenario(**SETTINGS)
async def test_one_that_is_being_deleted_keeps_no_others_waiting(broker) -> None:
    await filled(broker)
    deletion = broker.broker.namespace_deletion
    async with broker.broker.topics.ending(TOPICS[0]):
        deleting = asyncio.create_task(deletion.delete(NAMESPACE, force=True))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(1):
            await deletion.settle("public")
        assert not deleting.done()
    await deleting


@pytest.mark.parametrize("turns", [0, 1, 5, 10, 20, 40])
def test_two_brokers_that_are_told_to_delete_it_both_say_that_it_is_gone(turns: int) -> None:
    """A client that waited too long for the answer of one has asked another one."""
    both = TwoBrokers()
    both.run(both.a.broker.resources.namespaces.create(NAMESPACE))
    for part in both.partitioned(str(PARTITIONED), 4):
        both.topic(part, next(node for node in both.nodes if both.run(both.owner(part)) is node))
    both.partitioned(f"persistent://{NAMESPACE}/q", 4)
    both.partitioned(f"non-persistent://{NAMESPACE}/v", 4)

    async def delete() -> None:
        first = asyncio.create_task(both.a.broker.namespace_deletion.delete(NAMESPACE, force=True))
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.gather(both.b.broker.namespace_deletion.delete(NAMESPACE, force=True), first)

    both.run(delete())
    assert both.run(both.b.broker.resources.namespaces.get(NAMESPACE)) is None
    both.close()


@pytest.mark.parametrize("place", [0, 1])
def test_one_with_a_topic_in_the_memory_of_some_broker_stays(place: int) -> None:
    both = TwoBrokers()
    both.run(both.a.broker.resources.namespaces.create(NAMESPACE))
    name = f"non-persistent://{NAMESPACE}/v"
    both.give(name, both.nodes[place])
    parsed = TopicName.parse(name)
    both.run(both.nodes[place].broker.creation.topic_for_clients(parsed))
    with pytest.raises(InUseError):
        both.run(both.a.broker.namespace_deletion.delete(NAMESPACE, force=False))
    assert both.run(both.b.broker.resources.namespaces.get(NAMESPACE)) is not None
    both.run(both.a.broker.namespace_deletion.delete(NAMESPACE, force=True))
    assert both.nodes[place].broker.topics.get(parsed) is None
    both.close()


@pytest.mark.parametrize("turns", range(0, 24, 2))
def test_two_brokers_that_delete_an_empty_one_both_say_that_it_is_gone(turns: int) -> None:
    both = TwoBrokers()
    both.run(both.a.broker.resources.namespaces.create(NAMESPACE))

    async def delete() -> None:
        first = asyncio.create_task(both.a.broker.namespace_deletion.delete(NAMESPACE, force=False))
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.gather(both.b.broker.namespace_deletion.delete(NAMESPACE, force=False), first)

    both.run(delete())
    assert both.run(both.b.broker.resources.namespaces.get(NAMESPACE)) is None
    both.close()


@pytest.mark.parametrize("deleted", [3, len(TOPICS)])
@pytest.mark.parametrize("made", [0, len(TOPICS)])
def test_one_that_another_broker_has_deleted_and_that_was_made_anew_stays(
    deleted: int, made: int
) -> None:
    @scenario(**SETTINGS)
    async def test(broker: BrokerInMemory) -> None:
        await filled(broker)
        count, delete_topic = 0, TopicDeletion.delete_topic

        async def delete(deletion: TopicDeletion, name: TopicName, *, force: bool) -> None:
            nonlocal count
            await delete_topic(deletion, name, force=force)
            count += 1
            if count == deleted:  # at another broker
                for topic in await broker.broker.catalog.stored_topics(NAMESPACE):
                    await delete_topic(deletion, topic, force=True)
                await namespaces.begin_delete(NAMESPACE)
                await namespaces.finish_delete(NAMESPACE)
                await namespaces.create(NAMESPACE)
                for topic in TOPICS[:made]:
                    await broker.broker.creation.topic_for_clients(topic)

        namespaces = broker.broker.resources.namespaces
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(TopicDeletion, "delete_topic", delete)
            with pytest.raises(InUseError, match="made anew"):
                await broker.broker.namespace_deletion.delete(NAMESPACE, force=True)
        assert await namespaces.get(NAMESPACE) is not None
        assert len(await broker.broker.catalog.stored_topics(NAMESPACE)) == made

    test()
