"""One topic partition on the broker that owns it.

A topic ties a managed ledger (what is stored) to producers (who may append) and subscriptions
(who is still to receive). `ledger_reports` brings what the ledger confirms to all of them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.model.entry import Entry, stored_entry
from pulsark.dispatch.model.interfaces import CompactionStats, check_open, is_system_subscription
from pulsark.dispatch.policies.policies import TopicPolicies, effective
from pulsark.dispatch.producer.deduplication import CURSOR_NAME, Deduplication
from pulsark.dispatch.producer.deduplication_switch import DeduplicationSwitch
from pulsark.dispatch.producer.topic_producers import TopicProducers
from pulsark.dispatch.subscription.delayed_delivery import DelayedDelivery, load_buckets
from pulsark.dispatch.subscription.subscription import Subscription
from pulsark.dispatch.subscription.subscription_properties import cursor_properties
from pulsark.dispatch.topic.arrivals import Arrivals
from pulsark.dispatch.topic.backlog import Backlog
from pulsark.dispatch.topic.cache import CacheBudget, TopicCache
from pulsark.dispatch.topic.compactor import CompactedView, Compactor
from pulsark.dispatch.topic.cursors import TopicCursors
from pulsark.dispatch.topic.last_message import LastMessageFinder
from pulsark.dispatch.topic.ledger_reports import LedgerReports
from pulsark.dispatch.topic.retention import TopicRetention
from pulsark.errors import ClientError, ServerError, StorageFullError
from pulsark.storage.cursor.cursor import Ack, Cursor
from pulsark.wire.position import EARLIEST, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pulsark.config.settings import Settings
    from pulsark.dispatch.loop.run_queue import RunQueue
    from pulsark.dispatch.model.producer import Producer
    from pulsark.dispatch.subscription.broker_unacked import BrokerUnacked
    from pulsark.runtime import Runtime
    from pulsark.storage.cursor.log import CursorLog
    from pulsark.storage.delayed.delayed_buckets import DelayedBuckets, StoredBucket
    from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger
    from pulsark.wire.message_id import MessageId
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicContext:
    """What the topics of a broker share."""

    settings: Settings
    runtime: Runtime
    cache_budget: CacheBudget
    broker_unacked: BrokerUnacked
    run_queue: RunQueue


class Topic:
    """A loaded topic, made by ``open``. Everything runs on the event loop."""

    def __init__(
        self,
        name: TopicName,
        context: TopicContext,
        ledger: ManagedLedger,
        cursors: TopicCursors,
        buckets: DelayedBuckets,
        delayed: Iterable[StoredBucket],
    ) -> None:
        """Whatever has to be waited for is done; from now on the ledger tells this topic."""
        settings, clock = context.settings, context.runtime.clock
        self.name = name
        self.run_queue = context.run_queue
        self.broker_unacked = context.broker_unacked
        self.settings = settings
        self.policies = effective(settings, {}, {})
        self.clock = clock
        self.sure_clock = context.runtime.sure_clock
        self.created_ms = clock.now_ms()
        self.last_used = clock.monotonic()
        """When a client left, or somebody read; while one is connected this says nothing."""
        self._admission = TopicProducers(self)
        self.producers = self._admission.by_name
        self.subscriptions: dict[str, Subscription] = {}
        self.closed = False
        self.is_leaving = False
        """Nobody new is admitted: it is about to be deleted, if nobody uses it."""
        self.messages_in = 0
        self.bytes_in = 0
        self.entries_in = 0
        self.ledger: ManagedLedger = ledger
        self.cursors = cursors
        self.arrivals = Arrivals(clock, self.sure_clock, ledger)
        self.cache_budget = context.cache_budget
        self._cache = TopicCache(context.cache_budget)
        self._last = LastMessageFinder(self)
        self.backlog = Backlog(self)
        self.retention = TopicRetention(self)
        self.delayed = DelayedDelivery(self, buckets, delayed)
        self.deduplication: Deduplication | None = None
        """Set while it is on, by ``deduplication_switch``."""
        self.compactor = Compactor(self, context.runtime)
        self.compacted_view: CompactedView | None = None
        """How consumers with ``read_compacted`` see the topic, once it was compacted."""
        self.show_compacted()
        found = cursors.found()
        self.deduplication_switch = DeduplicationSwitch(self, found.pop(CURSOR_NAME, None))
        for subscription, cursor in found.items():
            self._add(Subscription(self, subscription, cursor))
        ledger.tell(LedgerReports(self, self._cache))

    @classmethod
    async def open(
        cls,
        name: TopicName,
        context: TopicContext,
        ledger: ManagedLedger,
        cursors: CursorLog,
        buckets: DelayedBuckets,
    ) -> Topic:
        """A topic on a ledger that was opened for it, and that nobody has appended to."""
        delayed = await load_buckets(str(name), buckets)
        return cls(name, context, ledger, TopicCursors(cursors, ledger), buckets, delayed)

    def set_policies(self, policies: TopicPolicies) -> None:
        """The rules changed; what depends on them follows at once."""
        self.policies = policies
        self.deduplication_switch.follow_soon()
        quorums = policies.quorums
        self.ledger.set_quorums(quorums.ensemble, quorums.write, quorums.ack)
        self.delayed.policies_changed()
        self._admission.policies_changed()
        for subscription in self.subscriptions.values():
            subscription.policies_changed()

    async def policies_obeyed(self) -> None:
        """Return once everything is as the policies say, or could not be made so now."""
        await self.deduplication_switch.settled()

    # -- publishing ---

    def publish(self, entry: Entry) -> None:
        """Append an entry; its producer gets the receipt once the entry is durable."""
        if self.deduplication is None or self.deduplication.admit(entry):
            self.ledger.append(entry.data, entry)

    def flush(self) -> None:
        """Let the ledger have what was published, without waiting for the end of this turn."""
        self.ledger.flush()

    def trimmed(self) -> None:
        """Ledgers are gone: nobody gets their entries any more."""
        through = self.ledger.record.trimmed
        self._cache.trim(through.ledger_id)
        self._last.forget()
        self.delayed.trimmed()
        for subscription in self.subscriptions.values():
            subscription.trimmed(through)

    # -- producers ---

    async def add_producer(self, producer: Producer) -> bool:
        """Admit a producer, or raise ``ClientError``. False: it waits, and will be told."""
        self.backlog.check_admission()
        return await self._admission.add(producer)

    def remove_producer(self, producer: Producer) -> None:
        """Forget a producer that left."""
        self._admission.remove(producer)
        self.touch()

    def touch(self) -> None:
        """Somebody uses the topic."""
        self.last_used = self.clock.monotonic()

    async def producer_joined(self, producer: Producer) -> None:
        """A producer has its name. What was sent under that name before has to be decided."""
        if self.deduplication is not None:
            await self.deduplication.joined(producer.name)

    def producer_left(self, producer: Producer) -> None:
        """No producer has this name any more."""
        if self.deduplication is not None:
            self.deduplication.left(producer.name)

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest that is known to be stored of a name, -1 if nothing is known."""
        deduplication = self.deduplication
        return -1 if deduplication is None else deduplication.last_sequence_id(producer_name)

    @property
    def deduplication_status(self) -> str:
        """What statistics call it."""
        return self.deduplication_switch.status

    @property
    def waiting_producers(self) -> int:
        """Producers that wait to have the topic for themselves."""
        return len(self._admission.waiting)

    @property
    def topic_epoch(self) -> int | None:
        """The epoch of the last producer that had the topic for itself, if there was one."""
        return self.ledger.record.topic_epoch

    async def set_topic_epoch(self, epoch: int) -> None:
        """Keep a new one, durably."""
        await self.ledger.set_topic_epoch(epoch)

    def check_open(self) -> None:
        """Raise ``ClientError`` if the topic goes away from here."""
        check_open(self.name, closed=self.closed, leaving=self.is_leaving)

    def check_writable(self) -> None:
        """Raise the error with which a new producer is refused, if it must be."""
        self.check_open()
        if self.ledger.is_terminated:
            raise ClientError(ServerError.TopicTerminatedError, f"Topic {self.name} is terminated")
        if self.ledger.is_fenced:
            raise ClientError(ServerError.ServiceNotReady, f"Topic {self.name} moved elsewhere")
        full = self.ledger.full_error()
        if isinstance(full, StorageFullError):
            raise ClientError(
                ServerError.ProducerBlockedQuotaExceededException,
                f"No room to store messages: {full}",
            )

    # -- subscriptions ---

    async def create_subscription(
        self,
        name: str,
        position: Position,
        properties: dict[str, str],
        *,
        durable: bool,
        compacted: bool = False,
        replicated: bool = False,
    ) -> Subscription:
        """The subscription of that name, or a new one whose first message is ``position``.

        A durable one exists once this returns, over any restart. ``compacted``: it reads what
        compaction left, which may begin before the oldest ledger.
        """
        async with self.cursors.creating:
            self.check_open()
            subscription = self.subscriptions.get(name)
            if subscription is not None:
                return subscription
            view = self.compacted_view
            if compacted and view is not None and position <= view.horizon:
                mark_delete = max(EARLIEST, Position(position.ledger_id, position.entry_id - 1))
            else:
                mark_delete = self.mark_delete_before(position)
            self._check_room(name)
            if durable:
                kept = cursor_properties(properties, replicated=replicated)
                cursor = await self.cursors.create(name, mark_delete, kept)
            else:
                cursor = Cursor.non_durable(name, mark_delete, self.ledger, self.clock)
            return self._add(Subscription(self, name, cursor))

    def _add(self, subscription: Subscription) -> Subscription:
        self.subscriptions[subscription.name] = subscription
        subscription.idle_since = self.clock.monotonic()
        return subscription

    async def create_cursor(
        self, name: str, mark_delete: Position, properties: dict[str, str]
    ) -> Cursor:
        """A durable cursor that is no subscription: the broker's own."""
        async with self.cursors.creating:
            self.check_open()
            return await self.cursors.create(name, mark_delete, properties)

    def durable_cursors(self) -> list[Cursor]:
        """All that hold back trimming: those of subscriptions, and the broker's own."""
        cursors = [s.cursor for s in self.subscriptions.values() if s.durable]
        if self.deduplication_switch.cursor is not None:
            cursors.append(self.deduplication_switch.cursor)
        return cursors

    def _check_room(self, name: str) -> None:
        """Refuse a subscription that would be one too many."""
        most = self.policies.max_subscriptions
        there = sum(not is_system_subscription(one) for one in self.subscriptions)
        if not is_system_subscription(name) and 0 < most <= there:
            raise ClientError(
                ServerError.NotAllowedError,
                f"Exceed the maximum number of subscriptions of the topic: {self.name}",
            )

    def reader_start(self, asked: Position, otherwise: Position) -> Position:
        """Where a reader begins that asks for a position, if it is not beyond the end.

        The place right after the last entry is where the next one comes: not beyond.
        """
        before = Position(asked.ledger_id, asked.entry_id - 1)
        return asked if before <= self.ledger.last_confirmed else otherwise

    def mark_delete_before(self, position: Position) -> Position:
        """The mark-delete position that makes ``position`` the next one delivered."""
        place = self.ledger.valid_position_at_or_after(position)
        return Position(place.ledger_id, place.entry_id - 1)

    async def delete_subscription(self, subscription: Subscription) -> None:
        """Delete a subscription, durably. The caller holds its ``changing``."""
        self.touch()
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
        subscription.close()
        subscription.close_consumers()
        if subscription.cursor.durable:
            await self.cursors.delete(subscription.name)

    def subscription_idle(self, subscription: Subscription) -> None:
        """The last consumer left: what a reader leaves behind goes away."""
        self.touch()
        subscription.idle_since = self.last_used
        if not subscription.cursor.durable and not subscription.changing.locked():
            if self.subscriptions.get(subscription.name) is subscription:
                del self.subscriptions[subscription.name]
            subscription.close()

    def acknowledged(self, subscription: Subscription) -> None:
        """A cursor moved."""
        if self.ledger.is_terminated:
            self.announce_end(subscription)

    def announce_end(self, subscription: Subscription) -> None:
        """Tell consumers that nothing more will come, once they have acknowledged everything."""
        if subscription.cursor.backlog() == 0:
            for consumer in subscription.consumers:
                if consumer.greeted:  # else it hears it with the greeting
                    consumer.connection.send_end_of_topic(consumer)

    # -- reading ---

    def valid_position_at_or_after(self, position: Position) -> Position:
        """The place of the first entry from ``position`` on, or where the next will be."""
        return self.ledger.valid_position_at_or_after(position)

    def read_cached(
        self, position: Position, max_entries: int, max_bytes: int
    ) -> list[Entry] | None:
        """Entries from ``position`` on; ``None`` if they have to be read from storage."""
        if position > self.ledger.last_confirmed:
            return []
        return self._cache.read(position, max_entries, max_bytes)

    def cached_entry(self, position: Position) -> Entry | None:
        """The entry at exactly this position, if the cache holds it."""
        found = self._cache.read(position, 1, 1)
        return found[0] if found and found[0].position == position else None

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from ``position`` on, from the cache or from storage."""
        cached = self.read_cached(position, max_entries, max_bytes)
        if cached is not None:
            return cached
        stored = await self.ledger.read(position, max_entries, max_bytes)
        return [stored_entry(place, data) for place, data in stored]

    async def last_message(self, *, compacted: bool = False) -> MessageId:
        """The last message that can be delivered: no marker, and if ``compacted``, what stayed."""
        found = await self._last.find()
        view = self.compacted_view if compacted else None
        if view is not None and found.position <= view.horizon:
            return await view.last_message()
        return found

    def forget_content(self) -> None:
        """Keep no messages in memory."""
        self._cache.clear()
        self._last.forget()
        for subscription in self.subscriptions.values():
            subscription.dispatcher.forget_content()

    def erased(self, acks: Sequence[Ack]) -> None:
        """Messages are gone for good: for cursors they count as acknowledged."""
        self.forget_content()
        for subscription in self.subscriptions.values():
            subscription.erased(acks)

    @property
    def compaction(self) -> CompactionStats:
        """How compactions went."""
        return self.compactor.stats

    def show_compacted(self) -> None:
        """What was compacted is what the ledger's record says now."""
        self.compacted_view = CompactedView(self) if self.ledger.compacted.to else None

    # -- the end ---

    async def terminate(self) -> Position:
        """No more messages: returns the position of the last one."""
        last = await self.ledger.terminate()
        for producer in list(self.producers.values()):
            producer.connection.close_producer(producer)
        for subscription in self.subscriptions.values():
            self.announce_end(subscription)
        return last

    async def truncate(self) -> None:
        """Acknowledge everything for everybody, and delete all ledgers but an open one."""
        last = self.ledger.last_confirmed
        for subscription in self.subscriptions.values():
            subscription.pass_over(last)
        if self.deduplication is not None:
            self.deduplication.save(last)
        await self.cursors.sync()  # before anything is deleted
        await self.ledger.trim(Position(last.ledger_id, last.entry_id + 1))
        self.trimmed()

    @property
    def is_lost(self) -> bool:
        """Whether ledger or cursors stopped for good: the topic has to be loaded anew."""
        return self.ledger.is_fenced or self.cursors.are_lost

    @property
    def total_size(self) -> int:
        """Bytes of all entries."""
        return self.ledger.total_size

    @property
    def delayed_index_bytes(self) -> int:
        """Memory for knowing when delayed messages are due, and for whom."""
        held_back = sum(s.delayed_index_bytes for s in self.subscriptions.values())
        return self.delayed.tracker.memory_bytes + held_back

    @property
    def is_used(self) -> bool:
        """Whether a producer or a consumer is connected."""
        return self._admission.any or any(
            s.type.consumer_count for s in self.subscriptions.values()
        )

    def disconnect(self) -> None:
        """Close producers and consumers; their clients look the topic up again."""
        self.closed = True
        self._admission.disconnect()
        for subscription in list(self.subscriptions.values()):
            subscription.close_consumers()
            subscription.close()

    async def close(self) -> None:
        """Unload: durable state is on disk when this returns."""
        self.disconnect()
        await self.compactor.close()
        await self.delayed.close()
        await self.ledger.close()
        self.deduplication_switch.close()
        await self.cursors.unload()
        self._cache.clear()

    async def begin_deletion(self) -> None:
        """From now on it exists for nobody, durably. Whoever meets it goes on with ``delete``."""
        self.disconnect()
        await self.compactor.close()
        self.deduplication_switch.close()
        await self.ledger.begin_deletion()

    async def delete(self) -> None:
        """Delete its subscriptions and its data, after ``begin_deletion``."""
        await self.delayed.delete()
        self.subscriptions.clear()
        await self.cursors.delete_all()
        await self.ledger.delete()
        self._cache.clear()
