"""Storage quotas of namespaces and tenants."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pulsark.dispatch.policies.policies import STORAGE_QUOTA
from pulsark.dispatch.upkeep.storage_quotas import Quotas, Use, over_quota
from pulsark.errors import ServerError
from pulsark.metadata.resources import Tenant
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario

FIRST, SECOND = "persistent://team/one/t", "persistent://team/two/t"
ROUND = 61
REFUSED = ServerError.ProducerBlockedQuotaExceededException
SETTINGS: dict[str, Any] = {
    "keepAliveIntervalSeconds": 1_000_000,
    "brokerDeleteInactiveTopicsEnabled": False,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
}


# -- who is over a quota ------------------------------------------------------------------------

COUNTING = frozenset({"a/x", "a/y", "b/x"})


@pytest.mark.parametrize(
    ("tenants", "namespaces", "used", "over"),
    [
        ({}, {"a/x": 10}, {"a/x": 9, "a/y": 99}, set()),
        ({}, {"a/x": 10}, {"a/x": 10}, {"a/x"}),
        ({}, {"a/x": 0}, {}, {"a/x"}),
        ({"a": 20}, {}, {"a/x": 15, "a/y": 5, "b/x": 99}, {"a/x", "a/y"}),
        ({"a": 20}, {}, {"a/x": 15, "a/y": 4}, set()),
        ({"a": 20}, {"a/x": 10, "b/x": 5}, {"a/x": 12, "b/x": 5}, {"a/x", "b/x"}),
    ],
)
def test_who_is_over_a_quota(
    tenants: dict[str, int], namespaces: dict[str, int], used: dict[str, int], over: set[str]
) -> None:
    assert over_quota(Quotas(tenants, namespaces, COUNTING), used) == over


# -- a broker -----------------------------------------------------------------------------------


async def prepare(broker: BrokerInMemory, **tenant: Any) -> None:
    resources = broker.broker.resources
    await resources.tenants.create("team", Tenant((), ("standalone",), **tenant))
    for name in ("team/one", "team/two"):
        await resources.namespaces.create(name, replication_clusters=("standalone",))


async def set_quota(broker: BrokerInMemory, limit: int) -> None:
    quota = {STORAGE_QUOTA: {"limitBytes": limit, "policy": "producer_exception"}}
    await broker.broker.resources.namespaces.update(
        "team/one", lambda old: replace(old, policies=quota)
    )


def size(broker: BrokerInMemory, name: str) -> int:
    topic = broker.broker.topics.get_loaded(TopicName.parse(name))
    assert topic is not None
    return topic.total_size


@scenario(**SETTINGS)
async def test_above_the_quota_of_a_namespace_there_are_no_producers(broker) -> None:
    await prepare(broker)
    await set_quota(broker, 100)
    client, other = Client(broker), Client(broker)
    for number in range(20):
        if number == 0:
            await client.produce(FIRST, 0)
            await other.produce(SECOND, 20)
        await client.publish(number)
    assert await client.subscribe(FIRST) == 0
    await asyncio.sleep(ROUND)
    used = size(broker, FIRST)
    assert used > 100
    quotas = broker.broker.storage_quotas
    assert quotas.namespaces == {"team/one": Use(used, 100)}
    closed = (await client.take(Command.CLOSE_PRODUCER)).close_producer
    assert closed.producer_id == 1
    assert await client.open_producer(FIRST, "p", 2) == REFUSED
    assert await client.open_producer("persistent://team/one/new", "p", 2) == REFUSED
    # Who reads goes on, and so do others' producers.
    ids = [delivery.message.message_id for delivery in await client.deliveries()]
    assert await client.ack(*((i.ledgerId, i.entryId) for i in ids)) == 0
    assert not other.has(Command.CLOSE_PRODUCER)
    assert not isinstance(await other.open_producer(SECOND, "q", 2), int)
    # What is deleted makes room.
    await broker.broker.deletion.delete_topic(TopicName.parse(FIRST), force=True)
    await asyncio.sleep(ROUND)
    assert not isinstance(await client.open_producer(FIRST, "p", 3), int)
    assert quotas.namespaces["team/one"].bytes == 0


@scenario(**SETTINGS)
async def test_a_tenants_quota_is_for_all_its_namespaces_loaded_or_not(broker) -> None:
    await prepare(broker, storage_quota_bytes=700)
    client = Client(broker)
    await client.produce(FIRST, 20, 1)
    await client.produce(SECOND, 20, 2)
    sizes = size(broker, FIRST), size(broker, SECOND)
    assert max(sizes) < 700 < sum(sizes)
    client.hang_up()
    await broker.broker.topics.unload(TopicName.parse(FIRST))
    await asyncio.sleep(ROUND)
    quotas = broker.broker.storage_quotas
    assert quotas.tenants == {"team": Use(sum(sizes), 700)}
    assert broker.broker.topics.get_loaded(TopicName.parse(FIRST)) is None
    client = Client(broker)
    assert await client.open_producer(FIRST, "p", 1) == REFUSED
    assert await client.open_producer(SECOND, "p", 2) == REFUSED
    await broker.broker.resources.tenants.update("team", Tenant((), ("standalone",)))
    await asyncio.sleep(ROUND)
    assert quotas.tenants == {}
    assert not isinstance(await client.open_producer(SECOND, "p", 3), int)


@scenario(**SETTINGS)
async def test_without_quotas_nothing_is_walked(broker, monkeypatch) -> None:
    quotas, reads = broker.broker.storage_quotas, []
    read = quotas._read

    async def counted() -> Quotas:
        reads.append(1)
        return await read()

    async def walk(*_: Any) -> None:
        raise AssertionError("nothing has to be walked")

    monkeypatch.setattr(quotas, "_read", counted)
    monkeypatch.setattr(quotas, "_count_loaded", walk)
    await Client(broker).produce(FIRST.replace("team/one", "public/default"), 1)
    await asyncio.sleep(5 * ROUND)
    assert len(reads) <= 1
    assert (quotas.namespaces, quotas.tenants, broker.broker.loader.over_quota) == ({}, {}, set())
