"""Creating, deleting and listing topics, partitioned or not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pulsark.dispatch.grants import TOPICS, forget_topic, granted
from pulsark.dispatch.policies import auto_topic_creation
from pulsark.dispatch.topic_kinds import COMPACTION_SUBSCRIPTION, AnyTopic
from pulsark.dispatch.topic_names import in_order
from pulsark.dispatch.turns import in_turns
from pulsark.errors import ClientError, ServerError
from pulsark.metadata.resources import (
    AlreadyExistsError,
    InUseError,
    Namespace,
    PartitionedTopic,
)
from pulsark.storage.ledger_record import (
    TopicState,
    decode_record,
    managed_ledger_path,
    read_record,
    topic_place,
)
from pulsark.storage.managed_ledger import delete_managed_ledger
from pulsark.storage.position import LATEST
from pulsark.wire.topic_name import NON_PERSISTENT, TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.topic import Topic

log = logging.getLogger(__name__)

_TRANSACTION_COORDINATORS = TopicName.parse(
    "persistent://pulsar/system/transaction_coordinator_assign"
)
"""Clients take its partitions for coordinators: without any, transactions are not enabled."""


class TopicAdmin:
    """The topics of a broker as things that come and go."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._metadata = broker.metadata
        self._resources = broker.resources
        self._making = broker.topic_making
        self._deleting: set[TopicName] = set()

    def is_deleting(self, base: TopicName) -> bool:
        """Whether all partitions of a topic are on their way out."""
        return base in self._deleting

    async def exists(self, name: TopicName) -> bool:
        """Whether a topic (a partition or a topic without partitions) is there."""
        if await self._is_made(name):
            return True
        if name.partition < 0:
            return False
        parent = await self._resources.partitioned_topics.get(name.base)
        return parent is not None and name.partition < parent.partitions

    async def _is_made(self, name: TopicName) -> bool:
        """Whether it is stored or in memory, not only part of a partitioned topic."""
        if not name.is_persistent:
            return self._broker.non_persistent.get(name) is not None
        return await read_record(managed_ledger_path(name), self._metadata) is not None

    async def partition_count(self, name: TopicName, *, create: bool) -> int:
        """Partitions of a topic; 0 if it has none, or is missing and may be created."""
        if name == _TRANSACTION_COORDINATORS:
            return 0
        self._broker.check_enabled(name)
        namespace = await self._broker.ownership.namespace(name)
        found = await self._resources.partitioned_topics.get(name)
        if found is not None:
            return found.partitions
        if await self.exists(name):
            return 0
        if name.partition >= 0 and (
            await self._resources.partitioned_topics.get(name.base) is not None
        ):
            raise ClientError(
                ServerError.TopicNotFound, f"Topic {name.base} has no partition {name.partition}"
            )
        created = auto_topic_creation(self._settings, namespace.policies)
        if not (create and created.allowed):
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        if created.partitions and name.partition < 0:
            try:
                await self.create_partitioned_topic(name, created.partitions, {})
            except AlreadyExistsError:
                log.debug("%s was created by another client at the same time", name)
            found = await self._resources.partitioned_topics.get(name)
            return 0 if found is None else found.partitions
        return 0

    async def require_topic(self, name: TopicName) -> None:
        """Raise ``ClientError(TopicNotFound)`` unless a topic, partitioned or not, is there."""
        if await self.exists(name):
            return
        if await self._resources.partitioned_topics.get(name) is None:
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")

    async def create_topic(self, name: TopicName, properties: dict[str, str]) -> None:
        """Create a topic without partitions (or a missing partition).

        What is not persistent keeps no properties.
        """
        await self._broker.ownership.namespace(name)
        async with self._making.alone(name):
            if await self._resources.partitioned_topics.get(name) is not None or (
                await self._is_made(name)
            ):
                raise AlreadyExistsError(f"Topic {name} already exists")
            await self.make(name)
        if properties and name.is_persistent:
            await (await self._broker.topic(name)).ledger.set_properties(properties)

    async def make(self, name: TopicName) -> AnyTopic:
        """A topic that is not there, or a partition that may be only part of its topic.

        Nobody else makes it meanwhile (``TopicMaking.alone``). ``NamespaceFullError``. A name
        that ends like a partition's is one's only: all partitions of a topic share its table.
        """
        if name.partition >= 0:
            if await self.exists(name):
                return await self._broker.any_topic(name, create=True)
            if name.is_persistent:
                raise ClientError(
                    ServerError.NotAllowedError,
                    f"{name} is the name of a partition, and {name.base} has no partitions: "
                    "create it with partitions, or use a name that does not end in "
                    "-partition-NUMBER",
                )
        async with self._making.room(name):
            return await self._broker.any_topic(name, create=True)

    async def create_partitioned_topic(
        self, name: TopicName, partitions: int, properties: dict[str, str]
    ) -> None:
        """Create a topic with partitions; they exist at once and load on first use."""
        await self._broker.ownership.namespace(name)
        async with self._making.alone(name):
            if await self.exists(name):
                raise AlreadyExistsError(f"Topic {name} already exists")
            async with self._making.room(name, partitions):
                await self._resources.partitioned_topics.create(name, partitions, properties)

    async def add_partitions(self, name: TopicName, partitions: int) -> None:
        """Raise a topic's number of partitions. The new ones have its durable subscriptions.

        Those come first: once producers see a partition, nobody may miss what is in it. They are
        taken from the first partition. ``InvalidResourceError`` unless there are to be more.
        """
        async with self._making.alone(name):
            found = await self._resources.partitioned_topics.get(name)
            more = 0 if found is None else max(partitions - found.partitions, 0)
            async with self._making.room(name, more):
                await self._add_partitions(name, found, partitions)

    async def _add_partitions(
        self, name: TopicName, found: PartitionedTopic | None, partitions: int
    ) -> None:
        if found is not None and name.is_persistent:
            first = await self._broker.topic(name.with_partition(0), create=True)
            kept = [one for one in first.subscriptions.values() if one.durable]
            for index in range(found.partitions, partitions) if kept else ():
                topic = await self._broker.topic(name.with_partition(index), create=True)
                for one in kept:
                    if one.name != COMPACTION_SUBSCRIPTION:
                        await topic.create_subscription(
                            one.name,
                            LATEST,
                            dict(one.properties),
                            durable=True,
                            replicated=one.replicated,
                        )
        await self._resources.partitioned_topics.update(name, partitions)

    async def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        """Delete one topic or partition with its data and subscriptions.

        What an earlier attempt did not come to is done.
        """
        self._making.forget(name)
        if not name.is_persistent:
            await self._delete_non_persistent(name, force=force)
            if name.partition < 0:
                await self._resources.topic_policies.delete(name)
            return
        async with self._broker.ending(name):
            is_there = await read_record(managed_ledger_path(name), self._metadata) is not None
            if is_there or self._broker.is_loading(name):
                topic = await self._broker.load_topic(name)
                if topic.is_used and not force:
                    raise InUseError(f"Topic {name} has connected producers or consumers")
                await self._delete_loaded(topic)
            elif await self.finish_deletion(name):
                return
            elif await self.exists(name):  # it was never used
                await self._delete_what_is_shared(name)
            else:
                raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")

    async def delete_loaded(self, topic: Topic, is_due: Callable[[Topic], bool]) -> bool:
        """Delete a topic in memory, unless it was unloaded or deleted just now.

        ``is_due`` is asked once nobody else ends it: clients may have come until then. From there
        on they are told to come again.
        """
        self._making.forget(topic.name)
        async with self._broker.ending(topic.name):
            if topic.closed or not is_due(topic):
                return False
            await self._delete_loaded(topic)
            return True

    async def _delete_loaded(self, topic: Topic) -> None:
        try:
            topic.disconnect()  # before anything is awaited: what is confirmed now would be lost
            await self._doom_table(topic.name)
            await topic.delete()
            # While the name still leads to the deleted topic: who comes next finds nothing.
            await self._delete_what_is_shared(topic.name)
        finally:
            self._broker.forget(topic)

    async def finish_deletion(self, name: TopicName) -> bool:
        """Go on where a deletion stopped; whether there was one."""
        path = managed_ledger_path(name)
        found = await self._metadata.get(path)
        if found is None:
            return False
        record = decode_record(path, found.value)
        if record.state is not TopicState.DELETING:
            return False
        await self._doom_table(name)
        await self._broker.delete_cursors(name, record.topic_id)
        await delete_managed_ledger(
            path, self._broker.ledgers, self._metadata, topic_id=record.topic_id
        )
        await self._delete_what_is_shared(name)
        return True

    async def _doom_table(self, name: TopicName) -> None:
        """Before anything of a topic goes: a deletion that is broken off leaves no table behind."""
        if name.partition < 0 and self._broker.sealing is not None:
            await self._broker.sealing.doom(name)

    async def _delete_what_is_shared(self, name: TopicName) -> None:
        """Policies, schemas and the table go with the topic; partitions have those of theirs."""
        if name.partition < 0:
            await self._resources.topic_policies.delete(name)
            await self._forget_grants(name)
            await self._broker.schemas.erase(name)
            if self._broker.sealing is not None:
                await self._broker.sealing.forget(name)

    async def _forget_grants(self, name: TopicName) -> None:
        namespace = await self._resources.namespaces.get(name.namespace_name)
        if namespace is None or str(name) not in granted(namespace.policies, TOPICS):
            return

        def without(old: Namespace) -> Namespace:
            policies = dict(old.policies)
            forget_topic(policies, str(name))
            return replace(old, policies=policies)

        await self._resources.namespaces.update(name.namespace_name, without)

    async def _delete_non_persistent(self, name: TopicName, *, force: bool) -> None:
        topic = self._broker.non_persistent.get(name)
        if topic is None:
            if not await self.exists(name):
                raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
            return  # a partition that was never used
        if topic.is_used and not force:
            raise InUseError(f"Topic {name} has connected producers or consumers")
        await self._broker.non_persistent.close(name)

    async def delete_partitioned_topic(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with all its partitions."""
        found = await self._resources.partitioned_topics.get(name)
        if found is None:
            raise ClientError(ServerError.TopicNotFound, f"Partitioned topic {name} does not exist")
        partitions = found.partitions
        if not force:
            async for partition in in_turns(name.partitions(partitions)):
                topic = self._broker.served_topic(partition)
                if topic is not None and topic.is_used:
                    raise InUseError(f"Topic {partition} has connected producers or consumers")
        self._deleting.add(name)
        try:
            async for partition in in_turns(name.partitions(partitions)):
                if self._broker.is_loading(partition) or await self.is_stored(partition):
                    await self.delete_topic(partition, force=True)
                await self._broker.non_persistent.close(partition)
            await self._doom_table(name)
            await self._resources.partitioned_topics.delete(name)
            await self._delete_what_is_shared(name)
        finally:
            self._deleting.discard(name)

    async def delete_partitioned_if_empty(self, name: TopicName) -> None:
        """Delete a partitioned topic of which no partition is stored or in memory."""
        if name in self._deleting:
            return
        self._deleting.add(name)  # from here on no partition is made
        try:
            found = await self._resources.partitioned_topics.get(name)
            if found is None:
                return
            async for partition in in_turns(name.partitions(found.partitions)):
                if self._broker.is_loading(partition) or await self._is_made(partition):
                    return
            log.info("%s has no partition that is used: deleting it", name)
            await self._doom_table(name)
            await self._resources.partitioned_topics.delete(name)
            await self._delete_what_is_shared(name)
        finally:
            self._deleting.discard(name)

    async def is_stored(self, name: TopicName) -> bool:
        """Whether anything is stored of a topic, even if only its deletion is not at its end."""
        return await self._metadata.get(managed_ledger_path(name)) is not None

    async def stored_topics(self, namespace: str) -> list[TopicName]:
        """All of which anything is stored, those whose deletion is not at its end among them."""
        children = await self._metadata.children(f"/managed-ledgers/{namespace}/persistent")
        return [
            TopicName.parse(f"persistent://{namespace}/{unquote(child)}")
            async for child in in_turns(children)
        ]

    async def require_namespace(self, namespace: str) -> None:
        """Raise ``ClientError`` unless it exists."""
        if await self._resources.namespaces.get(namespace) is None:
            raise ClientError(ServerError.TopicNotFound, f"Namespace {namespace} does not exist")

    async def list_topics(self, namespace: str, *, include_system: bool = False) -> list[str]:
        """Full names of a namespace's persistent topics, each partition by itself, sorted."""
        await self.require_namespace(namespace)
        parent = f"/managed-ledgers/{namespace}/persistent"
        names: list[str] = []
        # A store in this process answers without a pause.
        async for child in in_turns(await self._metadata.children(parent)):
            if await read_record(f"{parent}/{child}", self._metadata) is not None:
                names.append(f"persistent://{namespace}/{unquote(child)}")
        bases = await self._resources.partitioned_topics.list(namespace)
        async for base in in_turns(bases, 1):
            names += await self.partition_names(base)
        return await in_order(names, include_system=include_system)

    async def list_non_persistent_topics(
        self, namespace: str, *, include_system: bool = False
    ) -> list[str]:
        """Full names of those that are in memory, and of all partitions, sorted."""
        await self.require_namespace(namespace)
        names = [
            str(topic.name)
            for topic in self._broker.non_persistent.all()
            if topic.name.namespace_name == namespace
        ]
        bases = await self._resources.partitioned_topics.list(namespace, NON_PERSISTENT)
        async for base in in_turns(bases, 1):
            names += await self.partition_names(base)
        return await in_order(names, include_system=include_system)

    async def partition_names(self, base: TopicName) -> list[str]:
        """Full names of the partitions of a topic; none if it has no partitions."""
        found = await self._resources.partitioned_topics.get(base)
        return [] if found is None else base.partition_names(found.partitions)


def buckets_path(name: TopicName) -> str:
    """Where it says which buckets of delayed messages a topic has."""
    return f"/delayed-buckets/{topic_place(name)}"
