"""A subscription: its cursor, its consumers, and the pump between topic and sockets.

The pump runs on the event loop, is called whenever something changed that may let an entry
go out (a publish, permits, an acknowledgement, a socket that drained), and never blocks: what
the cache does not hold is read from storage by a task that calls the pump again.

Invariants:
* every entry above the cursor is in exactly one place: delivered and pending, in the replay
  set, or at or after the read position;
* at most one read from storage is under way, and a rewind makes its result void.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pulsark.dispatch.entry import Entry
from pulsark.dispatch.exclusive import Exclusive
from pulsark.dispatch.replay import ReplaySet
from pulsark.dispatch.subscription_type import SubscriptionType, SubType
from pulsark.dispatch.subscription_types import new_type
from pulsark.errors import ClientError, PulsarkError, ServerError
from pulsark.limits import READER_GRACE_SECONDS
from pulsark.runtime import Done
from pulsark.storage.cursor import Cursor
from pulsark.storage.position import Position

if TYPE_CHECKING:
    from pulsark.dispatch.consumer import Consumer
    from pulsark.dispatch.topic import Topic

log = logging.getLogger(__name__)

READ_ENTRIES = 500
READ_BYTES = 4 << 20
HOLDER_QUESTIONS = 64
"""After so many of them one ACK gets an index of who holds what."""
ROUNDS_PER_TURN = 4
"""Batches a subscription may send before other work of the event loop gets its turn."""


class Subscription:
    """One named subscription of one topic."""

    def __init__(self, topic: Topic, name: str, cursor: Cursor) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.type: SubscriptionType = Exclusive()
        self.had_consumer = False
        self.changing = asyncio.Lock()
        """Held while consumers are admitted and while a seek moves the cursor."""
        self.read_position = Position(-1, 0)
        self.messages_out = 0
        self.entries_out = 0
        self.bytes_out = 0
        self.messages_redelivered = 0
        self.messages_acked = 0
        self.last_flow_ms = 0
        self.last_consumed_ms = 0
        self.last_acked_ms = 0
        self.unacked = 0
        self._replay = ReplaySet()
        self._redeliveries: dict[Position, int] = {}
        self._ahead: list[Entry] = []
        self._fetched: dict[Position, Entry] = {}
        self._reading: asyncio.Task[None] | None = None
        self._held = 0
        self._pump_scheduled = False
        self._blocked = False
        self._takeover: asyncio.TimerHandle | None = None
        self._rewind()

    # -- consumers ---

    @property
    def consumers(self) -> list[Consumer]:
        """Connected consumers."""
        return self.type.consumers

    @property
    def durable(self) -> bool:
        """Whether it outlives its consumers and a restart."""
        return self.cursor.durable

    @property
    def properties(self) -> Mapping[str, str]:
        """What it was given."""
        return self.cursor.properties

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged as a whole. Exact."""
        return self.cursor.backlog()

    @property
    def backlog_size(self) -> int:
        """Bytes of the backlog, taking entries to be of average size."""
        ledger = self.topic.ledger
        return round(ledger.total_size * self.backlog / ledger.entries) if ledger.entries else 0

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""
        return self.cursor.mark_delete

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
    def replay_count(self) -> int:
        """Entries that wait to be delivered again."""
        return len(self._replay)

    @property
    def blocked_on_unacked(self) -> bool:
        """Whether dispatch stands still because too much is unacknowledged."""
        return self._blocked

    def check_joinable(self, *, durable: bool) -> None:
        """Raise ``ClientError`` if a consumer of this durability may not join."""
        if durable != self.durable:
            raise ClientError(
                ServerError.NotAllowedError,
                f"Subscription {self.name} is " + ("durable" if self.durable else "not durable"),
            )

    def use_type(self, sub_type: SubType) -> None:
        """Adopt a type; with consumers connected it must be theirs."""
        if self.had_consumer and self.type.sub_type == sub_type:
            return
        if self.type.consumers:
            raise ClientError(
                ServerError.ConsumerBusy,
                f"Subscription {self.name} is of type {self.type.sub_type.name}, not "
                f"{sub_type.name}; close its consumers to change the type",
            )
        self.type = new_type(sub_type, self.topic.name)
        self._rewind()

    def add_consumer(self, consumer: Consumer) -> None:
        """Admit a consumer; entries go out once it has sent permits."""
        before = self.type.active
        self.type.add(consumer)
        self.had_consumer = True
        if not self.type.tracks_pending and self.type.active is not before:
            self._change_active(before, consumer)

    def announce_active(self, newcomer: Consumer) -> None:
        """Tell a new Failover consumer whether it is the active one."""
        if self.type.sub_type == SubType.Failover:
            newcomer.connection.send_active_change(newcomer, newcomer is self.type.active)

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer left: what it had not acknowledged goes to the others."""
        if consumer.closed:
            return
        consumer.closed = True
        before = self.type.active
        self.type.remove(consumer)
        for position, messages in consumer.pending.items():
            self._replay.add(position)
            self.unacked -= messages
        consumer.pending.clear()
        consumer.unacked = 0
        self._update_blocked()
        if not self.type.tracks_pending and self.type.active is not before:
            self._change_active(before)
        if not self.type.consumers:
            if self.type.tracks_pending:
                self._rewind()
            self.topic.subscription_idle(self)
        self.pump()

    def _change_active(self, before: Consumer | None, newcomer: Consumer | None = None) -> None:
        """Everything unacknowledged goes to the new active consumer.

        A newcomer is not told here: it gets the answer to its request first.
        """
        self._rewind()
        if self.type.sub_type != SubType.Failover:
            return
        active = self.type.active
        for consumer in self.type.consumers:
            if consumer is not newcomer:
                consumer.connection.send_active_change(consumer, consumer is active)
        delay_ms = self.topic.settings.activeConsumerFailoverDelayTimeMillis
        if before is None or delay_ms == 0:
            return
        # The old consumer may still be acknowledging what it has: wait, so that less of it
        # is delivered twice.
        if self._takeover is not None:
            self._takeover.cancel()
        loop = asyncio.get_running_loop()
        self._takeover = loop.call_later(delay_ms / 1000, self._take_over)

    def _take_over(self) -> None:
        self._takeover = None
        self._rewind()
        self.pump()

    # -- permits and acknowledgements ---

    def flow(self, consumer: Consumer, permits: int, now_ms: int) -> None:
        """The consumer can take that many more messages."""
        consumer.permits += permits
        consumer.last_flow_ms = self.last_flow_ms = now_ms
        self.pump()

    def ack(
        self,
        consumer: Consumer,
        acks: list[tuple[Position, list[int] | None, int | None]],
        done: Done | None,
        now_ms: int,
    ) -> None:
        """Individual acknowledgements: position, remaining ack set, batch size."""
        if not self.topic.settings.acknowledgmentAtBatchIndexLevelEnabled:
            acks = [a for a in acks if a[1] is None or not any(a[1])]
        changes = self.cursor.ack(acks, done)
        if self.type.tracks_pending:
            holders = _Holders(self.type)
            for (position, _, _), remaining in zip(acks, changes, strict=True):
                self._settle(consumer, position, remaining, holders)
            self._update_blocked()
            if consumer.blocked and consumer.unacked <= self._consumer_limit // 2:
                consumer.blocked = False
                self.pump()
        self.messages_acked += len(acks)
        consumer.messages_acked += len(acks)
        consumer.last_acked_ms = self.last_acked_ms = now_ms
        self.topic.acknowledged(self)

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
        self.cursor.ack_cumulative(position, ack_set, done)
        self.messages_acked += 1
        consumer.messages_acked += 1
        consumer.last_acked_ms = self.last_acked_ms = now_ms
        self.topic.acknowledged(self)

    def _settle(
        self, consumer: Consumer, position: Position, remaining: int, holders: _Holders
    ) -> None:
        """Release an acknowledged entry from the consumer that holds it.

        ``remaining`` is the number of messages of the entry that are still unacknowledged.
        The acknowledgement may come from another consumer than the one that received it.
        """
        owner: Consumer | None = consumer
        if position not in consumer.pending:
            owner = holders.find(position)
        if remaining == 0:
            self._redeliveries.pop(position, None)
            self._replay.discard(position)
        if owner is None:
            return
        before = owner.pending[position]
        if remaining == 0:
            del owner.pending[position]
        else:
            remaining = min(remaining, before)
            owner.pending[position] = remaining
        owner.unacked -= before - remaining
        self.unacked -= before - remaining

    @property
    def _consumer_limit(self) -> int:
        return self.topic.policies.max_unacked_messages_per_consumer

    def _update_blocked(self) -> None:
        limit = self.topic.policies.max_unacked_messages_per_subscription
        if limit <= 0 or not self.cursor.durable:
            return
        if not self._blocked and self.unacked >= limit:
            self._blocked = True
        elif self._blocked and self.unacked <= limit // 2:
            self._blocked = False
            self.schedule_pump()

    # -- redelivery and seek ---

    def redeliver(
        self, consumer: Consumer, positions: Iterable[Position] | None, epoch: int | None
    ) -> None:
        """Deliver again: the given entries, or all that the consumer has not acknowledged."""
        if not self.type.tracks_pending:
            if epoch is not None and (consumer.epoch is None or epoch > consumer.epoch):
                consumer.epoch = epoch
            if consumer is self.type.active:
                self._rewind()
                self.pump()
            return
        wanted = list(consumer.pending) if positions is None else positions
        for position in wanted:
            messages = consumer.pending.pop(position, None)
            if messages is None:
                continue
            consumer.unacked -= messages
            self.unacked -= messages
            self._redeliveries[position] = self._redeliveries.get(position, 0) + 1
            self._replay.add(position)
        self._update_blocked()
        if consumer.blocked and consumer.unacked <= self._consumer_limit // 2:
            consumer.blocked = False
        self.schedule_pump()

    async def seek(self, position: Position, ack_set: list[int] | None = None) -> None:
        """Move the cursor so that ``position`` is delivered next. Consumers are closed first.

        A position without an entry stands for the next one that has or will have one. Clients
        subscribe again by themselves; they wait on ``changing`` until it is done.
        """
        try:
            async with self.changing:
                with self.hold():
                    single = self.type.active
                    for consumer in [single] if single is not None else self.consumers:
                        consumer.connection.close_consumer(consumer)
                    await self._move_cursor(position, ack_set)
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
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cursor.reset(target, ack_set, _resolve(done))
        # Before anything is awaited: the task may be cancelled, and the cursor has moved.
        self._redeliveries.clear()
        self._rewind()
        await done

    def drop_if_abandoned(self) -> None:
        """Without consumers, what a reader left behind goes away."""
        if not self.consumers:
            self.topic.subscription_idle(self)

    async def rollback(self, published_ms: int) -> None:
        """Move the cursor to a time under connected consumers."""
        position = await self.topic.ledger.find_by_publish_time(published_ms)
        with self.hold():
            await self._move_cursor(position, None)

    async def delete(self) -> None:
        """Delete the subscription, durably; its consumers connect anew."""
        await self.topic.delete_subscription(self)

    def close_consumers(self) -> None:
        """Ask all consumers to connect anew: the topic goes away from here."""
        for consumer in self.consumers:
            consumer.connection.close_consumer(consumer)

    # -- the pump ---

    def schedule_pump(self) -> None:
        """Run the pump once in this or the next turn of the event loop."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._scheduled_pump)

    def hold(self) -> _Hold:
        """While the returned context is open nothing is dispatched."""
        return _Hold(self)

    def _scheduled_pump(self) -> None:
        self._pump_scheduled = False
        self.pump()

    def pump(self) -> None:
        """Send what can be sent now."""
        if self._reading is not None or self._held or self._blocked or self._takeover is not None:
            return
        for _ in range(ROUNDS_PER_TURN):
            if not self.type.has_room():
                return
            if self._replay:
                if not self._dispatch_replay():
                    return
                continue
            entries: list[Entry] | None = self._ahead
            if not entries:
                entries = self.topic.read_cached(self.read_position, READ_ENTRIES, READ_BYTES)
                if entries is None:
                    if not self._skip_gap():
                        self._read_ahead()
                        return
                    continue
                if not entries:
                    return
            if not self._dispatch(entries):
                return
        self.schedule_pump()

    def _dispatch(self, entries: list[Entry]) -> bool:
        """Send entries in order; ``False`` when somebody has to make room first."""
        choose = self.type.choose
        state = self.cursor.state
        first = entries[0]
        holes = state.has_holes or state.mark_delete >= (first.ledger_id, first.entry_id)
        for index, entry in enumerate(entries):
            if entry.marker:
                self.cursor.ack([(entry.position, None, None)], None)
                continue
            ack_set = None
            if holes:
                position = entry.position
                if state.is_acked(position):
                    continue
                ack_set = state.ack_set_of(position)
            consumer = choose(entry)
            if consumer is None:
                self.read_position = entry.position
                self._ahead = entries[index:] if entries is self._ahead else []
                return False
            self._deliver(consumer, entry, 0, ack_set)
        last = entries[-1]
        self.read_position = Position(last.ledger_id, last.entry_id + 1)
        self._ahead = []
        return True

    def _dispatch_replay(self) -> bool:
        state = self.cursor.state
        for position in self._replay.first(READ_ENTRIES):
            if state.is_acked(position):
                self._replay.discard(position)
                self._fetched.pop(position, None)
                continue
            entry = self._fetched.get(position) or self.topic.cached_entry(position)
            if entry is None:
                self._read_replay(position)
                return False
            consumer = self.type.choose(entry)
            if consumer is None:
                return False
            self._replay.discard(position)
            self._fetched.pop(position, None)
            redeliveries = self._redeliveries.get(position, 0)
            self._deliver(consumer, entry, redeliveries, state.ack_set_of(position))
        return True

    def _deliver(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: list[int] | None
    ) -> None:
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
        if self.type.tracks_pending:
            consumer.pending[entry.position] = messages
            consumer.unacked += messages
            self.unacked += messages
            limit = self._consumer_limit
            if limit > 0 and consumer.unacked >= limit and self.cursor.durable:
                consumer.blocked = True
            if redeliveries:
                consumer.messages_redelivered += messages
                self.messages_redelivered += messages
            limit = self.topic.policies.max_unacked_messages_per_subscription
            if 0 < limit <= self.unacked:
                self._update_blocked()
        consumer.connection.send_message(consumer, entry, redeliveries, ack_set)

    # -- reads from storage ---

    def _rewind(self) -> None:
        """Start again behind the cursor. Results of reads under way become void."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self._ahead = []
        self._fetched.clear()
        self._replay.clear()
        self.read_position = self.topic.ledger.valid_position_at_or_after(
            self.topic.ledger.next_position(self.cursor.state.mark_delete)
        )

    def _skip_gap(self) -> bool:
        """Move the read position to an entry that exists; whether that changed it."""
        position = self.topic.ledger.valid_position_at_or_after(self.read_position)
        if position == self.read_position:
            return False
        self.read_position = position
        return True

    def _read_ahead(self) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._fill_ahead())

    def _read_replay(self, position: Position) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._fill_replay(position))

    async def _fill_ahead(self) -> None:
        try:
            self._ahead = await self.topic.read(self.read_position, READ_ENTRIES, READ_BYTES)
        except PulsarkError as error:
            self._read_failed(error)
            return
        self._reading = None
        if self._ahead:
            self.pump()

    async def _fill_replay(self, position: Position) -> None:
        try:
            entries = await self.topic.read(position, READ_ENTRIES, READ_BYTES)
        except PulsarkError as error:
            self._read_failed(error)
            return
        self._reading = None
        self._fetched = {e.position: e for e in entries if e.position in self._replay}
        if position not in self._fetched:
            self._replay.discard(position)  # trimmed away since it was delivered
        self.pump()

    def _read_failed(self, error: PulsarkError) -> None:
        log.warning("%s: subscription %s cannot read: %s", self.topic.name, self.name, error)
        loop = asyncio.get_running_loop()
        self._reading = loop.create_task(self._retry_later())

    async def _retry_later(self) -> None:
        await asyncio.sleep(1.0)
        self._reading = None
        self.pump()

    def close(self) -> None:
        """Stop all activity of the subscription."""
        self._held += 1
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._takeover is not None:
            self._takeover.cancel()
            self._takeover = None


class _Holders:
    """Finds the consumers that hold what another one acknowledges, for one ACK.

    Mostly it is asked once or never. A command that names very many entries of others is
    answered from an index, made once: the work must not grow with ids times consumers.
    """

    __slots__ = ("_asked", "_index", "_type")

    def __init__(self, type_: SubscriptionType) -> None:
        self._type = type_
        self._asked = 0
        self._index: dict[Position, Consumer] | None = None

    def find(self, position: Position) -> Consumer | None:
        """Who holds an entry now."""
        self._asked += 1
        if self._asked < HOLDER_QUESTIONS:
            return next((c for c in self._type.consumers if position in c.pending), None)
        if self._index is None:
            self._index = {p: c for c in self._type.consumers for p in c.pending}
        owner = self._index.get(position)
        return owner if owner is not None and position in owner.pending else None


class _Hold:
    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __enter__(self) -> None:
        self._subscription._held += 1

    def __exit__(self, *exc: object) -> None:
        self._subscription._held -= 1
        self._subscription.schedule_pump()


def _resolve(future: asyncio.Future[None]) -> Done:
    def done(error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return done
