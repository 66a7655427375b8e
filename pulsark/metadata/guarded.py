"""A metadata store that writes only while a bundle is owned.

Without this, a broker that has lost a bundle without noticing could take a topic from the new
owner: it could overwrite the topic's newest record, or fence its ledgers. So each claim of a bundle
writes the bundle's record, and each commit here checks the version of that record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.errors import BadVersionError, OwnershipLostError
from pulsark.limits import METADATA_PAGE_MAX
from pulsark.metadata.single_writes import SingleWrites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pulsark.metadata.changes import Change, Check
    from pulsark.metadata.session import Session
    from pulsark.metadata.store import MetadataStore, Versioned


def is_guarded(store: MetadataStore) -> bool:
    """Whether writes through this view hold only while a bundle is owned."""
    return isinstance(store, GuardedMetadataStore)


def guard_of(store: MetadataStore) -> Check | None:
    """What each commit through this view checks; ``None`` if it is not guarded."""
    return store.guard if isinstance(store, GuardedMetadataStore) else None


async def check_guard(store: MetadataStore) -> None:
    """Raise ``OwnershipLostError`` if this is a view that may write no more."""
    if isinstance(store, GuardedMetadataStore):
        await store.check()


class GuardedMetadataStore(SingleWrites):
    """A view of a store. A write that raises ``OwnershipLostError`` has no effect, now or later."""

    def __init__(self, store: MetadataStore, guard: Check, lost: Callable[[], None]) -> None:
        self.guard = guard
        """The check that is part of each commit."""
        self._store = store
        self._lost = lost

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        try:
            return (await self._store.commit((self.guard, *changes)))[1:]
        except BadVersionError as error:
            if error.path != self.guard.path:
                raise
            self._lost()
            raise OwnershipLostError(f"another broker is the owner: {error}") from error

    async def check(self) -> None:
        """Raise ``OwnershipLostError`` if the bundle has another owner by now."""
        await self.commit(())

    # Nothing below changes data of the bundle.

    @property
    def identity(self) -> str:
        return self._store.identity

    @property
    def mark(self) -> int:
        return self._store.mark

    @property
    def session(self) -> Session:
        return self._store.session

    def knows(self, mark: int) -> bool:
        return self._store.knows(mark)

    def on_commit(self, listener: Callable[[int], None]) -> None:
        self._store.on_commit(listener)

    async def adopt(self, marks: Iterable[int]) -> None:
        await self._store.adopt(marks)

    async def get(self, path: str) -> Versioned | None:
        return await self._store.get(path)

    async def children(self, path: str) -> list[str]:
        return await self._store.children(path)

    async def page(self, path: str, after: str = "", limit: int = METADATA_PAGE_MAX) -> list[str]:
        return await self._store.page(path, after, limit)

    async def next_id(self, path: str) -> int:
        return await self._store.next_id(path)

    def watch(
        self, prefix: str, changed: Callable[[str], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        return self._store.watch(prefix, changed, missed)

    async def close(self) -> None:
        """Does nothing: the owner of the underlying store closes it."""
