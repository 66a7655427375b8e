"""For how long a rate holds somebody back."""

from __future__ import annotations

from itertools import pairwise

from pulsark.rates.holding import Holding
from pulsark.rates.limits import LASTING_THROTTLE_SECONDS, LASTING_THROTTLE_TOLD_SECONDS


def told(holding: Holding, begin: float, end: float, step: float, held: float) -> list[float]:
    """When it is told of, if somebody is held so long in each step."""
    found, now = [], begin
    while now < end:
        holding.begin(now)
        found += [now] if holding.lasting(now) is not None else []
        now += held
        found += [now] if holding.lasting(now) is not None else []
        holding.end(now)
        now += step - held
    return found


def test_many_short_holds_are_one_long_one() -> None:
    found = told(Holding(), 100.0, 300.0, 0.5, 0.25)
    assert found[0] == 100 + LASTING_THROTTLE_SECONDS
    assert [b - a for a, b in pairwise(found)] == (
        [LASTING_THROTTLE_TOLD_SECONDS] * (len(found) - 1)
    )
    assert len(found) == 4


def test_holds_with_breaks_do_not_last() -> None:
    assert told(Holding(), 0.0, 300.0, 5.0, 3.5) == []


def test_one_hold_lasts_until_its_end() -> None:
    holding = Holding()
    holding.begin(5.0)
    assert holding.lasting(14.9) is None
    assert holding.lasting(35.0) == 30.0
