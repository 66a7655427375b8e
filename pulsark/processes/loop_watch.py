"""Ends a process whose event loop is blocked, although its metadata session lives on.

The client of ZooKeeper gives signs of life in a thread of its own. While the loop is blocked, they
keep the session and the bundles for a process that serves nobody. Where a supervisor misses the
beats of a child it does this; a broker of a cluster has none, perhaps.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

BEAT_SECONDS: Final = 1.0

EXIT_CODE: Final = 1

_LAST_WORDS_SECONDS: Final = 2
"""What keeps the loop may be that nobody reads what is logged."""


def end_process() -> None:
    """Say where each thread is, and end without a word to anybody else."""
    signal.alarm(_LAST_WORDS_SECONDS)
    os.write(2, b"the event loop is blocked: this process ends, so that others can go on\n")
    faulthandler.dump_traceback()
    os._exit(EXIT_CODE)


class LoopWatch:
    """Of the running loop, from ``start`` to ``close``."""

    def __init__(self, seconds: float, end: Callable[[], None] = end_process) -> None:
        """``seconds``: how long the loop may not turn.

        Beats are counted, so a process or machine that was paused has all of them left.
        """
        self._beats_max = max(1, round(seconds / BEAT_SECONDS))
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._turned = False
        self._missed = 0
        self._closed = threading.Event()

    def start(self) -> None:
        """Watch from now on."""
        self._beat()
        threading.Thread(target=self._run, name="loop-watch", daemon=True).start()

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Once a beat, in the thread."""
        self._missed = 0 if self._turned else self._missed + 1
        self._turned = False
        if self._missed > self._beats_max:
            self._closed.set()
            self._end()

    def _beat(self) -> None:
        self._turned = True
        self._timer = self._loop.call_later(BEAT_SECONDS / 2, self._beat)

    def _run(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            self.look()
