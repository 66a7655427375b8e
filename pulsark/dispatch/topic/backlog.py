"""What the subscriptions of a topic have not acknowledged: how much, how old, and its limits.

Only durable subscriptions of clients have a backlog. The one that is furthest behind decides its
size and its age. Where messages are taken away, who is furthest behind loses them first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ProtocolError, ServerError
from pulsark.storage.cursor.owners import CursorOwner, check_owner, is_system_cursor
from pulsark.wire.entry import parse_entry

if TYPE_CHECKING:
    from pulsark.dispatch.policies.policies import BacklogQuota, TopicPolicies
    from pulsark.dispatch.subscription.subscription import Subscription
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.wire.position import Position

HOLD, EXCEPTION, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
EVICTED_TO = 0.9
"""Eviction takes a backlog down to this part of its limit, so that it has not to be repeated
with the next message."""

_REFUSALS = {
    HOLD: ServerError.ProducerBlockedQuotaExceededError,
    EXCEPTION: ServerError.ProducerBlockedQuotaExceededException,
}


@dataclass(frozen=True, slots=True)
class Oldest:
    """The first entry that a subscription has not acknowledged, and when it was published."""

    subscription: Subscription
    position: Position
    published_ms: int


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A quota that a backlog is over; ``by_age`` tells the kinds apart."""

    quota: BacklogQuota
    by_age: bool


def exceeded(policies: TopicPolicies, size: int, age_s: float) -> Exceeded | None:
    """The quota that a backlog of this size (bytes) and age (seconds) is over. Pure.

    Limits of size are from 0 on, limits of age above it; others are none.
    """
    if 0 <= policies.backlog_by_size.limit <= size:
        return Exceeded(policies.backlog_by_size, by_age=False)
    if 0 < policies.backlog_by_age.limit < age_s:
        return Exceeded(policies.backlog_by_age, by_age=True)
    return None


class Backlog:
    """The backlog of one topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._published: tuple[Position, int] | None = None
        """When the entry at a position was published: the oldest one is asked for again."""

    @property
    def subscriptions(self) -> list[Subscription]:
        """Subscriptions that keep messages for clients."""
        return [
            subscription
            for name, subscription in self._topic.subscriptions.items()
            if subscription.durable and not is_system_cursor(name)
        ]

    @property
    def slowest(self) -> Subscription | None:
        """The subscription that is furthest behind, if there is any."""
        return min(self.subscriptions, key=lambda s: s.mark_delete, default=None)

    @property
    def size(self) -> int:
        """Bytes behind the subscription that is furthest behind."""
        slowest = self.slowest
        return 0 if slowest is None else slowest.backlog_size

    async def oldest(self) -> Oldest | None:
        """The oldest entry of the backlog; ``None`` if there is none. ``StorageError``."""
        slowest = self.slowest
        return None if slowest is None else await self.oldest_of(slowest)

    @property
    def known_oldest(self) -> Oldest | None:
        """The oldest entry, if that is the one that was looked at last."""
        slowest = self.slowest
        if slowest is None or self._published is None:
            return None
        position = self._topic.ledger.next_position(slowest.mark_delete)
        return Oldest(slowest, *self._published) if self._published[0] == position else None

    async def oldest_of(self, subscription: Subscription) -> Oldest | None:
        """The oldest entry that one subscription has not acknowledged."""
        position = self._topic.ledger.next_position(subscription.mark_delete)
        if position > self._topic.ledger.last_confirmed:
            return None
        if self._published is not None and self._published[0] == position:
            return Oldest(subscription, *self._published)
        entries = await self._topic.entries.read(position, 1, 1)
        if not entries:
            return None
        first = entries[0]
        try:
            published_ms = parse_entry(first.data).publish_time
        except ProtocolError:
            return None  # its age is unknown
        self._published = (first.position, published_ms)
        return Oldest(subscription, first.position, published_ms)

    def expire(self) -> None:
        """Let what is older than the policy allows count as acknowledged."""
        seconds = self._topic.policies.message_ttl_seconds
        if seconds > 0:
            self.expire_older_than(seconds, self.subscriptions)

    def expire_older_than(self, seconds: float, subscriptions: list[Subscription]) -> bool:
        """Expire entries that have been here for longer; whether any subscription had some.

        What clients say of the time at which they published does not matter: a wrong clock would
        take away messages that others sent a moment ago.
        """
        for subscription in subscriptions:
            check_owner(subscription.name, CursorOwner.CLIENTS)
        through = self._topic.arrivals.older_than(seconds)
        behind = [s for s in subscriptions if s.mark_delete < through]
        for subscription in behind:
            subscription.acks.expire(through)
        return bool(behind)

    def exceeded(self) -> Exceeded | None:
        """The quota that the backlog is over now, if it is over one."""
        policies = self._topic.policies
        size, age_s = 0, 0.0
        if policies.backlog_by_size.limit >= 0:
            size = self.size
        if policies.backlog_by_age.limit > 0:
            slowest = self.slowest
            if slowest is not None:
                first = self._topic.ledger.next_position(slowest.mark_delete)
                if first <= self._topic.ledger.last_confirmed:
                    age_s = self._topic.arrivals.age(first)
        return exceeded(policies, size, age_s)

    def check_admission(self) -> None:
        """Raise the error with which a producer is refused while the backlog is too large."""
        over = self.exceeded()
        code = None if over is None else _REFUSALS.get(over.quota.action)
        if code is not None:
            raise ClientError(code, "Cannot create producer on topic with backlog quota exceeded")

    async def enforce(self) -> None:
        """Do what the policy says about a backlog that is too large."""
        await self.oldest()  # for the statistics
        over = self.exceeded()
        if over is None:
            return
        if over.quota.action in _REFUSALS:
            # They connect anew, and are refused until subscriptions have caught up.
            for producer in list(self._topic.producers.values()):
                producer.connection.close_producer(producer)
        elif over.by_age:
            self._evict(self._topic.arrivals.older_than(over.quota.limit * EVICTED_TO))
        else:
            self._evict(self._topic.ledger.position_leaving(int(over.quota.limit * EVICTED_TO)))

    def _evict(self, through: Position) -> None:
        for subscription in self.subscriptions:
            subscription.acks.pass_over(through)
