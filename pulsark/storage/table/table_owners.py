"""The tables that this process owns, or looks at."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from pulsark.errors import StorageError
from pulsark.metadata.resources import PartitionedTopics
from pulsark.metadata.store import MetadataStore
from pulsark.runtime import Runtime, Worker, run_in_worker
from pulsark.schemas.columns import BINARY
from pulsark.schemas.definition import SchemaData
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.ledger_record import managed_ledger_path, read_record
from pulsark.storage.table.attach import Repairs, TableOwner
from pulsark.storage.table.doomed_tables import DoomedTables
from pulsark.storage.table.record import TableRecord, table_directory, table_path, topic_at
from pulsark.storage.table.table_limits import TableLimits
from pulsark.storage.table.table_roots import TableRoots
from pulsark.wire.topic_name import TopicName

OWNERS_MAX = 1024
"""Tables that are kept open for further attaches."""

SchemasOf = Callable[[TopicName], Awaitable[Sequence[tuple[bytes, SchemaData]]]]
"""Gives all versions of a topic's schema, the oldest first, by what messages carry of them."""


class TableOwners:
    """Opens tables, and keeps them open.

    ``forget`` is told the path of each that is opened: what was read of it before may be untrue.
    """

    def __init__(
        self,
        roots: TableRoots,
        metadata: MetadataStore,
        runtime: Runtime,
        thread: Callable[[], Worker],
        forget: Callable[[str], None],
        limits: TableLimits,
        schemas_of: SchemasOf | None,
        repairs: Repairs,
        doomed: DoomedTables,
    ) -> None:
        self._roots = roots
        self._metadata = metadata
        self._runtime = runtime
        self._thread = thread
        self._forget = forget
        self._limits = limits
        self._schemas_of = schemas_of
        self._repairs = repairs
        self._doomed = doomed
        self._owners: OrderedDict[str, TableOwner] = OrderedDict()
        self._opening = asyncio.Lock()

    async def open(self, name: TopicName, table_id: str) -> bool:
        """Own a table, made if there is none; whether that was not so already."""
        path = table_path(name)
        async with self._opening:
            owner = self._owners.get(path)
            if owner is not None and owner.record.table_id == table_id:
                self._owners.move_to_end(path)
                return False
            self._owners[path] = await self._opened(name, table_id)
            while len(self._owners) > OWNERS_MAX:
                self._owners.popitem(last=False)
            self._forget(path)
        return True

    async def _opened(
        self, name: TopicName, table_id: str, *, roll_forward: bool = True
    ) -> TableOwner:
        before = await self._record_of_another(name, table_id)
        if before is not None:  # its topic was deleted, and the deletion broken off
            doomed = await self._doomed.note_record(name, before)
            await self._doomed.delete_documents(doomed)
        return await TableOwner.open(
            table_path(name),
            table_id,
            [table_directory(root, name, table_id) for root in self._roots.choose(table_id)],
            self._metadata,
            self._runtime,
            self._thread(),
            roots_needed=self._roots.copies_needed,
            check_root=self._roots.check,
            where=self._roots.where,
            limits=self._limits,
            repairs=self._repairs,
            roll_forward=roll_forward,
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
        this id: then it must stay, whoever asks for another one in its place."""
        topic = await read_record(managed_ledger_path(name), self._metadata)
        if topic is not None and topic.topic_id == table_id:
            return True
        partitioned = await PartitionedTopics(self._metadata, self._runtime).get(name)
        return partitioned is not None and partitioned.topic_id == table_id

    async def to_be_repaired(self, name: TopicName, table_id: str) -> TableOwner:
        """The owner of a table, which may be one that cannot be opened."""
        async with self._opening:
            self._owners.pop(table_path(name), None)
            return await self._opened(name, table_id, roll_forward=False)

    async def of(self, name: TopicName, table_id: str) -> TableOwner:
        """The owner of a table, opened if it is not open."""
        await self.open(name, table_id)
        return self._owners[table_path(name)]

    def drop(self, name: TopicName) -> None:
        """Whoever is the owner now knows more: the next one who needs a table opens it anew."""
        self._owners.pop(table_path(name), None)

    def changed(self) -> list[str]:
        """The topics of open tables to whose logs somebody else has written."""
        return [topic_at(path) for path, owner in self._owners.items() if owner.record.others]

    async def record(self, path: str) -> TableRecord:
        """The table whose record is at ``path``; ``StorageError`` if there is none."""
        record = await self.record_if_any(path)
        if record is None:
            raise StorageError(f"there is no table at {path}")
        return record

    async def record_if_any(self, path: str) -> TableRecord | None:
        """Likewise."""
        owner = self._owners.get(path)
        if owner is not None:
            return owner.record
        found = await self._metadata.get(path)
        if found is None:
            return None
        return TableRecord.decode(path, found.value).relocated(self._roots.where)

    async def values(self, name: TopicName, record: TableRecord) -> ValueSchemas:
        """With which schemas, and as which type, further files of a table have their values."""
        if self._schemas_of is None or (record.attached and record.value == BINARY):
            return ValueSchemas()
        versions = await self._schemas_of(name)
        table = record.value if record.attached else None
        return await run_in_worker(self._thread(), lambda: ValueSchemas.next(table, versions))
