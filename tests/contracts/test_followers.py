"""Those who follow the metadata store: whatever changes while they read, they know the truth.

Each change comes at each await of a read, told or missed; afterwards the follower must answer as
one that has only just begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pulsark.dispatch.brokers.owners import BundleOwner, BundleOwners
from pulsark.dispatch.brokers.registry import BrokerRegistry, LiveBroker
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.dispatch.topics.group_throttles import GroupThrottles
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.paths import (
    broker_path,
    bundle_owner_path,
    policies_path,
    resource_group_path,
)
from pulsark.metadata.resources import Resources, Tenant
from pulsark.metadata.store import ANY_VERSION
from pulsark.runtime import Runtime
from pulsark.security import grants
from pulsark.security.decisions import Target
from pulsark.security.facts import Rules
from pulsark.security.known_facts import KnownFacts
from tests.support.gates import Gate, Gated, at_each_await, settle

Store = Any
BUNDLE = "public/default/0x00000000_0xffffffff"
NAMESPACE = "acme/web"


@dataclass(frozen=True)
class Follower:
    """How a test makes a follower, asks it, and changes what it follows."""

    make: Callable[[Store], Awaitable[Any]]
    ask: Callable[[Any], Awaitable[object]]
    put: Callable[[Store, int], Awaitable[None]]
    """Sets state 0, 1 or 2."""
    remove: Callable[[Store], Awaitable[None]]


async def facts(store: Store) -> KnownFacts:
    found = KnownFacts(Rules(frozenset()), store, Resources(store, Runtime()))
    found.start()
    return found


async def facts_of_namespace(known: KnownFacts) -> object:
    target = Target.of_namespace(NAMESPACE)
    found = known.of(target) or await known.read(target)
    return found.grants and [
        found.grants.namespace.gives(f"role{n}", frozenset({"produce"})) for n in range(3)
    ]


async def put_grants(store: Store, state: int) -> None:
    resources, policies = Resources(store, Runtime()), dict[str, Any]()
    grants.grant(policies, f"role{state}", ["produce"])
    if await resources.tenants.get("acme") is None:
        await resources.tenants.create("acme", Tenant(()))
    await removing(policies_path(NAMESPACE))(store)
    await resources.namespaces.create(NAMESPACE, policies=policies)


async def facts_of_tenant(known: KnownFacts) -> object:
    return (known.of(Target("acme")) or await known.read(Target("acme"))).admins


async def put_tenant(store: Store, state: int) -> None:
    tenants = Resources(store, Runtime()).tenants
    tenant = Tenant((f"role{state}",))
    if await tenants.get("acme") is None:
        await tenants.create("acme", tenant)
    else:
        await tenants.update("acme", tenant)


async def owners(store: Store) -> BundleOwners:
    found = BundleOwners(store)
    found.start()
    return found


async def put_owner(store: Store, state: int) -> None:
    owner = BundleOwner(f"broker{state}:8080", "i", ServiceUrls("pulsar://h:1", "http://h:2"))
    await store.put(bundle_owner_path(BUNDLE), owner.encode(), ANY_VERSION)


async def registry(store: Store) -> BrokerRegistry:
    found = BrokerRegistry(store)
    await found.follow()
    return found


async def live(found: BrokerRegistry) -> object:
    await settle()  # it reads by itself
    return dict(found.live)


async def put_broker(store: Store, state: int) -> None:
    broker = LiveBroker("other:8080", f"i{state}", ServiceUrls("pulsar://h:1", "http://h:2"))
    await store.put(broker_path("other:8080"), broker.encode(), ANY_VERSION)


async def throttles(store: Store) -> GroupThrottles:
    found = GroupThrottles(Runtime().clock, store, Resources(store, Runtime()).resource_groups)
    await found.start()
    return found


async def limit(found: GroupThrottles) -> object:
    await settle()
    throttle = found.of("group")
    return throttle and throttle._rate


async def put_group(store: Store, state: int) -> None:
    await Resources(store, Runtime()).resource_groups.put(
        "group", {"publishRateInMsgs": state * 100, "publishRateInBytes": 1 << 20}
    )


def removing(path: str) -> Callable[[Store], Awaitable[None]]:
    async def remove(store: Store) -> None:
        if await store.get(path) is not None:
            await store.delete(path, ANY_VERSION)

    return remove


FOLLOWERS = {
    "grants": Follower(facts, facts_of_namespace, put_grants, removing(policies_path(NAMESPACE))),
    "administrators": Follower(facts, facts_of_tenant, put_tenant, removing(policies_path("acme"))),
    "owners": Follower(
        owners, lambda found: found.of(BUNDLE), put_owner, removing(bundle_owner_path(BUNDLE))
    ),
    "brokers": Follower(registry, live, put_broker, removing(broker_path("other:8080"))),
    "groups": Follower(throttles, limit, put_group, removing(resource_group_path("group"))),
}


class Stage:
    """A store, and a follower whose reads pass a gate."""

    def __init__(self, follower: Follower, gate: Gate) -> None:
        self.follower = follower
        self.store = MemoryMetadataStore()
        self.gated = Gated(self.store, gate)
        self.found: Any = None

    async def change(self, state: int | None, *, told: bool) -> None:
        """Set what is followed to a state, or remove it."""
        watches = self.store.tree.watches
        tell = watches.tell
        if not told:
            watches.tell = lambda path: None  # type: ignore[method-assign]
        try:
            if state is None:
                await self.follower.remove(self.store)
            else:
                await self.follower.put(self.store, state)
        finally:
            watches.tell = tell  # type: ignore[method-assign]
        if not told:
            watches.tell_missed()


@pytest.mark.parametrize("told", [True, False], ids=["told", "missed"])
@pytest.mark.parametrize("before", [None, 0], ids=["absent", "present"])
@pytest.mark.parametrize("during", [None, 2], ids=["removed", "put"])
@pytest.mark.parametrize("first", [None, 1], ids=["asked", "changed"])
@pytest.mark.parametrize("name", FOLLOWERS)
def test_a_change_at_any_await_is_known_afterwards(
    name: str, before: int | None, first: int | None, during: int | None, told: bool
) -> None:
    follower = FOLLOWERS[name]

    async def make(gate: Gate) -> Stage:
        stage = Stage(follower, gate)
        if before is not None:
            await stage.change(before, told=True)
        return stage

    async def operation(stage: Stage) -> None:
        """Begin to follow, and ask; with ``first`` also after a change that it hears of."""
        stage.found = await follower.make(stage.gated)
        await follower.ask(stage.found)
        if first is not None:
            await stage.change(first, told=True)
            await settle()
            await follower.ask(stage.found)

    async def check(stage: Stage, where: str) -> None:
        fresh = await follower.make(stage.store)
        assert await follower.ask(stage.found) == await follower.ask(fresh), where
        fresh.close()
        stage.found.close()

    async def run() -> int:
        return await at_each_await(
            make, operation, lambda stage: stage.change(during, told=told), check
        )

    assert asyncio.run(asyncio.wait_for(run(), 20)) >= 2
