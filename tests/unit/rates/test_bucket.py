"""The token bucket: whatever is asked of it, and whatever its clock does."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pulsark.rates.bucket import TokenBucket

LIMITS = st.integers(1, 1 << 40)
PERIODS = st.sampled_from([0.5, 1.0, 30.0])
STEPS = st.lists(
    st.tuples(st.floats(0, 5), st.integers(0, 1 << 41)),  # seconds that pass, then what is taken
    max_size=30,
)
TINY = 1e-6
"""What rounding may cost, as a part of what is counted."""


def test_it_is_full_at_first_and_never_more_than_full() -> None:
    bucket = TokenBucket(10, 5.0)
    assert bucket.tokens(5.0) == bucket.tokens(1e9) == 10


def test_a_limit_and_a_period_are_more_than_nothing() -> None:
    for limit, period in [(0, 1.0), (-1, 1.0), (1, 0.0), (float("nan"), 1.0)]:
        with pytest.raises(ValueError, match="not a rate"):
            TokenBucket(limit, 0.0, period=period)


def test_more_can_be_taken_than_there_is_and_is_owed() -> None:
    bucket = TokenBucket(10, 0.0)
    assert bucket.take(25, 0.0) == -15
    assert bucket.wait(0.0) == 1.5
    assert bucket.wait(0.0, until=1) == 1.6
    assert bucket.tokens(1.5) == 0
    assert bucket.wait(1.5) == 0


def test_the_limit_is_for_a_period() -> None:
    bucket = TokenBucket(60, 0.0, period=30.0)
    bucket.take(60, 0.0)
    assert bucket.tokens(1.0) == 2
    assert bucket.tokens(31.0) == 60


def test_nobody_waits_for_more_than_there_can_be() -> None:
    bucket = TokenBucket(10, 0.0)
    bucket.take(10, 0.0)
    assert bucket.wait(0.0, until=1e9) == 1.0


@given(LIMITS, PERIODS, STEPS)
def test_who_takes_only_while_nothing_is_owed_keeps_to_the_rate(
    limit: int, period: float, steps: list[tuple[float, int]]
) -> None:
    bucket, now, taken, last = TokenBucket(limit, 0.0, period=period), 0.0, 0, 0
    for passed, count in steps:
        now += passed
        if bucket.tokens(now) >= 0:
            bucket.take(count, now)
            taken, last = taken + count, count
        allowed = limit + now * limit / period
        assert taken - last <= allowed * (1 + TINY)


@given(LIMITS, PERIODS, STEPS)
def test_who_always_takes_gets_the_whole_rate(
    limit: int, period: float, steps: list[tuple[float, int]]
) -> None:
    """What was taken and what is left add up to what came, as long as it was never full."""
    bucket, now, taken = TokenBucket(limit, 0.0, period=period), 0.0, 0
    for passed, count in steps:
        now += passed
        assume(now == 0 or bucket.tokens(now) < limit)
        bucket.take(count, now)
        taken += count
    came = limit + now * limit / period
    assert bucket.tokens(now) + taken == pytest.approx(came, rel=TINY)


@given(LIMITS, PERIODS, STEPS, st.floats(-10, 10))
def test_the_wait_is_as_long_as_it_says(
    limit: int, period: float, steps: list[tuple[float, int]], until: float
) -> None:
    bucket, now = TokenBucket(limit, 0.0, period=period), 0.0
    for passed, count in steps:
        now += passed
        bucket.take(count, now)
    wait = bucket.wait(now, until=until)
    aim = min(until, limit)
    if wait:
        assert bucket.tokens(now + wait / 2) < aim
    rounding = TINY * (1 + limit / period + sum(count for _, count in steps))
    assert bucket.tokens(now + wait) >= aim - rounding


@given(LIMITS, st.lists(st.floats(0, 1e6), max_size=20))
def test_a_clock_that_goes_back_gives_nothing(limit: int, times: list[float]) -> None:
    bucket = TokenBucket(limit, 0.0)
    bucket.take(limit + 1e15, 0.0)
    before, at = bucket.tokens(0.0), 0.0
    for now in times:
        after = bucket.tokens(now)
        gain = max(0.0, now - at) * limit
        assert before - TINY * 1e15 <= after <= before + gain + TINY * 1e15
        if now <= at:
            assert after == before
        before, at = after, now


@given(LIMITS, LIMITS, st.integers(0, 1 << 45), st.floats(0, 100))
def test_another_rate_gives_nothing_and_forgives_what_is_out_of_proportion(
    limit: int, other: int, taken: int, now: float
) -> None:
    bucket = TokenBucket(limit, 0.0)
    bucket.take(taken, 0.0)
    before = bucket.tokens(now)
    bucket.change(other, now, period=2.0)
    assert bucket.limit == other
    if before >= -other:
        assert bucket.tokens(now) == min(before, other)
    else:
        assert bucket.wait(now) == pytest.approx(2.0)
