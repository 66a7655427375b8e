"""A namespace is deleted with its topics, whatever clients, kills and failures do meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsark.dispatch.topics.deletion import TopicDeletion
from pulsark.errors import ClientError, ServerError
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, scenario

NAMESPACE = "public/n"
TOPICS = [TopicName.parse(f"persistent://{NAMESPACE}/t-{number}") for number in range(20)]
PARTITIONED = TopicName.parse(f"persistent://{NAMESPACE}/p")
SETTINGS: dict[str, Any] = {
    "keepAliveIntervalSeconds": 1_000_000,
    "topicsAtRestCheckIntervalInSeconds": 60,
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
    await asyncio.sleep(70)
    assert await broker.broker.resources.namespaces.get(NAMESPACE) is None
    await broker.broker.resources.namespaces.create(NAMESPACE)
    assert await broker.broker.catalog.list_topics(NAMESPACE) == []


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
    two = await broker.another()
    await filled(broker)
    await asyncio.sleep(70)
    await two.broker.resources.namespaces.begin_emptying(NAMESPACE)
    assert broker.broker.leader.is_here
    two.metadata.expire()
    await asyncio.sleep(70)
    assert await broker.broker.resources.namespaces.get(NAMESPACE) is None


@scenario(**SETTINGS)
async def test_who_goes_on_with_it_while_it_goes_on_does_no_harm(broker) -> None:
    await filled(broker)
    await broker.broker.creation.create_partitioned_topic(PARTITIONED, 3, {})
    deletion = broker.broker.namespace_deletion
    deleting = asyncio.create_task(deletion.delete(NAMESPACE, force=True))
    await asyncio.sleep(0)
    await asyncio.gather(deletion.settle("public"), deleting)
    assert await broker.broker.resources.namespaces.get(NAMESPACE) is None
