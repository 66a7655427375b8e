"""One topic partition on the broker that owns it.

A topic ties a managed ledger (what is stored) to producers (who may append) and subscriptions
(who is still to receive). `ledger_reports` brings what the ledger confirms to all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.model.interfaces import CompactionStats, check_open
from pulsark.dispatch.model.subscription_stats import Level
from pulsark.dispatch.policies.policies import NO_DISPATCH_RATE, TopicPolicies
from pulsark.dispatch.producer.deduplication_switch import DeduplicationSwitch
from pulsark.dispatch.producer.topic_producers import TopicProducers
from pulsark.dispatch.subscription.delayed_delivery import DelayedDelivery, load_buckets
from pulsark.dispatch.subscription.dispatch_limit import DispatchLimit, limit_of
from pulsark.dispatch.topic.arrivals import Arrivals
from pulsark.dispatch.topic.backlog import Backlog
from pulsark.dispatch.topic.compactor import CompactionTurns, Compactor
from pulsark.dispatch.topic.cursors import TopicCursors
from pulsark.dispatch.topic.entries import TopicEntries
from pulsark.dispatch.topic.ledger_reports import LedgerReports
from pulsark.dispatch.topic.retention import TopicRetention
from pulsark.dispatch.topic.subscriptions import TopicSubscriptions
from pulsark.dispatch.topic.termination import Termination
from pulsark.errors import ClientError, ServerError, StorageFullError
from pulsark.limits import SUBSCRIPTIONS_PER_TURN_MAX
from pulsark.metadata.resources import is_system_topic
from pulsark.storage.cursor.owners import DEDUPLICATION_CURSOR
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence, Set

    from pulsark.config.settings import Settings
    from pulsark.dispatch.loop.run_queue import RunQueue
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.moving import Moving
    from pulsark.dispatch.model.producer import Producer
    from pulsark.dispatch.producer.deduplication import Deduplication
    from pulsark.dispatch.subscription.broker_unacked import BrokerUnacked
    from pulsark.dispatch.subscription.subscription import Subscription
    from pulsark.dispatch.topic.cache import CacheBudget
    from pulsark.rates.throttle import Throttle
    from pulsark.runtime import Runtime
    from pulsark.storage.cursor.cursor import Cursor
    from pulsark.storage.cursor.log import CursorLog
    from pulsark.storage.delayed.delayed_buckets import DelayedBuckets, StoredBucket
    from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger
    from pulsark.wire.message_id import MessageId
    from pulsark.wire.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class TopicContext:
    """What the topics of a broker share."""

    settings: Settings
    runtime: Runtime
    cache_budget: CacheBudget
    broker_unacked: BrokerUnacked
    run_queue: RunQueue
    compactions: CompactionTurns
    dispatch_limit: DispatchLimit | None = None
    """The dispatch rate of the broker, if there is one."""
    over_quota: Set[str] = frozenset()
    """Namespaces that store too much."""


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
        policies: TopicPolicies,
        deduplication: Cursor | None,
    ) -> None:
        """Its subscriptions, which ``open`` adds, are missing yet."""
        settings, clock = context.settings, context.runtime.clock
        self.name = name
        self._is_system = is_system_topic(str(name))
        """Whether it is one of the broker's own, which no rate slows down."""
        self.run_queue = context.run_queue
        self.broker_unacked = context.broker_unacked
        self.settings = settings
        self.policies = policies
        self.clock = clock
        self.sure_clock = context.runtime.sure_clock
        self._over_quota = context.over_quota
        self._broker_dispatch_limit = context.dispatch_limit
        self.own_dispatch_limit: DispatchLimit | None = None
        """Its dispatch rate, if it has one."""
        self.created_ms = clock.now_ms()
        self.last_used = clock.monotonic()
        """When a client left, or entries were read; without meaning while one is connected."""
        self.throttle: Throttle | None = None
        self._admission = TopicProducers(self)
        self.producers = self._admission.by_name
        self.registry = TopicSubscriptions(self)
        self.subscriptions = self.registry.by_name
        self.closed = False
        self.moving: Moving | None = None
        """Set when it goes to another broker by intent."""
        self.is_leaving = False
        """Clients are refused: it is about to be deleted, unless it is in use."""
        self.messages_in = 0
        self.bytes_in = 0
        self.chunks_in = 0
        """Pieces of large messages."""
        self.entries_in = 0
        self.ledger: ManagedLedger = ledger
        self.cursors = cursors
        self.arrivals = Arrivals(clock, self.sure_clock, ledger)
        self.cache_budget = context.cache_budget
        self.entries = TopicEntries(ledger, context.cache_budget)
        self.termination = Termination(ledger, self.producers, self.subscriptions)
        self.backlog = Backlog(self)
        self.retention = TopicRetention(self)
        self.delayed = DelayedDelivery(self, buckets, delayed)
        self.deduplication: Deduplication | None = None
        """Set while it is on, by ``deduplication_switch``."""
        self.compactor = Compactor(self, context.runtime, context.compactions)
        self.deduplication_switch = DeduplicationSwitch(self, deduplication)

    @classmethod
    async def open(
        cls,
        name: TopicName,
        context: TopicContext,
        ledger: ManagedLedger,
        cursors: CursorLog,
        buckets: DelayedBuckets,
        policies: Callable[[], Awaitable[TopicPolicies]],
    ) -> Topic:
        """A topic on a ledger that was opened for it, and that has had no append yet.

        ``policies`` are asked for last: a caller that does not await first misses no change. A
        topic with very many subscriptions takes them up in steps.
        """
        delayed = await load_buckets(str(name), buckets)
        of_topic = TopicCursors(cursors, ledger)
        found = await of_topic.found()
        deduplication = found.pop(DEDUPLICATION_CURSOR, None)
        topic = cls(
            name, context, ledger, of_topic, buckets, delayed, await policies(), deduplication
        )
        async for cursor in in_turns(found.values(), SUBSCRIPTIONS_PER_TURN_MAX):
            topic.registry.add(cursor)
        if len(found) >= SUBSCRIPTIONS_PER_TURN_MAX:
            topic.policies = await policies()
        ledger.tell(LedgerReports(topic, topic.entries.cache))
        topic.set_policies(topic.policies)
        return topic

    def set_policies(self, policies: TopicPolicies) -> None:
        """The rules changed; what depends on them follows at once."""
        self.policies = policies = policies.without_rates() if self._is_system else policies
        self.deduplication_switch.follow_soon()
        quorums = policies.quorums
        self.ledger.set_quorums(quorums.ensemble, quorums.write, quorums.ack)
        self.delayed.policies_changed()
        self.own_dispatch_limit = limit_of(
            self, policies.dispatch_rate, Level.TOPIC, self.own_dispatch_limit
        )
        self._admission.policies_changed()
        self.run_queue.call_all(
            partial(self._tell_of_policies, subscription)
            for subscription in list(self.subscriptions.values())
        )

    def _tell_of_policies(self, subscription: Subscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription and not self.closed:
            subscription.policies_changed()

    @property
    def dispatch_limits(self) -> Sequence[DispatchLimit]:
        """Dispatch rates that its subscriptions share: its own and the broker's."""
        limits = (self.own_dispatch_limit, self._broker_dispatch_limit)
        return () if self._is_system else [limit for limit in limits if limit is not None]

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
        """The topic is in use."""
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
        if self.name.namespace_name in self._over_quota:
            raise ClientError(
                ServerError.ProducerBlockedQuotaExceededException,
                f"The storage quota of {self.name.namespace_name} or of its tenant is exceeded",
            )
        full = self.ledger.full_error()
        if isinstance(full, StorageFullError):
            raise ClientError(
                ServerError.ProducerBlockedQuotaExceededException,
                f"No room to store messages: {full}",
            )

    # -- reading ---

    def reader_start(self, asked: Position, otherwise: Position) -> Position:
        """Where a reader begins that asks for a position, if it is not beyond the end.

        The place right after the last entry is where the next one comes: not beyond.
        """
        before = Position(asked.ledger_id, asked.entry_id - 1)
        return asked if before <= self.ledger.last_confirmed else otherwise

    async def last_message(self, *, compacted: bool = False) -> MessageId:
        """The last message that can be delivered: no marker, and if ``compacted``, what stayed."""
        found = await self.entries.last.find()
        view = self.entries.compacted if compacted else None
        if view is not None and found.position <= view.horizon:
            return await view.last_message()
        return found

    @property
    def compaction(self) -> CompactionStats:
        """How compactions went."""
        return self.compactor.stats

    # -- the end ---

    @property
    def is_lost(self) -> bool:
        """Whether ledger or cursors stopped for good: the topic has to be loaded anew."""
        return self.ledger.life.is_lost or self.cursors.are_lost

    @property
    def total_size(self) -> int:
        """Bytes of all entries."""
        return self.ledger.total_size

    @property
    def delayed_index_bytes(self) -> int:
        """Memory for knowing when delayed messages are due, and for whom."""
        held_back = sum(s.dispatcher.held_back.memory_bytes for s in self.subscriptions.values())
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
            subscription.close()
        limit_of(self, NO_DISPATCH_RATE, Level.TOPIC, self.own_dispatch_limit)  # nobody waits

    async def close(self) -> None:
        """Unload: durable state is on disk when this returns."""
        self.disconnect()
        await self.compactor.close()
        await self.delayed.close()
        await self.ledger.close()
        self.deduplication_switch.close()
        await self.cursors.unload()
        self.entries.forget()

    async def begin_deletion(self) -> None:
        """The topic does not exist any more, durably; ``delete`` may follow at any time."""
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
        self.entries.forget()
