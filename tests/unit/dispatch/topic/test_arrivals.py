"""How old entries are, whatever clients say and whatever the wall clock does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsark.dispatch.topic.arrivals import COARSENESS, NOTHING, Arrivals
from pulsark.limits import ARRIVAL_SAMPLES_MAX
from pulsark.runtime import SureClock
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.wire.position import Position

HOUR = 3600.0


class Clocks:
    """Two clocks: one for what is written down, one for durations."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.step_ms = 0

    def now_ms(self) -> int:
        return int(self.seconds * 1000) + self.step_ms

    def monotonic(self) -> float:
        return self.seconds


class Ledgers:
    def __init__(self, *infos: LedgerInfo) -> None:
        self.infos = list(infos)

    def each_ledger(self, first: int = 0) -> Iterator[LedgerInfo]:
        return iter([info for info in self.infos if info.ledger_id >= first])


def closed(ledger_id: int, entries: int, at_s: float) -> LedgerInfo:
    return LedgerInfo(ledger_id, entries, 100, int(at_s * 1000))


def test_what_was_stored_here_is_known_to_the_second() -> None:
    clock = Clocks()
    arrivals = Arrivals(clock, SureClock(clock), Ledgers(LedgerInfo(5, 0, 0, 0, open=True)))
    assert arrivals.older_than(0) == NOTHING
    for entry_id in range(40):  # four in a second, for ten seconds
        arrivals.stored(5, entry_id)
        clock.seconds += 0.25
    for seconds in (1.0, 3.0, 5.5):
        last = arrivals.older_than(seconds)
        certain = 40 - int(seconds * 4) - 1  # the last one that is so old
        assert certain - 8 <= last.entry_id <= certain
    assert arrivals.older_than(11) == NOTHING
    assert 9 <= arrivals.age(Position(5, 0)) <= 10
    assert arrivals.age(Position(5, 39)) == pytest.approx(0.25)
    assert arrivals.age(Position(5, 99)) == 0


def test_of_former_ledgers_is_known_when_they_were_closed() -> None:
    clock = Clocks()
    ledgers = Ledgers(closed(1, 10, 500), closed(2, 10, 700), closed(3, 0, 800), closed(4, 10, 900))
    arrivals = Arrivals(clock, SureClock(clock), ledgers)
    assert arrivals.older_than(301) == (1, 9)
    assert arrivals.older_than(150) == (2, 9)
    assert arrivals.older_than(99) == (4, 9)
    assert arrivals.age(Position(2, 3)) == 300
    ledgers.infos.append(LedgerInfo(5, 0, 0, 0, open=True))
    arrivals.stored(5, 0)
    clock.seconds += 10
    assert arrivals.older_than(5) == (5, 0)


def test_a_ledger_between_two_of_wrong_times_is_not_jumped() -> None:
    clock = Clocks()
    arrivals = Arrivals(
        clock, SureClock(clock), Ledgers(closed(1, 10, 10), closed(2, 10, 5000), closed(3, 10, 20))
    )
    assert arrivals.older_than(100) == (1, 9)


@pytest.mark.parametrize("step_ms", [-(10**9), 10**9])
def test_a_step_of_the_wall_clock_changes_the_age_of_nothing_that_was_stored_here(
    step_ms: int,
) -> None:
    clock = Clocks()
    ledgers = Ledgers(LedgerInfo(5, 10, 0, 0, open=True))
    arrivals = Arrivals(clock, SureClock(clock), ledgers)
    arrivals.stored(5, 9)
    clock.seconds += 10
    ledgers.infos = [closed(5, 10, clock.seconds), LedgerInfo(6, 0, 0, 0, open=True)]
    clock.step_ms = step_ms
    assert arrivals.older_than(60) == NOTHING
    assert arrivals.older_than(9) == (5, 9)
    assert arrivals.age(Position(5, 3)) == 10


def test_marks_of_a_year_are_few_and_all_of_them_hold() -> None:
    clock = Clocks()
    arrivals = Arrivals(clock, SureClock(clock), Ledgers(LedgerInfo(5, 0, 0, 0, open=True)))
    began = clock.seconds
    for entry_id in range(0, 365 * 24 * 3600, 600):  # entry n came n seconds after the first
        arrivals.stored(5, entry_id)
        clock.seconds = began + entry_id + 600
        assert len(arrivals) <= ARRIVAL_SAMPLES_MAX
    for seconds in (HOUR, 24 * HOUR, 200 * 24 * HOUR):
        age = clock.seconds - began - arrivals.older_than(seconds).entry_id
        assert seconds <= age <= seconds * (1 + 2 / COARSENESS) + 1200
