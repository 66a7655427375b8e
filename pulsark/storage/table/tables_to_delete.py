"""Tables of topics that are deleted: noted before anything of them goes, and worked off.

A deletion may be broken off at any step, a root may be away just then, and a new topic may have the
name by now. So what is to be deleted has a record of its own, under the id of the table, which no
other table ever gets. It ends when no root has anything of the table any more.
"""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pulsark.errors import BadVersionError, MetadataError, StorageError
from pulsark.metadata.changes import Check, Delete
from pulsark.metadata.documents import check_version
from pulsark.metadata.pages import names_below
from pulsark.metadata.paths import DOOMED_TABLES, doomed_table_path, table_path
from pulsark.runtime import Worker, run_in_worker
from pulsark.storage.table.files.record import TableRecord, check_directory
from pulsark.storage.table.files.root_files import remove_tree
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.roots import TableRoots

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TableToDelete:
    """What is to be deleted."""

    table_id: str
    topic: str
    directories: tuple[str, ...]
    """Directories that may still have files."""

    def encode(self) -> bytes:
        """The stored JSON."""
        document = {
            "version": FORMAT_VERSION,
            "topic": self.topic,
            "directories": list(self.directories),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, table_id: str, value: bytes) -> TableToDelete:
        """The inverse; raises ``MetadataError``."""
        try:
            document = json.loads(value)
            check_version(document, FORMAT_VERSION)
            directories = tuple(check_directory(str(path)) for path in document["directories"])
            return cls(table_id, str(document["topic"]), directories)
        except (KeyError, TypeError, ValueError) as e:
            raise MetadataError(f"{doomed_table_path(table_id)} cannot be read: {e!r}") from e


class TablesToDelete:
    """The tables to delete of one process."""

    def __init__(
        self,
        metadata: MetadataStore,
        roots: TableRoots,
        disk: RootFiles,
        thread: Callable[[], Worker],
    ) -> None:
        self._metadata = metadata
        self._roots = roots
        self._disk = disk
        self._thread = thread

    async def note(self, name: TopicName) -> TableToDelete | None:
        """The topic with this table is about to be deleted; ``None`` if it has none."""
        found = await self._metadata.get(table_path(name))
        if found is None:
            return None
        return await self.note_record(name, TableRecord.decode(table_path(name), found.value))

    async def note_record(self, name: TopicName, record: TableRecord) -> TableToDelete:
        """Note a table whose record is known.

        While there is a record, it says where the table is: an attempt before, after which the
        table got another root, may have noted less.
        """
        table = TableToDelete(record.table_id, str(name.base), record.roots)
        await self._metadata.put(doomed_table_path(table.table_id), table.encode())
        return table

    async def all(self) -> list[TableToDelete]:
        """Whatever was noted and is not at its end. One that cannot be read is passed over."""
        found = []
        for table_id in await self._metadata.children(DOOMED_TABLES):
            value = await self._metadata.get(doomed_table_path(table_id))
            try:
                if value is not None:
                    found.append(TableToDelete.decode(table_id, value.value))
            except MetadataError as e:
                log.error("%s", e)
        return found

    async def delete(self, table: TableToDelete) -> None:
        """Delete a table whose topic no client sees any more, as far as roots are there."""
        await self.delete_documents(table)
        left = []
        for directory in table.directories:
            try:
                await run_in_worker(self._thread(), partial(self._remove, directory))
            except (OSError, StorageError) as e:
                log.warning(
                    "cannot delete %s of %s now, trying again later: %s", directory, table.topic, e
                )
                left.append(directory)
        path = doomed_table_path(table.table_id)
        if left:
            rest = TableToDelete(table.table_id, table.topic, tuple(left))
            await self._metadata.put(path, rest.encode())
        else:
            await self._forget(path)

    async def delete_documents(self, table: TableToDelete) -> None:
        """Delete the documents in the metadata store, if no other table has their path."""
        path = table_path(TopicName.parse(table.topic))
        found = await self._metadata.get(path)
        if found is None or TableRecord.decode(path, found.value).table_id != table.table_id:
            return
        # With the record as it is: a new table of that name keeps what it has.
        record = Check(path, found.version)
        with contextlib.suppress(BadVersionError):  # gone already
            async for child in names_below(self._metadata, path):
                with contextlib.suppress(BadVersionError):
                    await self._metadata.commit((record, Delete(f"{path}/{child}")))
            await self._metadata.delete(path, found.version)

    async def _forget(self, path: str) -> None:
        with contextlib.suppress(BadVersionError):  # gone already
            await self._metadata.delete(path)

    def _remove(self, directory: str) -> None:
        where = self._roots.where(directory)
        self._roots.check(where)
        remove_tree(self._disk, where)
