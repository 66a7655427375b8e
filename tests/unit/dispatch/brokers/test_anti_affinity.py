"""Namespaces of one group are spread over brokers, whoever places their bundles."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from pulsark.dispatch.brokers.anti_affinity import ANTI_AFFINITY_GROUP, NO_GROUP
from pulsark.metadata.namespaces import Namespace
from pulsark.metadata.resources import Tenant
from pulsark.wire.topic_name import TopicName
from tests.support.bundle_nodes import Node, nodes, turns

GROUP = [f"public/n{number}" for number in range(6)]


async def make(node: Node, name: str, group: str | None) -> None:
    """A namespace of one bundle, in a group."""
    policies = {} if group is None else {ANTI_AFFINITY_GROUP: group}
    edges = ("0x00000000", "0xffffffff")
    await node.resources.namespaces.create(name, boundaries=edges, policies=policies)


async def change(node: Node, name: str, group: str) -> None:
    def apply(old: Namespace) -> Namespace:
        return replace(old, policies={ANTI_AFFINITY_GROUP: group})

    await node.resources.namespaces.update(name, apply)


def topic_of(namespace: str) -> TopicName:
    return TopicName.parse(f"persistent://{namespace}/t")


@pytest.mark.parametrize("at_once", [False, True])
def test_a_group_is_spread_over_the_brokers(at_once: bool) -> None:
    async def scenario() -> None:
        found = await nodes(3)
        for node in found:
            node.lookup.hands_over = True
            await node.report(bundles={"b0:8080": 0, "b1:8080": 50, "b2:8080": 90}[node.id])
        for name in GROUP:
            await make(found[0], name, "g")
        await turns()
        asked = [found[0].lookup.find(topic_of(name)) for name in GROUP]
        if at_once:
            results = await asyncio.gather(*asked)
        else:
            results = [await each for each in asked]
        assert set(Counter(each.broker_id for each in results).values()) == {2}

    asyncio.run(scenario())


def test_who_is_in_the_group_is_followed() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        for name, group in (("public/a", "g"), ("public/b", None), ("public/c", "other")):
            await make(one, name, group)
            await one.ownership.own(topic_of(name))
        await turns()
        groups = two.groups
        assert await groups.beside("public/b") is NO_GROUP
        beside = await groups.beside("public/a")
        assert (beside.namespaces, set(beside.owned)) == (
            {"public/a"},
            {"public/a/0x00000000_0xffffffff"},
        )
        await change(one, "public/b", "g")
        await change(one, "public/c", "g")
        await turns()
        beside = await groups.beside("public/a")
        assert beside.namespaces == {"public/a", "public/b", "public/c"}
        assert beside.held({}) == {one.id: 3}
        await change(one, "public/c", "another")
        await one.resources.namespaces.begin_delete("public/b")
        await turns()
        assert (await groups.beside("public/a")).namespaces == {"public/a"}

    asyncio.run(scenario())


def test_changes_that_nobody_heard_of_are_read() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        await make(one, "public/a", "g")
        assert (await two.groups.beside("public/a")).namespaces == {"public/a"}
        two.store.lose_watches()
        await make(one, "public/b", "g")
        await turns()
        two.store.watch_again()
        await turns()
        assert (await two.groups.beside("public/a")).namespaces == {"public/a", "public/b"}

    asyncio.run(scenario())


def test_what_was_just_given_counts_until_it_is_claimed() -> None:
    async def scenario() -> None:
        (one,) = await nodes(1)
        await make(one, "public/a", "g")
        await make(one, "public/b", "g")
        bundle = await one.ownership.own(topic_of("public/a"))
        beside = await one.groups.beside("public/a")
        given = {bundle: "x", "public/b/0x00000000_0xffffffff": "y", "public/other/0x0_0x1": "z"}
        assert beside.held(given) == {one.id: 1, "y": 1}

    asyncio.run(scenario())


def test_groups_of_two_tenants_have_nothing_to_do_with_each_other() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        await one.resources.tenants.create("rival", Tenant())
        for name in ("public/a", "public/b", "rival/a"):
            await make(one, name, "g")
            await one.ownership.own(topic_of(name))
        await turns()
        beside = await two.groups.beside("public/a")
        assert beside.namespaces == {"public/a", "public/b"}
        assert all(bundle.startswith("public/") for bundle in beside.owned)

    asyncio.run(scenario())
