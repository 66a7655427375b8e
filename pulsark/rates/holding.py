"""For how long a rate holds somebody back, whoever that is. Pure.

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
        """Somebody is held, and nobody was."""
        if self._ended is None or now - self._ended > _BREAK_SECONDS:
            self._since = now

    def end(self, now: float) -> None:
        """Nobody is held any more."""
        self._ended = now

    def lasting(self, now: float) -> float | None:
        """Seconds since when somebody is held, if that is long and was not told just now."""
        seconds = now - self._since
        if seconds < LASTING_THROTTLE_SECONDS or now < self._told_next:
            return None
        self._told_next = now + LASTING_THROTTLE_TOLD_SECONDS
        return seconds
