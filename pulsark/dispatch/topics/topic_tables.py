"""Which table is whose: its identity, who may change it just now, and its end with the topic."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pulsark.metadata.paths import managed_ledger_path
from pulsark.storage.managed_ledger.record import read_record
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from pulsark.dispatch.topic.topic import Topic
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.table.tables import Tables

    ExistingFar = Callable[[TopicName, str, Collection[int]], Awaitable[set[int] | None]]
    """As ``TopicTables.existing``, with the table's id; ``None``: this broker has the table."""


async def _nowhere(_name: TopicName, _table_id: str, _ledger_ids: Collection[int]) -> None:
    """There is no other broker."""


class TopicTables:
    """The tables of topics. All partitions of a topic share one."""

    def __init__(self, metadata: MetadataStore, resources: Resources, tables: Tables) -> None:
        self._metadata = metadata
        self._resources = resources
        self._tables = tables
        self._locks: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        self.on_end: Callable[[TopicName], None] = lambda _: None
        """Told of a topic that was deleted with all its partitions."""
        self.existing_far: ExistingFar = _nowhere
        """Asks the broker that has the table of a topic."""

    def exclusively(self, base: TopicName) -> asyncio.Lock:
        """Held while a table is changed: what is read of it before holds until the attach."""
        lock = self._locks.get(base)
        if lock is None:
            lock = self._locks[base] = asyncio.Lock()
        return lock

    def is_busy(self, base: TopicName) -> bool:
        """Return whether a table is just being changed."""
        lock = self._locks.get(base)
        return lock is not None and lock.locked()

    async def id_for(self, topic: Topic) -> str:
        """The id of the table of a topic, of which this is a partition or the whole."""
        return await self._id_for(topic.name, topic.ledger.topic_id)

    async def _id_for(self, name: TopicName, topic_id: str) -> str:
        if name.partition >= 0:
            parent = await self._resources.partitioned_topics.record(name.base)
            if parent is not None:
                return parent.topic_id
        return topic_id

    async def existing(
        self, name: TopicName, topic_id: str, ledger_ids: Collection[int]
    ) -> set[int]:
        """The reserved ledgers of a partition that exist, according to the table."""
        table_id = await self._id_for(name, topic_id)
        found = await self.existing_far(name, table_id, ledger_ids)
        if found is not None:
            return found
        return await self._tables.publishing.existing(name, table_id, ledger_ids)

    async def has_table(self, base: TopicName) -> bool:
        """Whether a topic has a table, which the metadata store may not know."""
        if await self._tables.record(base) is not None:
            return True
        table_id = await self.id_of(base)
        return table_id is not None and await self._tables.has_log(base, table_id)

    async def id_of(self, base: TopicName) -> str | None:
        """The id of a topic's table; ``None`` if there is no such topic."""
        known = await self._tables.record(base)
        if known is not None:
            return known.table_id
        parent = await self._resources.partitioned_topics.get(base)
        if parent is not None:
            return parent.topic_id
        record = await read_record(managed_ledger_path(base), self._metadata)
        return None if record is None else record.topic_id

    async def doom(self, base: TopicName) -> None:
        """A topic is about to be deleted: its table goes whatever happens from here on."""
        await self._tables.to_delete.note(base)

    async def forget(self, base: TopicName) -> None:
        """A topic was deleted with all its partitions: so is its table.

        Unless another topic has the name by now, and has its own: what was doomed goes later then.
        """
        async with self.exclusively(base):
            self.on_end(base)
            record = await self._tables.record(base)
            if record is None or not await self._is_of(base, record.table_id):
                await self._tables.delete(base)

    async def delete_doomed(self, is_ours: Callable[[TopicName], Awaitable[bool]]) -> None:
        """Go on with deletions of tables that were broken off, or could not reach a root."""
        for doomed in await self._tables.to_delete.all():
            base = TopicName.parse(doomed.topic)
            if not await is_ours(base):
                continue
            async with self.exclusively(base):
                if not await self._is_of(base, doomed.table_id):
                    await self._tables.to_delete.delete(doomed)

    async def _is_of(self, base: TopicName, table_id: str) -> bool:
        """Whether a table is that of a topic that exists."""
        parent = await self._resources.partitioned_topics.get(base)
        if parent is not None and parent.topic_id == table_id:
            return True
        record = await read_record(managed_ledger_path(base), self._metadata)
        return record is not None and record.topic_id == table_id
