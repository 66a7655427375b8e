"""A subscription of a non-persistent topic: what nobody can take at once is dropped.

It has no cursor and no backlog, so acknowledgements, redeliveries and seeks change nothing. It
lives as long as it has consumers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.model.interfaces import AnyTopic, SubscriptionRegistry
from pulsark.dispatch.subscription.subscription_base import Subscribers
from pulsark.wire.position import EARLIEST, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.subscription_type import TypeSpec
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
    def dispatching_ms(self) -> int:
        """The time of what is being delivered."""

    @property
    def registry(self) -> UnstoredRegistry:
        """Where subscriptions are created."""


class NonPersistentSubscription(Subscribers):
    """One named subscription of one non-persistent topic."""

    backlog = 0
    backlog_size = 0
    replay_count = 0
    delayed_count = 0
    delayed_index_bytes = 0
    acked_range_count = 0
    last_mark_delete_ms = 0
    blocked_on_unacked = False
    replicated = False
    mark_delete = EARLIEST

    def __init__(
        self, topic: UnstoredTopic, name: str, properties: Mapping[str, str], *, durable: bool
    ) -> None:
        super().__init__(name, topic.run_queue)
        self.topic = topic
        self.properties = properties
        self.durable = durable
        """What the first consumer asked for; it changes nothing."""

    # -- consumers ---

    def check_joinable(self, *, durable: bool) -> None:
        """Anybody may join."""

    def use_type(self, spec: TypeSpec) -> None:
        """Adopt a type; with consumers connected it must be theirs."""
        self.adopt_type(spec, self.topic.name, self.topic.settings)

    def add_consumer(self, consumer: Consumer) -> None:
        """Admit a consumer; entries go out once it has sent permits."""
        before = self.type.active
        self.take_in(consumer)
        if self.type.active is not before:
            self.announce_change()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Forget a consumer that left."""
        self.remove_consumers((consumer,))

    def remove_consumers(self, consumers: Sequence[Consumer]) -> None:
        """Forget consumers that left together."""
        before = self.type.active
        if not self.let_go(consumers):
            return
        if self.type.active is not before:
            self.announce_change()
        self.drop_if_abandoned()

    def drop_if_abandoned(self) -> None:
        """Without consumers there is nothing to keep."""
        if not self.type.consumer_count and not self.changing.locked():
            self.close()

    async def delete(self, *, force: bool = False) -> None:
        """Delete it, unless it has consumers. By ``force`` they connect anew."""
        async with self.changing:
            if not force:
                self.check_unused()
            self.close()

    def close(self) -> None:
        """It is not there any more; its consumers connect anew."""
        self.closed = True
        self.close_consumers()
        self.topic.registry.drop(self)

    # -- messages ---

    def flow(self, consumer: Consumer, permits: int, now_ms: int) -> None:
        """The consumer can take that many more messages."""
        consumer.permits += permits
        consumer.last_flow_ms = self.last_flow_ms = now_ms
        self.type.wake(consumer)

    def wake(self, consumer: Consumer) -> None:
        """The socket of a consumer drained."""
        self.type.wake(consumer)

    def dispatch(self, entry: Entry) -> None:
        """Send an entry to a consumer that can take it now, or drop it."""
        messages = entry.messages
        consumer = self.type.choose(entry)
        if consumer is None:
            self.messages_dropped += messages
            active = self.type.active
            if active is not None:
                active.messages_dropped += messages
            return
        if self.type.tracks_pending:
            self.type.forget(_POSITION)  # nobody will acknowledge it
        size = len(entry.data)
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.entries_out += 1
        consumer.bytes_out += size
        self.messages_out += messages
        self.entries_out += 1
        self.bytes_out += size
        consumer.last_consumed_ms = self.last_consumed_ms = self.topic.dispatching_ms
        connection = consumer.connection
        connection.send_message(consumer, entry, 0, None)
        if not connection.writable:
            # Only because much was queued in this turn: the socket itself may take it all.
            connection.flush()

    # -- what needs memory of messages has no effect ---

    def ack(
        self,
        consumer: Consumer,
        acks: Sequence[Ack],
        done: Done | None,
        now_ms: int,
    ) -> None:
        """Ignored, but answered."""
        if done is not None:
            asyncio.get_running_loop().call_soon(done, None)

    def ack_cumulative(
        self,
        consumer: Consumer,
        position: Position,
        ack_set: list[int] | None,
        done: Done | None,
        now_ms: int,
    ) -> None:
        """Ignored, but answered."""
        self.ack(consumer, [], done, now_ms)

    def redeliver(
        self, consumer: Consumer, positions: Iterable[Position] | None, epoch: int | None
    ) -> None:
        """Nothing was kept."""

    async def set_replicated(self, replicated: bool) -> None:
        """There is no state to replicate."""

    async def seek(self, position: Position, ack_set: list[int] | None = None) -> None:
        """There is only now."""

    async def seek_to_time(self, published_ms: int) -> None:
        """There is only now."""

    async def rollback(self, published_ms: int) -> None:
        """There is only now."""
