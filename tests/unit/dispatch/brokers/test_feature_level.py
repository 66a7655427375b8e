"""A rolling upgrade: brokers of two versions in one cluster, and which formats they write."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from pulsark.dispatch.brokers.feature_level import FeatureLevels
from pulsark.dispatch.brokers.registry import BrokerRegistry, LiveBroker
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.errors import ConfigError, CorruptMetadataError
from pulsark.limits import FEATURE_LEVEL_WAIT_SECONDS
from pulsark.metadata import records
from pulsark.metadata.changes import Change
from pulsark.metadata.memory import MemoryTree
from pulsark.metadata.paths import FEATURE_LEVEL_OF_CLUSTER, broker_path
from pulsark.metadata.store import Versioned
from tests.support.admin_api import SteppedClock
from tests.support.faulty_metadata import FaultyStore

OLD, NEW = 1, 2


class Node:
    """A broker of some version, in a session of its own."""

    def __init__(self, tree: MemoryTree, clock: SteppedClock, number: int, known: int) -> None:
        self.store = FaultyStore(tree)
        self.clock = clock
        self.registry = BrokerRegistry(self.store)
        self.levels = FeatureLevels(self.store, clock, known)
        urls = ServiceUrls(f"pulsar://b{number}:6650", f"http://b{number}:8080")
        self.own = LiveBroker(urls.broker_id, f"i{number}{known}", urls, feature_level=known)

    async def announce(self) -> None:
        await self.levels.check()
        await self.registry.announce(replace(self.own, started_ms=self.clock.now_ms()))

    async def start(self) -> Node:
        await self.announce()
        await self.levels.join()
        return self

    async def stop(self) -> None:
        self.registry.close()
        await self.registry.retire()

    async def stored(self) -> int:
        found = await self.store.get(FEATURE_LEVEL_OF_CLUSTER)
        assert found is not None
        level: int = records.decode(found)["level"]
        return level


class Cluster:
    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.clock = SteppedClock()
        self._numbers = itertools.count(1)

    def node(self, known: int) -> Node:
        return Node(self.tree, self.clock, next(self._numbers), known)

    def wait(self, seconds: float = FEATURE_LEVEL_WAIT_SECONDS) -> None:
        self.clock.ms += int(seconds * 1000)


def test_a_new_cluster_has_the_level_of_its_first_broker() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        first = await cluster.node(NEW).start()
        assert first.levels.cluster == await first.stored() == NEW
        assert first.levels.allows(NEW)
        assert not first.levels.allows(NEW + 1)

    asyncio.run(scenario())


def test_new_formats_are_written_when_the_last_old_broker_is_gone() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        one, two = await cluster.node(OLD).start(), await cluster.node(OLD).start()
        await one.stop()
        new = await cluster.node(NEW).start()
        cluster.wait()
        await new.levels.follow(leads=True)
        assert not new.levels.allows(NEW), "the second is still old"
        await two.stop()
        other = await cluster.node(NEW).start()
        cluster.wait(FEATURE_LEVEL_WAIT_SECONDS - 1)
        await new.levels.follow(leads=True)
        assert not new.levels.allows(NEW), "the upgrade may still be taken back"
        cluster.wait(1)
        await other.levels.follow(leads=False)
        assert await new.stored() == OLD, "only the leader raises it"
        await new.levels.follow(leads=True)
        assert new.levels.allows(NEW)
        assert not other.levels.allows(NEW)
        await other.levels.follow(leads=False)
        assert other.levels.allows(NEW)

    asyncio.run(scenario())


def test_an_upgrade_is_taken_back_before_the_level_rises_and_not_after() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        old = await cluster.node(OLD).start()
        new = await cluster.node(NEW).start()
        await old.stop()
        back = await cluster.node(OLD).start()
        cluster.wait()
        await new.levels.follow(leads=True)
        assert await new.stored() == OLD
        await back.stop()
        await new.levels.follow(leads=True)
        assert await new.stored() == NEW
        late = cluster.node(OLD)
        with pytest.raises(ConfigError, match="level 2, and this program knows only 1"):
            await late.announce()
        assert await new.store.get(broker_path(late.own.broker_id)) is None

    asyncio.run(scenario())


class Interrupted(FaultyStore):
    """Something happens before each call."""

    before: Callable[[], Awaitable[None]]

    async def get(self, path: str) -> Versioned | None:
        await self.before()
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        await self.before()
        return await super().children(path)

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        await self.before()
        return await super().commit(changes)


@pytest.mark.parametrize(
    ("announced", "joined"), list(itertools.combinations_with_replacement(range(7), 2))
)
def test_an_old_broker_that_starts_while_the_level_rises_is_seen_or_leaves(
    announced: int, joined: int
) -> None:
    """It is announced before one step of the raise, and joins before another, or after all."""

    async def scenario() -> None:
        cluster = Cluster()
        old = await cluster.node(OLD).start()
        await cluster.node(NEW).start()
        await old.stop()
        cluster.wait()
        late, steps, refused = cluster.node(OLD), 0, False

        async def step() -> None:
            nonlocal steps, refused
            now, steps = steps, steps + 1
            if now == announced:
                await late.registry.announce(late.own)
            if now == joined:
                try:
                    await late.levels.join()
                except ConfigError:
                    refused = True

        store = Interrupted(cluster.tree)
        store.before = step
        await FeatureLevels(store, cluster.clock, NEW).follow(leads=True)
        assert 4 <= steps <= 6
        while steps < 7:
            await step()
        assert (await late.stored() == NEW) == refused

    asyncio.run(scenario())


def test_brokers_that_start_together_do_not_keep_each_other_out() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        nodes = [cluster.node(OLD) for _ in range(20)]
        await asyncio.gather(*(node.start() for node in nodes))
        assert {node.levels.cluster for node in nodes} == {OLD}

    asyncio.run(scenario())


def test_programs_without_levels_hold_a_cluster_back_while_they_run() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        ancient = cluster.node(0)
        await ancient.registry.announce(ancient.own)
        value = json.loads(ancient.own.encode())
        del value["featureLevel"]
        found = await ancient.store.get(broker_path(ancient.own.broker_id))
        assert found is not None
        path = broker_path(ancient.own.broker_id)
        await ancient.store.put(path, json.dumps(value).encode(), found.version, ephemeral=True)
        new = await cluster.node(NEW).start()
        assert new.levels.cluster == 0
        ancient.store.expire()
        cluster.wait()
        await new.levels.follow(leads=True)
        assert new.levels.allows(NEW)

    asyncio.run(scenario())


def test_an_announcement_that_cannot_be_read_holds_the_level() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        old = await cluster.node(OLD).start()
        new = await cluster.node(NEW).start()
        await old.stop()
        await new.store.put(broker_path("x:1"), b"{}", ephemeral=True)
        cluster.wait()
        with pytest.raises(CorruptMetadataError, match="x:1"):
            await new.levels.follow(leads=True)
        assert await new.stored() == OLD

    asyncio.run(scenario())
