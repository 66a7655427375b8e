"""A clock that goes on by a bit whenever it is read, so that time budgets can be counted."""

from __future__ import annotations


class TickingClock:
    """Each question takes ``seconds``; nothing else takes any time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._now = 0.0

    def now_ms(self) -> int:
        return int(self._now * 1000)

    def monotonic(self) -> float:
        self._now += self._seconds
        return self._now
