"""When garbage is looked for: once memory has grown, and in a quiet moment if there is one."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

import pytest

from pulsark.dispatch.loop.garbage import (
    GROWTH_BYTES,
    LOOK_SECONDS,
    PAUSE_SECONDS_MAX,
    URGENT_GROWTH_BYTES,
    Garbage,
)
from pulsark.runtime import GC_THRESHOLDS
from tests.sim.simulation import Simulation


class Process:
    """Its memory and how busy it is."""

    def __init__(self) -> None:
        self.bytes = 100 << 20
        self.objects = 1 << 20
        self.busy = False
        self.searches = 0
        self.worked = 0.0
        """Processor time, in seconds."""

    def is_busy(self) -> bool:
        return self.busy

    def collect(self) -> None:
        self.searches += 1
        self.bytes -= 50 << 20

    async def looked(self) -> int:
        """The searches until after the next look."""
        await asyncio.sleep(LOOK_SECONDS)
        return self.searches


def begun(process: Process, collect: Callable[[], None]) -> Garbage:
    garbage = Garbage(
        lambda: process.worked,
        process,  # type: ignore[arg-type]
        lambda: process.bytes,
        collect,
        lambda: process.objects,
    )
    garbage.start()
    return garbage


def test_garbage_is_looked_for_when_memory_has_grown() -> None:
    async def main() -> None:
        process = Process()
        garbage = begun(process, process.collect)

        assert await process.looked() == 0
        process.bytes += GROWTH_BYTES - 1
        assert await process.looked() == 0
        process.bytes += 1
        assert await process.looked() == 1
        assert await process.looked() == 1  # what was left counts as what there was before
        process.busy = True
        process.bytes += GROWTH_BYTES
        assert await process.looked() == 1
        process.bytes += URGENT_GROWTH_BYTES - GROWTH_BYTES
        assert await process.looked() == 2
        process.busy = False
        process.bytes -= 100 << 20
        assert await process.looked() == 2
        process.bytes += GROWTH_BYTES
        assert await process.looked() == 3
        garbage.close()
        process.bytes += URGENT_GROWTH_BYTES
        assert await process.looked() == 3

    with Simulation() as sim:
        sim.run(main())


def test_a_search_that_would_stop_the_broker_for_long_is_not_begun(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        process = Process()

        def collect() -> None:
            process.searches += 1
            process.worked += process.objects * PAUSE_SECONDS_MAX / 10_000_000

        garbage = begun(process, collect)

        process.objects = 9_000_000
        process.bytes += GROWTH_BYTES
        assert await process.looked() == 1
        process.objects = 11_000_000
        process.bytes += GROWTH_BYTES
        assert await process.looked() == 1
        process.bytes += GROWTH_BYTES
        assert await process.looked() == 1
        process.objects = 9_000_000
        assert await process.looked() == 2
        process.bytes += 100 * GROWTH_BYTES  # of messages
        assert await process.looked() == 3
        garbage.close()

    with Simulation() as sim:
        sim.run(main())
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "stop this broker for about 6 s" in told


def test_a_process_that_stood_still_in_a_search_searches_again() -> None:
    """As one that was stopped, or got no processor: it says nothing about the next time."""

    async def main() -> None:
        process = Process()

        def collect() -> None:
            process.searches += 1
            process.worked += 0.1
            sim.loop.advance(60)

        garbage = begun(process, collect)
        for number in range(1, 4):
            process.bytes += GROWTH_BYTES
            assert await process.looked() == number
        garbage.close()

    with Simulation() as sim:
        sim.run(main())


def test_young_objects_are_searched_without_a_noticeable_pause() -> None:
    young, middle, old = GC_THRESHOLDS
    assert young <= 25_000  # a thousand objects take about 70 microseconds
    assert young * middle <= 100_000
    assert old >= 100_000  # never by itself
    gc.collect()
    kept = [[number] for number in range(young)]
    shortest = min(timed_search() for _ in range(3))
    assert shortest < 0.05
    assert len(kept) == young


def timed_search() -> float:
    began = time.thread_time()
    gc.collect(0)
    return time.thread_time() - began
