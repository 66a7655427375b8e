"""A process with a blocked event loop ends, and only such a one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from pulsark.processes import loop_watch
from pulsark.processes.loop_watch import Heartbeat, LoopProgress, LoopWatch


def test_a_blocked_loop_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "BEAT_SECONDS", 0.001)
    ended = threading.Event()

    async def blocked() -> None:
        LoopWatch(0.01, ended.set).start()
        assert ended.wait(30)

    asyncio.run(blocked())


def test_one_that_turns_in_time_is_not() -> None:
    ends: list[str] = []

    async def turns() -> None:
        watch, progress = LoopWatch(3.0, lambda: ends.append("blocked")), LoopProgress()
        await asyncio.sleep(0)
        for _ in range(4):
            progress.turn()
            for _ in range(4):  # the first one sees the turn
                watch.look(progress)
        assert ends == []
        watch.look(progress)
        assert ends == ["blocked"]
        progress.close()

    asyncio.run(turns())


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_late_loop_that_completes_callbacks_gets_on_and_a_stuck_one_does_not(
    runner: Callable[..., Any],
) -> None:
    """All of it in one turn of the loop: no timer fires meanwhile."""
    looks: list[tuple[str, bool]] = []
    ask, asked = threading.Event(), threading.Event()

    async def main() -> None:
        progress = LoopProgress()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        def other_thread() -> None:
            for name in ["first", "busy", "busy", "busy", "stuck", "stuck", "stuck", "over"]:
                ask.wait(30)
                ask.clear()
                looks.append((name, progress.look()))
                asked.set()

        def look_now() -> None:
            ask.set()
            assert asked.wait(30)
            asked.clear()

        def busy() -> None:
            look_now()

        def stuck() -> None:
            for _ in range(4):
                look_now()

        thread = threading.Thread(target=other_thread)
        thread.start()
        loop = asyncio.get_running_loop()
        for callback in (busy, busy, busy, busy, stuck):
            loop.call_soon(callback)
        await asyncio.sleep(0)
        await asyncio.to_thread(thread.join)
        progress.close()

    runner(main())
    assert [got_on for name, got_on in looks if name == "busy"] == [True] * 3
    # The first look sees another callback than before.
    assert [got_on for name, got_on in looks if name == "stuck"] == [True, False, False]


def test_beats_do_not_wait_for_a_late_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "BEAT_SECONDS", 0.001)
    beats = threading.Semaphore(0)

    async def main() -> None:
        heartbeat = Heartbeat(beats.release)
        await asyncio.sleep(0.01)

        def busy() -> None:
            assert beats.acquire(timeout=30)

        # One turn, in which each callback ends with a beat that came while no timer could fire.
        for _ in range(50):
            asyncio.get_running_loop().call_soon(busy)
        await asyncio.sleep(0)
        heartbeat.close()

    uvloop.run(main())


def test_the_process_ends_and_says_where_it_was() -> None:
    program = """
import asyncio
from pulsark.processes import loop_watch
loop_watch.BEAT_SECONDS = 0.01
async def stuck():
    loop_watch.LoopWatch(0.1).start()
    while True:
        pass
asyncio.run(stuck())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == loop_watch.EXIT_CODE
    assert done.stderr.startswith("the event loop is blocked")
    assert "in stuck" in done.stderr
