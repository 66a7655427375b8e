"""A histogram in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def histogram(
    name: str, label: str, buckets: Iterable[tuple[str, int]], total: float, count: int
) -> str:
    """Its lines. ``buckets`` are the upper edges and how many are not above each."""
    return "".join(
        [
            f"# TYPE {name} histogram\n",
            *(f'{name}_bucket{{{label},le="{edge}"}} {found}\n' for edge, found in buckets),
            f"{name}_sum{{{label}}} {total!r}\n",
            f"{name}_count{{{label}}} {count}\n",
        ]
    )
