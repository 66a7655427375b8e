"""On which storage roots tables are, and what there is of a table on each of them."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pulsark.errors import RootsAwayError, StorageError, StorageFullError
from pulsark.runtime import Worker, run_in_worker
from pulsark.storage.roots.store_pause import PausedStoreError
from pulsark.storage.table.files.disk_reserve import room
from pulsark.storage.table.files.record import DataFile, TableRecord, table_directory
from pulsark.storage.table.root_identity import StorageRoots, put_in_service, storage_root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.repair import Copy, LogState
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

T = TypeVar("T")


class TableRoots:
    """The storage roots of a process, for its tables.

    A table is on ``copies`` of them, or on all if they are fewer; a file is part of it once it is
    on ``copies_needed``. What blocks is done by ``thread``.
    """

    def __init__(
        self,
        roots: StorageRoots,
        disk: RootFiles,
        thread: Callable[[], Worker],
        *,
        copies: int,
        copies_needed: int,
    ) -> None:
        self.paths = roots.paths
        self.where = roots.where
        self._roots = roots
        self._disk = disk
        self._thread = thread
        self._copies = min(copies, len(roots.paths))
        self.copies_needed = min(copies_needed, self._copies)
        self._cramped = False
        """Whether there was less room than wanted when something was sealed last."""

    def choose(self, table_id: str) -> list[str]:
        """The roots of a new table, the primary first."""
        if not self.paths:
            raise StorageError("there is no storage root for tables: set tableRoots")
        start = int(table_id[:8], 16) % len(self.paths)
        return [*self.paths[start:], *self.paths[:start]][: self._copies]

    def directories(self, name: TopicName, table_id: str) -> list[str]:
        """The directories of a new table, the primary first."""
        return [table_directory(root, name, table_id) for root in self.choose(table_id)]

    async def having(self, name: TopicName, table_id: str) -> list[str]:
        """The directories with a log of a table, the one that would be its primary first."""

        def has_log(directory: str) -> bool:
            try:
                self.check(directory)
                return bool(self._disk.list(f"{directory}/_delta_log"))
            except (OSError, StorageError):
                return False

        first = self.choose(table_id)
        roots = [*first, *(root for root in self.paths if root not in first)]
        found = [table_directory(root, name, table_id) for root in roots]
        return [
            directory for directory in found if await self._blocking(partial(has_log, directory))
        ]

    def needed(self, record: TableRecord) -> int:
        """Storage roots that a file must be on before it is attached to a table."""
        return min(self.copies_needed, len(record.roots))

    def check(self, directory: str) -> None:
        """Raise ``RefusedRootError`` if a table's directory is on no root that counts. Blocks."""
        self._roots.check(self._disk, storage_root_of(directory))

    async def problem(self, root: str) -> str:
        """Why a storage root is refused now; empty if it is not."""
        try:
            await self._blocking(partial(self._roots.check, self._disk, root))
        except StorageError as e:
            return str(e)
        except OSError as e:
            return f"storage root {root}: {e.strerror or e}"
        return ""

    async def put_in_service(self, root: str) -> None:
        """A storage root has all its files again: it counts from now on."""
        root_id = self._roots.ids.get(root)
        if root_id is not None:
            await self._blocking(partial(put_in_service, self._disk, root, root_id))

    async def wanted(self, record: TableRecord) -> list[str]:
        """Where a table should be: a root that this process does not have any more is replaced."""
        from pulsark.storage.table.repair import placed  # a broker without tables reads no logs

        in_service = [root for root in self.paths if not await self.problem(root)]
        return placed(record.roots, self.paths, in_service, self._copies)

    async def away(self, record: TableRecord) -> tuple[str, ...]:
        """The storage roots of a table that are refused, or whose log cannot be read, now."""

        def is_away(directory: str) -> bool:
            try:
                self.check(directory)
                return not self._disk.list(f"{directory}/_delta_log")
            except (OSError, StorageError):
                return True

        return tuple(
            [storage_root_of(d) for d in record.roots if await self._blocking(partial(is_away, d))]
        )

    async def copies(
        self, directories: Sequence[str], files: Sequence[DataFile]
    ) -> dict[str, list[Copy]]:
        """By directory: how it has each of some files, by their sizes."""
        from pulsark.storage.table.repair import copy_state  # as above

        def look(directory: str) -> list[Copy]:
            try:
                self.check(directory)
                return [copy_state(self._disk, directory, file) for file in files]
            except (OSError, StorageError):
                return ["missing"] * len(files)

        return {d: await self._blocking(partial(look, d)) for d in directories}

    async def logs(self, record: TableRecord) -> dict[str, LogState]:
        """By directory of a table: how it has the table's log."""
        from pulsark.storage.table.repair import log_state  # as above

        def look(directory: str) -> LogState:
            try:
                self.check(directory)
                return log_state(self._disk, record, directory)
            except (OSError, StorageError):
                return "missing"

        return {d: await self._blocking(partial(look, d)) for d in record.roots}

    async def catch_up(
        self, record: TableRecord, directory: str, files: Sequence[DataFile]
    ) -> None:
        """Make the log of a table whole in a directory that has all its files; ``StorageError``."""
        from pulsark.storage.table.repair import catch_up  # as above

        try:
            await self._blocking(partial(catch_up, self._disk, record, directory, files))
        except OSError as e:
            raise StorageError(f"{directory}: {e}") from e

    async def with_room(self, record: TableRecord, size: int) -> tuple[list[str], int]:
        """Directories of a table to write up to ``size`` bytes to, and how many there is room for
        in each of them. ``StorageError`` if they are too few."""
        found: dict[str, int] = {}
        for directory in record.roots:
            try:
                found[directory] = await self._blocking(partial(self._room, directory))
            except PausedStoreError as e:
                log.debug("%s: left out of sealing: %s", directory, e)
            except (OSError, StorageError) as e:
                log.warning("%s: left out of sealing: %s", directory, e)
        needed = self.needed(record)
        best = sorted(found.values(), reverse=True)[:needed]
        if len(best) < needed:
            raise RootsAwayError(f"{len(best)} storage roots of {needed} can be reached")
        if best[-1] <= 0:
            raise StorageFullError(
                f"there is no room to seal on {', '.join(record.roots)}; "
                "publishing goes on while the journal has some"
            )
        if best[-1] < size and not self._cramped:
            log.warning(
                "there is room to seal for %d bytes on %s: it goes on in small batches, and "
                "publishing in what is left of the disk",
                best[-1],
                ", ".join(record.roots),
            )
        self._cramped = best[-1] < size
        size = min(size, best[-1])
        return [directory for directory, free in found.items() if free >= size], size

    def _room(self, directory: str) -> int:
        self.check(directory)
        return room(self._disk, directory)

    async def _blocking(self, action: Callable[[], T]) -> T:
        return await run_in_worker(self._thread(), action)
