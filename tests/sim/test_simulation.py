"""The simulator itself: virtual time, replay, and what the disk forgets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gc
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pulsark.runtime import Disk, OsDisk, Worker, run_in_worker
from tests.sim.clock import SimClock
from tests.sim.disk import SECTOR, SURVIVALS, SimDisk, crash_points
from tests.sim.loop import SimulatedCrash, Stalled
from tests.sim.simulation import Simulation


def test_sleeping_costs_virtual_time_only() -> None:
    async def hours() -> float:
        await asyncio.gather(*(asyncio.sleep(3600 * n) for n in range(5)))
        return asyncio.get_running_loop().time()

    with Simulation() as sim:
        assert sim.run(hours()) == pytest.approx(4 * 3600)


def test_waiting_for_nothing_is_reported() -> None:
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    with Simulation() as sim, pytest.raises(Stalled):
        sim.run(forever())


def test_uncaught_error_of_a_callback_fails_the_run() -> None:
    async def careless() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with Simulation() as sim, pytest.raises(ZeroDivisionError):
        sim.run(careless())


def _timeline(seed: int) -> list[tuple[float, int]]:
    events: list[tuple[float, int]] = []

    async def main(worker_a: Worker, worker_b: Worker) -> None:
        loop = asyncio.get_running_loop()

        async def job(worker: Worker, n: int) -> None:
            await run_in_worker(worker, lambda: None)
            events.append((loop.time(), n))

        await asyncio.gather(*(job((worker_a, worker_b)[n % 2], n) for n in range(20)))

    with Simulation(seed) as sim:
        runtime = sim.runtime(SimDisk())
        sim.run(main(runtime.new_worker("a"), runtime.new_worker("b")))
    return events


def test_a_seed_replays_and_another_differs() -> None:
    assert _timeline(7) == _timeline(7)
    assert _timeline(7) != _timeline(8)


def test_worker_runs_in_order_and_returns_errors() -> None:
    async def main(worker: Worker) -> list[int]:
        order: list[int] = []
        for n in range(5):
            worker.submit(functools.partial(int, n), lambda n, _: order.append(n or 0))
        with pytest.raises(ValueError, match="no"):
            await run_in_worker(worker, lambda: _raise(ValueError("no")))
        worker.close()
        return order

    with Simulation() as sim:
        assert sim.run(main(sim.runtime(SimDisk()).new_worker("w"))) == [0, 1, 2, 3, 4]


def _raise(error: Exception) -> None:
    raise error


def test_clock_steps_and_drifts() -> None:
    with Simulation() as sim:
        clock = SimClock(sim.loop, drift=0.05)
        start = clock.now_ms()
        sim.run(asyncio.sleep(100))
        assert clock.now_ms() - start == 105_000
        assert clock.monotonic() == pytest.approx(105)
        clock.step_ms = -3_600_000
        assert clock.now_ms() < start


def _write_twice(disk: SimDisk) -> None:
    disk.make_dirs("/d")
    file = disk.create("/d/f")
    file.writev([b"a" * 1000])
    file.sync()
    file.writev([b"b" * 3000])


def test_unsynced_bytes_survive_not_wholly_or_in_sectors() -> None:
    disk = SimDisk()
    _write_twice(disk)
    assert disk.after_crash("none", random.Random(1)).size("/d/f") == 1000
    assert disk.after_crash("all", random.Random(1)).size("/d/f") == 4000
    lengths, holes = set(), 0
    for seed in range(200):
        disk = SimDisk()
        _write_twice(disk)
        data = disk.after_crash("random", random.Random(seed)).content("/d/f")
        assert data[:1000] == b"a" * 1000
        lengths.add(len(data))
        tail = data[1000:]
        assert set(tail) <= {0, ord("b")}
        holes += b"\0" in tail and b"b" in tail
        assert data[1000 : 2 * SECTOR] in (b"b" * 24, bytes(24), b"")
    assert len(lengths) >= 4
    assert holes > 10


def test_names_need_the_directory_sync() -> None:
    disk = SimDisk()
    disk.make_dirs("/d")
    disk.crash_at = disk.steps + 2  # after the creation, before the sync of the directory
    with pytest.raises(SimulatedCrash):
        disk.create("/d/f")
    assert disk.after_crash("none", random.Random(0)).files() == ()
    assert disk.after_crash("all", random.Random(0)).files() == ("/d/f",)
    with pytest.raises(SimulatedCrash):
        disk.list("/d")


@pytest.mark.parametrize("make", [SimDisk, OsDisk])
def test_write_new_writes_once_and_leaves_nothing_else(
    make: type[SimDisk | OsDisk], tmp_path: Path
) -> None:
    disk, path = make(), str(tmp_path)
    disk.make_dirs(path)
    disk.write_new(f"{path}/f", b"first")
    with pytest.raises(FileExistsError):
        disk.write_new(f"{path}/f", b"second")
    assert disk.list(path) == ["f"]
    assert disk.open(f"{path}/f").read(0, 99) == b"first"


def test_write_new_shows_all_or_nothing_after_any_crash() -> None:
    def script(disk: SimDisk) -> None:
        disk.make_dirs("/d")
        disk.write_new("/d/f", b"new" * 500)

    steps = crash_points(script)
    for step in range(1, steps + 2):
        for survival in SURVIVALS:
            disk = SimDisk()
            disk.crash_at = step
            with contextlib.suppress(SimulatedCrash):
                script(disk)
            after = disk.after_crash(survival, random.Random(step))
            if "/d/f" in after.files():
                assert after.content("/d/f") == b"new" * 500
            else:
                assert step <= steps


def test_write_atomic_shows_old_or_new_after_any_crash() -> None:
    def script(disk: SimDisk) -> None:
        disk.make_dirs("/d")
        disk.write_atomic("/d/f", b"old" * 500)
        disk.write_atomic("/d/f", b"new" * 500)

    seen = set()
    for crash_at in range(1, crash_points(script) + 2):
        for survival in SURVIVALS:
            disk = SimDisk()
            disk.crash_at = crash_at
            with contextlib.suppress(SimulatedCrash):
                script(disk)
            after = disk.after_crash(survival, random.Random(crash_at))
            seen.add(after.content("/d/f")[:3] if "/d/f" in after.files() else b"-")
    assert seen == {b"-", b"old", b"new"}


def test_full_disk_cuts_a_write_short() -> None:
    disk = SimDisk()
    disk.capacity = 100
    file = disk.create("/f")
    with pytest.raises(OSError) as caught:
        file.writev([b"x" * 80, b"y" * 80])
    assert caught.value.errno == errno.ENOSPC
    assert disk.content("/f") == b"x" * 80 + b"y" * 20
    disk.truncate("/f", 10)
    assert disk.space("/") == (90, 100)
    file.writev([b"z"])
    assert disk.content("/f") == b"x" * 10 + b"z"


def test_failed_sync_loses_the_bytes_for_good() -> None:
    disk = SimDisk()
    file = disk.create("/f")
    file.writev([b"x" * 10])
    disk.sync_errno = errno.EIO
    with pytest.raises(OSError):
        file.sync()
    disk.sync_errno = 0
    file.sync()
    file.writev([b"y"])
    file.sync()
    assert disk.content("/f") == b"x" * 10 + b"y"
    killed = disk.after_crash("all", random.Random(0))
    assert killed.content("/f") == b"x" * 10 + b"y"
    assert killed.after_crash("none", random.Random(0)).content("/f") == bytes(10) + b"y"


def test_a_sync_fails_once_and_what_is_written_again_is_durable() -> None:
    disk = SimDisk()
    file = disk.create("/f")
    file.writev([b"x" * 10])
    disk.sync_errno_once = errno.EIO
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    assert disk.survivor("none", random.Random(0)).content("/f") == bytes(10)
    disk.write_again("/f", 4)
    assert disk.survivor("none", random.Random(0)).content("/f") == bytes(4) + b"x" * 6


def test_what_a_kill_left_in_the_page_cache_goes_with_the_power() -> None:
    disk = SimDisk()
    _write_twice(disk)
    disk.crash_at = disk.steps + 2
    with pytest.raises(SimulatedCrash):
        disk.create("/d/g")
    killed = disk.after_crash("all", random.Random(1))
    assert killed.files() == ("/d/f", "/d/g")
    assert killed.size("/d/f") == 4000
    lost = killed.survivor("none", random.Random(1))
    assert lost.files() == ("/d/f",)
    assert lost.size("/d/f") == 1000
    killed.sync_names("/d")
    killed.write_again("/d/f", 1000)
    kept = killed.survivor("none", random.Random(1))
    assert kept.files() == ("/d/f", "/d/g")
    assert kept.content("/d/f") == b"a" * 1000 + b"b" * 3000


def test_errors_only_on_the_faulty_path() -> None:
    disk = SimDisk()
    disk.write_errno, disk.faulty = errno.EIO, "bad"
    disk.create("/good").writev([b"1"])
    with pytest.raises(OSError):
        disk.create("/bad").writev([b"1"])


def test_simulated_types_fit_the_protocols() -> None:
    disk: Disk = SimDisk()
    with Simulation() as sim:
        worker: Worker = sim.runtime(SimDisk()).new_worker("w")
        assert disk is not None
        assert worker is not None


def test_a_process_may_die_while_an_async_generator_is_being_closed() -> None:
    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(1)

    async def main(sim: Simulation) -> None:
        generator = numbers()
        assert await anext(generator) == 1
        closing = generator.aclose()  # type: ignore[attr-defined]
        sim.loop.create_task(closing)
        await asyncio.sleep(0.5)

    with Simulation() as sim:
        sim.run(main(sim))
    assert sim.loop.is_closed()


def test_what_is_left_of_a_dead_process_ends_with_it_and_asks_its_loop_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also what waits on its way out: else it would end when its memory is freed, at any time."""
    noise: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    ended: list[str] = []
    with Simulation() as sim:
        loop = sim.loop

        async def begun() -> None:
            ended.append("what it begins")

        async def waits() -> None:
            future = loop.create_future()
            future.add_done_callback(lambda _: ended.append("a callback"))
            try:
                await asyncio.sleep(60)
            finally:
                future.set_result(None)
                loop.call_later(1, ended.append, "a timer")
                ended.append("the end")
                try:
                    await asyncio.sleep(0)
                finally:
                    ended.append("the end of that")
                    asyncio.create_task(begun())  # noqa: RUF006

        async def main() -> asyncio.Task[None]:
            task = asyncio.create_task(waits())
            await asyncio.sleep(1)
            return task

        task = sim.run(main())
    assert ended == ["the end", "the end of that"]
    del task
    gc.collect()
    assert ended == ["the end", "the end of that"]
    assert not noise
