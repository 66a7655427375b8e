"""Recovery from the moments at which a process may have crashed: all of them in ``make sim``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from tests.sim.deep import EVERYWHERE
from tests.sim.disk import SURVIVALS, Survival

SAMPLED: Final = 1 if EVERYWHERE in os.environ else 2
"""``make test`` has time for every second moment of those that are all to be recovered from.

The moments of a step are one for each way in which the unsynced survives, so that with another
number than theirs each step and each way has its turn.
"""

assert len(SURVIVALS) % SAMPLED or SAMPLED == 1


class Moment(Protocol):
    """Which step did not happen, and how much of what was not synced survived."""

    @property
    def step(self) -> str: ...

    @property
    def survival(self) -> Survival: ...


M = TypeVar("M", bound=Moment)


def recover_each(
    seed: int, moments: Sequence[M], recovered: Callable[[int, M], None], every: int = 1
) -> int:
    """Recover from each ``every``-th moment, which gets a number; how many moments there are.

    With 1 from each that ``SAMPLED`` leaves. Prints the seed, and of a moment that fails which one
    it was.
    """
    print(f"SEED={seed}")
    for number, moment in enumerate(moments[:: every if every > 1 else SAMPLED]):
        try:
            recovered(number, moment)
        except BaseException:
            print(f"crash before {moment.step}, {moment.survival} of the unsynced survived")
            raise
    return len(moments)
