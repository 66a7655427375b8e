"""A subscription: its cursor and its consumers, and the parts that work on them.

``members`` has the consumers and their type, which decides who gets an entry; ``dispatcher``
sends it; ``acks`` takes the acknowledgements; ``seeking`` moves the cursor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.model.interfaces import SubscriptionRegistry
from pulsark.dispatch.model.members import Members
from pulsark.dispatch.model.subscription_stats import BacklogStats, Totals
from pulsark.dispatch.model.subscription_type import SubscriptionType, SubType, TypeSpec
from pulsark.dispatch.subscription.acknowledgements import Acknowledgements
from pulsark.dispatch.subscription.dispatcher import Dispatcher
from pulsark.dispatch.subscription.exclusive import Exclusive
from pulsark.dispatch.subscription.pending import PendingEntries
from pulsark.dispatch.subscription.seeking import Seeking
from pulsark.dispatch.subscription.stored_topic import StoredTopic
from pulsark.dispatch.subscription.subscription_properties import CursorProperties, PropertyRoom
from pulsark.dispatch.subscription.subscription_types import change_type
from pulsark.dispatch.subscription.takeover import Takeover
from pulsark.errors import ClientError, ServerError
from pulsark.security.effects import Changed, report
from pulsark.storage.cursor.owners import CursorOwner, check_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyroaring import BitMap

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.storage.cursor.cursor import Cursor
    from pulsark.wire.position import Position


class Registry(SubscriptionRegistry, Protocol):
    """The subscriptions of the topic."""

    def idle(self, subscription: Subscription) -> None:
        """The last consumer of one left."""

    async def delete(self, subscription: Subscription) -> None:
        """Delete one, durably. The caller holds ``members.changing``."""


class SubscribedTopic(StoredTopic, Protocol):
    """A topic that stores its messages, with its subscriptions."""

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """Subscriptions by name."""

    @property
    def registry(self) -> Registry:
        """Where they are created and deleted."""


class Subscription:
    """One named subscription of one topic."""

    def __init__(
        self,
        topic: SubscribedTopic,
        name: str,
        cursor: Cursor,
        room: PropertyRoom | None = None,
    ) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.idle_since = 0.0
        """When it was made or loaded, or when its last consumer left, by the monotonic clock."""
        self.properties = CursorProperties(topic.name, cursor, room)
        self.totals = Totals()
        self.members = Members(name, Exclusive(), topic.run_queue, self._is_at_end)
        self.dispatcher = Dispatcher(topic, cursor, self.members)
        self.pending = PendingEntries(self.members, self.dispatcher, self.dispatcher.unacked)
        parts = self.members, self.dispatcher, self.pending
        self.acks = Acknowledgements(topic, cursor, self.totals, *parts)
        self.seeking = Seeking(topic, cursor, *parts, self.drop_if_abandoned)
        self._takeover = Takeover(self.dispatcher)
        self._take_limits()
        self.dispatcher.rewind()

    @property
    def type(self) -> SubscriptionType:
        """Which consumer gets an entry."""
        return self.members.type

    @property
    def durable(self) -> bool:
        """Whether it outlives its consumers and a restart."""
        return self.cursor.durable

    # -- its backlog ---

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged as a whole. Exact."""
        return self.cursor.backlog()

    @property
    def backlog_size(self) -> int:
        """Bytes behind the mark-delete position, about."""
        return self.topic.ledger.bytes_after(self.cursor.mark_delete)

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged; if nothing is, the place before the first entry.

        A cursor that was made before there was a ledger knows no such place. A client that hears
        of none takes it that there is nothing to read.
        """
        found = self.cursor.mark_delete
        return found if found.ledger_id >= 0 else self.topic.entries.mark_delete_before(found)

    def backlog_stats(self) -> BacklogStats:
        """Everything about the backlog at this moment."""
        state, held_back = self.cursor.state, self.dispatcher.held_back
        return BacklogStats(
            entries=self.backlog,
            size=self.backlog_size,
            delayed=held_back.count(state),
            delayed_index_bytes=held_back.memory_bytes,
            replay=self.type.replay_count,
            blocked=self.dispatcher.unacked.too_many,
            throttled=self.dispatcher.throttled,
            acked_ranges=sum(map(_range_count, state.acked.values())),
            acked_bytes=sum(map(_bytes_of, state.acked.values())),
            mark_delete_ms=self.cursor.last_mark_delete_ms,
        )

    def idle_seconds(self) -> float:
        """Since when it has not been used, as far as is known since it was loaded."""
        used = max(self.idle_since, self.cursor.last_ack)
        return self.topic.clock.monotonic() - used

    def _is_at_end(self) -> bool:
        return self.topic.ledger.is_terminated and self.backlog == 0

    # -- consumers ---

    def check_joinable(self, *, durable: bool) -> None:
        """Raise ``ClientError`` if a consumer of this durability may not join."""
        check_owner(self.name, CursorOwner.CLIENTS)
        if durable != self.durable:
            raise ClientError(
                ServerError.NotAllowedError,
                f"Subscription {self.name} is " + ("durable" if self.durable else "not durable"),
            )

    def use_type(self, spec: TypeSpec) -> None:
        """Adopt a type; with consumers connected it must be theirs."""
        topic = self.topic
        if change_type(self.name, self.members, spec, topic.name, topic.settings):
            self.dispatcher.rewind()

    def add_consumer(self, consumer: Consumer) -> None:
        """Admit a consumer; entries go out once it has sent permits."""
        check_owner(self.name, CursorOwner.CLIENTS)
        before = self.type.active
        self.members.join(consumer)
        self._follow_active(before)

    def remove_consumers(self, consumers: Sequence[Consumer]) -> None:
        """Consumers left together: what they had not acknowledged goes to the others."""
        before = self.type.active
        leaving = self.members.leave(consumers)
        if not leaving:
            return
        self.pending.give_back(leaving)
        self._follow_active(before)
        if not self.type.consumer_count:
            self.dispatcher.rewind()
            self.dispatcher.forget_redeliveries()
            self.topic.registry.idle(self)
        self.dispatcher.pump()

    def drop_if_abandoned(self) -> None:
        """Without consumers, what a reader left behind goes away."""
        if not self.type.consumer_count:
            self.topic.registry.idle(self)

    def _follow_active(self, before: Consumer | None) -> None:
        """If another consumer is active now, it gets everything that is not acknowledged."""
        active = self.type.active
        if active is before or self.members.closed:
            return
        self.dispatcher.rewind()
        if self.type.sub_type != SubType.Failover:
            return
        self.members.announce_active()
        delay_ms = self.topic.settings.activeConsumerFailoverDelayTimeMillis
        if before is None or active is None or delay_ms == 0:
            self.dispatcher.schedule_pump()
        else:
            self._takeover.wait(delay_ms / 1000)

    def flow(self, consumer: Consumer, permits: int, now_ms: int) -> None:
        """The consumer can take that many more messages."""
        consumer.permits += permits
        consumer.last_flow_ms = self.totals.last_flow_ms = now_ms
        self.type.wake(consumer)
        self.dispatcher.pump()

    def wake(self, consumer: Consumer) -> None:
        """The consumer's socket drained."""
        self.dispatcher.wake(consumer)

    def redeliver(
        self, consumer: Consumer, positions: Iterable[Position] | None, epoch: int | None
    ) -> None:
        """Deliver again: the given entries, or all that the consumer has not acknowledged."""
        if self.type.tracks_pending:
            self.pending.redeliver(consumer, positions)
            return
        if epoch is not None and (consumer.epoch is None or epoch > consumer.epoch):
            consumer.epoch = epoch
        if consumer is self.type.active:
            self.dispatcher.rewind()
            self.dispatcher.pump()

    # -- limits ---

    def policies_changed(self) -> None:
        """The topic's limits may be others now."""
        self._take_limits()
        unacked = self.dispatcher.unacked
        for consumer in self.type.consumers:
            unacked.release(consumer, 0)
        unacked.update()
        self.dispatcher.schedule_pump()

    def _take_limits(self) -> None:
        topic, unacked = self.topic, self.dispatcher.unacked
        unacked.set_limits(topic.policies, topic.broker_unacked, durable=self.durable)
        self.dispatcher.set_rates(topic.policies.dispatch_rate_of(self.name), topic.dispatch_limits)

    # -- the end ---

    async def delete(self, *, force: bool = False) -> None:
        """Delete it, durably, unless it has consumers. By ``force`` they connect anew."""
        check_owner(self.name, CursorOwner.CLIENTS)
        async with self.members.changing:
            if not force:
                self.members.check_unused()
            if not self.members.closed:
                try:
                    await self.topic.registry.delete(self)
                finally:  # it is gone here, even if nobody waits until that is durable
                    if self.durable and self.members.closed:
                        report(Changed.SUBSCRIPTION_DELETED, self.topic.name, self.name)

    async def delete_if(self, is_due: Callable[[Subscription], bool]) -> bool:
        """Delete it, durably, if that is right while no other change is made; whether it was."""
        async with self.members.changing:
            if self.members.closed or not is_due(self):
                return False
            await self.topic.registry.delete(self)
            return True

    def close(self) -> None:
        """It was deleted or unloaded: stop all its activity. Its consumers connect anew."""
        self.members.closed = True
        self.dispatcher.close()
        self._takeover.cancel()
        self.members.close_all(Exclusive())


def _range_count(entries: BitMap) -> int:
    return len(entries) - entries.intersection_cardinality(entries.shift(1))


def _bytes_of(entries: BitMap) -> int:
    numbers = entries.get_statistics()
    runs, others = numbers["n_bytes_run_containers"], numbers["n_bytes_bitset_containers"]
    return numbers["n_bytes_array_containers"] + runs + others
