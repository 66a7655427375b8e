"""The logs of a table, one on each of its roots, as its owner comes to them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from pulsark.errors import DamagedLogError, OlderMetadataError, StorageError
from pulsark.runtime import Worker, run_in_worker
from pulsark.storage.table.log.root_log import RootLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import TableRecord
    from pulsark.storage.table.log.log_check import NamedFile

log = logging.getLogger(__name__)

T = TypeVar("T")


class TableLogs:
    """``check_root`` refuses a directory on a root that is not the one it was."""

    def __init__(
        self,
        record: TableRecord,
        topic: str,
        disk: RootFiles,
        worker: Worker,
        check_root: Callable[[str], None],
    ) -> None:
        self._logs = [RootLog(disk, root, topic) for root in record.roots]
        self._worker = worker
        self._check_root = check_root
        self._topic = topic
        self._damaged: set[str] = set()
        """The directories whose logs were damaged when they were looked at last."""

    def __iter__(self) -> Iterator[RootLog]:
        return iter(self._logs)

    async def run(self, table_log: RootLog, work: Callable[[RootLog], T]) -> T:
        """Do something with one log on a thread, if its root is the one that it was."""

        def checked() -> T:
            self._check_root(table_log.directory)
            return work(table_log)

        return await run_in_worker(self._worker, checked)

    def is_damaged(self, table_log: RootLog) -> bool:
        """Return whether nothing may be written to a log, as ``check_sound`` found."""
        return table_log.directory in self._damaged

    async def check_sound(
        self, record: TableRecord, needed: int, knows: Callable[[NamedFile], Awaitable[bool]]
    ) -> None:
        """Raise ``DamagedLogError`` if fewer than ``needed`` logs are not damaged.

        ``knows`` tells whether the metadata store has a file just as a log names it.
        """
        first: DamagedLogError | None = None
        for table_log in self._logs:
            try:
                unsure = await self.run(table_log, lambda log: log.check_sound(record))
                for file in unsure:
                    if not await knows(file):
                        raise DamagedLogError(
                            f"{table_log.directory}: its log is damaged: commit {file.version} "
                            f"names {file.path} with {file.size} bytes, which the table never had"
                        )
            except DamagedLogError as e:
                first = first or e
                if table_log.directory not in self._damaged:
                    log.error("%s", e)
                self._damaged.add(table_log.directory)
            except (OSError, StorageError) as e:
                log.debug("%s: cannot be looked at now: %s", table_log.directory, e)
            else:
                if table_log.directory in self._damaged:
                    log.error("%s: its log is whole again", table_log.directory)
                self._damaged.discard(table_log.directory)
        if first is not None and len(self._logs) - len(self._damaged) < needed:
            raise DamagedLogError(
                f"{first}. Nothing more is sealed into the table, and its entries stay in the "
                "journal. Bring the file back from a backup or from another storage root, or run: "
                f"pulsark tables repair {self._topic}"
            )

    async def check(self, record: TableRecord) -> None:
        """``OlderMetadataError`` if a root that can be reached knows more than the record."""
        for table_log in self._logs:
            await self._knows_more(table_log, record, refuse=True)

    async def newer(self, record: TableRecord) -> list[str]:
        """The directories whose logs have what the record does not know of."""
        return [each.directory for each in self._logs if await self._knows_more(each, record)]

    async def _knows_more(
        self, table_log: RootLog, record: TableRecord, *, refuse: bool = False
    ) -> bool:
        try:
            await self.run(table_log, lambda log: log.check(record))
        except OlderMetadataError:
            if refuse:
                raise
            return True
        except (OSError, StorageError) as e:
            log.debug("%s: cannot be looked at now: %s", table_log.directory, e)
        return False
