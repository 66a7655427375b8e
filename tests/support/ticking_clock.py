"""A clock that goes on by a bit whenever it is read, so that time budgets can be counted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.run_queue import RunQueue
from pulsark.limits import TURN_SECONDS

if TYPE_CHECKING:
    from pulsark.runtime import Clock
    from tests.support.broker_clients import BrokerInMemory

LOOK_SECONDS = TURN_SECONDS / 20


@dataclass
class TickingClock:
    """Each question takes ``seconds``; nothing else takes any time, but for that of ``clock``."""

    seconds: float
    clock: Clock | None = None
    spent: float = 0.0

    def now_ms(self) -> int:
        return int(self.spent * 1000) if self.clock is None else self.clock.now_ms()

    def monotonic(self) -> float:
        self.spent += self.seconds
        return self.spent if self.clock is None else self.clock.monotonic() + self.spent


class StepQueue(RunQueue):
    """A run queue that works when it is told to. Each step takes a whole turn."""

    def __init__(self) -> None:
        super().__init__(TickingClock(TURN_SECONDS))

    def _schedule(self) -> None:
        """Wait for ``turn``."""

    def turn(self) -> None:
        """Take the next step, if there is one."""
        if self._waiting:
            self._waiting.popleft()()


def make_busy(broker: BrokerInMemory) -> TickingClock:
    """Whatever clients ask for from now on takes time.

    The loop's own time stands still meanwhile, as uvloop's does in one turn.
    """
    clock = TickingClock(LOOK_SECONDS, broker.broker.clock)
    broker.broker.clock = clock
    use_queue_of(broker, clock)
    return clock


def use_queue_of(broker: BrokerInMemory, clock: TickingClock) -> None:
    """Topics loaded from now on, and clients that come, have a run queue with this clock."""
    queue = RunQueue(clock)
    loader = broker.broker.loader
    broker.broker.run_queue = loader._run_queue = queue
    loader._context = replace(loader._context, run_queue=queue)
