"""The connected consumers of one subscription, and what they are told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pulsark.dispatch.model.subscription_type import (
    SubscriptionClosedError,
    SubscriptionType,
    SubType,
    TypeSpec,
)
from pulsark.errors import ClientError, ServerError
from pulsark.limits import CONSUMERS_TOLD_AT_ONCE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pulsark.dispatch.loop.run_queue import RunQueue
    from pulsark.dispatch.model.consumer import Consumer


@dataclass(slots=True)
class Sent:
    """What was sent to some consumers, and when (ms since the epoch; 0: never)."""

    messages: int = 0
    entries: int = 0
    bytes: int = 0
    chunks: int = 0
    redelivered: int = 0
    """Messages that were sent again because a client asked for it."""
    last_ms: int = 0

    def add(self, consumer: Consumer) -> None:
        """Add what one consumer was sent."""
        self.messages += consumer.messages_out
        self.entries += consumer.entries_out
        self.bytes += consumer.bytes_out
        self.chunks += consumer.chunks_out
        self.redelivered += consumer.messages_redelivered
        self.last_ms = max(self.last_ms, consumer.last_consumed_ms)


class Members:
    """Consumers join and leave here; the type has them, and changes only while there are none.

    ``at_end`` says whether the topic is terminated and everything is acknowledged.
    """

    def __init__(
        self,
        subscription: str,
        type_: SubscriptionType,
        run_queue: RunQueue,
        at_end: Callable[[], bool],
    ) -> None:
        self.type = type_
        self.spec: TypeSpec | None = None
        """What the last consumers asked for; ``None`` before the first."""
        self.changing = asyncio.Lock()
        """Held while consumers are admitted, while a seek moves the cursor, and by its deletion."""
        self.closed = False
        """Whether the subscription was deleted or unloaded: another one may have its name."""
        self._sent = Sent()
        """To consumers that have left. What one was sent is counted there, for each entry."""
        self._subscription = subscription
        self._run_queue = run_queue
        self._at_end = at_end

    def check_admits(self) -> None:
        """Raise ``SubscriptionClosedError`` if the subscription was deleted or unloaded."""
        if self.closed:
            raise SubscriptionClosedError(self._subscription)

    def check_unused(self) -> None:
        """Raise ``ClientError`` if consumers are connected."""
        if self.type.consumer_count:
            raise ClientError(
                ServerError.ConsumerBusy,
                f"Subscription {self._subscription} has active connected consumers",
            )

    def join(self, consumer: Consumer) -> None:
        """Admit a consumer, or raise ``ClientError``. Its connection knows of it first."""
        self.check_admits()
        holdings = consumer.connection.holdings
        holdings.add_consumer(consumer)
        try:
            self.type.add(consumer)
        except BaseException:
            holdings.drop_consumer(consumer)
            raise

    def leave(self, consumers: Sequence[Consumer]) -> list[Consumer]:
        """Remove consumers; returns those that had not left before."""
        leaving = [consumer for consumer in consumers if not consumer.closed]
        for consumer in leaving:
            consumer.closed = True
            self.type.remove(consumer)
            consumer.connection.holdings.drop_consumer(consumer)
            self._sent.add(consumer)
        return leaving

    def sent(self) -> Sent:
        """What was sent to all consumers there ever were."""
        sent = replace(self._sent)
        for consumer in self.type.consumers:
            sent.add(consumer)
        return sent

    def close_all(self, nobody: SubscriptionType) -> None:
        """Ask all consumers to reconnect: the subscription is leaving this broker.

        ``nobody`` is a type without consumers. They leave all at once: one by one, each of very
        many would hand its keys and entries to others who leave next.
        """
        consumers, self.type = self.type.consumers, nobody
        for consumer in consumers:
            consumer.connection.close_consumer(consumer)

    def greet(self, newcomer: Consumer) -> None:
        """Tell a new consumer whether it is active (Failover) and whether it is at the end.

        Some clients drop what arrives before they have processed the response to SUBSCRIBE. So
        this happens with the first FLOW, which comes after that, or after a moment.
        """
        if newcomer.greeted or newcomer.closed:
            return
        newcomer.greeted = True
        if self.type.sub_type == SubType.Failover:
            newcomer.connection.send_active_change(newcomer, newcomer is self.type.active)
        if self._at_end():
            newcomer.connection.send_end_of_topic(newcomer)

    def announce_end(self) -> None:
        """Tell all consumers, if that is so, that they have acknowledged the last message."""
        if self._at_end():
            for consumer in self.type.consumers:
                if consumer.greeted:  # the others hear of it when they are greeted
                    consumer.connection.send_end_of_topic(consumer)

    def announce_active(self) -> None:
        """Tell Failover consumers which one is active; the others hear of it when greeted."""
        if self.type.sub_type == SubType.Failover:
            greeted = [c for c in self.type.consumers if c.greeted and c.connection.is_open]
            self._run_queue.take_steps(self._tell(greeted))

    def _tell(self, consumers: list[Consumer]) -> Iterator[None]:
        """Tell each consumer its state when it is sent: the last notice is always right."""
        for number, consumer in enumerate(consumers, 1):
            if not consumer.closed:
                is_active = consumer is self.type.active
                consumer.connection.send_active_change(consumer, is_active)
            if number % CONSUMERS_TOLD_AT_ONCE_MAX == 0:
                yield
