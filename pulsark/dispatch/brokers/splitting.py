"""Where to cut a bundle in two or more. Pure.

A bundle has the hashes from ``low`` up to ``high``; edges are strictly inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    Algorithm = Callable[[int, int, Collection[int], Sequence[int]], list[int]]

POSITIONS_MAX = 16
"""So many edges may be asked for at once: each is a bundle more, and all are one commit."""


def in_the_middle(
    low: int, high: int, topics: Collection[int], positions: Sequence[int]
) -> list[int]:
    """Two ranges of the same width."""
    return _inside(low, high, ((low + high) // 2,))


def by_topics(low: int, high: int, topics: Collection[int], positions: Sequence[int]) -> list[int]:
    """Two ranges with as many topics each; ``topics`` are their hashes."""
    found = sorted(topics)
    if len(found) < 2:
        return []
    half = len(found) // 2
    return _inside(low, high, ((found[half - 1] + found[half] + 1) // 2,))


def at_positions(
    low: int, high: int, topics: Collection[int], positions: Sequence[int]
) -> list[int]:
    """Where somebody wants it; what is outside is left out."""
    return _inside(low, high, positions)


ALGORITHMS: dict[str, Algorithm] = {
    "range_equally_divide": in_the_middle,
    "topic_count_equally_divide": by_topics,
    "specified_positions_divide": at_positions,
}
"""By Pulsar's names."""


def _inside(low: int, high: int, edges: Sequence[int]) -> list[int]:
    return sorted({edge for edge in edges if low < edge < high})
