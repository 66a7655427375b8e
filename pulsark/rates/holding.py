"""For how long a rate has held connections back. Pure.

Who publishes above a rate is held for some milliseconds again and again. So short breaks do not
count: it lasts until nobody was held for a while.
"""

from __future__ import annotations

from pulsark.rates.limits import LASTING_THROTTLE_SECONDS, LASTING_THROTTLE_TOLD_SECONDS

_BREAK_SECONDS = 1.0


class Holding:
    """That of one rate. ``now`` is of one monotonic clock."""

    __slots__ = ("_ended", "_since", "_told_next")

    def __init__(self) -> None:
        self._since = self._told_next = 0.0
        self._ended: float | None = None

    def begin(self, now: float) -> None:
        """A connection is held, and none was before."""
        if self._ended is None or now - self._ended > _BREAK_SECONDS:
            self._since = now

    def end(self, now: float) -> None:
        """No connection is held any more."""
        self._ended = now

    def lasting(self, now: float) -> float | None:
        """Seconds for which connections were held, if that is long and not reported lately."""
        seconds = now - self._since
        if seconds < LASTING_THROTTLE_SECONDS or now < self._told_next:
            return None
        self._told_next = now + LASTING_THROTTLE_TOLD_SECONDS
        return seconds
