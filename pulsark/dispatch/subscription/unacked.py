"""Messages that consumers have and did not acknowledge, and the limits for them.

Too many at one consumer block that consumer, too many at all of them, or at all subscriptions of
the broker, the subscription. Either goes on at half of its limit.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.dispatch.subscription.broker_unacked import BrokerUnacked

NO_LIMIT = sys.maxsize


class Waking(Protocol):
    """The dispatcher, as far as it matters here."""

    def schedule_pump(self) -> None:
        """Look again at what can be sent."""

    def wake(self, consumer: Consumer) -> None:
        """A consumer may have room again."""


class Unacked:
    """The unacknowledged messages of one subscription. `Deliveries` adds to ``messages``."""

    __slots__ = (
        "_broker",
        "_dispatcher",
        "_held_for_broker",
        "_held_for_rate",
        "_limit",
        "_over_limit",
        "blocked",
        "consumer_limit",
        "messages",
        "watched_from",
    )

    def __init__(self, dispatcher: Waking) -> None:
        self.messages = 0
        self.blocked = False
        """Whether dispatch stands still because there are too many, or because of its rate.

        It is one word because it is looked at for every entry."""
        self.consumer_limit = NO_LIMIT
        self.watched_from = NO_LIMIT
        """The number from which on ``update`` must be called."""
        self._dispatcher = dispatcher
        self._limit = NO_LIMIT
        self._over_limit = False
        self._held_for_broker = False
        self._held_for_rate = False
        self._broker: BrokerUnacked | None = None

    def set_limits(self, policies: TopicPolicies, broker: BrokerUnacked, *, durable: bool) -> None:
        """Note the limits, which are looked at for every entry. Readers have none."""
        per_consumer = policies.max_unacked_messages_per_consumer
        per_subscription = policies.max_unacked_messages_per_subscription
        self.consumer_limit = per_consumer if durable and per_consumer > 0 else NO_LIMIT
        self._limit = per_subscription if durable and per_subscription > 0 else NO_LIMIT
        self._broker = broker if durable and broker.limit else None
        self.watched_from = self._limit if self._broker is None else 0

    def release(self, consumer: Consumer, messages: int) -> None:
        """Messages are not pending at a consumer any more, who may get others for them."""
        consumer.unacked -= messages
        self.messages -= messages
        if consumer.blocked and consumer.unacked <= self.consumer_limit // 2:
            self._unblock(consumer)

    def release_wish(self, consumer: Consumer, messages: int) -> None:
        """It gave messages back to get them again, which must be possible below its limit."""
        self.release(consumer, messages)
        if consumer.blocked and consumer.unacked < self.consumer_limit:
            self._unblock(consumer)

    def _unblock(self, consumer: Consumer) -> None:
        consumer.blocked = False
        self._dispatcher.wake(consumer)

    def update(self) -> None:
        """See whether there are too many, or not any more."""
        if self.messages >= self._limit:
            self._over_limit = True
        elif self.messages <= self._limit // 2:
            self._over_limit = False
        if self._broker is not None:
            self._broker.report(self)
        self._decide()

    def hold_for_broker(self, held: bool) -> None:
        """All subscriptions together have too many, or not any more."""
        self._held_for_broker = held
        self._decide()

    def hold_for_rate(self, held: bool) -> None:
        """As many went out as may at this time, or more may now, which the caller sees to."""
        self._held_for_rate = held
        self.blocked = self.too_many or held

    @property
    def too_many(self) -> bool:
        """Whether a limit of unacknowledged messages is reached, its own or the broker's."""
        return self._over_limit or self._held_for_broker

    def _decide(self) -> None:
        blocked = self.too_many or self._held_for_rate
        if self.blocked and not blocked:
            self._dispatcher.schedule_pump()
        self.blocked = blocked
