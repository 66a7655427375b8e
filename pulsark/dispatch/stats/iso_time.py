"""Times as Pulsar's documents show them."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_time(ms: int) -> str:
    """Epoch milliseconds as ISO-8601 in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
