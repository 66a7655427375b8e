"""The broker: owns topics, loads them when they are first used, and knows the rules of names.

Everything that a connection, the admin API or Flight asks of a topic goes through here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

from pulsark.dispatch.cache import CacheBudget
from pulsark.dispatch.consumer import Consumer
from pulsark.dispatch.flight import TopicRange
from pulsark.dispatch.message_ids import position_of
from pulsark.dispatch.schemas import Schemas
from pulsark.dispatch.subscription import Subscription
from pulsark.dispatch.subscription_type import SubType
from pulsark.dispatch.topic import Topic
from pulsark.errors import (
    BadVersionError,
    ClientError,
    PulsarkError,
    ServerError,
)
from pulsark.limits import SUBSCRIPTION_NAME_CHARS_MAX
from pulsark.metadata.resources import AlreadyExistsError, InUseError, Namespace, Resources
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.runtime import Runtime
from pulsark.storage.cursor_log import CursorLog, CursorLogConfig
from pulsark.storage.ledger import LedgerManager
from pulsark.storage.managed_ledger import (
    ManagedLedger,
    ManagedLedgerConfig,
    delete_managed_ledger,
    read_record,
)
from pulsark.storage.position import EARLIEST, LATEST, Position
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.hashes import bundle_hash, topics_hash
from pulsark.wire.topic_name import TopicName, parse_namespace

if TYPE_CHECKING:
    from pulsark.config import Settings
    from pulsark.dispatch.connection import Connection

log = logging.getLogger(__name__)

T = TypeVar("T")

LOST_CHECK_SECONDS = 1.0
ROLL_OVER_CHECK_SECONDS = 60.0

_RESERVED_SUBSCRIPTIONS = ("pulsar.repl", "pulsar.dedup")


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Where a topic is served. ``through_service_url``: reach it by the URL in use already."""

    broker_url: str
    http_url: str
    through_service_url: bool


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The last message of a topic; position -1:-1 when it is empty."""

    position: Position
    batch_index: int


@dataclass(frozen=True, slots=True)
class TopicList:
    """Topics of a namespace with the hash that clients compare."""

    topics: list[str]
    hash: str


class Broker:
    """One dispatcher process. Create it on the event loop, then ``await start()``."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        metadata: MetadataStore,
        ledgers: LedgerManager,
    ) -> None:
        self.settings = settings
        self.runtime = runtime
        self.clock = runtime.clock
        self.metadata = metadata
        self.resources = Resources(metadata, runtime)
        self.ledgers = ledgers
        self.schemas = Schemas(metadata)
        self.connections: set[Connection] = set()
        self.broker_url = ""
        self.web_url = ""
        self.flight_url = ""
        self.started_ms = self.clock.now_ms()
        self.cache_budget = CacheBudget(settings.managedLedgerCacheSizeMB << 20)
        self._topics: dict[str, asyncio.Task[Topic]] = {}
        self._cursor_logs: dict[str, asyncio.Task[CursorLog]] = {}
        self._owned: dict[str, asyncio.Task[None]] = {}
        self._instance_id: int | None = None
        self._next_producer = 0
        self._next_consumer = 0
        self._deleting: set[TopicName] = set()
        self._closed = False
        self._upkeep: list[asyncio.Task[None]] = []

    # -- life cycle ---

    async def start(self, broker_url: str, web_url: str, flight_url: str) -> None:
        """Make the broker known under its addresses."""
        self.broker_url, self.web_url, self.flight_url = broker_url, web_url, flight_url
        await self.resources.initialize(
            self.settings.clusterName,
            web_url,
            broker_url,
            self.settings.defaultNumberOfNamespaceBundles,
        )
        self._upkeep = [
            asyncio.create_task(self._drop_lost()),
            asyncio.create_task(self._roll_over_idle()),
        ]

    async def close(self) -> None:
        """Close connections and topics; what was acknowledged is on disk already."""
        self._closed = True
        for upkeep in self._upkeep:
            upkeep.cancel()
        for connection in list(self.connections):
            connection.close()
        for task in list(self._topics.values()):
            topic = await _result(task)
            if topic is not None:
                await topic.close()
        self._topics.clear()
        for cursor_task in list(self._cursor_logs.values()):
            cursor_log = await _result(cursor_task)
            if cursor_log is not None:
                await cursor_log.close()
        self._cursor_logs.clear()

    async def _drop_lost(self) -> None:
        """Unload topics whose ledger or cursors stopped for good; clients load them anew."""
        while True:
            await asyncio.sleep(LOST_CHECK_SECONDS)
            for topic in self.loaded_topics():
                if topic.is_lost:
                    log.warning("%s lost its ledger or its cursors: unloading it", topic.name)
                    await self.unload_topic(topic.name)
            for bundle, task in list(self._cursor_logs.items()):
                opened = task.done() and not task.cancelled() and task.exception() is None
                if opened and task.result().failed is not None:
                    del self._cursor_logs[bundle]

    async def _roll_over_idle(self) -> None:
        """Close ledgers that are old enough although nobody appends to them."""
        while True:
            await asyncio.sleep(ROLL_OVER_CHECK_SECONDS)
            for topic in self.loaded_topics():
                try:
                    await topic.ledger.roll_over_if_due()
                except PulsarkError as error:
                    if not (topic.closed or topic.ledger.is_terminated):
                        log.warning("%s: its ledger is not closed yet: %s", topic.name, error)

    def iso_time(self, ms: int) -> str:
        """Epoch milliseconds as ISO-8601 in UTC."""
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"

    # -- names, bundles, ownership ---

    async def bundle_of(self, name: TopicName) -> str:
        """The namespace bundle of a topic, as ``0x00000000_0x40000000``."""
        namespace = await self._namespace(name)
        boundaries = [int(b, 16) for b in namespace.bundle_boundaries]
        place = bundle_hash(str(name))
        for low, high in itertools.pairwise(boundaries):
            if low <= place < high or (high == boundaries[-1] and place == high):
                return f"0x{low:08x}_0x{high:08x}"
        raise ClientError(ServerError.MetadataError, f"No bundle covers {name}")

    async def lookup(self, name: TopicName) -> LookupResult:
        """Who serves a topic. Never creates it."""
        await self.bundle_of(name)
        host = self.settings.advertisedAddress
        return LookupResult(
            self.broker_url, self.web_url, host in ("localhost", "127.0.0.1", "::1")
        )

    async def _namespace(self, name: TopicName) -> Namespace:
        namespace = await self.resources.namespaces.get(name.namespace_name)
        if namespace is None:
            raise ClientError(
                ServerError.TopicNotFound, f"Namespace {name.namespace_name} does not exist"
            )
        return namespace

    async def _own(self, name: TopicName) -> str:
        """Own the bundle of a topic, or raise; returns ``tenant/namespace/bundle``."""
        bundle = f"{name.namespace_name}/{await self.bundle_of(name)}"
        claim = self._owned.get(bundle)
        if claim is None:
            claim = self._owned[bundle] = asyncio.create_task(self._claim(bundle))
        try:
            await asyncio.shield(claim)
        except Exception:
            if self._owned.get(bundle) is claim:
                del self._owned[bundle]
            raise
        return bundle

    async def _claim(self, bundle: str) -> None:
        owner = json.dumps(
            {"nativeUrl": self.broker_url, "httpUrl": self.web_url, "disabled": False}
        ).encode()
        try:
            await self.metadata.put(f"/namespace/{bundle}", owner, ABSENT, ephemeral=True)
        except BadVersionError as error:
            raise ClientError(
                ServerError.ServiceNotReady, f"Bundle {bundle} is owned by another broker"
            ) from error

    async def _cursor_log(self, bundle: str) -> CursorLog:
        opening = self._cursor_logs.get(bundle)
        if opening is None:
            opening = self._cursor_logs[bundle] = asyncio.create_task(
                CursorLog.open(
                    bundle,
                    self.ledgers,
                    self.metadata,
                    CursorLogConfig.from_settings(self.settings),
                    self.runtime,
                )
            )
        try:
            return await asyncio.shield(opening)
        except Exception:
            if self._cursor_logs.get(bundle) is opening:
                del self._cursor_logs[bundle]
            raise

    # -- topics ---

    def loaded_topics(self) -> list[Topic]:
        """Topics in memory."""
        return [
            task.result()
            for task in self._topics.values()
            if task.done() and not task.cancelled() and task.exception() is None
        ]

    def loaded_topic(self, name: TopicName) -> Topic | None:
        """A topic if it is in memory."""
        task = self._topics.get(str(name))
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    async def exists(self, name: TopicName) -> bool:
        """Whether a topic (a partition or a topic without partitions) is there."""
        if await read_record(ledger_path(name), self.metadata) is not None:
            return True
        if name.partition < 0:
            return False
        parent = await self.resources.partitioned_topics.get(name.base)
        return parent is not None and name.partition < parent.partitions

    async def topic(self, name: TopicName, *, create: bool = False) -> Topic:
        """A topic, loaded if needed; made if ``create`` and it is missing."""
        if self._deleting and name.base in self._deleting:
            raise ClientError(ServerError.ServiceNotReady, f"Topic {name.base} is being deleted")
        return await self._topic(name, create=create)

    async def _topic(self, name: TopicName, *, create: bool = False) -> Topic:
        if self._closed:
            raise ClientError(ServerError.ServiceNotReady, "The broker is shutting down")
        key = str(name)
        task = self._topics.get(key)
        if task is None:
            if not create and not await self.exists(name):
                raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
            task = self._topics.get(key)
        if task is None:
            task = asyncio.create_task(self._load(name))
            self._topics[key] = task
            task.add_done_callback(lambda done: self._forget_failed(key, done))
        topic = await asyncio.shield(task)
        if topic.closed:
            raise ClientError(ServerError.ServiceNotReady, f"Topic {name} is being unloaded")
        return topic

    def _forget_failed(self, key: str, task: asyncio.Task[Topic]) -> None:
        if (task.cancelled() or task.exception() is not None) and self._topics.get(key) is task:
            del self._topics[key]

    async def _load(self, name: TopicName) -> Topic:
        bundle = await self._own(name)
        cursors = await self._cursor_log(bundle)
        topic = Topic(name, self.settings, self.clock, self.cache_budget, self.clock.now_ms())
        ledger = await ManagedLedger.open(
            ledger_path(name),
            self.ledgers,
            self.metadata,
            ManagedLedgerConfig.from_settings(self.settings),
            self.runtime,
            topic,
        )
        await topic.attach(ledger, cursors)
        return topic

    async def topic_for_clients(self, name: TopicName, *, may_create: bool = True) -> Topic:
        """The topic that a producer or consumer asks for, by the rules of automatic creation."""
        if not name.is_persistent:
            raise ClientError(
                ServerError.NotAllowedError, "Non-persistent topics are not enabled on this broker"
            )
        if self.loaded_topic(name) is not None:
            return await self.topic(name)
        await self._namespace(name)
        parent = await self.resources.partitioned_topics.get(name.base)
        if parent is not None:
            if name.partition < 0:
                raise ClientError(
                    ServerError.NotAllowedError,
                    f"{name} has {parent.partitions} partitions; use one of them",
                )
            if name.partition >= parent.partitions:
                raise ClientError(
                    ServerError.NotAllowedError,
                    f"{name.base} has only {parent.partitions} partitions",
                )
            return await self.topic(name, create=True)
        if await self.exists(name):
            return await self.topic(name)
        if not (may_create and self.settings.allowAutoTopicCreation):
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        return await self.topic(name, create=True)

    async def partition_count(self, name: TopicName, *, create: bool) -> int:
        """Partitions of a topic; 0 if it has none, or is missing and may be created."""
        if not name.is_persistent:
            raise ClientError(
                ServerError.NotAllowedError, "Non-persistent topics are not enabled on this broker"
            )
        await self._namespace(name)
        found = await self.resources.partitioned_topics.get(name)
        if found is not None:
            return found.partitions
        if await self.exists(name):
            return 0
        if not (create and self.settings.allowAutoTopicCreation):
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        if self.settings.allowAutoTopicCreationType == "partitioned" and name.partition < 0:
            try:
                await self.create_partitioned_topic(name, self.settings.defaultNumPartitions, {})
            except AlreadyExistsError:
                log.debug("%s was created by another client at the same time", name)
            found = await self.resources.partitioned_topics.get(name)
            return 0 if found is None else found.partitions
        return 0

    async def require_topic(self, name: TopicName) -> None:
        """Raise ``ClientError(TopicNotFound)`` unless a topic, partitioned or not, is there."""
        if await self.exists(name):
            return
        if await self.resources.partitioned_topics.get(name) is None:
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")

    async def create_topic(self, name: TopicName, properties: dict[str, str]) -> Topic:
        """Create a topic without partitions (or a missing partition)."""
        await self._namespace(name)
        if await self.resources.partitioned_topics.get(name) is not None or (
            await read_record(ledger_path(name), self.metadata) is not None
        ):
            raise AlreadyExistsError(f"Topic {name} already exists")
        topic = await self.topic(name, create=True)
        if properties:
            await topic.ledger.set_properties(properties)
        return topic

    async def create_partitioned_topic(
        self, name: TopicName, partitions: int, properties: dict[str, str]
    ) -> None:
        """Create a topic with partitions; they exist at once and load on first use."""
        await self._namespace(name)
        if await self.exists(name):
            raise AlreadyExistsError(f"Topic {name} already exists")
        await self.resources.partitioned_topics.create(name, partitions, properties)

    async def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        """Delete one topic or partition with its data and subscriptions."""
        path = ledger_path(name)
        if str(name) not in self._topics and await read_record(path, self.metadata) is None:
            if not await self._has_record(name) and not await self.exists(name):
                raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
            # Never used, or a deletion that did not come to its end.
            await delete_managed_ledger(path, self.ledgers, self.metadata)
            return
        topic = await self._topic(name)
        if topic.is_used and not force:
            raise InUseError(f"Topic {name} has connected producers or consumers")
        try:
            await topic.delete()
        finally:
            self._forget(topic)

    async def delete_partitioned_topic(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with all its partitions."""
        found = await self.resources.partitioned_topics.get(name)
        if found is None:
            raise ClientError(ServerError.TopicNotFound, f"Partitioned topic {name} does not exist")
        partitions = [name.with_partition(i) for i in range(found.partitions)]
        if not force:
            for partition in partitions:
                topic = self.loaded_topic(partition)
                if topic is not None and topic.is_used:
                    raise InUseError(f"Topic {partition} has connected producers or consumers")
        self._deleting.add(name)
        try:
            for partition in partitions:
                if str(partition) in self._topics or await self._has_record(partition):
                    await self.delete_topic(partition, force=True)
            await self.resources.partitioned_topics.delete(name)
        finally:
            self._deleting.discard(name)

    async def _has_record(self, name: TopicName) -> bool:
        """Whether anything is stored of a topic, even if it is being deleted."""
        return await self.metadata.get(ledger_path(name)) is not None

    async def unload_topic(self, name: TopicName) -> None:
        """Close a topic; clients connect anew and load it again."""
        topic = self.loaded_topic(name)
        if topic is not None:
            try:
                await topic.close()
            finally:
                self._forget(topic)

    def _forget(self, topic: Topic) -> None:
        """Nobody gets this topic any more; the next who asks loads another one."""
        if self.loaded_topic(topic.name) is topic:
            del self._topics[str(topic.name)]

    async def list_topics(self, namespace: str, *, include_system: bool = False) -> list[str]:
        """Full names of a namespace's topics, each partition by itself, sorted."""
        if await self.resources.namespaces.get(namespace) is None:
            raise ClientError(ServerError.TopicNotFound, f"Namespace {namespace} does not exist")
        parent = f"/managed-ledgers/{namespace}/persistent"
        names = set()
        for number, child in enumerate(await self.metadata.children(parent), 1):
            if number % 100 == 0:
                await asyncio.sleep(0)  # a store in this process answers without a pause
            if await read_record(f"{parent}/{child}", self.metadata) is not None:
                names.add(f"persistent://{namespace}/{unquote(child)}")
        for base in await self.resources.partitioned_topics.list(namespace):
            found = await self.resources.partitioned_topics.get(base)
            if found is not None:
                names.update(str(base.with_partition(i)) for i in range(found.partitions))
        if not include_system:
            names = {n for n in names if not n.rsplit("/", 1)[1].startswith("__")}
        return sorted(names)

    async def topics_of_namespace(self, namespace: str, mode: int) -> TopicList:
        """Topics of a namespace for a client.

        Patterns are left to the client, which filters what is not marked as filtered: an
        expression from the network could keep Python's matcher busy for ever.
        """
        namespace = "/".join(parse_namespace(namespace))
        wanted = mode != pb.CommandGetTopicsOfNamespace.NON_PERSISTENT
        topics = await self.list_topics(namespace) if wanted else []
        return TopicList(topics, topics_hash(topics))

    # -- clients ---

    async def new_producer_name(self) -> str:
        """A producer name that nobody in the cluster has."""
        if self._instance_id is None:
            self._instance_id = await self.metadata.next_id("/counters/producer-name")
        self._next_producer += 1
        return f"{self.settings.clusterName}-{self._instance_id}-{self._next_producer - 1}"

    async def ensure_subscription(self, topic: Topic, name: str) -> None:
        """Make sure that a durable subscription exists; a new one starts at Earliest."""
        check_subscription_name(name)
        if name not in topic.subscriptions:
            if not self.settings.allowAutoSubscriptionCreation:
                raise ClientError(
                    ServerError.NotAllowedError, f"Subscription {name} may not be created"
                )
            await topic.create_subscription(name, EARLIEST, {}, durable=True)

    async def subscribe(self, connection: Connection, request: pb.CommandSubscribe) -> Consumer:
        """Admit a consumer. The subscription exists durably when this returns."""
        check_subscription_name(request.subscription)
        sub_type = self._check_type(request)
        name = TopicName.parse(request.topic)
        topic = await self.topic_for_clients(name, may_create=request.force_topic_creation)
        if request.HasField("schema"):
            await self.schemas.register(name, request.schema)
        while True:
            topic.check_open()
            subscription = topic.subscriptions.get(request.subscription)
            if subscription is None:
                subscription = await self._create_subscription(topic, request)
            elif subscription.cursor.durable != request.durable:
                raise ClientError(
                    ServerError.NotAllowedError,
                    f"Subscription {subscription.name} is "
                    + ("durable" if subscription.cursor.durable else "not durable"),
                )
            try:
                async with subscription.changing:
                    # It may have been deleted while others were admitted.
                    if topic.subscriptions.get(subscription.name) is subscription:
                        return await self._join(connection, request, subscription, sub_type)
            except BaseException:
                if not subscription.consumers:
                    topic.subscription_idle(subscription)
                raise

    def _check_type(self, request: pb.CommandSubscribe) -> SubType:
        sub_type = SubType(request.subType)
        if sub_type.name not in self.settings.subscriptionTypesEnabled or sub_type not in (
            SubType.Exclusive,
            SubType.Shared,
            SubType.Failover,
        ):
            raise ClientError(
                ServerError.NotAllowedError, f"{sub_type.name} subscriptions are not enabled"
            )
        if request.read_compacted and sub_type not in (SubType.Exclusive, SubType.Failover):
            raise ClientError(
                ServerError.NotAllowedError,
                "read_compacted is for Exclusive and Failover subscriptions",
            )
        return sub_type

    async def _join(
        self,
        connection: Connection,
        request: pb.CommandSubscribe,
        subscription: Subscription,
        sub_type: SubType,
    ) -> Consumer:
        """Add a consumer, all or nothing. The caller holds ``subscription.changing``."""
        consumer = self._new_consumer(connection, request, subscription, sub_type)
        await self._admit(subscription, consumer, sub_type)
        try:
            if request.start_message_rollback_duration_sec:
                target = self.clock.now_ms() - request.start_message_rollback_duration_sec * 1000
                position = await subscription.topic.ledger.find_by_publish_time(target)
                await subscription.rollback(position)
            subscription.topic.check_open()
        except BaseException:
            subscription.remove_consumer(consumer)
            raise
        return consumer

    async def _create_subscription(
        self, topic: Topic, request: pb.CommandSubscribe
    ) -> Subscription:
        if request.durable and not self.settings.allowAutoSubscriptionCreation:
            raise ClientError(
                ServerError.SubscriptionNotFound,
                f"Subscription {request.subscription} does not exist",
            )
        earliest = request.initialPosition == pb.CommandSubscribe.Earliest
        position = EARLIEST if earliest else LATEST
        if not request.durable and request.HasField("start_message_id"):
            start = position_of(request.start_message_id)
            # The place right after the last entry is where the next one comes: not beyond.
            before = Position(start.ledger_id, start.entry_id - 1)
            if before <= topic.ledger.last_confirmed:
                position = start
        return await topic.create_subscription(
            request.subscription,
            position,
            {p.key: p.value for p in request.subscription_properties},
            durable=request.durable,
        )

    async def _admit(
        self, subscription: Subscription, consumer: Consumer, sub_type: SubType
    ) -> None:
        try:
            subscription.use_type(sub_type)
            subscription.add_consumer(consumer)
        except ClientError as error:
            holder = subscription.type.active
            if error.code != ServerError.ConsumerBusy or holder is None:
                raise
            # The holder's connection may be half dead: ask, and try again if it is.
            if await holder.connection.probe() and not holder.closed:
                raise
            subscription.topic.check_open()
            subscription.remove_consumer(holder)
            subscription.use_type(sub_type)
            subscription.add_consumer(consumer)

    def _new_consumer(
        self,
        connection: Connection,
        request: pb.CommandSubscribe,
        subscription: Subscription,
        sub_type: SubType,
    ) -> Consumer:
        # The epoch tells what was sent before a redelivery from what comes after it; where
        # messages are redelivered one by one there is none.
        has_epoch = request.HasField("consumer_epoch") and sub_type != SubType.Shared
        self._next_consumer += 1
        return Consumer(
            subscription,
            connection,
            request.consumer_id,
            request.consumer_name or f"consumer-{self._next_consumer}",
            priority=request.priority_level,
            epoch=request.consumer_epoch if has_epoch else None,
            metadata={m.key: m.value for m in request.metadata},
            connected_since_ms=self.clock.now_ms(),
        )

    async def last_message_id(self, topic: Topic) -> LastMessage:
        """The last message that can be delivered: no marker."""
        position = topic.ledger.last_confirmed
        while position.ledger_id >= 0:
            entries = await topic.read(position, 1, 1)
            if not entries or entries[0].position != position:
                break
            entry = entries[0]
            if not entry.marker:
                return LastMessage(position, entry.messages - 1 if entry.batched else -1)
            position = topic.ledger.previous_position(position)
        return LastMessage(EARLIEST, -1)

    # -- Flight ---

    async def topic_range(self, topic: str) -> TopicRange:
        """Identity and bounds of a topic partition."""
        ledger = (await self.topic(TopicName.parse(topic))).ledger
        return TopicRange(ledger.topic_id, ledger.first_position(), ledger.last_confirmed)

    async def read_entries(
        self, topic: str, first: Position, last: Position, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        """Entries of a topic in ``[first, last]``, at most about ``max_bytes`` of them."""
        loaded = await self.topic(TopicName.parse(topic))
        count = _count(first, last)
        cached = loaded.read_cached(first, count, max_bytes)
        if cached is not None:
            return [(e.position, e.data) for e in cached if e.position <= last]
        stored = await loaded.ledger.read(first, count, max_bytes)
        return [(position, data) for position, data in stored if position <= last]


def _count(first: Position, last: Position) -> int:
    if first.ledger_id == last.ledger_id:
        return max(last.entry_id - first.entry_id + 1, 0)
    return 1 << 30


def check_subscription_name(name: str) -> None:
    """Refuse names that are empty or kept for the system."""
    if not name:
        raise ClientError(ServerError.ProducerBusy, "The subscription name is empty")
    if len(name) > SUBSCRIPTION_NAME_CHARS_MAX:
        raise ClientError(
            ServerError.NotAllowedError,
            f"The subscription name is longer than {SUBSCRIPTION_NAME_CHARS_MAX} characters",
        )
    if name.startswith(_RESERVED_SUBSCRIPTIONS):
        raise ClientError(
            ServerError.ProducerBusy, f"Subscription name {name} is reserved for the system"
        )


def ledger_path(name: TopicName) -> str:
    """Where a topic's managed-ledger record is in the metadata store."""
    return f"/managed-ledgers/{name.namespace_name}/{name.domain}/{quote(name.local, safe='')}"


async def _result(task: asyncio.Task[T]) -> T | None:
    try:
        return await task
    except Exception:
        return None
