"""How long a rate has held connections back. Pure.

A client that publishes above a rate is held for a few milliseconds, again and again. So short
breaks are ignored: the time ends when no connection has been held for a while.
"""

from __future__ import annotations

from pulsark.rates.limits import LASTING_THROTTLE_SECONDS, LASTING_THROTTLE_TOLD_SECONDS

_BREAK_SECONDS = 1.0


class Holding:
    """The time of one rate. ``now`` is from one monotonic clock."""

    __slots__ = ("_ended", "_since", "_told_next")

    def __init__(self) -> None:
        self._since = self._told_next = 0.0
        self._ended: float | None = None

    def begin(self, now: float) -> None:
        """The first connection is held."""
        if self._ended is None or now - self._ended > _BREAK_SECONDS:
            self._since = now

    def end(self, now: float) -> None:
        """The last held connection goes on."""
        self._ended = now

    def lasting(self, now: float) -> float | None:
        """How long connections have been held, if that is long and was not reported lately."""
        seconds = now - self._since
        if seconds < LASTING_THROTTLE_SECONDS or now < self._told_next:
            return None
        self._told_next = now + LASTING_THROTTLE_TOLD_SECONDS
        return seconds
