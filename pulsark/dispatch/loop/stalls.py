"""How long the event loop is blocked: sampled, at no cost for its work.

A timer that is due ten times a second is late by the rest of the turn in which it was due. So a
turn is sampled in proportion to its length, and one of 0.1 s always.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.durations import Durations
from pulsark.limits import STALL_LOGGED_SECONDS

if TYPE_CHECKING:
    from pulsark.dispatch.loop.run_queue import RunQueue
    from pulsark.runtime import Clock

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.1
BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
QUIET_SECONDS = 60.0
"""Between two lines in the log."""


class LoopStalls(Durations):
    """Stalls of one event loop since it was started."""

    def __init__(self, clock: Clock, run_queue: RunQueue) -> None:
        super().__init__(BUCKETS_SECONDS)
        self._now = clock.monotonic
        self._run_queue = run_queue
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._logged_at = -QUIET_SECONDS
        self.longest_seconds = 0.0
        """Since ``take_longest`` was called last."""

    def take_longest(self) -> float:
        """The longest one since the last call."""
        longest, self.longest_seconds = self.longest_seconds, 0.0
        return longest

    def start(self) -> None:
        """Begin to measure."""
        self._due = self._now() + BEAT_SECONDS
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def close(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self.measured(max(self._now() - self._due, 0.0))
        self.start()

    def measured(self, seconds: float) -> None:
        """Record that the loop was blocked for this time."""
        self.add(seconds)
        self.longest_seconds = max(self.longest_seconds, seconds)
        step = self._run_queue.take_longest()
        now = self._now()
        if seconds >= STALL_LOGGED_SECONDS and now - self._logged_at >= QUIET_SECONDS:
            self._logged_at = now
            known = "" if step is None else f"; its longest known step: {step.name}"
            log.warning(
                "all clients waited %.2f s for the event loop, because of other work of this "
                "machine or a step that was too long%s",
                seconds,
                known,
            )
