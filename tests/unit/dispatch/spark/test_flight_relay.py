"""Who is cut when a Flight client comes and there is no room."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pulsark.dispatch.spark.flight_relay import Relays, whom_to_cut
from pulsark.limits import FLIGHT_IDLE_SECONDS, FLIGHT_LOGIN_SURE_SECONDS

FLOOD, ONE, OTHER = "10.0.0.1", "10.0.0.2", "10.0.0.3"
NOW = 1000.0
FRESH, OLD = NOW - 0.1, NOW - FLIGHT_LOGIN_SURE_SECONDS


@dataclass
class Connected:
    host: str
    begun: float = FRESH
    logged_in: bool = False
    heard_at: float = NOW


def cut(rivals: list[Connected], host: str = OTHER) -> int | None:
    found = whom_to_cut(rivals, host, NOW)
    return None if found is None else [rival is found for rival in rivals].index(True)


def test_a_flood_from_one_address_keeps_no_other_out() -> None:
    flood = [Connected(FLOOD) for _ in range(100)]
    assert cut([Connected(ONE), *flood], OTHER) == 1
    assert cut([Connected(ONE, OLD), *flood], OTHER) == 1


def test_of_one_address_they_have_some_time_each() -> None:
    assert cut([Connected(FLOOD) for _ in range(100)], FLOOD) is None
    assert cut([Connected(FLOOD, OLD), *[Connected(FLOOD)] * 99], FLOOD) == 0


def test_two_who_log_in_do_not_cut_each_other() -> None:
    known = [Connected(ONE, logged_in=True)] * 5
    assert cut([*known, Connected(ONE)], OTHER) is None
    assert cut([*known, Connected(ONE, OLD)], OTHER) == 5


def test_else_who_has_been_silent_for_long() -> None:
    known = [Connected(FLOOD, OLD, True, NOW - age) for age in (1, FLIGHT_IDLE_SECONDS, 2)]
    assert cut(known) == 1
    assert cut([known[0], known[2]]) is None
    assert cut([]) is None


def test_a_network_counts_as_one() -> None:
    flood = [Connected(f"2001:db8:0:1::{number:x}") for number in range(100)]
    assert cut([*[Connected(ONE)] * 3, *flood], OTHER) == 3


def test_those_that_are_refused_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    relays = Relays(0, 0, lambda: NOW)
    assert not any(relays._make_room(FLOOD) for _ in range(5))
    assert len(caplog.messages) == 1
