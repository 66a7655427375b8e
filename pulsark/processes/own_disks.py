"""The disks of a data directory, in the only process that writes to them.

It opens them in a safe order. It refuses a missing metadata store before it creates one, then
bookies that belong to another store or have seen a later state of this one, before anything is
written, and at last storage roots that are not the ones they were.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pulsark.config.store_urls import store_url
from pulsark.metadata.sqlite import SqliteMetadataStore
from pulsark.processes.joined_metadata import join_metadata
from pulsark.storage.bookie.fleet import (
    bookie_in_service,
    check_store_is_there,
    leave_when_failed,
    open_fleet,
)
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.roots.any_root import files_of_roots
from pulsark.storage.roots.options import ObjectStoreOptions
from pulsark.storage.roots.root_files import absolute
from pulsark.storage.table.root_identity import commission

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.config.settings import Settings
    from pulsark.errors import StorageError
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime
    from pulsark.storage.backup.data_dir import DataDir
    from pulsark.storage.bookie.embedded import EmbeddedBookie
    from pulsark.storage.table.root_identity import StorageRoots


class OwnDisks:
    """Call the methods in their order."""

    def __init__(
        self, settings: Settings, data: DataDir, runtime: Runtime, *, adopt: bool = False
    ) -> None:
        """``adopt``: also accept bookies that the metadata store does not know (``--adopt``)."""
        self._settings = settings
        self._data = data
        self._runtime = runtime
        self._adopt = adopt
        self.problems: list[str] = []
        """What the bookies had lost when they were opened, one sentence each."""

    def make_directories(self) -> None:
        """Create all directories, so that they can be locked, and make existing ones private."""
        disk = self._runtime.disk
        disk.make_dirs(self._data.path)
        for home in self._data.homes:
            with contextlib.suppress(OSError):  # opening the bookie will report it
                disk.make_dirs(home.journal_dir)
                disk.make_dirs(home.ledger_dir)
        self._data.make_private(self._settings.dataDirectoryAccess)

    async def open_store(self, *, alone: bool) -> MetadataStore:
        """The metadata store, which is created with the first bookies only.

        ``OtherStoreError`` or ``MetadataError`` if there are bookies and their store is missing.
        ``alone``: no other process uses it.
        """
        settings, data, disk = self._settings, self._data, self._runtime.disk
        url = store_url(settings)
        create = self._adopt or bookie_in_service(data.homes, disk) is None
        if not url and not self._adopt:
            check_store_is_there(data.metadata_path, data.homes, disk)
        if not url and alone:
            return await SqliteMetadataStore.open(
                data.metadata_path,
                self._runtime,
                accept_loss=self._adopt,
                timeout_seconds=settings.metadataStoreOperationTimeoutSeconds,
            )
        return await join_metadata(settings, data.metadata_path, self._runtime, create=create)

    async def open_bookies(
        self,
        metadata: MetadataStore,
        cleanup: contextlib.AsyncExitStack,
        too_few: Callable[[StorageError], None],
    ) -> dict[str, EmbeddedBookie]:
        """Bookies by id. ``too_few`` is called when too few are left to store anything."""
        settings = self._settings
        bookies = await open_fleet(
            self._data.homes,
            JournalSettings(journal_max_size=settings.journalMaxSizeMB << 20),
            metadata,
            self._runtime,
            adopt=self._adopt,
            problems=self.problems,
        )
        for bookie in bookies.values():
            cleanup.push_async_callback(bookie.close)
        needed = min(settings.managedLedgerDefaultAckQuorum, len(bookies))
        leave_when_failed(bookies, needed, too_few)
        return bookies

    async def open_roots(self, metadata: MetadataStore) -> StorageRoots:
        """The storage roots of tables."""
        return await open_roots(
            self._settings, self._data.storage_roots, metadata, self._runtime, adopt=self._adopt
        )


async def open_roots(
    settings: Settings,
    roots: Sequence[str],
    metadata: MetadataStore,
    runtime: Runtime,
    *,
    adopt: bool = False,
) -> StorageRoots:
    """Storage roots, each checked to be the one that the metadata store knows."""
    roots = list(map(absolute, roots))
    options = ObjectStoreOptions.of(settings)
    files = files_of_roots(roots, runtime.disk, options, runtime.clock)
    return await commission(roots, metadata, runtime, files=files, adopt=adopt)
