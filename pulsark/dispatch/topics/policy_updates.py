"""How loaded topics follow the policies that are set."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.retries import until_read
from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.policies.policies import effective
from pulsark.dispatch.topics.policy_source import NamespacePolicies
from pulsark.limits import TOPIC_NAMES_PER_TURN
from pulsark.metadata.paths import POLICIES, TOPIC_POLICIES, policies_at, topic_at
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.config.settings import Settings
    from pulsark.dispatch.topics.policy_source import PolicySource
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore


class PolicyUpdates:
    """Gives topics in memory their policies anew when they change."""

    def __init__(
        self,
        settings: Settings,
        metadata: MetadataStore,
        resources: Resources,
        source: PolicySource,
        topics: Topics,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._resources = resources
        self._source = source
        self._topics = topics
        self._refreshing: set[asyncio.Task[None]] = set()
        self._end_watches: list[Callable[[], None]] = []

    def start(self) -> None:
        """Follow the metadata store."""
        watch = self._metadata.watch
        self._end_watches = [
            watch(POLICIES, self._namespace_changed, self._missed),
            watch(TOPIC_POLICIES, self._topic_changed, lambda: None),
        ]

    def close(self) -> None:
        """Follow no longer."""
        for end in self._end_watches:
            end()
        for task in self._refreshing:
            task.cancel()

    async def refresh_namespace(self, namespace: str) -> None:
        """Bring the loaded topics of a namespace up to date."""
        served = [
            topic
            async for topic in in_turns(self._topics.served(), TOPIC_NAMES_PER_TURN)
            if topic.name.namespace_name == namespace
        ]
        seen, policies = -1, NamespacePolicies(None, {})
        async for topic in in_turns(served):
            while seen != self._source.changes:  # what is newer must not be overwritten
                seen = self._source.changes
                policies = await self._source.of_namespace(namespace)
            if policies.namespace is not None and not topic.closed:
                own = policies.topics.get(topic.name.base, {})
                topic.set_policies(effective(self._settings, policies.namespace, own))
        async for topic in in_turns(served):
            await topic.policies_obeyed()

    async def refresh_topic(self, base: TopicName) -> None:
        """Bring a topic, or its partitions, up to date as far as they are loaded."""
        found = await self._resources.partitioned_topics.get(base)
        partitions = base.partitions(0 if found is None else found.partitions)
        async for name in in_turns(chain([base], partitions)):
            if (topic := self._topics.get(name)) is not None:
                topic.set_policies(await self._source.current(name))
                await topic.policies_obeyed()

    def _namespace_changed(self, path: str) -> None:
        # Tenants are above their namespaces, and have no topics.
        self._spawn(partial(self.refresh_namespace, policies_at(path)))

    def _topic_changed(self, path: str) -> None:
        base = TopicName.parse(topic_at(TOPIC_POLICIES, path))
        self._spawn(partial(self.refresh_topic, base))

    def _missed(self) -> None:
        """Changes of namespaces or topics may be lost: one store watches both."""
        self._spawn(self.refresh_all)

    async def refresh_all(self) -> None:
        """Bring all loaded topics up to date, also with settings that have just changed."""
        self._source.settings_changed()
        names = {topic.name.namespace_name for topic in self._topics.served()}
        for name in sorted(names):
            await self.refresh_namespace(name)

    def _spawn(self, refresh: Callable[[], Awaitable[None]]) -> None:
        work = until_read(refresh, "policies cannot be read and topics keep the ones they have")
        task = asyncio.create_task(work)
        self._refreshing.add(task)
        task.add_done_callback(self._refreshing.discard)
