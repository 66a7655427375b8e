"""Ends a process whose event loop is blocked, although its metadata session lives on.

The client of ZooKeeper gives signs of life in a thread of its own. While the loop is blocked, they
keep the session and the bundles for a process that serves nobody. Where a supervisor misses the
beats of a child it does this; a broker of a cluster has none, perhaps. A loop that is late because
it has much to do is not blocked.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

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


class LoopProgress:
    """Tells another thread whether an event loop gets on: it turns, or it completes callbacks.

    A turn of a busy loop may take long although each of its callbacks is short. A loop is stuck if
    the same callback runs at each look. The outermost frame of a callback tells it from others.
    """

    def __init__(self) -> None:
        """Watch the running loop, on its thread."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._turns = self._turns_seen = 0
        self._depth = 0
        """Frames of the thread below those of a callback."""
        self._callback: FrameType | None = None
        self._timer = self._loop.call_soon(self.turn)

    def close(self) -> None:
        """Watch no more."""
        self._timer.cancel()
        self._callback = None

    def turn(self) -> None:
        """Note a turn of the loop, which calls this twice a beat."""
        self._turns += 1
        if not self._depth:
            self._depth = len(self._frames()) - 2  # below ``turn`` and ``_frames``
        self._timer = self._loop.call_later(BEAT_SECONDS / 2, self.turn)

    def look(self) -> bool:
        """Return whether the loop got on since the last look. For one other thread."""
        frames = self._frames()
        callback = frames[self._depth] if len(frames) > self._depth else None
        turns = self._turns
        got_on = turns != self._turns_seen or callback is not self._callback
        self._turns_seen, self._callback = turns, callback
        return got_on

    def _frames(self) -> list[FrameType]:
        """Return the frames of the loop's thread, the outermost first."""
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - documented
        found = []
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
        return found[::-1]


class LoopWatch:
    """Of the running loop, from ``start`` to ``close``."""

    def __init__(self, seconds: float, end: Callable[[], None] = end_process) -> None:
        """``seconds``: how long the loop may not get on.

        Beats are counted, so a process or machine that was paused has all of them left.
        """
        self._beats_max = max(1, round(seconds / BEAT_SECONDS))
        self._end = end
        self._progress: LoopProgress | None = None
        self._missed = 0
        self._closed = threading.Event()

    def start(self) -> None:
        """Watch from now on."""
        self._progress = LoopProgress()
        threading.Thread(target=self._run, name="loop-watch", daemon=True).start()

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()
        if self._progress is not None:
            self._progress.close()

    def look(self, progress: LoopProgress) -> None:
        """Look once a beat, in the thread."""
        self._missed = 0 if progress.look() else self._missed + 1
        if self._missed > self._beats_max:
            self._closed.set()
            self._end()

    def _run(self) -> None:
        progress = self._progress
        while progress is not None and not self._closed.wait(BEAT_SECONDS):
            self.look(progress)


class Heartbeat:
    """Calls ``beat`` in a thread once a beat, as long as the running loop gets on.

    A beat of a timer would wait for its turn behind everything else that the loop has to do: the
    process would be taken for one that hangs because it is busy.
    """

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._progress = LoopProgress()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def close(self) -> None:
        """End."""
        self._closed.set()
        self._progress.close()

    def _run(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            if self._progress.look():
                self._beat()
