"""How topics come to be: by request, with the first client, or with more partitions."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pulsark.dispatch.model.given_subscription import GivenSubscription
from pulsark.dispatch.policies.policies import auto_topic_creation
from pulsark.dispatch.topics.bundles import NamespaceBundles
from pulsark.dispatch.topics.registry import Seen
from pulsark.errors import ClientError, ServerError
from pulsark.metadata.records import AlreadyExistsError
from pulsark.security.effects import Changed, report
from pulsark.storage.cursor.owners import is_system_cursor
from pulsark.wire.position import LATEST
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.interfaces import AnyTopic
    from pulsark.dispatch.peers.topics_elsewhere import TopicsElsewhere
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.deletion import TopicDeletion
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.dispatch.topics.topic_making import TopicMaking
    from pulsark.metadata.namespaces import Namespace
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.topic_resources import PartitionedTopic

log = logging.getLogger(__name__)

_TRANSACTION_COORDINATORS = TopicName.parse(
    "persistent://pulsar/system/transaction_coordinator_assign"
)
"""Clients take its partitions for coordinators: without any, transactions are not enabled."""


class TopicCreation:
    """Makes the topics of a broker."""

    def __init__(
        self,
        settings: Settings,
        resources: Resources,
        ownership: Ownership,
        catalog: TopicCatalog,
        topics: Topics,
        deletion: TopicDeletion,
        making: TopicMaking,
        elsewhere: Callable[[], TopicsElsewhere | None] = lambda: None,
    ) -> None:
        """``elsewhere``: the topics of other brokers, where there are some."""
        self._settings = settings
        self._resources = resources
        self._ownership = ownership
        self._catalog = catalog
        self._topics = topics
        self._deletion = deletion
        self._making = making
        self._elsewhere = elsewhere
        self._looking: dict[TopicName, asyncio.Event] = {}
        """Topics that a request for them is looking for, until it has found them or not."""

    async def topic_for_clients(self, name: TopicName, *, may_create: bool = True) -> AnyTopic:
        """The topic that a producer or consumer asks for, by the rules of automatic creation."""
        self._topics.check_enabled(name)
        if (looking := self._looking.get(name)) is not None:
            await looking.wait()
        if self._topics.get(name) is not None or self._topics.is_loading(name):
            return await self._topics.open(name)
        with self._looking_for(name):
            namespace = await self._namespace(name)
            parent = await self._resources.partitioned_topics.get(name.base)
            seen = await self._seen(name, namespace) if parent is None else None
        # From here to the begin of its loading nothing is awaited: see ``_looking_for``.
        if parent is not None:
            if name.partition < 0:
                raise ClientError(
                    ServerError.NotAllowedError,
                    f"{name} has {parent.partitions} partitions; use one of them",
                )
            if name.partition >= parent.partitions:
                raise ClientError(
                    ServerError.TopicNotFound,
                    f"{name.base} has only {parent.partitions} partitions",
                )
            return await self._topics.open(name, create=name.is_persistent)
        if seen is not None:
            return await self._topics.open(name, seen=seen)
        created = auto_topic_creation(self._settings, namespace.policies)
        if not (may_create and created.allowed):
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        async with self._making.alone(name):
            parent = await self._resources.partitioned_topics.get(name.base)
            if parent is None:
                if await self._catalog.exists(name):
                    return await self._topics.open(name)
                return await self._make(name)
        return await self.topic_for_clients(name)  # it was made with partitions just now

    async def _namespace(self, name: TopicName) -> Namespace:
        """Where a topic is asked for; ``ClientError`` if all topics there are going."""
        namespace = await self._ownership.namespace(name)
        _check_stays(namespace)
        return namespace

    @contextmanager
    def _looking_for(self, name: TopicName) -> Iterator[None]:
        """A client's two requests often come together: the other one waits meanwhile, and finds
        the topic on its way into memory, or looks for itself."""
        looked = asyncio.Event()
        self._looking.setdefault(name, looked)
        try:
            yield
        finally:
            if self._looking.get(name) is looked:
                del self._looking[name]
            looked.set()

    async def _seen(self, name: TopicName, namespace: Namespace) -> Seen | None:
        """Whether a topic is there; ``None`` if it is missing. Claims nothing."""
        if name.partition >= 0 or not name.is_persistent:
            return Seen() if await self._catalog.exists(name) else None
        # Before the read: see ``Seen``.
        guard = self._ownership.guard_of(NamespaceBundles(namespace).of(name))
        record = await self._catalog.record(name)
        return None if record is None else Seen(record, guard)

    async def partition_count(self, name: TopicName, *, create: bool) -> int:
        """Partitions of a topic; 0 if it has none, or is missing and may be created."""
        if name == _TRANSACTION_COORDINATORS:
            return 0
        if self._elsewhere() is None:  # else another broker may serve topics of this kind
            self._topics.check_enabled(name)
        namespace = await self._ownership.namespace(name)
        found = await self._resources.partitioned_topics.get(name)
        if found is not None:
            return found.partitions
        if await self._catalog.exists(name):
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
        _check_stays(namespace)
        if created.partitions and name.partition < 0:
            try:
                await self.create_partitioned_topic(name, created.partitions, {})
            except AlreadyExistsError:
                log.debug("%s was created by another client at the same time", name)
            found = await self._resources.partitioned_topics.get(name)
            return 0 if found is None else found.partitions
        return 0

    async def create_topic(self, name: TopicName, properties: dict[str, str]) -> None:
        """Create a topic without partitions (or a missing partition).

        What is not persistent keeps no properties.
        """
        await self._namespace(name)
        async with self._making.alone(name):
            if await self._resources.partitioned_topics.get(name) is not None or (
                await self._catalog.is_made(name)
            ):
                raise AlreadyExistsError(f"Topic {name} already exists")
            await self._make(name)
        if properties and name.is_persistent:
            await (await self._topics.load(name)).ledger.change_properties(lambda _: properties)

    async def _make(self, name: TopicName) -> AnyTopic:
        """A topic that is not there, or a partition that may be only part of its topic.

        No other request makes it meanwhile (``TopicMaking.alone``). ``NamespaceFullError``. A name
        that ends like a partition's is one's only: all partitions of a topic share its table.
        """
        if name.partition >= 0:
            if await self._catalog.exists(name):
                return await self._topics.open(name, create=True)
            if name.is_persistent:
                raise ClientError(
                    ServerError.NotAllowedError,
                    f"{name} is the name of a partition, and {name.base} has no partitions: "
                    "create it with partitions, or use a name that does not end in "
                    "-partition-NUMBER",
                )
        await self._deletion.go_on_with(name)
        async with self._making.room(name):
            made = await self._topics.open(name, create=True)
            report(Changed.TOPIC_CREATED, name)
            return made

    async def create_partitioned_topic(
        self, name: TopicName, partitions: int, properties: dict[str, str]
    ) -> None:
        """Create a topic with partitions; they exist at once and load on first use."""
        await self._namespace(name)
        async with self._making.alone(name):
            if await self._catalog.exists(name):
                raise AlreadyExistsError(f"Topic {name} already exists")
            await self._deletion.go_on_with(name)
            async with self._making.room(name, partitions):
                await self._resources.partitioned_topics.create(name, partitions, properties)
                report(Changed.TOPIC_CREATED, name)

    async def add_partitions(self, name: TopicName, partitions: int) -> None:
        """Raise a topic's number of partitions. The new ones have its durable subscriptions.

        Those come first: once producers see a partition, no subscription may miss what is in it.
        They are taken from the first partition. ``InvalidResourceError`` unless there are to be
        more.
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
            kept = await self._durable_subscriptions(name.with_partition(0))
            for index in range(found.partitions, partitions) if kept else ():
                await self._subscribe(name.with_partition(index), kept)
        await self._resources.partitioned_topics.update(name, partitions)
        report(Changed.PARTITIONS_ADDED, name)

    async def _durable_subscriptions(self, partition: TopicName) -> Sequence[GivenSubscription]:
        """The durable subscriptions that other partitions have."""
        elsewhere = self._elsewhere()
        found = None if elsewhere is None else await elsewhere.subscriptions(partition)
        if found is None:
            topic = await self._topics.load(partition, create=True)
            found = [
                GivenSubscription(one.name, dict(one.properties.given), one.properties.replicated)
                for one in topic.subscriptions.values()
                if one.durable
            ]
        return [one for one in found if not is_system_cursor(one.name)]

    async def _subscribe(self, partition: TopicName, kept: Sequence[GivenSubscription]) -> None:
        """A partition that is to be gets its subscriptions."""
        elsewhere = self._elsewhere()
        for one in kept:
            if elsewhere is None or not await elsewhere.subscribe(partition, one):
                topic = await self._topics.load(partition, create=True)
                await topic.registry.create(
                    one.name,
                    LATEST,
                    dict(one.properties),
                    durable=True,
                    replicated=one.replicated,
                )


def _check_stays(namespace: Namespace) -> None:
    if namespace.emptying:
        raise ClientError(
            ServerError.ServiceNotReady, f"Namespace {namespace.name} is being deleted"
        )
