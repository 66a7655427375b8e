"""What this broker tells the others of its load, now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.brokers.load import BundleLoad, LoadReport, busiest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.brokers.registry import BrokerRegistry
    from pulsark.dispatch.stats.bundle_loads import BundleLoads
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
        bundle_loads: BundleLoads,
        bundles_told: int,
    ) -> None:
        """``bundles_told``: the number of bundles whose load it reports."""
        self._clock = clock
        self._registry = registry
        self._ownership = ownership
        self._topics = topics
        self._bundle_loads = bundle_loads
        self._bundles_told = bundles_told
        self.cpu_seconds: Callable[[], float] = lambda: 0.0
        """The processor time of the event loop's thread; set by the process whose loop it is."""
        self._at, self._used = clock.monotonic(), 0.0
        self._utilisation = 0.0
        self._reports = 0
        self._sum = BundleLoad()
        self._busiest: tuple[tuple[str, float], ...] = ()

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
            await self._measure()
        self._reports += 1
        report = LoadReport(
            self._utilisation,
            len(self._ownership.owned()),
            len(self._topics.served()),
            self._sum.messages_in,
            self._sum.messages_out,
            self._sum.bytes_in,
            self._sum.bytes_out,
            self._busiest,
        )
        if report.differs_from(own.load):
            await self._registry.report(report)

    async def _measure(self) -> None:
        await self._bundle_loads.measure()
        loads = self._bundle_loads.loads
        self._sum = BundleLoad()
        for load in loads.values():
            self._sum = self._sum.plus(load)
        self._busiest = busiest(loads, self._utilisation, self._bundles_told)
