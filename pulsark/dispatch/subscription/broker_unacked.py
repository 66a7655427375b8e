"""The limit of unacknowledged messages of all subscriptions of a broker together.

When it is reached, subscriptions with much of it stand still, and others as soon as they have as
much: one whose consumers forget to acknowledge must not take all there is. Each goes on when it
is at half of that, and all do when the broker is at half of its limit.
"""

from __future__ import annotations

from typing import Protocol


class Limited(Protocol):
    """What is unacknowledged of a subscription."""

    messages: int
    """Messages that its consumers have and did not acknowledge."""

    def hold_for_broker(self, held: bool) -> None:
        """Stand still, or go on as far as the broker is concerned."""


class BrokerUnacked:
    """Counts for one broker. With ``limit`` 0 there is none, and nothing should be reported.

    ``share`` of the limit is what a single subscription may have once the limit was reached.
    """

    def __init__(self, limit: int, share: float) -> None:
        self.limit = limit
        self.total = 0
        self._most_of_one = int(limit * share)
        self._counts: dict[Limited, int] = {}
        self._reached = False
        self._held: dict[Limited, None] = {}

    def report(self, subscription: Limited) -> None:
        """The number of a subscription is another one than before."""
        count = subscription.messages
        self.total += count - self._counts.pop(subscription, 0)
        if count:
            self._counts[subscription] = count
        if not self._reached:
            if self.total >= self.limit:
                self._reached = True
                for one in [s for s, c in self._counts.items() if c > self._most_of_one]:
                    self._hold(one)
        elif self.total <= self.limit // 2:
            self._reached = False
            held, self._held = self._held, {}
            for one in held:
                one.hold_for_broker(False)
        elif count > self._most_of_one:
            self._hold(subscription)
        elif subscription in self._held and count <= self._most_of_one // 2:
            del self._held[subscription]
            subscription.hold_for_broker(False)

    def _hold(self, subscription: Limited) -> None:
        if subscription not in self._held:
            self._held[subscription] = None
            subscription.hold_for_broker(True)
