"""Calls of all connections are counted together, and whoever has most of them pays."""

from __future__ import annotations

from dataclasses import dataclass

from pulsark.dispatch.spark.flight_calls import Calls


@dataclass(eq=False)
class Connection:
    calls: int = 0


def began(calls: Calls[Connection], connection: Connection, count: int = 1) -> Connection | None:
    connection.calls += count
    return calls.count(connection)


def test_at_the_limit_the_connection_with_most_calls_is_cut() -> None:
    calls: Calls[Connection] = Calls(10)
    many, few, new = Connection(), Connection(), Connection()
    assert began(calls, many, 8) is None
    assert began(calls, few, 2) is None
    assert began(calls, new) is many
    assert calls.total == 3
    calls.forget(many)
    assert calls.total == 3


def test_among_equals_it_is_the_one_that_goes_too_far() -> None:
    calls: Calls[Connection] = Calls(4)
    first, second, third = Connection(), Connection(), Connection()
    for each in (first, second, third):
        assert began(calls, each) is None
    assert began(calls, second) is None
    assert began(calls, third) is third
    assert calls.total == 3


def test_calls_that_end_make_room() -> None:
    calls: Calls[Connection] = Calls(3)
    one, other = Connection(), Connection()
    for _ in range(100):
        assert began(calls, one, 2) is None
        assert began(calls, other) is None
        assert began(calls, one, -2) is None
        assert began(calls, other, -1) is None
    assert calls.total == 0


def test_what_is_cut_may_still_have_said_something() -> None:
    calls: Calls[Connection] = Calls(3)
    cut, other = Connection(), Connection()
    assert began(calls, cut, 3) is None
    assert began(calls, other) is cut
    assert began(calls, cut) is cut
    cut.calls = 0
    assert calls.count(cut) is None
    calls.forget(cut)
    calls.forget(cut)
    assert calls.total == 1
