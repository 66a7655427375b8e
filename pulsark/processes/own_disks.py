"""The disks of a data directory, as the one process has them that may write to them.

It is the process that has the bookies, so what has to be asked once is asked here, in this order:
whether a metadata store is missing before one is made, whether the bookies are its bookies and have
not seen a later state of it before anything is written, and which storage roots are what they were.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pulsark.storage.bookie.fleet import check_store_is_there, leave_when_failed, open_fleet
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.table.root_identity import commission

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.config.settings import Settings
    from pulsark.errors import StorageError
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime
    from pulsark.storage.backup.data_dir import DataDir
    from pulsark.storage.bookie.embedded import EmbeddedBookie
    from pulsark.storage.table.root_identity import StorageRoots


class OwnDisks:
    """Its methods are called in order; the metadata store is opened behind ``check_store``."""

    def __init__(
        self, settings: Settings, data: DataDir, runtime: Runtime, *, adopt: bool = False
    ) -> None:
        """``adopt``: also serve bookies that the metadata store does not know (``--adopt``)."""
        self._settings = settings
        self._data = data
        self._runtime = runtime
        self._adopt = adopt

    def make_directories(self) -> None:
        """Let there be all directories, so that they can be locked."""
        disk = self._runtime.disk
        disk.make_dirs(self._data.path)
        for home in self._data.homes:
            with contextlib.suppress(OSError):  # who opens the bookie says it
                disk.make_dirs(home.journal_dir)
                disk.make_dirs(home.ledger_dir)

    def check_store(self) -> None:
        """Raise ``OtherStoreError`` if a metadata store would be made where one is missing."""
        if not self._adopt:
            check_store_is_there(self._data.metadata_path, self._data.homes, self._runtime.disk)

    async def open_bookies(
        self,
        metadata: MetadataStore,
        cleanup: contextlib.AsyncExitStack,
        too_few: Callable[[StorageError], None],
    ) -> dict[str, EmbeddedBookie]:
        """The bookies, by id; ``too_few`` hears when so many left that nothing can be stored."""
        settings = self._settings
        bookies = await open_fleet(
            self._data.homes,
            JournalSettings(journal_max_size=settings.journalMaxSizeMB << 20),
            metadata,
            self._runtime,
            adopt=self._adopt,
        )
        for bookie in bookies.values():
            cleanup.push_async_callback(bookie.close)
        needed = min(settings.managedLedgerDefaultAckQuorum, len(bookies))
        leave_when_failed(bookies, needed, too_few)
        return bookies

    async def open_roots(self, metadata: MetadataStore) -> StorageRoots:
        """Where tables are."""
        return await commission(
            self._data.storage_roots, metadata, self._runtime, adopt=self._adopt
        )
