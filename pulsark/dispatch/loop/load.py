"""Whether clients keep the broker busy, so that deferrable work should wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.runtime import Clock

BUSY_SHARE = 0.5
"""The share of time above which the event loop's thread counts as busy."""

QUIET_SECONDS = 15.0
"""Time for which it must not have been busy. Load comes in bursts."""


class LoopLoad:
    """Asked every few seconds, on the event loop's thread."""

    def __init__(self, clock: Clock, cpu_seconds: Callable[[], float]) -> None:
        """``cpu_seconds`` is the processor time of the calling thread, with what it waited for."""
        self._clock = clock
        self._cpu_seconds = cpu_seconds
        self._at, self._used = clock.monotonic(), cpu_seconds()
        self._quiet_from = 0.0

    def is_busy(self) -> bool:
        """Whether the thread was busy since the last question, or shortly before."""
        now, used = self._clock.monotonic(), self._cpu_seconds()
        elapsed, spent = now - self._at, used - self._used
        self._at, self._used = now, used
        if spent > BUSY_SHARE * elapsed:
            self._quiet_from = now + QUIET_SECONDS
        return now < self._quiet_from


def waited_seconds() -> float:
    """Time for which the calling thread waited for a processor; 0 where the system does not tell.

    A thread that wants one all the time, and shares it, is busy, however little it gets.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb") as schedstat:
            return int(schedstat.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
