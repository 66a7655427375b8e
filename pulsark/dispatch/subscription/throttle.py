"""How a subscription keeps to the dispatch rates that hold for it.

There is none where no rate is set. Else it stands between the dispatcher and what is delivered:
it counts, and stops the dispatcher when a rate is used up. Then it waits for that rate. What it
counts is what goes out, whether for the first time or again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.model.subscription_stats import Level
from pulsark.dispatch.subscription.dispatch_limit import DispatchLimit, limit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.subscription_stats import ExcessKind
    from pulsark.dispatch.policies.policies import DispatchRate
    from pulsark.dispatch.subscription.stored_topic import StoredTopic
    from pulsark.dispatch.subscription.unacked import Unacked

    Deliver = Callable[[Consumer, Entry, int, list[int] | None], None]

CAUGHT_UP_ENTRIES = 1000
"""So close to its topic's end a subscription counts as caught up, as in Pulsar."""


class Pumping(Protocol):
    """The dispatcher, as far as it matters here."""

    unacked: Unacked

    def pump(self) -> None:
        """Send what can be sent now."""

    def schedule_pump(self) -> None:
        """Do so when its turn comes."""


class DispatchThrottle:
    """The throttle of one subscription."""

    __slots__ = (
        "_counts_entries",
        "_deliver",
        "_dispatcher",
        "_free_at_end",
        "_limits",
        "_own",
        "_topic",
        "_waits_for",
        "events",
    )

    def __init__(self, dispatcher: Pumping, topic: StoredTopic, deliver: Deliver) -> None:
        self.events: Counter[tuple[ExcessKind, Level]] = Counter()
        """How often each rate stopped the subscription."""
        settings = topic.settings
        self._counts_entries = settings.dispatchThrottlingOnBatchMessageEnabled
        self._free_at_end = not settings.dispatchThrottlingOnNonBacklogConsumerEnabled
        self._dispatcher = dispatcher
        self._topic = topic
        self._deliver = deliver
        self._own: DispatchLimit | None = None
        self._limits: Sequence[DispatchLimit] = ()
        self._waits_for: DispatchLimit | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is any rate to keep to."""
        return bool(self._limits)

    def set_rates(self, own: DispatchRate, shared: Sequence[DispatchLimit]) -> None:
        """Keep to these from now on: one of its own, and those it shares with others."""
        self._own = limit_of(self._topic, own, Level.SUBSCRIPTION, self._own)
        self._limits = [*([] if self._own is None else [self._own]), *shared]
        if self._waits_for is not None and self._waits_for not in self._limits:
            self._waits_for.leave(self)
            if self._is_free():
                self._dispatcher.schedule_pump()

    def deliver(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: list[int] | None
    ) -> None:
        """Deliver, and stop the dispatcher if that was the last that a rate allows."""
        before = consumer.messages_out
        self._deliver(consumer, entry, redeliveries, ack_set)
        if self._free_at_end and self._is_caught_up(entry):
            return
        messages = 1 if self._counts_entries else consumer.messages_out - before
        now = self._topic.clock.monotonic()
        for limit in self._limits:
            short = limit.take(messages, len(entry.data), now)
            if short is not None and self._waits_for is None:
                self.events[short, limit.level] += 1
                self._wait_for(limit)

    def _is_caught_up(self, entry: Entry) -> bool:
        end = self._topic.ledger.last_confirmed
        same_ledger = entry.ledger_id == end.ledger_id
        return same_ledger and end.entry_id - entry.entry_id < CAUGHT_UP_ENTRIES

    def _wait_for(self, limit: DispatchLimit) -> None:
        self._waits_for = limit
        self._dispatcher.unacked.hold_for_rate(True)
        limit.wait(self)

    def go_on(self) -> None:
        """What it waited for has tokens."""
        if self._is_free():
            self._dispatcher.pump()

    def _is_free(self) -> bool:
        """Wait no longer, unless for another one."""
        self._waits_for = None
        for limit in self._limits:
            if limit.is_short():
                self._wait_for(limit)
                return False
        self._dispatcher.unacked.hold_for_rate(False)
        return True

    def close(self) -> None:
        """The subscription is gone: nobody waits for it."""
        if self._waits_for is not None:
            self._waits_for.leave(self)
        self._limits = ()
