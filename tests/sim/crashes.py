"""Recovery from all the moments at which a process may have crashed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tests.sim.disk import Survival


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

    Prints the seed, and of a moment that fails which one it was.
    """
    print(f"SEED={seed}")
    for number, moment in enumerate(moments[::every]):
        try:
            recovered(number, moment)
        except BaseException:
            print(f"crash before {moment.step}, {moment.survival} of the unsynced survived")
            raise
    return len(moments)
