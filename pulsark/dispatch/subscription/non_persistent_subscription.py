"""A subscription of a non-persistent topic: what no consumer can take at once is dropped.

It has no cursor and no backlog, so acknowledgements, redeliveries and seeks change nothing. It
lives as long as it has consumers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.model.interfaces import AnyTopic, SubscriptionRegistry
from pulsark.dispatch.model.members import Members
from pulsark.dispatch.model.subscription_stats import BacklogStats, Totals
from pulsark.dispatch.subscription.exclusive import Exclusive
from pulsark.dispatch.subscription.subscription_properties import UnstoredProperties
from pulsark.dispatch.subscription.subscription_types import change_type
from pulsark.wire.position import EARLIEST, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.subscription_type import SubscriptionType, TypeSpec
    from pulsark.runtime import Done
    from pulsark.storage.cursor.cursor import Ack


_POSITION = Position(0, 0)
"""Where every message is, for clients."""


class UnstoredRegistry(SubscriptionRegistry, Protocol):
    """The subscriptions of the topic."""

    def drop(self, subscription: NonPersistentSubscription) -> None:
        """One lost its last consumer, or was deleted."""


class UnstoredTopic(AnyTopic, Protocol):
    """The topic, as its subscriptions see it."""

    settings: Settings

    @property
    def registry(self) -> UnstoredRegistry:
        """Where subscriptions are created."""


class IgnoredAcks:
    """Acknowledgements of what is not stored: answered, and that is all."""

    def individual(
        self, consumer: Consumer, acks: Sequence[Ack], done: Done | None, now_ms: int
    ) -> None:
        """Answer."""
        if done is not None:
            asyncio.get_running_loop().call_soon(done, None)

    def cumulative(
        self,
        consumer: Consumer,
        position: Position,
        ack_set: list[int] | None,
        done: Done | None,
        now_ms: int,
    ) -> None:
        """Answer."""
        self.individual(consumer, (), done, now_ms)


class NoSeeking:
    """There is only now: to go elsewhere changes nothing."""

    async def to(self, position: Position, ack_set: list[int] | None = None) -> None:
        """Ignored."""

    async def to_time(self, published_ms: int) -> None:
        """Ignored."""

    async def rollback(self, published_ms: int) -> None:
        """Ignored."""


class NonPersistentSubscription:
    """One named subscription of one non-persistent topic."""

    backlog = 0
    mark_delete = EARLIEST
    acks = IgnoredAcks()
    seeking = NoSeeking()

    def __init__(
        self, topic: UnstoredTopic, name: str, properties: Mapping[str, str], *, durable: bool
    ) -> None:
        self.topic = topic
        self.name = name
        self.properties = UnstoredProperties(properties)
        self.durable = durable
        """What the first consumer asked for; it changes nothing."""
        self.totals = Totals()
        self.members = Members(name, Exclusive(), topic.run_queue, lambda: False)

    @property
    def type(self) -> SubscriptionType:
        """Which consumer gets an entry."""
        return self.members.type

    def backlog_stats(self) -> BacklogStats:
        """Nothing is stored."""
        return BacklogStats()

    def check_joinable(self, *, durable: bool) -> None:
        """Any consumer may join."""

    def use_type(self, spec: TypeSpec) -> None:
        """Adopt a type; with consumers connected it must be theirs."""
        change_type(self.name, self.members, spec, self.topic.name, self.topic.settings)

    def add_consumer(self, consumer: Consumer) -> None:
        """Admit a consumer; entries go out once it has sent permits."""
        before = self.type.active
        self.members.join(consumer)
        if self.type.active is not before:
            self.members.announce_active()

    def remove_consumers(self, consumers: Sequence[Consumer]) -> None:
        """Forget consumers that left together."""
        before = self.type.active
        if not self.members.leave(consumers):
            return
        if self.type.active is not before:
            self.members.announce_active()
        self.drop_if_abandoned()

    def drop_if_abandoned(self) -> None:
        """Without consumers there is nothing to keep."""
        if not self.type.consumer_count and not self.members.changing.locked():
            self.close()

    async def delete(self, *, force: bool = False) -> None:
        """Delete it, unless it has consumers. By ``force`` they connect anew."""
        async with self.members.changing:
            if not force:
                self.members.check_unused()
            self.close()

    def close(self) -> None:
        """It was deleted or unloaded; its consumers connect anew."""
        self.members.closed = True
        self.members.close_all(Exclusive())
        self.topic.registry.drop(self)

    def flow(self, consumer: Consumer, permits: int, now_ms: int) -> None:
        """The consumer can take that many more messages."""
        consumer.permits += permits
        consumer.last_flow_ms = self.totals.last_flow_ms = now_ms
        self.type.wake(consumer)

    def wake(self, consumer: Consumer) -> None:
        """The socket of a consumer drained."""
        self.type.wake(consumer)

    def redeliver(
        self, consumer: Consumer, positions: Iterable[Position] | None, epoch: int | None
    ) -> None:
        """Nothing was kept."""

    def dispatch(self, entry: Entry, now_ms: int) -> None:
        """Send an entry to a consumer that can take it now, or drop it."""
        type_ = self.members.type
        messages = entry.messages
        consumer = type_.choose(entry)
        if consumer is None:
            self.totals.messages_dropped += messages
            active = type_.active
            if active is not None:
                active.messages_dropped += messages
            return
        if type_.tracks_pending:
            type_.forget(_POSITION)  # it will not be acknowledged
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.entries_out += 1
        if entry.is_chunk:
            consumer.chunks_out += 1
        consumer.bytes_out += len(entry.data)
        consumer.last_consumed_ms = now_ms
        connection = consumer.connection
        connection.send_message(consumer, entry, 0, None)
        if not connection.writable:
            # Only because much was queued in this turn: the socket itself may take it all.
            connection.flush()
