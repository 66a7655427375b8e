"""Where the policies of topics come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.policies.policies import TopicPolicies, effective
from pulsark.metadata.paths import POLICIES, TOPIC_POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.config.settings import Settings
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.metadata.namespaces import Namespace
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore
    from pulsark.wire.topic_name import TopicName


SHARED_MAX = 1000
"""Namespaces of which it is kept what holds for their topics."""


class NamespacePolicies(NamedTuple):
    """The policies of a namespace, and of its topics with policies of their own."""

    namespace: Mapping[str, Any] | None
    topics: Mapping[TopicName, Mapping[str, Any]]


class PolicySource:
    """Reads the policies of topics, and notices that they change.

    A topic that is being loaded reads them with ``current``, which sees to it that no change
    falls between what it read and the first that it would be told of.
    """

    def __init__(
        self,
        settings: Settings,
        metadata: MetadataStore,
        resources: Resources,
        ownership: Ownership,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._resources = resources
        self._ownership = ownership
        self._end_watches: list[Callable[[], None]] = []
        self._shared: dict[str, tuple[Mapping[str, Any], TopicPolicies]] = {}
        """By namespace its policies, and what holds for topics without policies of their own."""
        self.changes = 0
        """How often policies have changed: what was read before is not the newest."""

    def start(self) -> None:
        """Notice changes from now on."""
        paths = POLICIES, TOPIC_POLICIES
        self._end_watches = [
            self._metadata.watch(path, self._changed, self._missed) for path in paths
        ]

    def close(self) -> None:
        """Notice nothing any more."""
        for end in self._end_watches:
            end()

    def _changed(self, path: str) -> None:
        self.changes += 1

    def _missed(self) -> None:
        self.changes += 1

    async def current(self, name: TopicName) -> TopicPolicies:
        """What holds for a topic now; a caller that does not await first misses no change."""
        while True:
            seen = self.changes
            namespace = await self._ownership.namespace(name)
            own = await self._resources.topic_policies.get(name.base)
            if seen != self.changes:
                continue
            if own:
                return effective(self._settings, namespace.policies, own)
            return self._of_most_topics(namespace)

    def _of_most_topics(self, namespace: Namespace) -> TopicPolicies:
        known = self._shared.get(namespace.name)
        if known is not None and known[0] is namespace.policies:  # else it was read anew
            return known[1]
        if len(self._shared) >= SHARED_MAX:
            self._shared.clear()
        found = effective(self._settings, namespace.policies, {})
        self._shared[namespace.name] = namespace.policies, found
        return found

    def settings_changed(self) -> None:
        """What follows from settings is worked out anew."""
        self._shared.clear()

    async def of_namespace(self, namespace: str) -> NamespacePolicies:
        """What is set for a namespace and for its topics."""
        found = await self._resources.namespaces.get(namespace)
        records = self._resources.topic_policies
        names = await records.list(namespace)
        own = {name: await records.get(name) async for name in in_turns(names)}
        return NamespacePolicies(None if found is None else found.policies, own)
