"""The simulated clocks: a node's view of the loop's virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.loop import VirtualLoop

EPOCH_MS = 1_700_000_000_000


@dataclass
class SimClock:
    """Virtual time plus this node's error. The monotonic clock is not affected by steps."""

    loop: VirtualLoop
    step_ms: int = 0
    """Added to the wall clock: set it forward or back during a run."""
    drift: float = 0.0
    """Part by which both clocks run fast (0.05 = 5 %)."""

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.loop.time() * (1 + self.drift) * 1000) + self.step_ms

    def monotonic(self) -> float:
        return self.loop.time() * (1 + self.drift)
