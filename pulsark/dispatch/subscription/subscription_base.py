"""The consumers of one subscription and what they got: the part that is the same for both kinds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.dispatch.model.subscription_type import (
    SubscriptionClosedError,
    SubscriptionType,
    SubType,
    TypeSpec,
)
from pulsark.dispatch.subscription.exclusive import Exclusive
from pulsark.dispatch.subscription.subscription_types import check_change, new_type
from pulsark.errors import ClientError, ServerError
from pulsark.limits import CONSUMERS_TOLD_AT_ONCE_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pulsark.config.settings import Settings
    from pulsark.dispatch.loop.run_queue import RunQueue
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.wire.topic_name import TopicName


class Subscribers:
    """Base of a subscription: its type, its connected consumers, and the sums over all of them.

    Who delivers adds to the sums itself, because that happens for every entry.
    """

    def __init__(self, name: str, run_queue: RunQueue) -> None:
        self.name = name
        self._run_queue = run_queue
        self.type: SubscriptionType = Exclusive()
        self.spec: TypeSpec | None = None
        """What the last consumers asked for; ``None`` before the first."""
        self.changing = asyncio.Lock()
        """Held while consumers are admitted, while a seek moves the cursor, and by its deletion."""
        self.closed = False
        """Whether it is not there any more: it admits nobody, and another may have its name."""
        self.messages_out = 0
        self.entries_out = 0
        self.bytes_out = 0
        self.messages_redelivered = 0
        self.messages_acked = 0
        self.messages_dropped = 0
        self.entries_expired = 0
        self.last_expire_ms = 0
        self.last_flow_ms = 0
        self.last_consumed_ms = 0
        self.last_acked_ms = 0

    @property
    def consumers(self) -> list[Consumer]:
        """Connected consumers."""
        return self.type.consumers

    def adopt_type(self, spec: TypeSpec, topic: TopicName, settings: Settings) -> bool:
        """Become of a type, which must be that of connected consumers. False: it was before."""
        if self.spec == spec:
            return False
        if self.spec is not None:
            check_change(self.name, self.type, self.spec, spec)
        self.type = new_type(spec, topic, settings)
        self.spec = spec
        return True

    def take_in(self, consumer: Consumer) -> None:
        """Make a consumer one of them; its connection knows of it first."""
        self.check_admits()
        holdings = consumer.connection.holdings
        holdings.add_consumer(consumer)
        try:
            self.type.add(consumer)
        except BaseException:
            holdings.drop_consumer(consumer)
            raise

    def let_go(self, consumers: Sequence[Consumer]) -> list[Consumer]:
        """Consumers leave; returns those that had not left before."""
        leaving = [consumer for consumer in consumers if not consumer.closed]
        for consumer in leaving:
            consumer.closed = True
            self.type.remove(consumer)
            consumer.connection.holdings.drop_consumer(consumer)
        return leaving

    def check_admits(self) -> None:
        """Raise ``SubscriptionClosedError`` if it is not there any more."""
        if self.closed:
            raise SubscriptionClosedError(self.name)

    def check_unused(self) -> None:
        """Raise ``ClientError`` if consumers are connected."""
        if self.type.consumer_count:
            raise ClientError(
                ServerError.ConsumerBusy,
                f"Subscription {self.name} has active connected consumers",
            )

    @property
    def at_end(self) -> bool:
        """Whether nothing more will come."""
        return False

    def greet(self, newcomer: Consumer) -> None:
        """Tell a new consumer what it is: the active one of a Failover subscription, at the end.

        Some clients drop what comes before they have worked on the answer to SUBSCRIBE. So it is
        done with the first FLOW, which comes after that, or after a moment.
        """
        if newcomer.greeted or newcomer.closed:
            return
        newcomer.greeted = True
        if self.type.sub_type == SubType.Failover:
            newcomer.connection.send_active_change(newcomer, newcomer is self.type.active)
        if self.at_end:
            newcomer.connection.send_end_of_topic(newcomer)

    def announce_change(self) -> None:
        """Tell Failover consumers of a new active one; those that were not greeted, with that."""
        if self.type.sub_type == SubType.Failover:
            heirs = [c for c in self.consumers if c.greeted and c.connection.is_open]
            self._run_queue.take_steps(self._tell(heirs))

    def _tell(self, consumers: list[Consumer]) -> Iterator[None]:
        """Tell each its part, as it is by then: the last word is always the right one."""
        for number, consumer in enumerate(consumers, 1):
            if not consumer.closed:
                is_active = consumer is self.type.active
                consumer.connection.send_active_change(consumer, is_active)
            if number % CONSUMERS_TOLD_AT_ONCE_MAX == 0:
                yield

    def close_consumers(self) -> None:
        """Ask all consumers to connect anew: the topic goes away from here."""
        for consumer in self.consumers:
            consumer.connection.close_consumer(consumer)
