"""What a broker counts of its bundles, for ``/metrics``. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pulsark.dispatch.loop.durations import Durations

BUCKETS_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)

Reason = Literal["unload", "move", "split", "stop", "another broker", "session"]
"""Why a bundle has left. The last two: by no intent."""


class BundleCounts:
    """Those of one broker since it was started."""

    def __init__(self) -> None:
        self.claims = 0
        self.refused_claims = 0
        """Claims that failed: another broker has the bundle, or the store did not answer."""
        self.left: Counter[Reason] = Counter()
        self.moves = Durations(BUCKETS_SECONDS)
        """Of moves and splits: for how long nobody served a bundle, until clients were told."""
