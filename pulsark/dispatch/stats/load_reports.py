"""What this broker tells the others of its load, now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.brokers.load import LoadReport
from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.stats.rates import Counters

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.brokers.registry import BrokerRegistry
    from pulsark.dispatch.stats.rates import Rates
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.runtime import Clock

REPORT_SECONDS = 5.0
RATES_EACH = 12
"""All topics are gone through at each twelfth report only."""
HISTORY_PART = 0.9
"""What the past weighs in the utilisation (Pulsar's ``loadBalancerHistoryResourcePercentage``).

Bundles stay where they were placed, so a broker that has just started, or sealed, is not avoided
for the few seconds that this takes.
"""


class LoadReports:
    """A broker that is alone tells nobody, and counts nothing."""

    def __init__(
        self,
        clock: Clock,
        registry: BrokerRegistry,
        ownership: Ownership,
        topics: Topics,
        rates: Rates,
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._ownership = ownership
        self._topics = topics
        self._rates = rates
        self.cpu_seconds: Callable[[], float] = lambda: 0.0
        """The processor time of the event loop's thread; set by the process whose loop it is."""
        self._at, self._used = clock.monotonic(), 0.0
        self._utilisation = 0.0
        self._reports = 0
        self._in = self._out = Counters()

    async def report(self) -> None:
        """Tell what has changed, if others should hear of it."""
        now, used = self._clock.monotonic(), self.cpu_seconds()
        elapsed, spent = now - self._at, used - self._used
        self._at, self._used = now, used
        busy = min(spent / elapsed, 1.0) if elapsed > 0 else 0.0
        self._utilisation += (1 - HISTORY_PART) * (busy - self._utilisation)
        own = self._registry.own
        if own is None or self._registry.is_alone:
            return
        if self._reports % RATES_EACH == 0:
            await self._add_rates()
        self._reports += 1
        report = LoadReport(
            self._utilisation,
            len(self._ownership.owned()),
            len(self._topics.served()),
            self._in.messages,
            self._out.messages,
            self._in.bytes,
            self._out.bytes,
        )
        if report.differs_from(own.load):
            await self._registry.report(report)

    async def _add_rates(self) -> None:
        found_in = found_out = Counters()
        async for topic in in_turns(self._topics.served()):
            found_in = _sum(found_in, self._rates.topic_in(topic))
            for subscription in list(topic.subscriptions.values()):
                found_out = _sum(found_out, self._rates.subscription(subscription))
        self._in, self._out = found_in, found_out


def _sum(one: Counters, other: Counters) -> Counters:
    return Counters(*(a + b for a, b in zip(one, other, strict=True)))
