"""What a topic has besides its entries, and how all of it goes when the topic is deleted.

What a topic shares with its partitions goes after a durable note that hides the topic from clients,
and before the record that has the note. So the next request learns of a deletion that was broken
off, and nothing is left for the next topic of the name. Only the table, which has a
note of its own, goes last: it may be busy.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pulsark.metadata.paths import delayed_buckets_path, managed_ledger_path
from pulsark.security.grants import TOPICS, forget_topic, granted
from pulsark.storage.delayed.delayed_buckets import DelayedBuckets
from pulsark.storage.ledger.manager import LedgerConfig
from pulsark.storage.managed_ledger.managed_ledger import delete_managed_ledger
from pulsark.storage.managed_ledger.record import (
    StoredRecord,
    TopicState,
    decode_record,
    read_stored,
)
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.policies.schemas import Schemas
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.cursor_logs import CursorLogs
    from pulsark.dispatch.topics.guarded_storage import GuardedStorage
    from pulsark.dispatch.topics.topic_tables import TopicTables
    from pulsark.metadata.namespaces import Namespace
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore


class Remains:
    """Deletes what topics leave behind."""

    def __init__(
        self,
        metadata: MetadataStore,
        resources: Resources,
        catalog: TopicCatalog,
        schemas: Schemas,
        storage: GuardedStorage,
        cursor_logs: CursorLogs,
        tables: TopicTables,
    ) -> None:
        self._metadata = metadata
        self._resources = resources
        self._catalog = catalog
        self._schemas = schemas
        self._storage = storage
        self._cursor_logs = cursor_logs
        self._tables = tables
        self._finishing: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()

    async def finish_deletion(self, name: TopicName) -> bool:
        """Go on where the deletion of a topic or partition stopped; whether there was one."""
        async with self._finishing_alone(name):
            path = managed_ledger_path(name)
            found = await self._metadata.get(path)
            if found is None:
                return False
            record = decode_record(path, found.value)
            if record.state is not TopicState.DELETING:
                return False
            await self.doom_table(name)
            await self.delete_shared(name)
            await self._delete_cursors(name, record.topic_id)
            metadata, ledgers = await self._storage.of(name)
            await delete_managed_ledger(path, ledgers, metadata, topic_id=record.topic_id)
            await self.delete_table(name)
            return True

    async def record_of(self, name: TopicName) -> StoredRecord | None:
        """The record of a topic. Of one whose deletion was broken off nothing is left then."""
        stored = await read_stored(managed_ledger_path(name), self._metadata)
        if stored is None or stored.record.state is not TopicState.DELETING:
            return stored
        await self.finish_deletion(name)
        return None

    def _finishing_alone(self, name: TopicName) -> asyncio.Lock:
        """Two requests that meet one deletion go one after the other: a new topic may follow it."""
        lock = self._finishing.get(name)
        if lock is None:
            lock = self._finishing[name] = asyncio.Lock()
        return lock

    async def _delete_cursors(self, name: TopicName, topic_id: str) -> None:
        """Delete the durable cursors and the delayed messages of a topic."""
        await (await self._cursor_logs.of(name)).delete_topic(topic_id)
        metadata, ledgers = await self._storage.of(name)
        await DelayedBuckets(
            delayed_buckets_path(name),
            topic_id,
            ledgers,
            metadata,
            lambda owner: LedgerConfig(owner=owner),
        ).delete()

    async def doom_table(self, name: TopicName) -> None:
        """Before anything of a topic goes: a deletion that is broken off leaves no table behind."""
        if name.partition < 0:
            await self._tables.doom(name)

    async def delete_table(self, name: TopicName) -> None:
        """Delete what ``doom_table`` noted, now if it can be done now."""
        if name.partition < 0:
            await self._tables.forget(name)

    async def delete_shared(self, name: TopicName) -> None:
        """Grants, policies and schemas; partitions have those of their topic."""
        if name.partition >= 0:
            return
        await self._forget_grants(name)
        await self._resources.topic_policies.delete(name)
        if name.is_persistent or not await self._has_persistent_twin(name):
            await self._schemas.erase(name)

    async def has_any_set(self, name: TopicName) -> bool:
        """Whether policies or grants are set for a topic, be it in memory or not."""
        if name.partition >= 0:
            return False
        policies = await self._resources.topic_policies.get(name)
        return bool(policies) or await self._has_grants(name)

    async def _has_persistent_twin(self, name: TopicName) -> bool:
        """Whether a persistent topic has the schemas of a non-persistent one, too."""
        twin = TopicName.parse(f"persistent://{name.namespace_name}/{name.local}")
        found = await self._resources.partitioned_topics.get(twin)
        return found is not None or await self._catalog.exists(twin)

    async def _forget_grants(self, name: TopicName) -> None:
        if not await self._has_grants(name):
            return

        def without(old: Namespace) -> Namespace:
            policies = dict(old.policies)
            forget_topic(policies, str(name))
            return replace(old, policies=policies)

        await self._resources.namespaces.update(name.namespace_name, without)

    async def _has_grants(self, name: TopicName) -> bool:
        namespace = await self._resources.namespaces.get(name.namespace_name)
        return namespace is not None and str(name) in granted(namespace.policies, TOPICS)
