"""What a broker counts of its bundles, for ``/metrics``. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKETS_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)

Reason = Literal["unload", "move", "split", "stop", "another broker", "session"]
"""Why a bundle has left. The last two: by no intent."""


class Durations:
    """A histogram, as Prometheus has it."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self.total_seconds = 0.0

    def add(self, seconds: float) -> None:
        """Something took so long."""
        self._counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.total_seconds += seconds

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self._counts)

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Upper bounds in seconds, and how many were not above."""
        so_far = 0
        for bound, count in zip((*map(str, BUCKETS_SECONDS), "+Inf"), self._counts, strict=True):
            so_far += count
            yield bound, so_far


class BundleCounts:
    """Those of one broker since it was started."""

    def __init__(self) -> None:
        self.claims = 0
        self.refused_claims = 0
        """Claims that failed: another broker has the bundle, or the store did not answer."""
        self.left: Counter[Reason] = Counter()
        self.moves = Durations()
        """Of moves and splits: for how long nobody served a bundle, until clients were told."""
