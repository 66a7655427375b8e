"""Where the policies of loaded topics come from, and how topics follow what is set."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsark.dispatch.policies import TopicPolicies, effective
from pulsark.dispatch.turns import in_turns
from pulsark.errors import PulsarkError
from pulsark.limits import TOPIC_NAMES_PER_TURN
from pulsark.metadata.resources import POLICIES_PATH, TOPIC_POLICIES_PATH, topic_of_policies_path

if TYPE_CHECKING:
    from pulsark.dispatch.broker import Broker
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)


class _Policies(NamedTuple):
    """Those of a namespace, and of its topics that have some of their own."""

    namespace: Mapping[str, Any] | None
    topics: Mapping[TopicName, Mapping[str, Any]]


class PolicySource:
    """Reads the policies of topics, and gives them anew to loaded ones when they change.

    A topic that is being loaded reads them with ``current``, which sees to it that no change
    falls between what it read and the first that it would be told of.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._changes = 0
        self._refreshing: set[asyncio.Task[None]] = set()
        self._end_watches: list[Callable[[], None]] = []

    def start(self) -> None:
        """Follow the metadata store."""
        watch = self._broker.metadata.watch
        self._end_watches = [
            watch(POLICIES_PATH, self._namespace_changed),
            watch(TOPIC_POLICIES_PATH, self._topic_changed),
        ]

    def close(self) -> None:
        """Follow no longer."""
        for end in self._end_watches:
            end()
        for task in self._refreshing:
            task.cancel()

    async def current(self, name: TopicName) -> TopicPolicies:
        """What holds for a topic now; whoever takes it without a pause misses no change."""
        while True:
            seen = self._changes
            namespace = await self._broker.ownership.namespace(name)
            own = await self._broker.resources.topic_policies.get(name.base)
            if seen == self._changes:
                return effective(self._broker.settings, namespace.policies, own)

    async def refresh_namespace(self, namespace: str) -> None:
        """Bring the loaded topics of a namespace up to date."""
        served = [
            topic
            async for topic in in_turns(self._broker.served_topics(), TOPIC_NAMES_PER_TURN)
            if topic.name.namespace_name == namespace
        ]
        seen, policies = -1, _Policies(None, {})
        async for topic in in_turns(served):
            while seen != self._changes:  # what is newer must not be overwritten
                seen = self._changes
                policies = await self._policies(namespace)
            if policies.namespace is not None and not topic.closed:
                own = policies.topics.get(topic.name.base, {})
                topic.set_policies(effective(self._broker.settings, policies.namespace, own))
        async for topic in in_turns(served):
            await topic.policies_obeyed()

    async def _policies(self, namespace: str) -> _Policies:
        found = await self._broker.resources.namespaces.get(namespace)
        records = self._broker.resources.topic_policies
        names = await records.list(namespace)
        own = {name: await records.get(name) async for name in in_turns(names)}
        return _Policies(None if found is None else found.policies, own)

    async def refresh_topic(self, base: TopicName) -> None:
        """Bring a topic, or its partitions, up to date as far as they are loaded."""
        found = await self._broker.resources.partitioned_topics.get(base)
        partitions = base.partitions(0 if found is None else found.partitions)
        async for name in in_turns(chain([base], partitions)):
            if (topic := self._broker.served_topic(name)) is not None:
                topic.set_policies(await self.current(name))
                await topic.policies_obeyed()

    def _namespace_changed(self, path: str) -> None:
        name = path.removeprefix(f"{POLICIES_PATH}/")
        # Tenants are above their namespaces, and have no policies.
        if "/" in name:
            self._spawn(self.refresh_namespace(name))

    def _topic_changed(self, path: str) -> None:
        self._spawn(self.refresh_topic(topic_of_policies_path(path)))

    def _spawn(self, refresh: Coroutine[Any, Any, None]) -> None:
        self._changes += 1
        task = asyncio.create_task(self._logged(refresh))
        self._refreshing.add(task)
        task.add_done_callback(self._refreshing.discard)

    async def _logged(self, refresh: Coroutine[Any, Any, None]) -> None:
        try:
            await refresh
        except PulsarkError as error:
            log.warning("topics keep the policies they had: %s", error)
