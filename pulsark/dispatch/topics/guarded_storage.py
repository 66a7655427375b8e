"""The metadata store and the ledgers of a topic, for as long as this broker owns its bundle."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pulsark.metadata.changes import Check
from pulsark.metadata.guarded import GuardedMetadataStore
from pulsark.metadata.paths import bundle_epoch_path

if TYPE_CHECKING:
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.wire.topic_name import TopicName


class GuardedStorage:
    """Whoever changes what is stored of a topic does it through this."""

    def __init__(
        self, metadata: MetadataStore, ledgers: LedgerManager, ownership: Ownership
    ) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._ownership = ownership
        self._views: dict[str, tuple[Check, GuardedMetadataStore, LedgerManager]] = {}
        """By the path of the guard: a bundle's topics share them."""

    async def of(self, name: TopicName) -> tuple[MetadataStore, LedgerManager]:
        """Own the bundle of a topic, or raise; what is written holds only while it is owned."""
        return await self.of_bundle(await self._ownership.bundle_named(name))

    async def of_bundle(self, bundle: str) -> tuple[MetadataStore, LedgerManager]:
        """The same by the name of the bundle."""
        guard = Check(bundle_epoch_path(bundle), await self._ownership.claim(bundle))
        view = self._views.get(guard.path)
        if view is None or view[0] != guard:
            lost = partial(self._ownership.lost, guard)
            metadata = GuardedMetadataStore(self._metadata, guard, lost)
            view = self._views[guard.path] = guard, metadata, self._ledgers.over(metadata)
        return view[1], view[2]

    async def metadata(self, name: TopicName) -> MetadataStore:
        """Only the metadata store."""
        return (await self.of(name))[0]
