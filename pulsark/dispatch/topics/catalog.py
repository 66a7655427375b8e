"""Which topics there are: what the metadata store, and memory, know of names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pulsark.dispatch.loop.turns import Pace, answers_in_turns
from pulsark.dispatch.topics.topic_names import in_order
from pulsark.errors import ClientError, ServerError
from pulsark.metadata.pages import names_below
from pulsark.metadata.paths import MANAGED_LEDGERS, managed_ledger_path, topic_below, topics_path
from pulsark.storage.managed_ledger.record import read_existing
from pulsark.wire.topic_name import NON_PERSISTENT, TopicName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pulsark.dispatch.topics.non_persistent_topics import NonPersistentTopics
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.managed_ledger.record import StoredRecord

BASES_AT_ONCE: Final = 4
"""Topics with partitions: each may have thousands of names."""


class TopicCatalog:
    """Looks topics up, and changes none."""

    def __init__(
        self, metadata: MetadataStore, resources: Resources, non_persistent: NonPersistentTopics
    ) -> None:
        self._metadata = metadata
        self._resources = resources
        self._non_persistent = non_persistent

    async def exists(self, name: TopicName) -> bool:
        """Whether a topic (a partition or a topic without partitions) is there."""
        if name.partition >= 0:
            parent = await self._resources.partitioned_topics.record(name.base)
            if parent is not None and (parent.deleting or name.partition < parent.partitions):
                return not parent.deleting
        return await self.is_made(name)

    async def is_made(self, name: TopicName) -> bool:
        """Whether it is stored or in memory, not only part of a partitioned topic."""
        if not name.is_persistent:
            return self._non_persistent.get(name) is not None
        return await self.record(name) is not None

    async def record(self, name: TopicName) -> StoredRecord | None:
        """What is stored of a persistent topic, unless it is being deleted."""
        return await read_existing(managed_ledger_path(name), self._metadata)

    async def is_stored(self, name: TopicName) -> bool:
        """Whether anything is stored of a topic, even if only its deletion is not at its end."""
        return await self._metadata.get(managed_ledger_path(name)) is not None

    async def is_orphan(self, name: TopicName) -> bool:
        """Whether it is a partition of a topic that is gone, and not there by itself."""
        return (
            name.partition >= 0
            and await self._resources.partitioned_topics.get(name.base) is None
            and not await self.exists(name)
        )

    async def require_topic(self, name: TopicName) -> None:
        """Raise ``ClientError(TopicNotFound)`` unless a topic, partitioned or not, is there."""
        if await self.exists(name):
            return
        if await self._resources.partitioned_topics.get(name) is None:
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")

    async def partition_names(self, base: TopicName) -> list[str]:
        """Full names of the partitions of a topic; none if it has no partitions."""
        found = await self._resources.partitioned_topics.get(base)
        return [] if found is None else base.partition_names(found.partitions)

    async def require_namespace(self, namespace: str) -> None:
        """Raise ``ClientError`` unless it exists."""
        if await self._resources.namespaces.get(namespace) is None:
            raise ClientError(ServerError.TopicNotFound, f"Namespace {namespace} does not exist")

    async def stored_topics(self, namespace: str) -> list[TopicName]:
        """All of which anything is stored, those whose deletion is not at its end among them."""
        return [name async for name in self._stored(namespace)]

    async def _stored(self, namespace: str) -> AsyncIterator[TopicName]:
        pace = Pace()
        async for child in names_below(self._metadata, topics_path(MANAGED_LEDGERS, namespace)):
            yield TopicName.parse(topic_below(namespace, child))
            await pace.step()

    async def list_topics(self, namespace: str, *, include_system: bool = False) -> list[str]:
        """Full names of a namespace's persistent topics, each partition by itself, sorted."""
        await self.require_namespace(namespace)
        parent = topics_path(MANAGED_LEDGERS, namespace)
        names: list[str] = []
        leaving: set[str] = set()
        partitioned = self._resources.partitioned_topics
        bases = await partitioned.list(namespace)
        async for base, found in answers_in_turns(partitioned.get, bases, BASES_AT_ONCE):
            if found is None:
                leaving.add(str(base))
            else:
                names += base.partition_names(found.partitions)
        children = await self._metadata.children(parent)

        async def is_there(child: str) -> bool:
            return await read_existing(f"{parent}/{child}", self._metadata) is not None

        async for child, there in answers_in_turns(is_there, children):
            name = topic_below(namespace, child)
            if there and not (leaving and str(TopicName.parse(name).base) in leaving):
                names.append(name)
        return await in_order(names, include_system=include_system)

    async def list_non_persistent_topics(
        self, namespace: str, *, include_system: bool = False
    ) -> list[str]:
        """Full names of those that are in memory, and of all partitions, sorted."""
        await self.require_namespace(namespace)
        names = [
            str(topic.name)
            for topic in self._non_persistent.all()
            if topic.name.namespace_name == namespace
        ]
        bases = await self._resources.partitioned_topics.list(namespace, NON_PERSISTENT)
        async for _, found in answers_in_turns(self.partition_names, bases, BASES_AT_ONCE):
            names += found
        return await in_order(names, include_system=include_system)

    async def all_stored(self) -> AsyncIterator[TopicName]:
        """Topics and partitions of all namespaces, loaded or not."""
        for tenant in await self._resources.tenants.list():
            for namespace in await self._resources.namespaces.list(tenant):
                async for name in self._stored(namespace):
                    yield name
