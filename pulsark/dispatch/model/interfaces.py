"""What clients and statistics need of a topic and of a subscription, of whichever kind.

There are two kinds: `topic.Topic`, which stores its messages, and
`non_persistent_topic.NonPersistentTopic`, which does not. Connections, handlers and statistics
know these interfaces only. What is about storage alone (ledgers, cursors) asks the broker for a
persistent topic, and gets the class itself. `subscription.stored_topic` has what subscriptions
need of the first kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pulsark.errors import ClientError, ServerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pulsark.dispatch.loop.run_queue import RunQueue
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.members import Members
    from pulsark.dispatch.model.moving import Moving
    from pulsark.dispatch.model.producer import Producer
    from pulsark.dispatch.model.subscription_stats import BacklogStats, Totals
    from pulsark.dispatch.model.subscription_type import SubscriptionType, TypeSpec
    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.rates.throttle import Throttle
    from pulsark.runtime import Done
    from pulsark.storage.cursor.cursor import Ack
    from pulsark.wire.message_id import MessageId
    from pulsark.wire.position import Position
    from pulsark.wire.topic_name import TopicName


def check_open(topic: TopicName, *, closed: bool, leaving: bool) -> None:
    """Raise ``ClientError`` if a topic goes away from here."""
    if closed:
        raise ClientError(ServerError.ServiceNotReady, f"Topic {topic} is being unloaded")
    if leaving:
        raise ClientError(ServerError.ServiceNotReady, f"Topic {topic} is being deleted")


def check_room(topic: AnyTopic, subscriptions: int) -> None:
    """Raise ``ClientError`` if a topic with this many subscriptions may have no further one."""
    if 0 < topic.policies.max_subscriptions <= subscriptions:
        raise ClientError(
            ServerError.NotAllowedError,
            f"Exceed the maximum number of subscriptions of the topic: {topic.name}",
        )


@dataclass(frozen=True, slots=True)
class CompactionStats:
    """What the compactions of a topic on this broker came to; 0 if there was none."""

    removed_events: int = 0
    """Messages that the last run that succeeded removed."""
    succeeded_ms: int = 0
    failed_ms: int = 0
    duration_ms: int = 0


class AnyTopic(Protocol):
    """A topic that is served here. Everything runs on the event loop."""

    name: TopicName
    policies: TopicPolicies
    created_ms: int
    producers: dict[str, Producer]
    closed: bool
    moving: Moving | None
    """Set when it goes to another broker by intent."""
    is_leaving: bool
    """No client is admitted: it is about to be deleted, if it is unused."""
    run_queue: RunQueue
    throttle: Throttle | None
    """The throttle of the topic's publish rate, once something was published under one."""
    messages_in: int
    bytes_in: int
    chunks_in: int
    entries_in: int

    @property
    def subscriptions(self) -> Mapping[str, AnySubscription]:
        """Subscriptions by name."""

    @property
    def total_size(self) -> int:
        """Bytes stored."""

    @property
    def delayed_index_bytes(self) -> int:
        """Memory for knowing when delayed messages are due."""

    @property
    def is_used(self) -> bool:
        """Whether a producer or a consumer is connected."""

    def set_policies(self, policies: TopicPolicies) -> None:
        """The rules changed; what depends on them follows at once, or in tasks."""

    async def policies_obeyed(self) -> None:
        """Return once those tasks have ended."""

    def publish(self, entry: Entry) -> None:
        """Take an entry; its producer gets the receipt when it is due."""

    def flush(self) -> None:
        """One read of a socket is over: what it published goes on its way."""

    @property
    def compaction(self) -> CompactionStats:
        """How compactions went."""

    @property
    def waiting_producers(self) -> int:
        """Producers that wait to have the topic for themselves."""

    @property
    def topic_epoch(self) -> int | None:
        """The epoch of the last producer that had the topic for itself, if there was one."""

    async def add_producer(self, producer: Producer) -> bool:
        """Admit a producer, or raise ``ClientError``.

        False: it waits to be the only one. Its ``decide`` will be called, unless it is removed.
        """

    @property
    def deduplication_status(self) -> str:
        """What statistics call it."""

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest that is known to be stored of a producer name, -1 if nothing is known."""

    def remove_producer(self, producer: Producer) -> None:
        """Forget a producer that left."""

    def check_open(self) -> None:
        """Raise ``ClientError`` if the topic goes away from here."""

    def check_writable(self) -> None:
        """Raise the error with which a new producer is refused, if it must be."""

    @property
    def registry(self) -> SubscriptionRegistry:
        """Creates subscriptions."""

    def reader_start(self, asked: Position, otherwise: Position) -> Position:
        """Where a reader begins that asks for a position, if there is something yet."""

    async def last_message(self, *, compacted: bool = False) -> MessageId:
        """The last message that can be delivered, or ``ClientError`` if nothing is kept.

        ``compacted``: among those that compaction left.
        """

    async def close(self) -> None:
        """Unload: producers and consumers connect anew."""


class SubscriptionRegistry(Protocol):
    """The subscriptions of such a topic."""

    async def create(
        self,
        name: str,
        position: Position,
        properties: dict[str, str],
        *,
        durable: bool,
        compacted: bool = False,
        replicated: bool = False,
    ) -> AnySubscription:
        """The subscription of that name, or a new one whose first message is ``position``.

        ``compacted``: it reads what compaction left.
        """


class AnyAcks(Protocol):
    """Acknowledgements of the consumers of one subscription."""

    def individual(
        self, consumer: Consumer, acks: Sequence[Ack], done: Done | None, now_ms: int
    ) -> None:
        """Acknowledge entries, or messages of batches, one by one."""

    def cumulative(
        self,
        consumer: Consumer,
        position: Position,
        ack_set: list[int] | None,
        done: Done | None,
        now_ms: int,
    ) -> None:
        """Acknowledge everything up to a position."""


class AnySeeking(Protocol):
    """Moves of one subscription's cursor."""

    async def to(self, position: Position, ack_set: list[int] | None = None) -> None:
        """Go on with ``position``. Consumers are told to connect anew."""

    async def to_time(self, published_ms: int) -> None:
        """Go on with the first message published at or after a time."""

    async def rollback(self, published_ms: int) -> None:
        """Do so while consumers stay connected."""


