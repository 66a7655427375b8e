"""One simulated process, or several: a loop, a seed, and what ``Runtime`` needs.

    with Simulation(seed) as sim:
        sim.run(scenario(sim.runtime(disk)))

A failure names the seed; the same seed replays the same run.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from pulsark.runtime import Runtime, Worker
from tests.sim.clock import SimClock
from tests.sim.disk import SimDisk
from tests.sim.loop import SimulatedCrash, Stalled, VirtualLoop
from tests.sim.worker import SimWorker

T = TypeVar("T")


class Simulation:
    """A virtual-time run with one seed. Leaving the ``with`` block forgets all that still runs.

    ``prompt`` is the part of the workers' jobs that take turns of the loop instead of time.
    """

    def __init__(self, seed: int = 0, prompt: float = 0.25) -> None:
        self.seed = seed
        self.prompt = prompt
        self.rng = random.Random(seed)
        self.loop = VirtualLoop()
        self.crash: SimulatedCrash | None = None
        """Set when ``run`` ended because a disk crashed the process."""

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(f"simulation seed {self.seed}, virtual time {self.loop.time():.6f} s")
        self.loop.abandon()

    def runtime(self, disk: SimDisk, *, clock: SimClock | None = None) -> Runtime:
        """A node's runtime. Nodes may share a loop; each has its own disk, clock and rng."""
        rng = random.Random(self.rng.random())

        def new_worker(name: str) -> Worker:
            return SimWorker(self.loop, rng, name, prompt=self.prompt)

        return Runtime(
            clock=clock or SimClock(self.loop), disk=disk, rng=rng, new_worker=new_worker
        )

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run to the end. Raises what it raises, and ``Stalled`` if it waits for nothing."""
        result = self.loop.run_until_complete(self.loop.create_task(main))
        self._raise_unhandled()
        return result

    def run_until_crash(self, main: Coroutine[Any, Any, Any]) -> bool:
        """Run to the end or to a disk's ``crash_at``; true if it crashed."""
        try:
            self.run(main)
        except SimulatedCrash as crash:
            self.crash = crash
            return True
        return False

    def _raise_unhandled(self) -> None:
        for context in self.loop.unhandled:
            error = context.get("exception")
            if error is not None:
                raise error
            raise Stalled(context["message"])
