"""The tables that this process has open, and the records of others."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from pulsark.errors import StorageError
from pulsark.metadata.paths import TABLES, managed_ledger_path, table_path, topic_at
from pulsark.metadata.topic_resources import PartitionedTopics
from pulsark.storage.managed_ledger.record import read_record
from pulsark.storage.table.files.record import TableRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.table.attach import TableOwner
    from pulsark.storage.table.table import Table
    from pulsark.storage.table.table_parts import TableParts
    from pulsark.storage.table.tables_to_delete import TablesToDelete
    from pulsark.wire.topic_name import TopicName

TABLES_MAX = 1024
"""Tables that are kept open for further attaches."""


class OpenTables:
    """Opens tables, and keeps them open."""

    def __init__(
        self, parts: TableParts, metadata: MetadataStore, to_delete: TablesToDelete
    ) -> None:
        self._parts = parts
        self._roots = parts.roots
        self._metadata = metadata
        self._to_delete = to_delete
        self.guarded: Callable[[TopicName], Awaitable[MetadataStore]] | None = None
        """By what a table is changed, if not by the metadata store itself."""
        self._tables: OrderedDict[str, Table] = OrderedDict()
        self._opening = asyncio.Lock()

    async def open(self, name: TopicName, table_id: str) -> Table:
        """Own a table, made if there is none."""
        path = table_path(name)
        async with self._opening:
            table = self._tables.get(path)
            if table is not None and table.record.table_id == table_id:
                self._tables.move_to_end(path)
                return table
            from pulsark.storage.table.table import Table  # an idle broker opens none

            owner = await self._opened(name, table_id)
            table = self._tables[path] = Table(name, owner, self._parts, self._lost)
            while len(self._tables) > TABLES_MAX:
                self._tables.popitem(last=False)
            self._parts.forget_content(path)
        return table

    def has(self, path: str) -> bool:
        """Whether the table whose record is at ``path`` is open."""
        return path in self._tables

    def get(self, name: TopicName) -> Table | None:
        """A table if it is open."""
        return self._tables.get(table_path(name))

    async def _opened(
        self, name: TopicName, table_id: str, *, roll_forward: bool = True
    ) -> TableOwner:
        from pulsark.storage.table.attach import TableOwner

        before = await self._record_of_another(name, table_id)
        if before is not None:  # its topic was deleted, and the deletion broken off
            noted = await self._to_delete.note_record(name, before)
            await self._to_delete.delete_documents(noted)
        directories = [] if roll_forward else await self._roots.having(name, table_id)
        metadata = self._metadata if self.guarded is None else await self.guarded(name.base)
        return await TableOwner.open(
            table_path(name),
            table_id,
            directories or self._roots.directories(name, table_id),
            metadata,
            self._parts.runtime,
            self._parts.thread(),
            files=self._parts.files,
            roots_needed=self._roots.copies_needed,
            check_root=self._roots.check,
            where=self._roots.where,
            limits=self._parts.limits,
            repairs=self._parts.processes.normal.repair,
            roll_forward=roll_forward,
            touched=partial(self._parts.touched.add, table_path(name)),
            states=self._parts.states,
        )

    async def _record_of_another(self, name: TopicName, table_id: str) -> TableRecord | None:
        found = await self._metadata.get(table_path(name))
        if found is None:
            return None
        record = TableRecord.decode(table_path(name), found.value)
        if record.table_id == table_id:
            return None
        if await self._is_of_a_topic(name, record.table_id):
            raise StorageError(
                f"the table of {name} is that of another topic than the one with id {table_id}"
            )
        return record

    async def _is_of_a_topic(self, name: TopicName, table_id: str) -> bool:
        """Whether there is a topic of that name now, with partitions or without, whose table has
        this id: then it must stay, even if another one is wanted in its place."""
        topic = await read_record(managed_ledger_path(name), self._metadata)
        if topic is not None and topic.topic_id == table_id:
            return True
        partitioned = await PartitionedTopics(self._metadata, self._parts.runtime).get(name)
        return partitioned is not None and partitioned.topic_id == table_id

    async def to_be_repaired(self, name: TopicName, table_id: str) -> TableOwner:
        """The owner of a table, which may be one that cannot be opened."""
        async with self._opening:
            self.drop(name)
            return await self._opened(name, table_id, roll_forward=False)

    async def check(self, name: TopicName, table_id: str) -> None:
        """``OlderMetadataError`` if a log has what the store does not know. Changes nothing."""
        path, parts = table_path(name), self._parts
        if path in self._tables:
            return  # it was looked at when it was opened
        record = await self.record_if_any(path)
        if record is None or record.table_id != table_id:
            directories = await self._roots.having(name, table_id)
            record = TableRecord(table_id, 0, tuple(directories))
        disk, thread = parts.files, parts.thread()
        from pulsark.storage.table.table_logs import TableLogs  # a new broker has no logs

        logs = TableLogs(record, topic_at(TABLES, path), disk, thread, self._roots.check)
        await logs.check(record)

    def drop(self, name: TopicName) -> None:
        """The present owner knows more: the next caller that needs a table opens it anew."""
        self._tables.pop(table_path(name), None)

    def names(self) -> list[TopicName]:
        """The topics of open tables."""
        return [table.name for table in self._tables.values()]

    def _lost(self, table: Table) -> None:
        if self.get(table.name) is table:
            self.drop(table.name)

    def changed(self) -> list[str]:
        """The topics of open tables to whose logs another engine has written."""
        return [
            topic_at(TABLES, path) for path, table in self._tables.items() if table.record.others
        ]

    async def record(self, path: str) -> TableRecord:
        """The table whose record is at ``path``; ``StorageError`` if there is none."""
        record = await self.record_if_any(path)
        if record is None:
            raise StorageError(f"there is no table at {path}")
        return record

    async def record_if_any(self, path: str) -> TableRecord | None:
        """The table whose record is at ``path``, if there is one."""
        table = self._tables.get(path)
        if table is not None:
            return table.record
        found = await self._metadata.get(path)
        if found is None:
            return None
        return TableRecord.decode(path, found.value).relocated(self._roots.where)
