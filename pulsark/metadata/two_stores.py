"""The metadata of a cluster in one store, and what several clusters share in another.

The configuration store has clusters, tenants, namespaces, numbers of partitions and resource
groups; the local store has the rest. A commit is made in one store. What two stores would have to
do at once is refused: it could be done by half.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataRefusedError
from pulsark.limits import METADATA_PAGE_MAX
from pulsark.metadata.paths import CLUSTERS, PARTITIONED_TOPICS, POLICIES, RESOURCE_GROUPS
from pulsark.metadata.single_writes import SingleWrites
from pulsark.metadata.store import check_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pulsark.metadata.changes import Change
    from pulsark.metadata.session import Session
    from pulsark.metadata.store import MetadataStore, Versioned

SHARED_TREES: Final = (CLUSTERS, POLICIES, PARTITIONED_TOPICS, RESOURCE_GROUPS)


class TwoStoresError(MetadataRefusedError):
    """A commit concerns both stores, and never can be made."""


class TwoStores(SingleWrites):
    """Identity, marks and ephemeral values are those of the local store."""

    def __init__(self, local: MetadataStore, configuration: MetadataStore) -> None:
        self._local = local
        self._configuration = configuration
        # Without the shared part this process cannot go on either.
        configuration.session.on_end(local.session.end)

    @property
    def identity(self) -> str:
        return self._local.identity

    @property
    def mark(self) -> int:
        return self._local.mark

    @property
    def session(self) -> Session:
        return self._local.session

    def knows(self, mark: int) -> bool:
        return self._local.knows(mark)

    def on_commit(self, listener: Callable[[int], None]) -> None:
        self._local.on_commit(listener)

    async def adopt(self, marks: Iterable[int]) -> None:
        await self._local.adopt(marks)

    async def get(self, path: str) -> Versioned | None:
        return await self._store(path).get(path)

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        stores = {id(store): store for store in (self._store(change.path) for change in changes)}
        if len(stores) > 1:
            raise TwoStoresError(
                "the change concerns the configuration metadata store and that of the cluster: "
                "no commit is made in two stores"
            )
        return await next(iter(stores.values()), self._local).commit(changes)

    async def children(self, path: str) -> list[str]:
        names = await self._store(path).children(path)
        if _is_above(path):
            names = sorted({*names, *await self._configuration.children(path)})
        return names

    async def page(self, path: str, after: str = "", limit: int = METADATA_PAGE_MAX) -> list[str]:
        if not _is_above(path):
            return await self._store(path).page(path, after, limit)
        check_page(path, limit)
        names = await self.children(path)
        first = bisect_right(names, after)
        return names[first : first + limit]

    async def next_id(self, path: str) -> int:
        return await self._store(path).next_id(path)

    def watch(
        self, prefix: str, changed: Callable[[str], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        end = self._store(prefix).watch(prefix, changed, missed)
        if not _is_above(prefix):
            return end
        end_other = self._configuration.watch(prefix, changed, missed)

        def end_both() -> None:
            end()
            end_other()

        return end_both

    async def close(self) -> None:
        try:
            await self._local.close()
        finally:
            await self._configuration.close()

    def _store(self, path: str) -> MetadataStore:
        for tree in SHARED_TREES:
            if path == tree or path.startswith(f"{tree}/"):
                return self._configuration
        return self._local


def _is_above(path: str) -> bool:
    """Whether both stores have something below a path."""
    return path == "/" or any(tree.startswith(f"{path}/") for tree in SHARED_TREES)
