"""How long the event loop lets others wait, and what an operator hears of it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pulsark.dispatch.loop.run_queue import RunQueue
from pulsark.dispatch.loop.stalls import BEAT_SECONDS, QUIET_SECONDS, LoopStalls
from pulsark.limits import STALL_LOGGED_SECONDS, TURN_SECONDS
from tests.sim.clock import SimClock
from tests.sim.simulation import Simulation


class Hands:
    now = 0.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


def test_waits_are_counted_as_a_histogram() -> None:
    hands = Hands()
    stalls = LoopStalls(hands, RunQueue(hands))
    for seconds in (0.0, 0.005, 0.006, 0.3, 7.0):
        stalls.measured(seconds)
    assert dict(stalls.buckets()) == {
        "0.005": 2,
        "0.01": 3,
        "0.025": 3,
        "0.05": 3,
        "0.1": 3,
        "0.25": 3,
        "0.5": 4,
        "1.0": 4,
        "5.0": 4,
        "+Inf": 5,
    }
    assert (stalls.count, stalls.total_seconds) == (5, pytest.approx(7.311))
    assert (stalls.take_longest(), stalls.take_longest()) == (7.0, 0.0)


def test_a_long_one_is_logged_with_the_step_that_is_known_and_not_again_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hands = Hands()
    queue = RunQueue(hands)
    stalls = LoopStalls(hands, queue)

    class Pump:
        def __str__(self) -> str:
            return "persistent://a/b/c"

        def work(self) -> None:
            hands.now += TURN_SECONDS + STALL_LOGGED_SECONDS

    async def run() -> None:
        queue.call(Pump().work)
        await asyncio.sleep(0)

    caplog.set_level(logging.WARNING)
    asyncio.run(run())
    stalls.measured(STALL_LOGGED_SECONDS - 0.01)
    assert caplog.messages == []
    asyncio.run(run())
    stalls.measured(STALL_LOGGED_SECONDS)
    (line,) = caplog.messages
    assert "0.25 s" in line
    assert line.endswith("Pump.work of persistent://a/b/c")
    stalls.measured(1)
    assert len(caplog.messages) == 1
    hands.now += QUIET_SECONDS
    stalls.measured(1)
    assert len(caplog.messages) == 2


def test_it_measures_as_long_as_it_is_started() -> None:
    with Simulation() as sim:

        async def main() -> None:
            clock = SimClock(sim.loop)
            stalls = LoopStalls(clock, RunQueue(clock))
            stalls.start()
            await asyncio.sleep(10 * BEAT_SECONDS + 0.01)
            assert (stalls.count, stalls.longest_seconds) == (10, pytest.approx(0, abs=1e-6))
            stalls.close()
            await asyncio.sleep(10 * BEAT_SECONDS)
            assert stalls.count == 10

        sim.run(main())
