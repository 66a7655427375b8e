"""Requests share the event loop's time: however many there are, turns stay short."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from pulsark.dispatch.loop.request_turns import LargeJobs, RequestTurns, pause
from pulsark.limits import REQUESTS_SECONDS, REQUESTS_WAITING_CROWDED
from pulsark.runtime import Runtime
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.ticking_clock import TickingClock


async def spend(clock: TickingClock, seconds: float, steps: int, done: list[str], name: str) -> str:
    for _ in range(steps):
        clock.spent += seconds
        await asyncio.sleep(0)
    done.append(name)
    return name


async def longest_turn(clock: TickingClock, tasks: list[asyncio.Task[str]]) -> float:
    longest = 0.0
    while not all(task.done() for task in tasks):
        before = clock.spent
        await asyncio.sleep(0)
        longest = max(longest, clock.spent - before)
    return longest


def test_steps_that_are_due_at_once_are_spread_over_turns() -> None:
    async def run() -> None:
        clock, done = TickingClock(0), []
        turns = RequestTurns(clock)
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(turns.run(spend(clock, 0.001, 5, done, str(n)), lambda: "a"))
            for n in range(200)
        ]
        longest = await longest_turn(clock, tasks)
        assert longest < 3 * REQUESTS_SECONDS
        assert len(done) == 200
        assert len(turns) == 0

    asyncio.run(run())


def test_a_client_with_one_request_does_not_wait_for_those_of_another() -> None:
    async def run() -> None:
        clock, done = TickingClock(0), []
        turns = RequestTurns(clock)
        loop = asyncio.get_running_loop()
        many = [
            loop.create_task(turns.run(spend(clock, 0.001, 3, done, "many"), lambda: "many"))
            for _ in range(500)
        ]
        await asyncio.sleep(0)
        one = loop.create_task(turns.run(spend(clock, 0.001, 3, done, "one"), lambda: "one"))
        await longest_turn(clock, [one, *many])
        assert done.index("one") < 100

    asyncio.run(run())


def test_results_failures_and_the_end_of_a_request_pass_through() -> None:
    async def run() -> None:
        clock = TickingClock(REQUESTS_SECONDS)  # each look finds the turn spent
        turns = RequestTurns(clock)

        async def fails() -> None:
            await asyncio.sleep(0)
            raise KeyError("x")

        async def times_out() -> str:
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.Event().wait()
            except TimeoutError:
                return "timed out"
            return ""

        assert await turns.run(times_out(), lambda: "a") == "timed out"
        with pytest.raises(KeyError):
            await turns.run(fails(), lambda: "a")
        ended = []

        async def waits() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await pause()
                ended.append(1)

        task = asyncio.create_task(turns.run(waits(), lambda: "a"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [1]
        assert len(turns) == 0

    asyncio.run(run())


def test_one_that_is_cancelled_while_it_waits_for_its_turn_leaves_nothing_behind() -> None:
    class Thing:
        pass

    async def run() -> None:
        clock = TickingClock(REQUESTS_SECONDS)
        turns = RequestTurns(clock)
        thing = Thing()
        gone = weakref.ref(thing)

        async def work(thing: Thing) -> None:
            await asyncio.sleep(0)

        first = asyncio.create_task(turns.run(work(Thing()), lambda: "a"))
        task = asyncio.create_task(turns.run(work(thing), lambda: "a"))
        del thing
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task, first})
        gc.disable()
        try:
            del task
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert gone() is None
        finally:
            gc.enable()

    asyncio.run(run())


def test_tasks_of_a_request_pause_in_line_with_requests() -> None:
    async def run() -> None:
        clock, done = TickingClock(0), []
        turns = RequestTurns(clock)

        async def part() -> None:
            for _ in range(3):
                clock.spent += 0.004
                await pause()
            done.append(1)

        async def whole() -> str:
            await asyncio.gather(*(part() for _ in range(100)))
            return ""

        task = asyncio.create_task(turns.run(whole(), lambda: "a"))
        # All parts begin at once, which nothing postpones; from then on they pause.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await longest_turn(clock, [task]) < 5 * REQUESTS_SECONDS
        assert len(done) == 100

    asyncio.run(run())


def test_who_was_held_back_by_a_crowd_goes_on_after_it() -> None:
    async def run() -> None:
        clock, done = TickingClock(0), []
        turns = RequestTurns(clock)
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(turns.run(spend(clock, 0.001, 1, done, "x"), lambda: "a"))
            for _ in range(REQUESTS_WAITING_CROWDED + 50)
        ]
        await asyncio.sleep(0)
        assert turns.is_crowded
        calm = []

        def go_on() -> None:
            calm.append(len(turns))

        turns.when_calm(go_on)
        turns.when_calm(go_on)
        await asyncio.gather(*tasks)
        assert len(calm) == 1
        assert calm[0] <= REQUESTS_WAITING_CROWDED

    asyncio.run(run())


def test_large_jobs_run_in_a_thread() -> None:
    async def run() -> None:
        jobs = LargeJobs(Runtime())
        assert await jobs.run(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await jobs.run(lambda: 1 // 0)
        jobs.close()
        jobs.close()

    asyncio.run(run())


def test_a_large_job_that_fails_leaves_nothing() -> None:
    class Content:
        pass

    left = []

    def fail() -> None:
        content = Content()
        left.append(weakref.ref(content))
        try:
            raise KeyError
        except KeyError:
            raise ValueError("damaged") from None

    async def run() -> None:
        jobs = LargeJobs(Runtime())
        for _ in range(3):
            with pytest.raises(ValueError, match="damaged"):
                await jobs.run(fail)
        jobs.close()

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
    assert [ref() for ref in left] == [None] * 3


class Unreadable(Exception):
    """What a request fails with."""


def test_a_request_that_fails_leaves_nothing() -> None:
    async def fail() -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, Unreadable())
        try:
            await future
        finally:
            del future

    async def run() -> None:
        with pytest.raises(Unreadable):
            await RequestTurns(TickingClock(0)).run(fail(), lambda: "a")

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
        assert not [each for each in gc.get_objects() if isinstance(each, Unreadable)]
    finally:
        gc.enable()


def test_large_jobs_of_who_used_least_come_first() -> None:
    with Simulation() as sim:
        runtime = sim.runtime(SimDisk())
        ended: list[str] = []

        def submit(job: Callable[[], Any], done: Callable[..., None]) -> None:
            asyncio.get_running_loop().call_later(1.0, lambda: done(job(), None))

        worker = SimpleNamespace(submit=submit, close=lambda: None)
        jobs = LargeJobs(replace(runtime, new_worker=lambda _name: worker))
        turns = RequestTurns(runtime.clock)

        async def ask(owner: str) -> None:
            await turns.run(jobs.run(lambda: ended.append(owner)), lambda: owner)

        async def main() -> None:
            greedy = [asyncio.create_task(ask("greedy")) for _ in range(10)]
            others = []
            for name in ("first", "second"):
                await asyncio.sleep(2.5)
                others.append(asyncio.create_task(ask(name)))
            await asyncio.sleep(0.1)
            greedy[5].cancel()
            await asyncio.gather(*others)
            assert ended == ["greedy"] * 3 + ["first", "greedy", "second"]
            await asyncio.gather(*greedy, return_exceptions=True)
            assert ended.count("greedy") == 9
            assert jobs._waiting == {}
            ended.clear()
            many = [
                asyncio.create_task(turns.run(jobs.run(partial(ended.append, c)), lambda: "x", c))
                for c in "aaabbc"
            ]
            await asyncio.gather(*many)
            assert "".join(ended) == "abcaba", "one connection after the other"

        sim.run(main())
