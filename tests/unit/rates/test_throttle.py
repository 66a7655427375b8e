"""Who published too much waits: how long, in which order, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pulsark.rates.limits import PUBLISH_HOLD_SECONDS_MAX
from pulsark.rates.publish_limit import NO_LIMIT, PublishLimit, PublishRate
from pulsark.rates.throttle import Throttle
from tests.sim.clock import SimClock
from tests.sim.simulation import Simulation


def in_virtual_time(
    test: Callable[[SimClock], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    def run() -> None:
        with Simulation() as sim:
            sim.run(test(SimClock(sim.loop)))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


class Publishing:
    """Publishes ``size`` bytes whenever it may, until it has waited ``turns`` times."""

    def __init__(self, name: str, clock: SimClock, size: int = 0, turns: int = 1) -> None:
        self.name = name
        self.went: list[tuple[float, str]] = []
        self.by_patience = self.published = 0
        self._clock = clock
        self._size = size
        self._turns = turns

    def let_go(self, throttle: Throttle) -> None:
        self.went.append((round(self._clock.monotonic(), 2), self.name))
        self._turns -= 1
        if self._size:
            asyncio.get_running_loop().call_soon(self._publish, throttle)

    def _publish(self, throttle: Throttle) -> None:
        self.published += 1
        if throttle.take(1, self._size):
            if self._turns > 0:
                throttle.wait_in(self)
        else:
            asyncio.get_running_loop().call_later(0.001, self._publish, throttle)

    def waited_enough(self) -> None:
        self.by_patience += 1


# -- the limit, which is pure ------------------------------------------------------------------


def test_the_worse_of_messages_and_bytes_holds() -> None:
    limit = PublishLimit(PublishRate(10, 1000), 0.0)
    assert not limit.take(10, 10, 0.0)
    assert limit.take(1, 10, 0.0)
    assert limit.wait(0.0) == pytest.approx(0.11)
    assert limit.take(1, 2980, 0.0)
    assert limit.wait(0.0) == pytest.approx(2.01)
    assert limit.is_overdrawn(1.999)
    assert not limit.is_overdrawn(2.001)


def test_it_goes_on_at_a_hundredth_of_the_rate() -> None:
    limit = PublishLimit(PublishRate(messages=1000), 0.0)
    limit.take(1001, 0, 0.0)
    assert limit.wait(0.0) == pytest.approx(0.011)


@pytest.mark.parametrize("rate", [NO_LIMIT, PublishRate(-1, 0), PublishRate(0, -5)])
def test_nothing_and_less_is_no_limit(rate: PublishRate) -> None:
    limit = PublishLimit(rate, 0.0)
    assert not rate.is_limit
    assert not limit.take(1 << 31, 1 << 40, 0.0)
    assert limit.wait(0.0) == 0


def test_a_client_cannot_make_it_owe_more_than_the_longest_hold_brings() -> None:
    """Others who share the rate would have to wait for it."""
    limit = PublishLimit(PublishRate(10, 1), 0.0)
    for _ in range(5):
        assert limit.take(1 << 31, 5 << 20, 0.0)
    assert PUBLISH_HOLD_SECONDS_MAX <= limit.wait(0.0) <= PUBLISH_HOLD_SECONDS_MAX + 0.1


def test_a_limit_comes_and_goes_for_messages_and_bytes_apart() -> None:
    limit = PublishLimit(PublishRate(messages=10), 0.0)
    limit.take(20, 100, 0.0)
    limit.change(PublishRate(10, 100), 0.0)
    assert limit.wait(0.0) == pytest.approx(1.01)
    limit.change(PublishRate(bytes=100), 0.0)
    assert limit.wait(0.0) == 0
    assert limit.take(1, 101, 0.0)


# -- the line ----------------------------------------------------------------------------------


@in_virtual_time
async def test_who_came_first_goes_first_and_one_at_a_time(clock: SimClock) -> None:
    throttle = Throttle(PublishRate(bytes=1000), clock)
    all_of_them = [Publishing(name, clock, 1000, turns=2) for name in "abc"]
    throttle.take(1, 2000)
    for one in all_of_them:
        throttle.wait_in(one)
    await asyncio.sleep(10)
    went = sorted(when for one in all_of_them for when in one.went)
    assert [name for _, name in went] == ["a", "b", "c", "a", "b", "c"]
    assert [when for when, _ in went] == pytest.approx(
        [1.01, 2.01, 3.01, 4.01, 5.01, 6.01], abs=0.02
    )
    assert throttle.times == 6


@in_virtual_time
async def test_many_who_publish_little_get_the_whole_rate(clock: SimClock) -> None:
    """Each has to wait for its turn, but the turns must not be what holds them."""
    throttle = Throttle(PublishRate(messages=10_000), clock)
    many = [Publishing(str(n), clock, 1, turns=1000) for n in range(500)]
    throttle.take(10_001, 0)
    for one in many:
        throttle.wait_in(one)
        throttle.take(1, 1)
    await asyncio.sleep(5)
    rounds = [one.published for one in many]
    assert 0.97 * 50_000 <= sum(rounds) <= 50_500
    assert max(rounds) < 2 * min(rounds)


@in_virtual_time
async def test_nobody_waits_longer_than_the_longest_hold(clock: SimClock) -> None:
    throttle = Throttle(PublishRate(bytes=1), clock)
    patient, late = Publishing("patient", clock), Publishing("late", clock)
    throttle.take(1, 5 << 20)
    throttle.wait_in(patient)
    await asyncio.sleep(5)
    throttle.take(1, 5 << 20)
    throttle.wait_in(late)
    await asyncio.sleep(PUBLISH_HOLD_SECONDS_MAX - 5.01)
    assert not patient.by_patience
    await asyncio.sleep(0.02)
    assert (patient.by_patience, late.by_patience) == (1, 0)
    await asyncio.sleep(5)
    assert (patient.by_patience, late.by_patience) == (1, 1)
    assert not patient.went


@in_virtual_time
async def test_a_rate_that_is_raised_or_removed_lets_go_at_once(clock: SimClock) -> None:
    for rate, most in [(PublishRate(bytes=1 << 30), 1.1), (NO_LIMIT, 0.01)]:
        throttle = Throttle(PublishRate(bytes=1), clock)
        many = [Publishing(str(n), clock) for n in range(1000)]
        throttle.take(1, 100)
        for one in many:
            throttle.wait_in(one)
        await asyncio.sleep(1)
        assert not any(one.went for one in many)
        throttle.change(rate)
        await asyncio.sleep(most + 0.02)
        assert all(one.went for one in many)


@in_virtual_time
async def test_a_rate_that_is_lowered_holds_those_who_wait_no_longer_than_allowed(
    clock: SimClock,
) -> None:
    throttle = Throttle(PublishRate(bytes=1000), clock)
    waiting = Publishing("a", clock)
    throttle.take(1, 2000)
    throttle.wait_in(waiting)
    throttle.change(PublishRate(bytes=10))
    await asyncio.sleep(1.005)
    assert not waiting.went
    await asyncio.sleep(0.02)
    assert [when for when, _ in waiting.went] == pytest.approx([1.01], abs=0.01)


@in_virtual_time
async def test_who_leaves_is_not_called_and_leaves_no_timer(clock: SimClock) -> None:
    throttle = Throttle(PublishRate(bytes=10), clock)
    gone, there = Publishing("gone", clock), Publishing("there", clock)
    throttle.take(1, 20)
    throttle.wait_in(gone)
    throttle.wait_in(there)
    throttle.leave(gone)
    await asyncio.sleep(2)
    assert (len(gone.went), len(there.went)) == (0, 1)
    throttle.take(1, 100)
    throttle.wait_in(gone)
    throttle.leave(gone)
    throttle.leave(gone)
    assert throttle._timer is None


@in_virtual_time
async def test_one_that_fails_costs_the_others_nothing(clock: SimClock) -> None:
    class Broken(Publishing):
        def let_go(self, throttle: Throttle) -> None:
            raise RuntimeError("a defect")

    throttle = Throttle(PublishRate(bytes=10), clock)
    waiting = [Broken("broken", clock), Publishing("a", clock), Publishing("b", clock)]
    throttle.take(1, 20)
    for one in waiting:
        throttle.wait_in(one)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await asyncio.sleep(2)
    assert [len(one.went) for one in waiting] == [0, 1, 1]
