"""The isolation policies of namespaces, as they were set: which brokers may have which of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from pulsark.errors import BadVersionError
from pulsark.metadata import records
from pulsark.metadata.paths import isolation_policies_path
from pulsark.metadata.store import ABSENT, MetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.metadata.store import Versioned

Policies: TypeAlias = dict[str, dict[str, Any]]


class IsolationRecords:
    """The isolation policies of each cluster, in one record, so that they change together."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def get(self, cluster: str) -> Policies | None:
        """By name what was set; ``None`` if none ever was."""
        found = await self.stored(cluster)
        return None if found is None else policies_in(found)

    async def stored(self, cluster: str) -> Versioned | None:
        """The record that has them."""
        return await self._store.get(isolation_policies_path(cluster))

    async def put(
        self,
        cluster: str,
        name: str,
        data: Mapping[str, Any],
        check: Callable[[Policies], object] = lambda _: None,
    ) -> tuple[Policies, Policies]:
        """Add a policy, or replace it; all before and after it. ``check`` may raise."""

        def change(before: Policies) -> Policies:
            after = {**before, name: dict(data)}
            check(after)
            return after

        return await self._change(cluster, change)

    async def delete(self, cluster: str, name: str) -> tuple[Policies, Policies]:
        """Remove a policy, if it is there; all before and after it."""
        return await self._change(
            cluster, lambda before: {key: before[key] for key in before if key != name}
        )

    async def delete_all(self, cluster: str) -> None:
        """The cluster is gone."""
        path = isolation_policies_path(cluster)
        found = await self._store.get(path)
        if found is not None:
            await self._store.delete(path, found.version)

    async def _change(
        self, cluster: str, change: Callable[[Policies], Policies]
    ) -> tuple[Policies, Policies]:
        path = isolation_policies_path(cluster)
        while True:
            found = await self._store.get(path)
            before = {} if found is None else policies_in(found)
            after = change(before)
            if after == before:
                return before, after
            record = records.encode({"policies": after})
            try:
                await self._store.put(path, record, ABSENT if found is None else found.version)
            except BadVersionError:
                continue  # another writer was first
            return before, after


def policies_in(found: Versioned) -> Policies:
    """What a record has; ``CorruptMetadataError`` if it cannot be read."""
    policies: Policies = records.decode(found)["policies"]
    return policies
