"""The steps of an event loop, measured: which of them took too long, by name.

A step is what the loop calls: a callback, or a task up to its next ``await``. What counts is the
processor time of the loop's thread, so another process that has the machine makes nothing long.

``python -m tests.support.loop_steps standalone ...`` is ``pulsark`` on such a loop, which is
asyncio's own and not uvloop. It appends what was long to the file of ``PULSARK_TEST_STEPS``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

MAIN = "-m tests.support.loop_steps"
FILE = "PULSARK_TEST_STEPS"
SECONDS = float(os.environ.get("PULSARK_TEST_STEP_SECONDS", "0.025"))
"""Machines differ: what is long is a setting."""


class LongStep(NamedTuple):
    """Something that kept all others waiting."""

    name: str
    seconds: float


@contextmanager
def measured(told: Callable[[LongStep], object], seconds: float = SECONDS) -> Iterator[None]:
    """While this context is open, each step of asyncio's loops that takes longer is told."""
    run = events.Handle._run
    now = time.thread_time

    def measure(self: Any) -> Any:
        begun = now()
        result = run(self)
        took = now() - begun
        if took > seconds:
            told(LongStep(_name(self._callback), round(took, 4)))
        return result

    events.Handle._run = measure  # type: ignore[method-assign]
    try:
        yield
    finally:
        events.Handle._run = run  # type: ignore[method-assign]


def _name(callback: Any) -> str:
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        places = [f"{f.f_code.co_qualname}:{f.f_lineno}" for f in task.get_stack()]
        return " > ".join([f"task {task.get_coro().__qualname__}", *places])  # type: ignore[union-attr]
    return str(getattr(callback, "__qualname__", callback))


def long_steps(path: Path) -> list[LongStep]:
    """What a process has written so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [LongStep(*json.loads(line)) for line in lines]


def main() -> None:
    import uvloop

    from pulsark.cli import main as pulsark

    def tell(step: LongStep) -> None:
        with Path(os.environ[FILE]).open("a") as file:
            file.write(json.dumps(step) + "\n")

    uvloop.run = asyncio.run
    with measured(tell):
        pulsark()


if __name__ == "__main__":
    sys.exit(main())
