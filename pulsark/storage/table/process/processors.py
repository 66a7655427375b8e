"""Whether the processors have time to spare."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.runtime import Clock

LOOK_SECONDS, LOOK_SECONDS_MAX = 0.25, 1.0
"""Of the time between two looks, for which it is seen what they had to do."""

WAIT_SECONDS_MAX = 5.0
"""So long a burst of clients has all of them."""

HURRY_SECONDS = 60.0
"""After a longer one, nobody waits for this time."""

STAT = "/proc/stat"


def idle_seconds() -> float | None:
    """Seconds for which this machine's processors had nothing to do so far, added up.

    ``None`` where the system does not say: there is no such file, or a sandbox has put zeros there.
    """
    try:
        with open(STAT, "rb") as file:
            _, _, _, _, idle, waiting, *_ = file.readline().split()
            return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK") or None
    except (OSError, ValueError):
        return None


def cpu_seconds(pid: int) -> float | None:
    """Return the seconds of a processor that a process has had, or None if the system hides it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # What precedes may contain spaces: the name of the program, in parentheses.
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


class Processors:
    """Work that may be late waits here while clients keep the processors busy.

    The kernel puts such work behind what else is in its session only (see decision 013). Bookies,
    and brokers of other services, are in other sessions.
    """

    def __init__(self, clock: Clock, idle: Callable[[], float | None] = idle_seconds) -> None:
        self._clock = clock
        self._idle = idle
        self._needed = min(1.0, (os.cpu_count() or 1) / 2)
        """Processors that have to be idle."""
        self._seen_at, self._seen = float("-inf"), 0.0
        self._spare = False
        self._hurry_until = float("-inf")

    async def spare(self) -> None:
        """Return once they have time, or after ``WAIT_SECONDS_MAX``."""
        now = self._clock.monotonic()
        if now < self._hurry_until:
            return
        limit = now + WAIT_SECONDS_MAX
        while not await self._have_time():
            if self._clock.monotonic() >= limit:
                self._hurry_until = limit + HURRY_SECONDS
                return

    async def _have_time(self) -> bool:
        """Whether they had in the last look, which is taken if there was none just now."""
        age = self._clock.monotonic() - self._seen_at
        if age >= LOOK_SECONDS:
            idle, now = self._idle(), self._clock.monotonic()
            if idle is None:
                return True
            age = now - self._seen_at
            known = age <= LOOK_SECONDS_MAX
            self._spare = known and idle - self._seen >= self._needed * age
            self._seen_at, self._seen = now, idle
            if known:
                return self._spare
        if not self._spare:
            await asyncio.sleep(LOOK_SECONDS)
        return self._spare
