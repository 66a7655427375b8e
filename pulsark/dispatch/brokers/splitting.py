"""Which bundle to split, and where to cut it. Pure.

A bundle has the hashes from ``low`` up to ``high``; new edges are strictly inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pulsark.config.settings import Settings
    from pulsark.dispatch.brokers.load import BundleLoad

    Hashed = Collection[tuple[int, float]]
    Algorithm = Callable[[int, int, Hashed, Sequence[int]], list[int]]

POSITIONS_MAX = 16
"""The most edges of one request: each adds a bundle, and all are one commit."""


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """Limits of a bundle and of a namespace. 0 is no limit."""

    topics: int = 1000
    sessions: int = 1000
    messages: float = 30_000
    """Per second, as bytes."""
    bytes: float = 100 << 20
    bundles: int = 128
    """The most bundles of a namespace."""

    @classmethod
    def from_settings(cls, settings: Settings) -> SplitLimits:
        """The current limits; some are dynamic settings."""
        return cls(
            settings.loadBalancerNamespaceBundleMaxTopics,
            settings.loadBalancerNamespaceBundleMaxSessions,
            settings.loadBalancerNamespaceBundleMaxMsgRate,
            settings.loadBalancerNamespaceBundleMaxBandwidthMbytes << 20,
            settings.loadBalancerNamespaceMaximumBundles,
        )

    def excess(self, load: BundleLoad) -> float:
        """The largest ratio of a bundle's load to a limit; up to 1, no limit is exceeded."""
        figures = (
            (load.topics, self.topics),
            (load.sessions, self.sessions),
            (load.messages, self.messages),
            (load.bytes, self.bytes),
        )
        return max((figure / limit for figure, limit in figures if limit), default=0.0)


def to_split(
    loads: Mapping[str, BundleLoad], bundles: Mapping[str, int], limits: SplitLimits
) -> str | None:
    """The bundle that needs a split most; ``None`` if none does.

    ``bundles``: the number of bundles of each namespace. A bundle with one topic cannot be split.
    """
    found = {
        bundle: limits.excess(load)
        for bundle, load in loads.items()
        if load.topics > 1 and bundles.get(bundle.rpartition("/")[0], 0) < limits.bundles
    }
    worst = max(found, key=lambda bundle: (found[bundle], bundle), default=None)
    return worst if worst is not None and found[worst] > 1 else None


def in_the_middle(low: int, high: int, topics: Hashed, positions: Sequence[int]) -> list[int]:
    """Cut into two ranges of the same width."""
    return _inside(low, high, ((low + high) // 2,))


def by_topics(low: int, high: int, topics: Hashed, positions: Sequence[int]) -> list[int]:
    """Cut into two ranges with equally many topics; ``topics``: their hashes and weights."""
    return by_load(low, high, [(place, 1.0) for place, _ in topics], positions)


def by_load(low: int, high: int, topics: Hashed, positions: Sequence[int]) -> list[int]:
    """Cut into two ranges with equal load; no edge if the load is that of one topic, or none."""
    found = sorted(topics)
    total = sum(weight for _, weight in found)
    before, best = 0.0, total
    edges: tuple[int, ...] = ()
    for (place, weight), (after, _) in pairwise(found):
        before += weight
        uneven = abs(total - 2 * before)
        if place < after and uneven < best:
            best, edges = uneven, ((place + after + 1) // 2,)
    return _inside(low, high, edges)


def at_positions(low: int, high: int, topics: Hashed, positions: Sequence[int]) -> list[int]:
    """Cut at the given positions; those outside the bundle are ignored."""
    return _inside(low, high, positions)


ALGORITHMS: dict[str, Algorithm] = {
    "range_equally_divide": in_the_middle,
    "topic_count_equally_divide": by_topics,
    "specified_positions_divide": at_positions,
    "flow_or_qps_equally_divide": by_load,
}
"""By Pulsar's names."""


def _inside(low: int, high: int, edges: Sequence[int]) -> list[int]:
    return sorted({edge for edge in edges if low < edge < high})
