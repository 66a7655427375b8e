"""Each unloaded topic is looked after by one broker, and each bundle with topics has one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pulsark.dispatch.policies.policies import TopicPolicies
from pulsark.dispatch.topic.topic import Topic
from pulsark.dispatch.upkeep.unloaded_policies import UnloadedPolicies
from pulsark.dispatch.upkeep.unloaded_topics import UnloadedTopics
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, scenario

TOPICS = [f"persistent://public/default/t{number}" for number in range(24)]


class Noting:
    """Care for all topics, of which none has anything due."""

    looks_per_second = 1_000_000

    def __init__(self, is_concerned: Callable[[], bool] = lambda: True) -> None:
        self.seen: list[str] = []
        self._is_concerned = is_concerned

    def concerns(self, policies: TopicPolicies) -> bool:
        return self._is_concerned()

    async def is_due(self, name: TopicName, policies: TopicPolicies) -> bool:
        self.seen.append(str(name))
        return False

    async def attend(self, topic: Topic) -> None: ...


def walk(broker: BrokerInMemory) -> UnloadedTopics:
    one = broker.broker
    return UnloadedTopics(one.settings, one.metadata, one.resources, one.topics, one.share)


async def looked_after(*brokers: BrokerInMemory) -> list[list[str]]:
    """What each broker looks after in a round."""
    found = []
    for broker in brokers:
        care = Noting()
        await walk(broker).look_after(care)
        found.append(care.seen)
        await asyncio.sleep(0.01)
    return found


async def make_topics(broker: BrokerInMemory) -> None:
    for topic in TOPICS:
        await broker.broker.topics.load(TopicName.parse(topic), create=True)
    await broker.broker.bundle_release.release_all()


@scenario()
async def test_a_broker_that_is_alone_looks_after_all(broker) -> None:
    await make_topics(broker)
    assert broker.broker.ownership.owned() == []
    assert await looked_after(broker) == [sorted(TOPICS)]
    assert len(broker.broker.ownership.owned()) == 4


@scenario()
async def test_nothing_is_claimed_where_nothing_can_become_due(broker) -> None:
    await make_topics(broker)
    care = Noting(lambda: False)
    await walk(broker).look_after(care)
    assert care.seen == broker.broker.ownership.owned() == []


@scenario()
async def test_the_leader_gives_what_nobody_has_to_all(broker) -> None:
    await make_topics(broker)
    two = await broker.another()
    assert broker.broker.leader.is_here
    await looked_after(two)
    assert two.broker.ownership.owned() == broker.broker.ownership.owned() == []
    await looked_after(broker)
    assert len(two.broker.ownership.owned()) == len(broker.broker.ownership.owned()) == 2
    first, second = await looked_after(broker, two)
    assert sorted(first + second) == sorted(TOPICS)
    assert len(first) > 0
    assert len(second) > 0
    assert broker.broker.topics.served() == two.broker.topics.served() == []


@scenario()
async def test_what_a_broker_had_is_looked_after_by_another(broker) -> None:
    await make_topics(broker)
    two = await broker.another()
    await looked_after(broker)
    broker.metadata.expire()
    await asyncio.sleep(0.01)
    assert two.broker.leader.is_here
    assert await looked_after(two) == [sorted(TOPICS)]


@scenario()
async def test_sizes_are_summed_up_of_all_brokers_topics(broker) -> None:
    await make_topics(broker)
    two = await broker.another()
    await two.broker.ownership.own(TopicName.parse(TOPICS[0]))
    care = Noting()
    await walk(broker).look_after(care, ["public/default"], everywhere=True)
    assert care.seen == sorted(TOPICS)
    assert broker.broker.ownership.owned() == []


@scenario(
    brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=60,
    topicsAtRestCheckIntervalInSeconds=1_000_000,
    keepAliveIntervalSeconds=1_000_000,
)
async def test_a_topic_that_another_broker_served_just_now_is_not_unused(broker) -> None:
    name = TopicName.parse("persistent://public/n/t")
    await broker.broker.resources.namespaces.create("public/n")
    two = await broker.another()
    await asyncio.sleep(50)
    await broker.broker.topics.load(name, create=True)
    await broker.broker.bundle_release.release_all()
    one = two.broker
    await one.ownership.own(name)
    care = UnloadedPolicies(
        one.runtime, one.metadata, one.cursor_logs, one.topics, one.deletion, one.ownership
    )
    policies = await one.policy_source.current(name)
    await asyncio.sleep(50)
    assert not await care.is_due(name, policies)
    await asyncio.sleep(20)
    assert await care.is_due(name, policies)
    await one.bundle_release.release_all()
    assert not await care.is_due(name, policies)  # and that question claims nothing
    assert one.ownership.owned() == []


@scenario()
async def test_a_deletion_that_was_broken_off_is_finished_by_the_bundles_owner(broker) -> None:
    name = TopicName.parse(TOPICS[0])
    topic = await broker.broker.topics.load(name, create=True)
    await topic.begin_deletion()
    two = await broker.another()
    broker.metadata.expire()
    await asyncio.sleep(0.01)
    assert await two.broker.catalog.is_stored(name)
    await asyncio.sleep(two.broker.settings.topicsAtRestCheckIntervalInSeconds + 1)
    assert not await two.broker.catalog.is_stored(name)
