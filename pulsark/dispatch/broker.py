"""The broker: owns topics, loads them when they are first used, and knows the rules of names.

Everything that a connection, the admin API or Flight asks of a topic goes through here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from pulsark.dispatch.broker_unacked import BrokerUnacked
from pulsark.dispatch.cache import CacheBudget
from pulsark.dispatch.connections import Connections
from pulsark.dispatch.defects import Defects
from pulsark.dispatch.flight import TopicRange
from pulsark.dispatch.loop_stalls import LoopStalls
from pulsark.dispatch.non_persistent_topics import NonPersistentTopics
from pulsark.dispatch.ownership import Ownership
from pulsark.dispatch.policies import auto_topic_creation
from pulsark.dispatch.policy_source import PolicySource
from pulsark.dispatch.rates import Rates
from pulsark.dispatch.run_queue import RunQueue
from pulsark.dispatch.schema_admission import SchemaAdmission
from pulsark.dispatch.schemas import Schemas
from pulsark.dispatch.sealing import Sealing
from pulsark.dispatch.subscribing import Subscribing
from pulsark.dispatch.topic import Topic
from pulsark.dispatch.topic_admin import TopicAdmin, buckets_path
from pulsark.dispatch.topic_lists import TopicFeeds
from pulsark.dispatch.topic_making import TopicMaking
from pulsark.dispatch.turns import in_turns
from pulsark.dispatch.upkeep import Upkeep
from pulsark.errors import (
    ClientError,
    ServerError,
)
from pulsark.metadata.resources import Resources
from pulsark.metadata.store import MetadataStore
from pulsark.runtime import Runtime
from pulsark.storage.cursor_log import CursorLog, CursorLogConfig
from pulsark.storage.delayed_buckets import DelayedBuckets
from pulsark.storage.ledger import LedgerConfig, LedgerManager
from pulsark.storage.ledger_record import managed_ledger_path
from pulsark.storage.managed_ledger import (
    ManagedLedger,
    ManagedLedgerConfig,
    read_record,
)
from pulsark.storage.position import Position
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.config import Settings
    from pulsark.dispatch.topic_kinds import AnyTopic
    from pulsark.storage.table.tables import Tables

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Where a topic is served. ``through_service_url``: reach it by the URL in use already."""

    broker_url: str
    http_url: str
    through_service_url: bool


