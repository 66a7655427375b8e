"""What of the work of all brokers is this one's.

Work for a topic belongs to the broker that has its bundle. A bundle that nobody has is nobody's
work, so the leader gives it to a broker when it comes upon a topic in it. What belongs to no bundle
is the leader's, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.topics.bundles import NamespaceBundles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsark.dispatch.brokers.leader import Leader
    from pulsark.dispatch.brokers.registry import BrokerRegistry
    from pulsark.dispatch.topics.lookup import Lookup
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.metadata.namespaces import Namespace
    from pulsark.metadata.resources import Resources
    from pulsark.wire.topic_name import TopicName


class Share:
    """The share of one broker."""

    def __init__(
        self,
        resources: Resources,
        ownership: Ownership,
        registry: BrokerRegistry,
        leader: Leader,
        lookup: Lookup,
    ) -> None:
        self._resources = resources
        self._ownership = ownership
        self._registry = registry
        self._leader = leader
        self._lookup = lookup

    @property
    def leads(self) -> bool:
        """Whether this broker does what one of them has to do for all."""
        return self._registry.is_alone or self._leader.is_here

    async def has(self, name: TopicName) -> bool:
        """Whether a topic is this broker's, be it there or not."""
        namespace = await self._resources.namespaces.get(name.namespace_name)
        return self.leads if namespace is None else await self.of_namespace(namespace).has(name)

    def of_namespace(self, namespace: Namespace) -> NamespaceShare:
        """The same for the topics of a namespace."""
        return NamespaceShare(self, namespace)

    def may_have(self, namespace: Namespace) -> bool:
        """Whether to look at a namespace at all."""
        return self.leads or any(
            self._ownership.has(f"{namespace.name}/{bundle}") for bundle in namespace.bundles
        )

    async def takes(self, bundle: str) -> bool:
        """Whether a bundle with topics is this broker's. The leader gives away what is nobody's."""
        if self._ownership.has(bundle):
            return True
        return self.leads and await self._lookup.give(bundle)

    def guards(self, bundles: Iterable[str]) -> set[object]:
        """What tells this broker's claims of these bundles from later ones."""
        found = {self._ownership.guard_of(bundle) for bundle in bundles}
        return set(found - {None})


class NamespaceShare:
    """What is found out about a bundle of the namespace holds for as long as this is used."""

    def __init__(self, share: Share, namespace: Namespace) -> None:
        self._share = share
        self._bundles = NamespaceBundles(namespace)
        self._found: dict[str, bool] = {}

    def lacks(self, bundle: str) -> bool:
        """Whether a bundle was found not to be this broker's."""
        return self._found.get(bundle) is False

    async def has(self, name: TopicName) -> bool:
        """Whether a topic is this broker's."""
        bundle = self._bundles.of(name)
        found = self._found.get(bundle)
        if found is None:
            found = self._found[bundle] = await self._share.takes(bundle)
        return found
