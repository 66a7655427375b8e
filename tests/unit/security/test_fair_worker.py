"""Long work is shared fairly between addresses, and nobody leaves any behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pulsark.runtime import Runtime
from pulsark.security.fair_worker import CrowdedError, FairWorker

Done = Callable[[Any, BaseException | None], None]


class HeldWorker:
    """Does a job when it is told to."""

    def __init__(self, name: str) -> None:
        self.jobs: list[tuple[Callable[[], Any], Done]] = []
        WORKERS.append(self)

    def submit(self, job: Callable[[], Any], done: Done) -> None:
        self.jobs.append((job, done))

    def close(self) -> None:
        """Nothing is left."""


WORKERS: list[HeldWorker] = []


def played(test: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test with a stage of its own."""

    def run() -> None:
        async def main() -> None:
            await test(Stage())

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


class Stage:
    """Jobs by their names, and which the thread has had."""

    def __init__(self) -> None:
        WORKERS.clear()
        self.fair = FairWorker(Runtime(new_worker=HeldWorker), "test", most=6)
        self.tasks: dict[str, asyncio.Future[str]] = {}

    async def ask(self, *names: str) -> None:
        """A name's first letter is its address."""
        for name in names:
            job = self.fair.run(name[0], lambda name=name: name)  # type: ignore[misc]
            self.tasks[name] = asyncio.ensure_future(job)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    async def step(self) -> str:
        """The thread does its one job; its name."""
        ((job, done),) = WORKERS[0].jobs
        WORKERS[0].jobs.clear()
        name = str(job())
        done(name, None)
        await self.settle()
        return name

    async def gone(self, *names: str) -> None:
        for name in names:
            self.tasks[name].cancel()
        await self.settle()


@played
async def test_addresses_take_turns(stage: Stage) -> None:
    await stage.ask("a1", "a2", "a3", "a4", "b1", "c1", "b2")
    assert [await stage.step() for _ in range(7)] == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
    assert [task.result() for task in stage.tasks.values()] == list(stage.tasks)
    assert (stage.fair.waiting, stage.fair._queues, stage.fair._busy) == (0, {}, False)
    await stage.ask("d1")
    assert await stage.step() == "d1"


@played
async def test_whoever_goes_leaves_nothing(stage: Stage) -> None:
    await stage.ask("a1", "a2", "a3", "b1")
    await stage.gone("a1", "a2", "b1")
    assert stage.fair.waiting == 1
    assert len(WORKERS[0].jobs) == 1  # the thread is still busy with the first
    assert [await stage.step(), await stage.step()] == ["a1", "a3"]
    assert (stage.fair.waiting, stage.fair._queues, stage.fair._busy) == (0, {}, False)


@played
async def test_a_turn_that_comes_too_late_goes_to_the_next(stage: Stage) -> None:
    await stage.ask("a1", "b1", "c1")
    ((job, done),) = WORKERS[0].jobs
    WORKERS[0].jobs.clear()
    done(job(), None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stage.tasks["b1"].cancel()  # whether its turn has come or not
    await stage.settle()
    assert await stage.step() == "c1"
    assert (stage.fair.waiting, stage.fair._busy) == (0, False)


@played
async def test_a_failure_is_that_of_its_job(stage: Stage) -> None:
    def fail() -> None:
        raise ValueError("no")

    failing = asyncio.ensure_future(stage.fair.run("a", fail))
    await stage.ask("b1")
    ((_, done),) = WORKERS[0].jobs
    WORKERS[0].jobs.clear()
    done(None, ValueError("no"))
    await stage.settle()
    with pytest.raises(ValueError, match="no"):
        await failing
    assert await stage.step() == "b1"


@played
async def test_an_address_with_very_many_makes_room_for_others(stage: Stage) -> None:
    await stage.ask("a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "b1", "b2")
    assert refused(stage) == ["a8", "a7", "a6"]
    assert stage.fair.waiting == 6
    assert [await stage.step() for _ in range(7)] == ["a1", "a2", "b1", "a3", "b2", "a4", "a5"]
    assert (stage.fair.waiting, stage.fair._queues, stage.fair._busy) == (0, {}, False)


@played
async def test_who_is_crowded_out_and_gone_at_once_takes_no_turn(stage: Stage) -> None:
    await stage.ask("a1", "a2", "a3", "a4", "a5", "a6", "a7")
    victim = stage.tasks["a7"]
    following = asyncio.ensure_future(stage.fair.run("b", lambda: "b1"))
    await asyncio.sleep(0)
    victim.cancel()
    await stage.settle()
    assert [await stage.step() for _ in range(7)] == ["a1", "a2", "b1", "a3", "a4", "a5", "a6"]
    assert following.result() == "b1"
    assert (stage.fair.waiting, stage.fair._busy) == (0, False)


def refused(stage: Stage) -> list[str]:
    """In the order in which they were."""
    found = [name for name, task in stage.tasks.items() if task.done()]
    assert all(isinstance(stage.tasks[name].exception(), CrowdedError) for name in found)
    return sorted(found, reverse=True)
