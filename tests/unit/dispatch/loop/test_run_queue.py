"""Work that takes its turns: in order, some milliseconds at a time, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from pulsark.dispatch.loop.run_queue import RunQueue, TurnShare
from pulsark.limits import TURN_SECONDS
from tests.support.ticking_clock import TickingClock


def test_a_turn_ends_when_its_time_is_over_and_the_order_is_kept() -> None:
    async def run() -> None:
        queue, done = RunQueue(TickingClock(TURN_SECONDS / 10)), []
        for number in range(35):
            queue.call(lambda number=number: done.append(number))
        assert done == []
        per_turn = []
        while len(queue):
            before = len(done)
            await asyncio.sleep(0)
            per_turn.append(len(done) - before)
        assert per_turn == [10, 10, 10, 5]
        assert done == list(range(35))

    asyncio.run(run())


def test_steps_are_taken_half_a_turn_at_once_and_then_with_other_work() -> None:
    async def run() -> None:
        queue, done = RunQueue(TickingClock(TURN_SECONDS / 10)), []

        def steps(name: str) -> Iterator[None]:
            for number in range(12):
                done.append((name, number))
                yield

        queue.take_steps(steps("a"))
        assert len(done) == 5
        queue.take_steps(steps("b"))
        assert len(done) == 10
        longest = 0
        while len(queue):
            before = len(done)
            await asyncio.sleep(0)
            longest = max(longest, len(done) - before)
        assert longest <= 10
        assert [n for name, n in done if name == "a"] == list(range(12))
        assert [n for name, n in done if name == "b"] == list(range(12))

    asyncio.run(run())


def test_one_that_fails_is_told_to_the_loop_and_others_go_on() -> None:
    async def run() -> None:
        queue, done, told = RunQueue(TickingClock(0)), [], []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        queue.call(lambda: 1 // 0)
        queue.call(lambda: done.append(1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert done == [1]
        assert isinstance(told[0]["exception"], ZeroDivisionError)
        queue.call(lambda: done.append(2))
        await asyncio.sleep(0)
        assert done == [1, 2]

    asyncio.run(run())


def test_a_step_that_fails_is_told_to_the_loop_and_not_to_its_caller() -> None:
    async def run() -> None:
        queue, told = RunQueue(TickingClock(0)), []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

        def steps() -> Iterator[None]:
            yield
            raise ZeroDivisionError

        queue.take_steps(steps())
        assert isinstance(told[0]["exception"], ZeroDivisionError)
        assert "steps" in told[0]["message"]

    asyncio.run(run())


def test_of_many_calls_one_that_fails_keeps_none_from_its_turn() -> None:
    async def run() -> None:
        queue, done, told = RunQueue(TickingClock(TURN_SECONDS / 10)), [], []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        queue.call_all(lambda n=number: done.append(n if n % 3 else 1 // 0) for number in range(12))
        assert len(queue)
        for _ in range(12):
            await asyncio.sleep(0)
        assert done == [number for number in range(12) if number % 3]
        assert len(told) == 4

    asyncio.run(run())


def test_a_turn_gets_its_share_and_at_most_a_quarter_more() -> None:
    async def run() -> None:
        for before in range(0, 30, 3):
            clock = TickingClock(0)
            share = TurnShare(clock, 0.020)
            for _ in range(before):  # short turns
                clock.spent += 0.001
                assert not share.is_spent()
                await asyncio.sleep(0)
            begun = clock.spent
            while not share.is_spent():
                clock.spent += 0.001
            assert 0.020 <= clock.spent - begun < 0.027
            clock.spent += 60
            assert share.is_spent()  # until the turn ends
            await asyncio.sleep(0)
            assert not share.is_spent()

    asyncio.run(run())


def test_the_longest_step_is_named_without_showing_what_it_holds() -> None:
    class Large:
        def __repr__(self) -> str:
            raise AssertionError("it may be a client's, and large")

        def work(self, other: object = None) -> None:
            clock.spent += 10 * TURN_SECONDS

    def settle(future: object, large: object) -> None:
        clock.spent += 10 * TURN_SECONDS

    clock = TickingClock(0)
    names = []

    async def run() -> None:
        queue, large = RunQueue(clock), Large()
        future = asyncio.get_running_loop().create_future()
        future.set_result(large)
        for work in (partial(settle, future, large), large.work, partial(large.work, large)):
            queue.call(work)
            await asyncio.sleep(0)
            step = queue.take_longest()
            assert step is not None
            names.append(step.name.rpartition("<locals>.")[2])

    asyncio.run(run())
    assert names == ["settle", "Large", "Large.work"]


def test_short_turns_do_not_wake_the_loop_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        loop, calls = asyncio.get_running_loop(), []
        clock = TickingClock(0)
        share = TurnShare(clock, 0.020)
        with monkeypatch.context() as patched:
            patched.setattr(loop, "call_soon", calls.append)
            for _ in range(1000):
                assert not share.is_spent()
        assert calls == []

    asyncio.run(run())
