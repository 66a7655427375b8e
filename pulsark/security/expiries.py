"""A histogram of how long clients' tokens are still valid when they log in. Pure."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

BOUNDS = (5, 10, 60, 240)
"""In minutes."""


class Expiries:
    """The tokens since the start."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.total_minutes = 0.0

    def add(self, left_ms: int) -> None:
        """Count a token with this remaining time."""
        minutes = left_ms / 60_000
        self._counts[bisect_left(BOUNDS, minutes)] += 1
        self.total_minutes += minutes

    @property
    def count(self) -> int:
        """The number of tokens."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, int]]:
        """The upper bound of each bucket, and the number of tokens below it."""
        bounds = [*map(str, BOUNDS), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))
