"""Bundles are split and moved without anybody asking, and nothing is when it is switched off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pulsark.dispatch.brokers.load import LoadReport
from pulsark.dispatch.brokers.shedding import ROUNDS
from pulsark.dispatch.topics.bundles import Covered
from pulsark.errors import MetadataRefusedError
from pulsark.metadata.paths import MOVED_BUNDLES
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, scenario
from tests.support.two_brokers import Node, TwoBrokers

WHOLE = "public/default/0x00000000_0x40000000"
NAMES = [TopicName.parse(f"persistent://public/default/t{number}") for number in range(100)]
INSIDE = [name for name in NAMES if name in Covered(WHOLE)][:6]


async def look(broker: BrokerInMemory, *, measure: bool = True) -> int:
    """Have it looked at what there is; how many bundles the namespace has then."""
    if measure:
        await broker.broker.bundle_loads.measure()
    await broker.broker.auto_split.look()
    found = await broker.broker.resources.namespaces.get("public/default")
    assert found is not None
    return len(found.bundles)


async def with_topics(broker: BrokerInMemory) -> None:
    for name in INSIDE:
        await broker.broker.topics.load(name, create=True)


@scenario(loadBalancerNamespaceBundleMaxTopics=4)
async def test_a_bundle_with_too_many_topics_is_split_and_others_get_the_parts(broker) -> None:
    await with_topics(broker)
    assert await look(broker) == 4, "a broker that is alone splits nothing"
    two = await broker.another()
    assert await look(two) == 4, "it is not its own"
    assert await look(broker) == 5
    assert broker.broker.ownership.owned() == []
    assert broker.broker.bundle_split.done == 1
    await with_topics(broker)
    assert await look(broker, measure=False) == 5, "nothing is known of the parts yet"


@scenario(
    loadBalancerNamespaceBundleMaxTopics=4,
    loadBalancerAutoUnloadSplitBundlesEnabled=False,
    loadBalancerNamespaceMaximumBundles=6,
    defaultNamespaceBundleSplitAlgorithm="topic_count_equally_divide",
)
async def test_parts_are_kept_and_split_again_up_to_the_limit_of_bundles(broker) -> None:
    await broker.another()
    for name in [name for name in NAMES if name in Covered(WHOLE)]:
        await broker.broker.topics.load(name, create=True)
    for expected in (5, 6, 6):
        assert await look(broker) == expected
        assert len(broker.broker.ownership.owned()) == expected - 3
        for name in [name for name in NAMES if name in Covered(WHOLE)]:
            await broker.broker.topics.load(name)


@pytest.mark.parametrize(
    "changed",
    [
        {"loadBalancerEnabled": False},
        {"loadBalancerAutoBundleSplitEnabled": False},
        {"metadataStoreUrl": "zk:one", "configurationMetadataStoreUrl": "zk:other"},
    ],
)
def test_nothing_is_split_where_that_is_off_or_cannot_be_done(changed: dict[str, Any]) -> None:
    @scenario(loadBalancerNamespaceBundleMaxTopics=4, **changed)
    async def main(broker) -> None:
        await broker.another()
        await with_topics(broker)
        assert await look(broker) == 4

    main()


@pytest.fixture
def both() -> Iterator[TwoBrokers]:
    found = TwoBrokers()
    yield found
    found.close()


def leader_of(both: TwoBrokers) -> tuple[Node, Node]:
    """Who leads, and the other one."""
    one, other = both.nodes
    return (one, other) if one.broker.share.leads else (other, one)


def busy(both: TwoBrokers, node: Node) -> str:
    """One of the two is busy with a bundle that it has, which is returned, and with others."""
    both.topic(str(INSIDE[0]), node)
    for each in both.nodes:
        load = LoadReport(0.1)
        if each is node:
            load = LoadReport(0.8, 3, busiest=((WHOLE, 0.2), ("public/default/x", 0.1)))
        both.run(each.broker.registry.report(load))
    return WHOLE


def rounds(both: TwoBrokers, number: int) -> None:
    for _ in range(number):
        for node in both.nodes:
            both.run(node.broker.load_shedding.look())


@pytest.mark.parametrize("leads", [True, False])
def test_a_busy_broker_gives_a_bundle_to_the_other_one(both: TwoBrokers, leads: bool) -> None:
    leader, follower = leader_of(both)
    source, to = (leader, follower) if leads else (follower, leader)
    bundle = busy(both, source)
    rounds(both, ROUNDS - 1)
    assert source.broker.ownership.has(bundle)
    rounds(both, 1)
    assert not source.broker.ownership.has(bundle)
    assert to.broker.ownership.has(bundle)
    assert (leader.broker.load_shedding.moves, follower.broker.load_shedding.moves) == (1, 0)


def test_what_could_not_be_noted_is_moved_later(both: TwoBrokers) -> None:
    """Nothing was moved, so nothing has to stay where it is for a time."""
    leader, follower = leader_of(both)
    bundle = busy(both, leader)
    put = leader.broker.metadata.put

    async def away(*_: object) -> int:
        raise MetadataRefusedError("the store is away")

    rounds(both, ROUNDS - 1)
    leader.broker.metadata.put = away  # type: ignore[method-assign, assignment]
    with pytest.raises(MetadataRefusedError):
        rounds(both, 1)
    leader.broker.metadata.put = put  # type: ignore[method-assign]
    rounds(both, ROUNDS)
    assert follower.broker.ownership.has(bundle)


def test_a_new_leader_does_not_move_back_what_the_former_one_moved(both: TwoBrokers) -> None:
    leader, follower = leader_of(both)
    bundle = busy(both, leader)
    rounds(both, ROUNDS)
    assert follower.broker.ownership.has(bundle)
    leader.broker.load_shedding._shedding = None  # as one that has just become it
    busy(both, follower)
    rounds(both, 2 * ROUNDS)
    assert follower.broker.ownership.has(bundle)
    known = both.run(leader.broker.metadata.get(MOVED_BUNDLES))
    assert known is not None
    both.run(leader.broker.metadata.delete(MOVED_BUNDLES))
    leader.broker.load_shedding._shedding = None
    rounds(both, ROUNDS)
    assert leader.broker.ownership.has(bundle), "otherwise it would have been moved"


@pytest.mark.parametrize("more", [1, 2])
def test_a_group_that_keeps_its_distance_is_not_brought_together(
    both: TwoBrokers, more: int
) -> None:
    leader, follower = leader_of(both)
    bundle = busy(both, leader)
    both.run(
        leader.broker.resources.namespaces.update(
            "public/default",
            lambda old: replace(old, policies={**old.policies, "antiAffinityGroup": "g"}),
        )
    )
    others = [name for name in NAMES if name not in Covered(WHOLE)]
    own = {both.run(leader.broker.ownership.bundle_named(name)): name for name in others}
    names = list(own.values())
    both.give(str(names[0]), follower)
    if more == 2:
        both.give(str(names[1]), leader)
    rounds(both, ROUNDS)
    assert follower.broker.ownership.has(bundle) is (more == 2)


def test_what_has_left_already_is_not_moved(both: TwoBrokers) -> None:
    leader, follower = leader_of(both)
    bundle = busy(both, follower)
    both.run(follower.broker.bundle_release.release(bundle))
    rounds(both, ROUNDS)
    assert leader.broker.load_shedding.moves == 0
    assert not leader.broker.ownership.has(bundle)


def test_nothing_goes_to_a_broker_for_one_kind_of_topics(both: TwoBrokers) -> None:
    leader, follower = leader_of(both)
    busy(both, leader)
    known = follower.broker.registry.own
    assert known is not None
    live = leader.broker.registry.live
    object.__setattr__(live[known.broker_id], "non_persistent", False)
    rounds(both, ROUNDS)
    assert leader.broker.load_shedding.moves == 0


@pytest.mark.parametrize("off", ["loadBalancerEnabled", "loadBalancerSheddingEnabled"])
def test_nothing_is_moved_where_that_is_off(off: str) -> None:
    found = TwoBrokers(**{off: False})
    leader, _ = leader_of(found)
    busy(found, leader)
    rounds(found, ROUNDS)
    assert leader.broker.load_shedding.moves == 0
    found.close()
