"""An address that fails to log in has some places a second; others have as many as they want."""

from __future__ import annotations

import pytest

from pulsark.errors import CrowdedOutError
from pulsark.security.limits import TRIALS_MAX
from pulsark.security.trials import Trial, Trials

HOST, OTHER = "10.0.0.1", "10.0.0.2"
A_SECOND = 10
AT_ONCE = 2


def refused(trials: Trials, host: str, now: float) -> bool:
    try:
        trials.begin(host, now)
    except CrowdedOutError:
        return True
    return False


def crowded(now: float = 0.0) -> Trials:
    """A moment in which the address has no place."""
    found = Trials(A_SECOND)
    for _ in range(AT_ONCE):
        found.failed(HOST, now)
    assert refused(found, HOST, now)
    return found


def test_who_never_failed_needs_no_trial() -> None:
    found = Trials(A_SECOND)
    assert [found.begin(HOST, 0.0) for _ in range(1000)] == [None] * 1000
    found.failed(OTHER, 0.0)
    assert found.begin(HOST, 0.0) is None


def test_places_of_an_address_come_back_one_by_one() -> None:
    found = crowded()
    assert refused(found, HOST, 0.099)
    assert isinstance(found.begin(HOST, 0.101), Trial)
    assert refused(found, HOST, 0.101)
    assert found.refused == 3


def test_a_flood_gets_no_more_than_its_places() -> None:
    found = crowded()
    served = sum(not refused(found, HOST, at / 1000) for at in range(10_000))
    assert served == 10 * A_SECOND - 1


def test_an_address_that_was_quiet_for_a_moment_is_on_trial_no_more() -> None:
    found = crowded()
    assert found.begin(HOST, 0.3) is None
    assert len(found) == 0


def test_who_logs_in_gives_its_place_back_once() -> None:
    found = crowded()
    trial = found.begin(HOST, 0.11)
    assert trial is not None
    assert not trial.is_over
    for _ in range(3):
        trial.passed(0.11)
    assert trial.is_over
    assert not refused(found, HOST, 0.11)
    assert refused(found, HOST, 0.11)


def test_a_place_that_comes_back_late_makes_no_suspect() -> None:
    found = crowded()
    trial = found.begin(HOST, 0.11)
    assert trial is not None
    trial.passed(5.0)
    assert found.begin(HOST, 5.0) is None


def test_those_who_came_before_the_first_failure_are_owed_for_no_longer() -> None:
    found = Trials(A_SECOND)
    for _ in range(1000):
        found.failed(HOST, 0.0)
    assert found.begin(HOST, 0.11) is not None


def test_a_network_of_ipv6_has_the_places_of_one_address() -> None:
    found = Trials(A_SECOND)
    for each in range(AT_ONCE):
        found.failed(f"2001:db8::{each}", 0.0)
    assert refused(found, "2001:db8::ffff", 0.0)
    assert not refused(found, "2001:db8:0:1::1", 0.0)


def test_a_clock_that_goes_back_takes_no_place() -> None:
    found = crowded(100.0)
    assert refused(found, HOST, 50.0)
    assert not refused(found, HOST, 100.2)


def test_0_is_no_limit() -> None:
    found = Trials(0)
    for _ in range(1000):
        found.failed(HOST, 0.0)
    assert found.begin(HOST, 0.0) is None


@pytest.mark.parametrize("per_second", [1, 3, 5, 100_000])
def test_every_limit_lets_somebody_in(per_second: int) -> None:
    found = Trials(per_second)
    found.failed(HOST, 0.0)
    served = sum(not refused(found, HOST, at / 10) for at in range(1, 100))
    assert served > 0


def test_of_very_many_addresses_the_oldest_are_forgotten() -> None:
    found = crowded()
    for each in range(TRIALS_MAX):
        found.failed(f"11.{each >> 16}.{each >> 8 & 255}.{each & 255}", 0.0)
    assert len(found) == TRIALS_MAX
    assert found.begin(HOST, 0.0) is None
