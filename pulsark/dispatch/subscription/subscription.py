"""A subscription: its cursor and its consumers, who come, take, acknowledge and leave.

What goes to whom is the type's decision, and the dispatcher carries it out.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.model.subscription_type import SubType, TypeSpec
from pulsark.dispatch.subscription.ack_sets import credible, is_credible
from pulsark.dispatch.subscription.dispatcher import Dispatcher
from pulsark.dispatch.subscription.holders import Holders
from pulsark.dispatch.subscription.subscription_base import Subscribers
from pulsark.dispatch.subscription.subscription_properties import (
    cursor_properties,
    given_properties,
    is_replicated,
)
from pulsark.dispatch.subscription.takeover import Takeover
from pulsark.dispatch.subscription.unacked import Unacked
from pulsark.errors import ClientError, ServerError
from pulsark.limits import READER_GRACE_SECONDS
from pulsark.runtime import Done, new_done
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.subscription.stored_topic import StoredTopic
    from pulsark.storage.cursor.cursor import Ack, Cursor
    from pulsark.storage.cursor.state import AckedSet


class Subscription(Subscribers):
    """One named subscription of one topic."""

    def __init__(self, topic: StoredTopic, name: str, cursor: Cursor) -> None:
        super().__init__(name, topic.run_queue)
        self.topic = topic
        self.cursor = cursor
        self.idle_since = 0.0
        """When it was made or loaded, or when its last consumer left, by the monotonic clock."""
        self.dispatching_ms = 0
        """The time of what is being delivered, taken once for many entries."""
        self.unacked: Unacked = Unacked(self)
        self._take_limits()
        self.dispatcher = Dispatcher(self)
        self._takeover = Takeover(self.dispatcher)
        self.dispatcher.rewind()
        self.pump = self.dispatcher.pump
        self.schedule_pump = self.dispatcher.schedule_pump

    # -- consumers ---

    @property
    def durable(self) -> bool:
        """Whether it outlives its consumers and a restart."""
        return self.cursor.durable

    @property
    def properties(self) -> Mapping[str, str]:
        """What it was given."""
        return given_properties(self.cursor.properties)

    @property
    def replicated(self) -> bool:
        """Whether its state is to be replicated between clusters."""
        return is_replicated(self.cursor.properties)

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace what it was given, durably."""
        await self._keep(cursor_properties(properties, replicated=self.replicated))

    async def set_replicated(self, replicated: bool) -> None:
        """Whether its state is to be replicated, durably."""
        if replicated != self.replicated:
            await self._keep(cursor_properties(self.properties, replicated=replicated))

    async def _keep(self, properties: Mapping[str, str]) -> None:
        durable, done = new_done()
        self.cursor.set_properties(properties, done)
        await durable

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

    def idle_seconds(self) -> float:
        """For how long nobody has used it, as far as is known since it was loaded."""
        used = max(self.idle_since, self.cursor.last_ack)
        return self.topic.clock.monotonic() - used

    @property
    def last_mark_delete_ms(self) -> int:
        """When the mark-delete position moved last; 0: never."""
        return self.cursor.last_mark_delete_ms

    @property
    def acked_range_count(self) -> int:
        """Ranges of acknowledged entries above the mark-delete position."""
        return sum(
            len(entries) - entries.intersection_cardinality(entries.shift(1))
            for entries in self.cursor.state.acked.values()
        )

    @property
    def at_end(self) -> bool:
        """Whether the topic is terminated and everything is acknowledged."""
        return self.topic.ledger.is_terminated and self.backlog == 0

    @property
    def delayed_count(self) -> int:
        """Unacknowledged entries that are held back because they are not due."""
        return self.dispatcher.held_back.count(self.cursor.state)

    @property
    def delayed_index_bytes(self) -> int:
        """Memory for knowing which."""
        return self.dispatcher.held_back.memory_bytes

    @property
    def blocked_on_unacked(self) -> bool:
        """Whether dispatch stands still because too much is unacknowledged."""
        return self.unacked.blocked

    @property
    def replay_count(self) -> int:
        """Entries that wait to be delivered again."""
        return self.type.replay_count

    def check_joinable(self, *, durable: bool) -> None:
        """Raise ``ClientError`` if a consumer of this durability may not join."""
        if durable != self.durable:
            raise ClientError(
                ServerError.NotAllowedError,
                f"Subscription {self.name} is " + ("durable" if self.durable else "not durable"),
            )

    def use_type(self, spec: TypeSpec) -> None:
        """Adopt a type; with consumers connected it must be theirs."""
        if self.adopt_type(spec, self.topic.name, self.topic.settings):
            self.dispatcher.rewind()

    def add_consumer(self, consumer: Consumer) -> None:
        """Admit a consumer; entries go out once it has sent permits."""
        before = self.type.active
        self.take_in(consumer)
        if not self.type.tracks_pending and self.type.active is not before:
            self._change_active(before)

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer left: what it had not acknowledged goes to the others."""
        self.remove_consumers((consumer,))

    def remove_consumers(self, consumers: Sequence[Consumer]) -> None:
        """Consumers left together. Those that had left before do not count."""
        before = self.type.active
        leaving = self.let_go(consumers)
        if not leaving:
            return
        anybody = self.type.consumer_count > 0
        for consumer in leaving:
            self.unacked.messages -= consumer.unacked
            consumer.unacked = 0
            given_back, consumer.pending = consumer.pending, {}
            if anybody:
                self.dispatcher.replay(given_back)
        self.unacked.update()
        if not self.type.tracks_pending and self.type.active is not before:
            self._change_active(before)
        if not anybody:
            self.dispatcher.rewind()
            self.dispatcher.forget_redeliveries()
            self.topic.registry.idle(self)
        self.pump()

    def _change_active(self, before: Consumer | None) -> None:
        """Everything unacknowledged goes to the new active consumer."""
        self.dispatcher.rewind()
        if self.type.sub_type != SubType.Failover:
            return
        self.announce_change()
        active = self.type.active
        delay_ms = self.topic.settings.activeConsumerFailoverDelayTimeMillis
        if before is None or active is None or delay_ms == 0:
            self.schedule_pump()
            return
        self._takeover.wait(delay_ms / 1000)

    # -- permits and acknowledgements ---

    def flow(self, consumer: Consumer, permits: int, now_ms: int) -> None:
        """The consumer can take that many more messages."""
        consumer.permits += permits
        consumer.last_flow_ms = self.last_flow_ms = now_ms
        self.type.wake(consumer)
        self.pump()

    def wake(self, consumer: Consumer) -> None:
        """The consumer's socket drained."""
        self.type.wake(consumer)
        self.schedule_pump()

    def ack(
        self,
        consumer: Consumer,
        acks: Sequence[Ack],
        done: Done | None,
        now_ms: int,
    ) -> None:
        """Individual acknowledgements: position, remaining ack set, batch size."""
        if not self.topic.settings.acknowledgmentAtBatchIndexLevelEnabled:
            acks = [a for a in acks if a[1] is None or not any(a[1])]
        acks = credible(acks, self._messages_of)
        left = self.cursor.ack(acks, done)
        acked = len(acks)
        if self.type.tracks_pending:
            acked = self._settle(consumer, acks, left)
        self.messages_acked += acked
        consumer.messages_acked += acked
        consumer.last_acked_ms = self.last_acked_ms = now_ms
        self.topic.termination.acknowledged(self)

    def ack_cumulative(
        self,
        consumer: Consumer,
        position: Position,
        ack_set: list[int] | None,
        done: Done | None,
        now_ms: int,
    ) -> None:
        """Acknowledge everything up to a position. Not for Shared subscriptions."""
        if self.type.tracks_pending:
            raise ClientError(
                ServerError.NotAllowedError,
                f"Cumulative acknowledgement is not allowed on a {self.type.sub_type.name} "
                "subscription; acknowledge messages one by one",
            )
        if not self.topic.settings.acknowledgmentAtBatchIndexLevelEnabled and ack_set:
            # Without batch-index tracking only the entries before this one are done.
            position = Position(position.ledger_id, max(position.entry_id, 0) - 1)
            ack_set = None
        if not is_credible(position, ack_set, self._messages_of):
            raise ClientError(
                ServerError.NotAllowedError,
                f"The ack set of {position.ledger_id}:{position.entry_id} has {len(ack_set or ())} "
                "words; its batch, as far as it is known, has fewer messages",
            )
        self.cursor.ack_cumulative(position, ack_set, done)
        self.messages_acked += 1
        consumer.messages_acked += 1
        consumer.last_acked_ms = self.last_acked_ms = now_ms
        self.topic.termination.acknowledged(self)

    def _messages_of(self, position: Position) -> int | None:
        """How many messages an entry has, if that is at hand."""
        entry = self.topic.entries.cached_entry(position)
        if entry is not None:
            return entry.messages
        mask = self.cursor.state.masks.get(position)
        delivered = max((c.pending.get(position, 0) for c in self.consumers), default=0)
        return max(delivered, 0 if mask is None else mask.bit_length()) or None

    def erased(self, acks: Sequence[Ack]) -> None:
        """Messages are gone for good: they count as acknowledged, whoever holds them."""
        left = self.cursor.ack(acks)
        if self.type.tracks_pending and self.consumers:
            self._settle(self.consumers[0], acks, left)

    def _settle(self, consumer: Consumer, acks: Sequence[Ack], left: list[int]) -> int:
        """Release acknowledged entries from the consumers that hold them: so many messages.

        ``left`` has for each entry how many of its messages are still unacknowledged. An
        acknowledgement may come from another consumer than the one that received the entry.
        """
        holders: Holders | None = None
        released = 0
        for (position, _, _), remaining in zip(acks, left, strict=True):
            owner: Consumer | None = consumer
            if position not in consumer.pending:
                holders = holders or Holders(self.type)
                owner = holders.find(position)
            if not remaining:
                self.dispatcher.forget(position)
            if owner is None:
                continue
            before = owner.pending[position]
            if not remaining:
                del owner.pending[position]
            else:
                remaining = owner.pending[position] = min(remaining, before)
            self.unacked.release(owner, before - remaining)
            released += before - remaining
        self.unacked.update()
        if self.type.replay_count:
            self.schedule_pump()  # what waits may go out now, or there is room to look ahead
        return released

    def policies_changed(self) -> None:
        """The topic's limits may be others now."""
        self._take_limits()
        for consumer in self.consumers:
            self.unacked.release(consumer, 0)
        self.unacked.update()
        self.schedule_pump()

    def _take_limits(self) -> None:
        topic = self.topic
        self.unacked.set_limits(topic.policies, topic.broker_unacked, durable=self.durable)

    # -- redelivery and seek ---

    def redeliver(
        self, consumer: Consumer, positions: Iterable[Position] | None, epoch: int | None
    ) -> None:
        """Deliver again: the given entries, or all that the consumer has not acknowledged."""
        if not self.type.tracks_pending:
            if epoch is not None and (consumer.epoch is None or epoch > consumer.epoch):
                consumer.epoch = epoch
            if consumer is self.type.active:
                self.dispatcher.rewind()
                self.pump()
            return
        if positions is None:
            taken, consumer.pending = consumer.pending, {}
        else:
            taken = {p: consumer.pending.pop(p) for p in positions if p in consumer.pending}
        self.dispatcher.replay(taken, counted=True)
        self.unacked.release_wish(consumer, sum(taken.values()))
        self.unacked.update()
        self.schedule_pump()

    async def seek(self, position: Position, ack_set: list[int] | None = None) -> None:
        """Move the cursor so that ``position`` is delivered next. Consumers are closed first.

        A position without an entry stands for the next one that has or will have one. Clients
        subscribe again by themselves; they wait on ``changing`` until it is done.
        """
        await self._without_consumers(partial(self._move_cursor, position, ack_set))

    def acknowledge(self, acks: Sequence[Ack], done: Done) -> None:
        """Acknowledge for nobody in particular; no consumer must be connected."""
        self.cursor.ack(acks, done)
        self.topic.termination.acknowledged(self)

    async def restore(self, acked: AckedSet) -> None:
        """Give the cursor a state that it had at another time, as ``seek`` gives it a position.

        What was trimmed since then does not come back.
        """
        await self._without_consumers(
            partial(self._change_cursor, partial(self.cursor.restore, acked))
        )

    async def _without_consumers(self, change: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self.changing:
                with self.dispatcher.hold():
                    single = self.type.active
                    for consumer in [single] if single is not None else self.consumers:
                        consumer.connection.close_consumer(consumer)
                    await change()
        finally:
            if not self.cursor.durable:
                # The reader is expected back; if it stays away, nobody else will clean up.
                loop = asyncio.get_running_loop()
                loop.call_later(READER_GRACE_SECONDS, self.drop_if_abandoned)

    async def seek_to_time(self, published_ms: int) -> None:
        """``seek`` to the first message published at or after a time."""
        await self.seek(await self.topic.ledger.find_by_publish_time(published_ms))

    async def _move_cursor(self, position: Position, ack_set: list[int] | None) -> None:
        target = self.topic.ledger.valid_position_at_or_after(position)
        if target != position:
            ack_set = None
        await self._change_cursor(partial(self.cursor.reset, target, ack_set))

    async def _change_cursor(self, change: Callable[[Done], object]) -> None:
        durable, done = new_done()
        change(done)
        # Before anything is awaited: the task may be cancelled, and the cursor has moved.
        self._release_all()
        self.dispatcher.forget_redeliveries()
        self.dispatcher.rewind()
        await durable

    def _release_all(self) -> None:
        for consumer in self.consumers:
            consumer.pending.clear()
            self.unacked.release(consumer, consumer.unacked)
        self.unacked.update()

    def drop_if_abandoned(self) -> None:
        """Without consumers, what a reader left behind goes away."""
        if not self.type.consumer_count:
            self.topic.registry.idle(self)

    async def rollback(self, published_ms: int) -> None:
        """Move the cursor to a time under connected consumers."""
        position = await self.topic.ledger.find_by_publish_time(published_ms)
        with self.dispatcher.hold():
            await self._move_cursor(position, None)

    async def delete(self, *, force: bool = False) -> None:
        """Delete it, durably, unless it has consumers. By ``force`` they connect anew."""
        async with self.changing:
            if not force:
                self.check_unused()
            if not self.closed:
                await self.topic.registry.delete(self)

    async def delete_if(self, is_due: Callable[[Subscription], bool]) -> bool:
        """Delete it, durably, if that is right when nobody else changes it; whether it was."""
        async with self.changing:
            if self.closed or not is_due(self):
                return False
            await self.topic.registry.delete(self)
            return True

    def trimmed(self, through: Position) -> None:
        """Entries up to there are gone. Whoever was to get them, a reader, goes on behind."""
        self.pass_over(through)
        self.cursor.ledgers_changed()

    def expire(self, through: Position) -> None:
        """Entries up to there are too old: they are passed over, and counted."""
        before = self.backlog
        self.pass_over(through)
        expired = before - self.backlog
        if expired:
            self.entries_expired += expired
            self.last_expire_ms = self.topic.clock.now_ms()

    def pass_over(self, through: Position) -> None:
        """Everything up to there counts as acknowledged, though no consumer did it."""
        if not self.cursor.ack_cumulative(through):
            return
        self.dispatcher.pass_over(through)
        for consumer in self.consumers:
            done: list[Ack] = [(p, None, None) for p in consumer.pending if p <= through]
            self._settle(consumer, done, [0] * len(done))
        self.topic.termination.acknowledged(self)
        self.schedule_pump()

    # -- deliveries ---

    def deliver(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: list[int] | None
    ) -> None:
        """Send an entry to the consumer that the type chose for it."""
        messages = entry.messages
        if ack_set is not None:
            messages = sum((word & (2**64 - 1)).bit_count() for word in ack_set)
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.entries_out += 1
        consumer.bytes_out += len(entry.data)
        self.messages_out += messages
        self.entries_out += 1
        self.bytes_out += len(entry.data)
        consumer.last_consumed_ms = self.last_consumed_ms = self.dispatching_ms
        if self.type.tracks_pending:
            consumer.pending[entry.position] = messages
            consumer.unacked += messages
            unacked = self.unacked
            unacked.messages += messages
            if consumer.unacked >= unacked.consumer_limit:
                consumer.blocked = True
            if redeliveries:
                consumer.messages_redelivered += messages
                self.messages_redelivered += messages
            if unacked.messages >= unacked.watched_from:
                unacked.update()
        consumer.connection.send_message(consumer, entry, redeliveries, ack_set)

    def close(self) -> None:
        """It is not there any more: stop all its activity."""
        self.closed = True
        self.dispatcher.close()
        self._takeover.cancel()
