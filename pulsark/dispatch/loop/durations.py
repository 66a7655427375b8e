"""How long things took, counted for ``/metrics``. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Durations:
    """A histogram, as Prometheus has it."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """``bounds``: the upper ones of its buckets, in seconds and ascending."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total_seconds = 0.0

    def add(self, seconds: float) -> None:
        """Something took so long."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.total_seconds += seconds

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self._counts)

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Upper bounds in seconds, and how many were not above."""
        so_far = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            so_far += count
            yield bound, so_far
