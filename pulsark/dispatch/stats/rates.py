"""Rates per second from counters that only grow.

Topics, subscriptions, producers and consumers count; nothing else happens per message. Once a
period the counters of all loaded topics are noted, and a rate is the difference to a note that
is one to two periods old. Something younger than the note is averaged over its whole life.

Notes are kept by name, never by object: a rate must not keep a closed connection alive.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pulsark.dispatch.loop.run_queue import RunQueue
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.interfaces import AnySubscription, AnyTopic
    from pulsark.dispatch.model.producer import Producer
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.runtime import Clock


class Counters(NamedTuple):
    """Counts since the object was made; rates have the same shape, per second."""

    messages: float = 0
    bytes: float = 0
    entries: float = 0
    redelivered: float = 0
    acked: float = 0
    dropped: float = 0
    expired: float = 0
    chunks: float = 0

    def since(self, earlier: Counters, seconds: float) -> Counters:
        """The rates of the time between two states."""
        return Counters(*((now - then) / seconds for now, then in zip(self, earlier, strict=True)))


_NOTHING = Counters()
_SHORTEST_SECONDS = 1.0
"""What is younger is taken to be this old, so that a first message is not a huge rate."""

Notes = dict[Hashable, Counters]


class Rates:
    """The rates of one broker's topics. All on the event loop."""

    def __init__(self, clock: Clock, run_queue: RunQueue, topics: Topics) -> None:
        self._clock = clock
        self._run_queue = run_queue
        self._topics = topics
        now = clock.monotonic()
        self._older: tuple[float, Notes] = (now, {})
        self._newer: tuple[float, Notes] = (now, {})

    def topic_in(self, topic: AnyTopic) -> Counters:
        """What is published to a topic."""
        return self._rate(_topic_key(topic), _topic_in(topic), topic.created_ms)

    def dropped_in(self, topic: AnyTopic) -> float:
        """Messages a second that were dropped because too many were under way."""
        return sum((self.producer(producer).dropped for producer in topic.producers.values()), 0.0)

    def subscription(self, subscription: AnySubscription) -> Counters:
        """What a subscription delivers."""
        created_ms = subscription.topic.created_ms
        return self._rate(
            _subscription_key(subscription), _of_subscription(subscription), created_ms
        )

    def producer(self, producer: Producer) -> Counters:
        """What a producer publishes."""
        return self._rate(_producer_key(producer), _incoming(producer), producer.connected_since_ms)

    def consumer(self, consumer: Consumer) -> Counters:
        """What a consumer receives."""
        created_ms = consumer.connected_since_ms
        return self._rate(_consumer_key(consumer), _of_consumer(consumer), created_ms)

    def _rate(self, key: Hashable, now: Counters, created_ms: int) -> Counters:
        clock = self._clock
        noted_at, notes = self._older
        before = notes.get(key)
        if before is not None and before <= now:
            return now.since(before, max(clock.monotonic() - noted_at, _SHORTEST_SECONDS))
        age_s = (clock.now_ms() - created_ms) / 1000
        return now.since(_NOTHING, max(age_s, _SHORTEST_SECONDS))

    def note(self) -> None:
        """Note all counters."""
        self._run_queue.take_steps(self._notes())

    def _notes(self) -> Iterator[None]:
        notes: Notes = {}
        noted_at = self._clock.monotonic()
        for topic in self._topics.served():
            notes.update(_counters_of(topic))
            yield
        self._older, self._newer = self._newer, (noted_at, notes)


def _counters_of(topic: AnyTopic) -> Iterator[tuple[Hashable, Counters]]:
    yield _topic_key(topic), _topic_in(topic)
    for producer in topic.producers.values():
        yield _producer_key(producer), _incoming(producer)
    for subscription in topic.subscriptions.values():
        yield _subscription_key(subscription), _of_subscription(subscription)
        for consumer in subscription.type.consumers:
            yield _consumer_key(consumer), _of_consumer(consumer)


def _topic_in(topic: AnyTopic) -> Counters:
    return Counters(topic.messages_in, topic.bytes_in, topic.entries_in)


def _of_consumer(consumer: Consumer) -> Counters:
    return Counters(
        consumer.messages_out,
        consumer.bytes_out,
        consumer.entries_out,
        consumer.messages_redelivered,
        consumer.messages_acked,
        consumer.messages_dropped,
        chunks=consumer.chunks_out,
    )


def _of_subscription(subscription: AnySubscription) -> Counters:
    sent, totals = subscription.members.sent(), subscription.totals
    return Counters(
        sent.messages,
        sent.bytes,
        sent.entries,
        sent.redelivered,
        totals.messages_acked,
        totals.messages_dropped,
        totals.entries_expired,
        sent.chunks,
    )


def _incoming(producer: Producer) -> Counters:
    return Counters(
        producer.messages_in,
        producer.bytes_in,
        dropped=producer.messages_dropped,
        chunks=producer.chunks_in,
    )


def _topic_key(topic: AnyTopic) -> Hashable:
    return str(topic.name), topic.created_ms


def _subscription_key(subscription: AnySubscription) -> Hashable:
    return _topic_key(subscription.topic), subscription.name


def _producer_key(producer: Producer) -> Hashable:
    return (
        _topic_key(producer.topic),
        producer.name,
        producer.connection.address,
        producer.connected_since_ms,
    )


def _consumer_key(consumer: Consumer) -> Hashable:
    return (
        _subscription_key(consumer.subscription),
        consumer.consumer_id,
        consumer.connection.address,
        consumer.connected_since_ms,
    )
