"""One topic whose messages are never stored.

An entry goes to each subscription at once, to a consumer that has permits and a socket that
takes it, or is dropped there and counted. Its receipt says 0:0 whatever became of it, because
nothing is promised. A connection has a number of publishes without a receipt; what comes beyond
it is not even dispatched, and its receipt says -1:-1.

Receipts leave together when one read of the producer's socket is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.model.interfaces import CompactionStats, check_open, check_room
from pulsark.dispatch.model.producer import Producer, send_receipts
from pulsark.dispatch.producer.topic_producers import TopicProducers
from pulsark.dispatch.subscription.non_persistent_subscription import NonPersistentSubscription
from pulsark.errors import ClientError, ServerError
from pulsark.storage.cursor.owners import CursorOwner, check_new_name, check_owner

if TYPE_CHECKING:
    from pulsark.config.settings import Settings
    from pulsark.dispatch.loop.run_queue import RunQueue
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.moving import Moving
    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.rates.throttle import Throttle
    from pulsark.runtime import Clock
    from pulsark.wire.message_id import MessageId
    from pulsark.wire.position import Position
    from pulsark.wire.topic_name import TopicName


class NonPersistentTopic:
    """A non-persistent topic in memory. Everything runs on the event loop."""

    total_size = 0
    deduplication_status = "Disabled"
    delayed_index_bytes = 0

    def __init__(
        self,
        name: TopicName,
        settings: Settings,
        policies: TopicPolicies,
        clock: Clock,
        run_queue: RunQueue,
    ) -> None:
        self.name = name
        self.run_queue = run_queue
        self.settings = settings
        self.policies = policies
        self.clock = clock
        self.created_ms = clock.now_ms()
        self.last_used = clock.monotonic()
        """When its last client left; while one is connected this says nothing."""
        self.topic_epoch: int | None = None
        self.compaction = CompactionStats()
        self.throttle: Throttle | None = None
        self._admission = TopicProducers(self)
        self.producers = self._admission.by_name
        self.registry = NonPersistentSubscriptions(self)
        self.subscriptions = self.registry.by_name
        self.closed = False
        self.moving: Moving | None = None
        self.is_leaving = False
        self.messages_in = 0
        self.bytes_in = 0
        self.chunks_in = 0
        self.entries_in = 0
        self._in_flight_max = settings.maxConcurrentNonPersistentMessagePerConnection
        self._unanswered: list[Entry] = []

    def set_policies(self, policies: TopicPolicies) -> None:
        """The rules changed."""
        self.policies = policies
        self._admission.policies_changed()

    async def policies_obeyed(self) -> None:
        """Nothing has to be waited for."""

    def publish(self, entry: Entry) -> None:
        """Dispatch an entry, or drop it if its connection has too many without a receipt."""
        producer = entry.producer
        if producer is None:
            return
        self._unanswered.append(entry)
        connection = producer.connection
        if connection.non_persistent_in_flight >= self._in_flight_max:
            producer.messages_dropped += entry.messages
            # Its receipt, whose ids stay -1:-1, will count it as published.
            producer.messages_in -= entry.messages
            producer.bytes_in -= len(entry.data)
            producer.chunks_in -= entry.is_chunk
            return
        connection.non_persistent_in_flight += 1
        entry.ledger_id = entry.entry_id = 0
        self.entries_in += 1
        self.messages_in += entry.messages
        self.bytes_in += len(entry.data)
        self.chunks_in += entry.is_chunk
        if not entry.marker and self.subscriptions:
            now_ms = self.clock.now_ms()
            for subscription in self.subscriptions.values():
                subscription.dispatch(entry, now_ms)

    def flush(self) -> None:
        """Answer what was published."""
        answered, self._unanswered = self._unanswered, []
        for entry in answered:
            if entry.ledger_id == 0 and entry.producer is not None:
                entry.producer.connection.non_persistent_in_flight -= 1
        send_receipts(answered, successive=False)

    async def add_producer(self, producer: Producer) -> bool:
        """Admit a producer, or raise ``ClientError``. False: it waits, and will be told."""
        return await self._admission.add(producer)

    def remove_producer(self, producer: Producer) -> None:
        """Forget a producer that left."""
        if self._unanswered:
            self.flush()  # a connection that ends in the middle of a read does not ask for it
        self._admission.remove(producer)
        self.last_used = self.clock.monotonic()

    @property
    def waiting_producers(self) -> int:
        """Producers that wait to have the topic for themselves."""
        return len(self._admission.waiting)

    async def producer_joined(self, producer: Producer) -> None:
        """Nothing to do."""

    def producer_left(self, producer: Producer) -> None:
        """Nothing to do."""

    def last_sequence_id(self, producer_name: str) -> int:
        """Nothing is stored."""
        return -1

    async def set_topic_epoch(self, epoch: int) -> None:
        """Keep a new epoch, as long as the topic is in memory."""
        self.topic_epoch = epoch

    def check_open(self) -> None:
        """Raise ``ClientError`` if the topic goes away from here."""
        check_open(self.name, closed=self.closed, leaving=self.is_leaving)

    def check_writable(self) -> None:
        """Raise ``ClientError`` if the topic goes away from here."""
        self.check_open()

    def reader_start(self, asked: Position, otherwise: Position) -> Position:
        """Readers begin with the next message."""
        return otherwise

    async def last_message(self, *, compacted: bool = False) -> MessageId:
        """Nothing is kept: always ``ClientError``."""
        raise ClientError(
            ServerError.UnknownError, "A non-persistent topic keeps no messages and has no last one"
        )

    @property
    def is_used(self) -> bool:
        """Whether a producer or a consumer is connected."""
        return self._admission.any or bool(self.subscriptions)

    async def close(self) -> None:
        """Unload: producers and consumers connect anew."""
        self.closed = True
        self._admission.disconnect()
        for subscription in list(self.subscriptions.values()):
            subscription.close()


class NonPersistentSubscriptions:
    """The subscriptions of such a topic: they get what is published from now on."""

    def __init__(self, topic: NonPersistentTopic) -> None:
        self.by_name: dict[str, NonPersistentSubscription] = {}
        self._topic = topic

    async def create(
        self,
        name: str,
        position: Position,
        properties: dict[str, str],
        *,
        durable: bool,
        compacted: bool = False,
        replicated: bool = False,
    ) -> NonPersistentSubscription:
        """The subscription of that name, or a new one. ``ClientError``."""
        check_owner(name, CursorOwner.CLIENTS)
        self._topic.check_open()
        subscription = self.by_name.get(name)
        if subscription is None:
            check_new_name(name)
            check_room(self._topic, len(self.by_name))
            subscription = NonPersistentSubscription(self._topic, name, properties, durable=durable)
            self.by_name[name] = subscription
        return subscription

    def drop(self, subscription: NonPersistentSubscription) -> None:
        """A subscription lost its last consumer, or was deleted."""
        if self.by_name.get(subscription.name) is subscription:
            del self.by_name[subscription.name]
        self._topic.last_used = self._topic.clock.monotonic()
