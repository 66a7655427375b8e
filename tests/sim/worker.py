"""The simulated worker: jobs take virtual time and run one after the other.

A job runs as a whole at the end of its time, in the loop's own thread, so a program that
shares data between worker and loop without handing it over still races here, but the same
way for the same seed.

Some jobs take turns of the loop instead of time: they end while a task that never waits, but
lets others have their turn with ``sleep(0)``, is still at it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.sim.loop import SimulatedCrash, VirtualLoop

_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]


@dataclass
class SimWorker:
    """A ``pulsark.runtime.Worker`` in virtual time."""

    loop: VirtualLoop
    rng: random.Random
    name: str = "worker"
    min_delay: float = 0.0001
    """Seconds, least time that a job takes."""
    max_delay: float = 0.001
    """Seconds, most time that a job takes."""
    prompt: float = 0.25
    """Part of the jobs that end within a few turns of the loop, however long those take."""
    max_turns: int = 4
    """Most turns that such a job takes."""
    on_crash: Callable[[], None] | None = None
    """Called instead of ending the whole loop when the job's disk crashed."""

    _jobs: deque[_Job] = field(default_factory=deque)
    _busy: bool = False
    _closed: bool = False

    def submit(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        if self._closed:
            raise RuntimeError(f"worker {self.name} is closed")
        self._jobs.append((job, done))
        self._start_next()

    def end(self) -> None:
        """Take no more jobs; those that wait have their time."""
        self._closed = True

    def close(self) -> None:
        self._closed = True
        while self._jobs:
            self._run(*self._jobs.popleft())

    def _start_next(self) -> None:
        if self._busy or not self._jobs:
            return
        self._busy = True
        if self.rng.random() < self.prompt:
            self._take_turns(self.rng.randrange(self.max_turns))
        else:
            self.loop.call_later(self.rng.uniform(self.min_delay, self.max_delay), self._finish)

    def _take_turns(self, left: int) -> None:
        if left:
            self.loop.call_soon(self._take_turns, left - 1)
        else:
            self.loop.call_soon(self._finish)

    def _finish(self) -> None:
        self._busy = False
        if self._jobs:
            self._run(*self._jobs.popleft())
            self._start_next()

    def _run(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = job()
        except SimulatedCrash:
            self._jobs.clear()
            if self.on_crash is None:
                raise
            self.on_crash()
            return
        except Exception as e:  # handed to the loop, as the thread does
            error = e
        self.loop.call_soon(done, result, error)
