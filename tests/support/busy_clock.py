"""A broker whose time passes while it works, in a simulation whose time does not."""

from __future__ import annotations

import dataclasses

from pulsark.dispatch.run_queue import RunQueue
from pulsark.limits import TURN_SECONDS
from tests.sim.clock import SimClock
from tests.support.broker_clients import BrokerInMemory

LOOK_SECONDS = TURN_SECONDS / 20


@dataclasses.dataclass
class BusyClock(SimClock):
    """Time passes whenever somebody looks: as if each command took a while.

    The loop's own time stands still meanwhile, as uvloop's does in one turn.
    """

    look_seconds: float = LOOK_SECONDS
    spent: float = 0.0

    def monotonic(self) -> float:
        self.spent += self.look_seconds
        return super().monotonic() + self.spent


def make_busy(broker: BrokerInMemory, look_seconds: float = LOOK_SECONDS) -> BusyClock:
    """Whatever clients ask for from now on takes time."""
    clock = BusyClock(**vars(broker.broker.clock), look_seconds=look_seconds)
    broker.broker.clock = clock
    broker.broker.run_queue = RunQueue(clock)
    return clock
