"""An asyncio event loop in virtual time.

Nothing waits: when no callback is ready, the clock jumps to the next timer. The order of
callbacks is asyncio's own, so a run depends on nothing but the program and its seed. A loop
that has neither callbacks nor timers would wait for ever; here that is ``Stalled``.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any

CLOCK_RESOLUTION = 1e-9
MAX_ITERATIONS = 5_000_000
ENDS_MAX = 100
"""So often a coroutine may wait on its way out."""


class Stalled(Exception):
    """Everything waits for something that can no longer happen, or nothing ever rests."""


class SimulatedCrash(SystemExit):
    """The process died at this point. A ``SystemExit``, so that no task or callback keeps it."""


class _NoSelector:
    """Stands where asyncio polls its sockets: sleeping moves the clock instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._iterations = 0

    def select(self, timeout: float | None) -> list[Any]:
        self._iterations += 1
        if self._iterations > MAX_ITERATIONS:
            raise Stalled(f"still busy after {MAX_ITERATIONS} turns of the loop")
        if timeout is None:
            raise Stalled("every task waits and no timer is set")
        if timeout > 0:
            self._loop.advance(timeout)
        return []

    def close(self) -> None:
        """Nothing is held."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Timers and callbacks without sockets, threads, signals or real time."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._clock_resolution = CLOCK_RESOLUTION
        self._selector = _NoSelector(self)
        self.unhandled: list[dict[str, Any]] = []
        """Contexts of exceptions that nobody caught; ``Simulation`` fails on them."""
        self.set_exception_handler(lambda _, context: self.unhandled.append(context))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock; called where a real loop would sleep."""
        self._now += seconds
        # After years a float cannot tell times so near, and asyncio would wait for one for ever.
        self._clock_resolution = max(CLOCK_RESOLUTION, 2 * math.ulp(self._now))

    def abandon(self) -> None:
        """Forget every task and timer, as the death of the process does."""
        tasks = asyncio.all_tasks(self)
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self.set_exception_handler(lambda _loop, _context: None)
        if not self.is_closed():
            self.close()
        # What is left asks for this when it is ended, or when its memory is freed.
        self.call_soon = self._never  # type: ignore[method-assign, assignment]
        self.call_at = self._never_at  # type: ignore[method-assign, assignment]
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if inspect.iscoroutine(coroutine):  # of an async generator it is something else
                _end(coroutine)

    def _never(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return asyncio.Handle(callback, args, self, context)

    def _never_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return asyncio.TimerHandle(when, callback, args, self, context)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no file descriptors, hence no events."""

    def _write_to_self(self) -> None:
        """Nobody sleeps, so nobody needs waking."""

    def run_in_executor(self, *_: Any) -> Any:  # type: ignore[override]
        """Refused: a real thread would make the run depend on the machine."""
        raise NotImplementedError("real threads are not simulated: use Runtime.new_worker")


def _end(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Let a coroutine come to its end here: else it does so when its memory is freed, at any time.

    One that waits on its way out is ended there, again. What it begins is never run.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(ENDS_MAX):
            with suppress(BaseException):
                coroutine.close()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED:
                break