class Broker:
    """One dispatcher process. Create it on the event loop, then ``await start()``."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        metadata: MetadataStore,
        ledgers: LedgerManager,
        tables: Tables | None = None,
    ) -> None:
        self.settings = settings
        self.runtime = runtime
        self.clock = runtime.clock
        self.run_queue = RunQueue(self.clock)
        self.defects = Defects(self.clock)
        self.loop_stalls: LoopStalls | None = None
        """Set by the process whose loop it is."""
        self.metadata = metadata
        self.resources = Resources(metadata, runtime)
        self.ledgers = ledgers
        self.schemas = Schemas(metadata, runtime)
        self.schema_admission = SchemaAdmission(self.schemas, settings)
        self.ownership = Ownership(metadata, self.resources)
        self.topic_making = TopicMaking(self)
        self.topic_admin = TopicAdmin(self)
        self.topic_feeds = TopicFeeds(metadata, self.topic_admin)
        self.subscribing = Subscribing(self)
        self.policy_source = PolicySource(self)
        self.non_persistent = NonPersistentTopics(self)
        self.rates = Rates(self)
        self.tables = tables
        self.sealing = Sealing(self, tables) if tables is not None else None
        self.connections = Connections(settings)
        self.broker_url = ""
        self.web_url = ""
        self.flight_url = ""
        self.started_ms = self.clock.now_ms()
        self.cache_budget = CacheBudget(settings.managedLedgerCacheSizeMB << 20)
        self.sure_clock = runtime.sure_clock
        self.at_rest_since = self.clock.monotonic()
        """Nobody has used a topic since then that is not loaded, as far as is known."""
        self.unacked = BrokerUnacked(
            settings.maxUnackedMessagesPerBroker,
            settings.maxUnackedMessagesPerSubscriptionOnBrokerBlocked,
        )
        self._topics: dict[str, asyncio.Task[Topic]] = {}
        self._visited: set[str] = set()
        """Topics that are loaded for a visit, and that nobody else has asked for."""
        self._ending: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Ends of visits; who comes waits, and loads the topic anew."""
        self._cursor_logs: dict[str, asyncio.Task[CursorLog]] = {}
        self._instance_id: int | None = None
        self._next_producer = 0
        self._closed = False
        self._upkeep = Upkeep(self)

    # -- life cycle ---

    async def start(self, broker_url: str, web_url: str, flight_url: str) -> None:
        """Make the broker known under its addresses."""
        self.broker_url, self.web_url, self.flight_url = broker_url, web_url, flight_url
        self.ownership.announce(broker_url, web_url)
        await self.resources.initialize(
            self.settings.clusterName,
            web_url,
            broker_url,
            self.settings.defaultNumberOfNamespaceBundles,
        )
        self.policy_source.start()
        self.rates.start()
        if self.sealing is not None:
            self.sealing.start()
        self._upkeep.start()

    async def close(self) -> None:
        """Close connections and topics; what was acknowledged is on disk already."""
        self._closed = True
        self.policy_source.close()
        self.rates.close()
        self.topic_feeds.close()
        self._upkeep.close()
        for connection in list(self.connections):
            connection.close()
        await self.non_persistent.close_all()
        if self.sealing is not None:
            await self.sealing.close()
        for leaving in list(self._leaving.values()):
            await _result(leaving)
        for task in list(self._topics.values()):
            topic = await _result(task)
            if topic is not None:
                async with self.ending(topic.name):
                    if not topic.closed:
                        await topic.close()
        self._topics.clear()
        for cursor_task in list(self._cursor_logs.values()):
            cursor_log = await _result(cursor_task)
            if cursor_log is not None:
                await cursor_log.close()
        self._cursor_logs.clear()
        self.schemas.close()

    async def drop_lost(self) -> None:
        """Unload topics whose ledger or cursors stopped for good; clients load them anew."""
        async for topic in in_turns(self.loaded_topics()):
            if topic.is_lost:
                log.warning("%s lost its ledger or its cursors: unloading it", topic.name)
                await self.unload_topic(topic.name)
        for bundle, task in list(self._cursor_logs.items()):
            opened = task.done() and not task.cancelled() and task.exception() is None
            if opened and task.result().failed is not None:
                del self._cursor_logs[bundle]

    def iso_time(self, ms: int) -> str:
        """Epoch milliseconds as ISO-8601 in UTC."""
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"

    # -- names, bundles, ownership ---

    async def lookup(self, name: TopicName, listener: str = "") -> LookupResult:
        """Who serves a topic. Never creates it. Raises if the broker has no such listener."""
        if listener:
            raise ClientError(
                ServerError.ServiceNotReady,
                f"The broker has no listener {listener!r}; clients need no listener name here",
            )
        self.check_enabled(name)
        await self.ownership.bundle_of(name)
        host = self.settings.advertisedAddress
        return LookupResult(
            self.broker_url, self.web_url, host in ("localhost", "127.0.0.1", "::1")
        )

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

    def served_topics(self) -> list[AnyTopic]:
        """All topics in memory, stored or not."""
        return [*self.loaded_topics(), *self.non_persistent.all()]

    def served_topic(self, name: TopicName) -> AnyTopic | None:
        """A topic if it is in memory."""
        return self.loaded_topic(name) if name.is_persistent else self.non_persistent.get(name)

    def loaded_topics(self) -> list[Topic]:
        """Persistent topics in memory."""
        return [
            task.result()
            for task in self._topics.values()
            if task.done() and not task.cancelled() and task.exception() is None
        ]

    def loaded_topic(self, name: TopicName) -> Topic | None:
        """A persistent topic if it is in memory."""
        task = self._topics.get(str(name))
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    def is_loading(self, name: TopicName) -> bool:
        """Whether a topic is in memory, or on its way there."""
        return str(name) in self._topics

    async def any_topic(self, name: TopicName, *, create: bool = False) -> AnyTopic:
        """A topic, stored or not; made if ``create`` and it is missing."""
        if name.is_persistent:
            return await self.topic(name, create=create)
        self.check_serving(name)
        return await self.non_persistent.topic(name, create=create)

    async def topic(self, name: TopicName, *, create: bool = False) -> Topic:
        """A persistent topic, loaded if needed; made if ``create`` and it is missing."""
        self.check_serving(name)
        return await self.load_topic(name, create=create)

    def check_enabled(self, name: TopicName) -> None:
        """Raise ``ClientError`` if topics of this kind are switched off here."""
        kinds = self.settings
        if not (
            kinds.enablePersistentTopics if name.is_persistent else kinds.enableNonPersistentTopics
        ):
            raise ClientError(
                ServerError.NotAllowedError,
                f"{name.domain.capitalize()} topics are not enabled on this broker",
            )

    def check_serving(self, name: TopicName) -> None:
        """Raise ``ClientError`` if the broker or the topic is on its way out."""
        if self._closed:
            raise ClientError(ServerError.ServiceNotReady, "The broker is shutting down")
        if self.topic_admin.is_deleting(name.base):
            raise ClientError(ServerError.ServiceNotReady, f"Topic {name.base} is being deleted")

    async def load_topic(self, name: TopicName, *, create: bool = False) -> Topic:
        """``topic``, even while all partitions of it are being deleted."""
        if self._closed:
            raise ClientError(ServerError.ServiceNotReady, "The broker is shutting down")
        if not name.is_persistent:
            raise ClientError(
                ServerError.NotAllowedError, f"{name} is not persistent: it stores nothing"
            )
        self.check_enabled(name)
        key = str(name)
        while (leaving := self._leaving.get(key)) is not None:
            await asyncio.wait([leaving])
        if (
            key not in self._topics
            and not create
            and not await self.topic_admin.exists(name)
            and key not in self._topics
        ):
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        self._visited.discard(key)
        topic = await asyncio.shield(self._topics.get(key) or self._start_loading(name))
        if topic.closed:
            raise ClientError(ServerError.ServiceNotReady, f"Topic {name} is being unloaded")
        return topic

    def _start_loading(self, name: TopicName) -> asyncio.Task[Topic]:
        key = str(name)
        task = self._topics[key] = asyncio.create_task(self._load(name))
        task.add_done_callback(lambda done: self._forget_failed(key, done))
        return task

    def _forget_failed(self, key: str, task: asyncio.Task[Topic]) -> None:
        if (task.cancelled() or task.exception() is not None) and self._topics.get(key) is task:
            del self._topics[key]

    async def _load(self, name: TopicName) -> Topic:
        await self.topic_admin.finish_deletion(name)
        bundle = await self.ownership.own(name)
        cursors = await self._cursor_log(bundle)
        topic = Topic(
            name,
            self.settings,
            self.clock,
            self.sure_clock,
            self.cache_budget,
            self.unacked,
            self.run_queue,
            self.clock.now_ms(),
        )
        ledger = await ManagedLedger.open(
            managed_ledger_path(name),
            self.ledgers,
            self.metadata,
            ManagedLedgerConfig.from_settings(self.settings),
            self.runtime,
            topic,
            attached=partial(self.sealing.existing, name) if self.sealing is not None else None,
        )
        delayed = DelayedBuckets(
            buckets_path(name), ledger.topic_id, self.ledgers, self.metadata, topic.ledger_config
        )
        try:
            await topic.attach(ledger, cursors, delayed, self.runtime)
        except BaseException:
            await ledger.close()
            raise
        try:
            topic.set_policies(await self.policy_source.current(name))
            while not topic.deduplication_switch.follows:
                await topic.deduplication_switch.follow()
                topic.set_policies(await self.policy_source.current(name))
        except BaseException:
            await topic.close()
            raise
        return topic

    async def topic_for_clients(self, name: TopicName, *, may_create: bool = True) -> AnyTopic:
        """The topic that a producer or consumer asks for, by the rules of automatic creation."""
        self.check_enabled(name)
        if self.served_topic(name) is not None:
            return await self.any_topic(name)
        namespace = await self.ownership.namespace(name)
        parent = await self.resources.partitioned_topics.get(name.base)
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
            return await self.any_topic(name, create=True)
        if await self.topic_admin.exists(name):
            return await self.any_topic(name)
        created = auto_topic_creation(self.settings, namespace.policies)
        if not (may_create and created.allowed):
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        async with self.topic_making.alone(name):
            parent = await self.resources.partitioned_topics.get(name.base)
            if parent is None:
                if await self.topic_admin.exists(name):
                    return await self.any_topic(name)
                return await self.topic_admin.make(name)
        return await self.topic_for_clients(name)  # it was made with partitions just now

    async def unload_topic(self, name: TopicName) -> None:
        """Close a topic; clients connect anew and load it again."""
        await self.non_persistent.close(name)
        async with self.ending(name):
            topic = self.loaded_topic(name)
            if topic is not None and not topic.closed:
                self.at_rest_since = self.clock.monotonic()
                await self._leave(topic)

    def ending(self, name: TopicName) -> asyncio.Lock:
        """Held by whoever unloads or deletes a topic: one does after the other."""
        lock = self._ending.get(str(name))
        if lock is None:
            lock = self._ending[str(name)] = asyncio.Lock()
        return lock

    @asynccontextmanager
    async def visit(self, name: TopicName) -> AsyncIterator[Topic | None]:
        """A topic that nobody has loaded, loaded for as long as this lasts; else ``None``.

        It stays if somebody else asks for it meanwhile.
        """
        key = str(name)
        exists = await read_record(managed_ledger_path(name), self.metadata) is not None
        if not exists or self._closed or key in self._topics or key in self._leaving:
            yield None
            return
        self._visited.add(key)
        try:
            topic = await asyncio.shield(self._start_loading(name))
            try:
                yield topic
            finally:
                if key in self._visited and not topic.closed and not self._closed:
                    leaving = self._leaving[key] = asyncio.create_task(self._leave(topic))
                    leaving.add_done_callback(lambda _: self._leaving.pop(key))
                    await asyncio.shield(leaving)
        finally:
            self._visited.discard(key)

    async def _leave(self, topic: Topic) -> None:
        try:
            await topic.close()
        finally:
            self.forget(topic)

    async def delete_cursors(self, name: TopicName, topic_id: str) -> None:
        """Delete the durable cursors and the delayed messages of a topic that is deleted."""
        await (await self._cursor_log(await self.ownership.own(name))).delete_topic(topic_id)
        await DelayedBuckets(
            buckets_path(name),
            topic_id,
            self.ledgers,
            self.metadata,
            lambda owner: LedgerConfig(owner=owner),
        ).delete()

    async def cursors_at_rest(self, name: TopicName, topic_id: str) -> dict[str, Position]:
        """The durable cursors of a topic that is not loaded: names and mark-delete positions."""
        log_of_bundle = await self._cursor_log(await self.ownership.own(name))
        return log_of_bundle.mark_deletes(topic_id)

    def forget(self, topic: Topic) -> None:
        """Nobody gets this topic any more; the next who asks loads another one."""
        if self.loaded_topic(topic.name) is topic:
            del self._topics[str(topic.name)]

    # -- clients ---

    async def new_producer_name(self) -> str:
        """A producer name that nobody in the cluster has."""
        if self._instance_id is None:
            self._instance_id = await self.metadata.next_id("/counters/producer-name")
        self._next_producer += 1
        return f"{self.settings.clusterName}-{self._instance_id}-{self._next_producer - 1}"

    # -- Flight ---

    async def topic_range(self, topic: str) -> TopicRange:
        """Identity and bounds of a topic partition."""
        loaded = await self.topic(TopicName.parse(topic))
        loaded.touch()
        ledger = loaded.ledger
        return TopicRange(ledger.topic_id, ledger.first_position(), ledger.last_confirmed)

    async def read_entries(
        self, topic: str, first: Position, last: Position, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        """Entries of a topic in ``[first, last]``, at most about ``max_bytes`` of them."""
        loaded = await self.topic(TopicName.parse(topic))
        loaded.touch()
        count = _count(first, last)
        cached = loaded.read_cached(first, count, max_bytes)
        if cached is not None:
            return [(e.position, e.data) for e in cached if e.position <= last]
        stored = await loaded.ledger.read(first, count, max_bytes)
        return [(position, data) for position, data in stored if position <= last]

    async def read_compacted(
        self, topic: str, first: Position, last: Position, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        """Entries of a compacted ledger of a topic by its own ids, as they are stored."""
        loaded = await self.topic(TopicName.parse(topic))
        loaded.touch()
        found = loaded.ledger.hold_compacted(first.ledger_id)
        if found is None:
            raise ClientError(
                ServerError.NotAllowedError,
                f"Topic {topic} was compacted again since the query was planned: load the "
                "DataFrame anew",
            )
        return await found.stored(first.entry_id, last.entry_id, max_bytes)


def _count(first: Position, last: Position) -> int:
    if first.ledger_id == last.ledger_id:
        return max(last.entry_id - first.entry_id + 1, 0)
    return 1 << 30


async def _result(task: asyncio.Task[T]) -> T | None:
    try:
        return await task
    except Exception:
        return None
