"""Namespaces that should not be at one broker: Pulsar's anti-affinity groups.

Bundles of a group are spread over brokers as far as there is a choice. Groups of two tenants have
nothing to do with each other, even under the same name. Which namespaces are in
groups is found out when the first bundle of a group is placed, and followed from then on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pulsark.dispatch.loop.turns import in_turns
from pulsark.metadata.paths import BUNDLE_OWNERS, POLICIES, policies_at, policies_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.dispatch.brokers.owners import BundleOwners
    from pulsark.metadata.namespaces import Namespaces
    from pulsark.metadata.store import MetadataStore

ANTI_AFFINITY_GROUP: Final = "antiAffinityGroup"
"""The policy of a namespace that names its group."""


@dataclass(frozen=True, slots=True)
class GroupBundles:
    """The namespaces of a group, and who has bundles of them."""

    namespaces: frozenset[str]
    owned: Mapping[str, str]

    def held(self, given: Mapping[str, str]) -> Counter[str]:
        """By broker how many; ``given`` are bundles that brokers were just told to claim."""
        found = Counter(self.owned.values())
        for bundle, broker_id in given.items():
            if bundle not in self.owned and bundle.rpartition("/")[0] in self.namespaces:
                found[broker_id] += 1
        return found

    def may_move(self, bundle: str, to: str) -> bool:
        """Whether the group is spread at least as evenly after a move of one of its bundles."""
        source = self.owned.get(bundle)
        held = Counter(self.owned.values())
        return source is None or held[to] < held[source]


NO_GROUP: Final = GroupBundles(frozenset(), {})


class AntiAffinityGroups:
    """Which namespaces are in one group, and which brokers have their bundles."""

    def __init__(
        self, metadata: MetadataStore, namespaces: Namespaces, owners: BundleOwners
    ) -> None:
        self._metadata = metadata
        self._namespaces = namespaces
        self._owners = owners
        self._groups: dict[str, str] | None = None
        """By namespace that is in one; ``None`` until somebody asks."""
        self._stale: set[str] = set()
        """Namespaces that have changed since they were read."""
        self._reading = asyncio.Lock()
        self._end_watch: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Notice changes from now on."""
        self._end_watch = self._metadata.watch(POLICIES, self._changed, self._missed)

    def close(self) -> None:
        """Notice nothing any more."""
        self._end_watch()
        self._missed()

    async def beside(self, namespace: str) -> GroupBundles:
        """What is owned of the group of a namespace."""
        group = await self._group_of(namespace)
        if group is None:
            return NO_GROUP
        tenant, _, _ = namespace.partition("/")
        namespaces = await self._of_group(tenant, group)
        owned = {}
        async for each in in_turns(sorted(namespaces)):
            for child in await self._metadata.children(f"{BUNDLE_OWNERS}/{each}"):
                bundle = f"{each}/{child}"
                owner = await self._owners.of(bundle)
                if owner is not None:
                    owned[bundle] = owner.broker_id
        return GroupBundles(frozenset(namespaces), owned)

    async def _group_of(self, namespace: str) -> str | None:
        stored = await self._namespaces.get(namespace)
        return None if stored is None else stored.policies.get(ANTI_AFFINITY_GROUP)

    async def _of_group(self, tenant: str, group: str) -> set[str]:
        """All namespaces of a tenant's group."""
        async with self._reading:
            groups = await self._all()
            while self._stale:
                namespace = self._stale.pop()
                try:
                    found = await self._group_of(namespace)
                except BaseException:
                    self._stale.add(namespace)
                    raise
                groups.pop(namespace, None)
                if found is not None:
                    groups[namespace] = found
        return {
            namespace
            for namespace, of in groups.items()
            if of == group and namespace.startswith(f"{tenant}/")
        }

    async def _all(self) -> dict[str, str]:
        while self._groups is None:
            groups: dict[str, str] = {}
            self._groups = groups
            try:
                await self._read_all(groups)
            except BaseException:
                self._groups = None
                raise
        return self._groups

    async def _read_all(self, groups: dict[str, str]) -> None:
        for tenant in await self._metadata.children(POLICIES):
            local_names = await self._metadata.children(policies_path(tenant))
            async for local in in_turns(local_names):
                namespace = f"{tenant}/{local}"
                found = await self._group_of(namespace)
                if found is not None:
                    groups[namespace] = found

    def _changed(self, path: str) -> None:
        namespace = policies_at(path)
        if self._groups is not None and "/" in namespace:  # a tenant has no policies
            self._stale.add(namespace)

    def _missed(self) -> None:
        self._groups = None
        self._stale.clear()
