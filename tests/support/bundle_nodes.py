"""What brokers know of each other and of their bundles, several over one metadata store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pulsark.config.settings import Settings
from pulsark.dispatch.brokers.anti_affinity import AntiAffinityGroups
from pulsark.dispatch.brokers.candidates import Candidates
from pulsark.dispatch.brokers.isolation_source import IsolationSource
from pulsark.dispatch.brokers.owners import BundleOwners
from pulsark.dispatch.brokers.registry import BrokerRegistry, LiveBroker
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.dispatch.topics.assigned_bundles import AssignedBundles
from pulsark.dispatch.topics.lookup import Lookup
from pulsark.dispatch.topics.ownership import Ownership
from pulsark.metadata.memory import MemoryTree
from pulsark.metadata.resources import Resources
from pulsark.runtime import Runtime
from pulsark.wire.topic_name import TopicName
from tests.support.faulty_metadata import FaultyStore


async def turns(number: int = 60) -> None:
    """Let what is told be heard."""
    for _ in range(number):
        await asyncio.sleep(0)


class Node:
    """One broker without topics."""

    def __init__(
        self,
        tree: MemoryTree,
        number: int,
        runtime: Runtime | None = None,
        *,
        persistent: bool = True,
        non_persistent: bool = True,
    ) -> None:
        runtime = runtime or Runtime()
        self.store = FaultyStore(tree)
        self.resources = Resources(self.store, runtime)
        self.registry = BrokerRegistry(self.store)
        self.owners = BundleOwners(self.store)
        self.groups = AntiAffinityGroups(self.store, self.resources.namespaces, self.owners)
        self.isolation = IsolationSource(self.store, self.resources.isolation, "c")
        self.ownership = Ownership(
            self.store, self.resources, runtime, self.registry, self.isolation
        )
        self.urls = ServiceUrls(f"pulsar://b{number}:6650", f"http://b{number}:8080")
        self.assigned = AssignedBundles(self.store, self.ownership, self.registry)
        self.lookup = Lookup(
            Settings(),
            runtime.clock,
            self.store,
            self.ownership,
            self.owners,
            self.registry,
            Candidates(self.registry, self.isolation, self.groups),
            lambda name: None,
        )
        self._kinds = persistent, non_persistent
        self.lost: list[str] = []
        self.ownership.on_loss(self.lost.append)

    @property
    def id(self) -> str:
        return self.urls.broker_id

    async def start(self) -> Node:
        await self.resources.initialize("c", {}, bundles=4)
        self.ownership.announce(self.urls)
        persistent, non_persistent = self._kinds
        own = LiveBroker(
            self.id,
            self.ownership.instance,
            self.urls,
            persistent=persistent,
            non_persistent=non_persistent,
        )
        await self.registry.announce(own)
        await self.isolation.start()
        self.groups.start()
        self.owners.start()
        self.assigned.start()
        return self

    async def report(self, **load: float) -> None:
        assert self.registry.own is not None
        await self.registry.report(replace(self.registry.own.load, **load))


async def nodes(number: int) -> list[Node]:
    """So many brokers that know each other."""
    tree = MemoryTree()
    found = [await Node(tree, index).start() for index in range(number)]
    await turns()
    return found


def topic(number: int) -> TopicName:
    """One of many topics, in all bundles of a namespace."""
    return TopicName.parse(f"persistent://public/default/t{number}")
