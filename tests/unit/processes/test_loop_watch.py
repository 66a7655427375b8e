"""A process with a blocked event loop ends, and only such a one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from pulsark.processes import loop_watch
from pulsark.processes.loop_watch import LoopWatch


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
        watch = LoopWatch(3.0, lambda: ends.append("blocked"))
        for _ in range(4):
            watch._beat()
            for _ in range(4):  # the first one sees the beat
                watch.look()
        assert ends == []
        watch.look()
        assert ends == ["blocked"]
        watch.close()

    asyncio.run(turns())


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
