"""When to look for garbage that refers to itself in a circle, and for how long.

Counting references frees what clients leave behind. What remains are topics that were unloaded and
the like: few and old, so they are looked for only once memory has grown, and while nobody waits:
a search holds the event loop for as long as it takes to look at every object, half a microsecond
each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pulsark.dispatch.loop_load import LoopLoad
from pulsark.runtime import Clock

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
GROWTH_BYTES = 256 << 20
"""Memory may have grown by so much since the last search before a quiet moment is used for one."""
URGENT_GROWTH_BYTES = 1 << 30
"""From then on a busy moment will do."""


class Garbage:
    """Watches the memory of the process."""

    def __init__(
        self,
        clock: Clock,
        load: LoopLoad,
        resident_bytes: Callable[[], int],
        collect: Callable[[], None],
    ) -> None:
        self._now = clock.monotonic
        self._load = load
        self._resident_bytes = resident_bytes
        self._collect = collect
        self._before = resident_bytes()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look every few seconds from now on."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.start()
        busy = self._load.is_busy()
        resident = self._resident_bytes()
        # What has become free is room for the same again.
        self._before = min(self._before, resident)
        grown = resident - self._before
        if grown >= (URGENT_GROWTH_BYTES if busy else GROWTH_BYTES):
            began = self._now()
            self._collect()
            self._before = self._resident_bytes()
            log.info(
                "memory had grown by %d MiB: looked for garbage for %.0f ms, %d MiB are free",
                grown >> 20,
                1000 * (self._now() - began),
                max(0, resident - self._before) >> 20,
            )