class AnyProperties(Protocol):
    """What is kept with one subscription."""

    @property
    def given(self) -> Mapping[str, str]:
        """The properties that it was given."""

    @property
    def replicated(self) -> bool:
        """Whether its state is to be replicated between clusters."""

    async def set_replicated(self, replicated: bool) -> None:
        """Change that, durably."""


class AnySubscription(Protocol):
    """A subscription of such a topic."""

    name: str
    members: Members
    totals: Totals

    @property
    def topic(self) -> AnyTopic:
        """The topic."""

    @property
    def type(self) -> SubscriptionType:
        """Which consumer gets an entry."""

    @property
    def durable(self) -> bool:
        """Whether it was made to outlive its consumers."""

    @property
    def properties(self) -> AnyProperties:
        """What is kept with it."""

    @property
    def acks(self) -> AnyAcks:
        """What its consumers acknowledge."""

    @property
    def seeking(self) -> AnySeeking:
        """Moves of its cursor."""

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""

    def backlog_stats(self) -> BacklogStats:
        """Everything about its backlog at this moment."""

    def check_joinable(self, *, durable: bool) -> None:
        """Raise ``ClientError`` if a consumer of this durability may not join."""

    def use_type(self, spec: TypeSpec) -> None:
        """Adopt a type; with consumers connected it must be theirs."""

    def add_consumer(self, consumer: Consumer) -> None:
        """Admit a consumer, or raise ``ClientError``, or ``SubscriptionClosedError``."""

    def remove_consumers(self, consumers: Sequence[Consumer]) -> None:
        """Forget consumers that left together."""

    def drop_if_abandoned(self) -> None:
        """Without consumers, what is not durable goes away."""

    def flow(self, consumer: Consumer, permits: int, now_ms: int) -> None:
        """The consumer can take that many more messages."""

    def wake(self, consumer: Consumer) -> None:
        """The consumer's socket drained: something may go out now."""

    def redeliver(
        self, consumer: Consumer, positions: Iterable[Position] | None, epoch: int | None
    ) -> None:
        """Deliver again: the given entries, or all that the consumer has not acknowledged."""

    async def delete(self, *, force: bool = False) -> None:
        """Delete it, unless it has consumers: ``ClientError``. By ``force`` they connect anew."""
