"""When to collect reference cycles, and for how long.

Reference counting frees what clients leave behind. Unloaded topics and the like remain: few and
old, so a collection runs only after memory has grown, and while no client waits: it blocks the
event loop for half a microsecond per object.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.loop.load import LoopLoad

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
GROWTH_BYTES = 256 << 20
"""Growth of memory since the last collection after which a quiet moment is used for one."""
URGENT_GROWTH_BYTES = 1 << 30
"""From then on a busy moment will do."""
PAUSE_SECONDS_MAX = 5.0
"""What takes longer, by what the last collection took for each object, is not begun: a process that
stands still for 12 s is killed by its supervisor, and much of what makes it long is of use."""


class Garbage:
    """Watches the memory of the process."""

    def __init__(
        self,
        cpu_seconds: Callable[[], float],
        load: LoopLoad,
        resident_bytes: Callable[[], int],
        collect: Callable[[], None],
        objects: Callable[[], int],
    ) -> None:
        """``cpu_seconds`` is the processor time of the calling thread.

        That of the clock would count what it waited, or how long the machine stood still. It might
        seem then to take very long, and would never be measured again. ``objects``: about how many
        there are, of which messages are few.
        """
        self._cpu_seconds = cpu_seconds
        self._load = load
        self._resident_bytes = resident_bytes
        self._collect = collect
        self._objects = objects
        self._before = resident_bytes()
        self._seconds_per_object = 0.0
        """Of all that there were at the last collection."""
        self._told = False
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
        if grown < (URGENT_GROWTH_BYTES if busy else GROWTH_BYTES):
            return
        objects = self._objects()
        expected = self._seconds_per_object * objects
        if expected > PAUSE_SECONDS_MAX:
            if not self._told:
                log.warning(
                    "memory has grown by %d MiB to %d MiB; to look for garbage would stop this "
                    "broker for about %.0f s, so it does not. If memory grows without more topics "
                    "or clients, restart it in a quiet hour",
                    grown >> 20, resident >> 20, expected,
                )  # fmt: skip
            self._told = True
            return
        began = self._cpu_seconds()
        self._collect()
        seconds = self._cpu_seconds() - began
        self._before = self._resident_bytes()
        self._seconds_per_object, self._told = seconds / max(1, objects), False
        log.info(
            "memory had grown by %d MiB: collected garbage for %.0f ms, which freed %d MiB",
            grown >> 20,
            1000 * seconds,
            max(0, resident - self._before) >> 20,
        )
