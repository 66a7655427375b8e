"""Requests beside the frames: two thirds of the time went by waiting for their answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

WAITING_MAX = 20


class Beside:
    """A thread that asks one thing after the other, as often as ``ask`` was called."""

    def __init__(self, one: Callable[[], None]) -> None:
        self._one = one
        self._thread = ThreadPoolExecutor(1)
        self._waiting: deque[Future[None]] = deque()

    def ask(self) -> None:
        """Once more; waits only if very many are not done. What failed is raised."""
        waiting = self._waiting
        waiting.append(self._thread.submit(self._one))
        while waiting and (len(waiting) > WAITING_MAX or waiting[0].done()):
            waiting.popleft().result()

    def finish(self) -> None:
        """Wait for all."""
        self._thread.shutdown()
        for done in self._waiting:
            done.result()
