"""The life of a process that serves in the foreground: from its start to SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pulsark.errors import PulsarkError
from pulsark.runtime import collect_rarely

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pulsark.processes.child import Process

log = logging.getLogger(__name__)

FAILED_STOP_SECONDS: Final = 5.0
"""How long to try to stop in order after a failure: much of it may wait for what has failed."""


def end_as_if_killed(seconds: float, failure: BaseException | None) -> None:
    """What a stop waits for, as servers that are away, may never come. Storage survives a kill."""
    log.error(
        "not stopped within %g s (brokerShutdownTimeoutMs), so this process ends as if it were "
        "killed: see what it logged last. Nothing confirmed is lost; the next start recovers it%s",
        seconds,
        "" if failure is None else f". It stopped because of a failure: {failure}",
    )
    logging.shutdown()
    os._exit(1)


async def serve_until_signal(
    make: Callable[[Callable[[PulsarkError], None]], Process],
    ready: asyncio.Future[dict[str, Any]],
    *,
    stop_seconds: float | None = None,
    failed_stop_seconds: float | None = None,
) -> None:
    """Start, set ``ready`` to what was started, and stop in order at the end.

    The end is a signal, also while it starts, or an error with which the process calls what
    ``make`` is given: it cannot go on. That is raised, and the stop then takes no longer than
    ``failed_stop_seconds``.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def fail(error: PulsarkError) -> None:
        if not ended.done():
            ended.set_exception(error)

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, end)
    process = make(fail)
    starting = loop.create_task(process.start())
    either: set[asyncio.Future[Any]] = {starting, ended}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            info = starting.result()
            collect_rarely()
            log.info("serving", extra=info)
            ready.set_result(info)
        await ended
    finally:
        with _no_longer_than(stop_seconds, partial(_failure, either)):
            starting.cancel()
            await asyncio.wait({starting})
            failed = _failure(either) is not None
            end()  # from here on, a part that ends has not failed
            with contextlib.suppress(*((TimeoutError, PulsarkError) if failed else ())):
                async with asyncio.timeout(failed_stop_seconds if failed else None):
                    await process.stop()


def _failure(parts: Iterable[asyncio.Future[Any]]) -> BaseException | None:
    ended = (each for each in parts if each.done() and not each.cancelled())
    return next(filter(None, (each.exception() for each in ended)), None)


@contextlib.contextmanager
def _no_longer_than(
    seconds: float | None, failure: Callable[[], BaseException | None]
) -> Iterator[None]:
    if seconds is None:
        yield
        return

    def end() -> None:
        end_as_if_killed(seconds, failure())

    limit = asyncio.get_running_loop().call_later(seconds, end)
    try:
        yield
    finally:
        limit.cancel()
