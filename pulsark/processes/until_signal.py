"""The life of a process that serves in the foreground: from its start to SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.errors import PulsarkError
    from pulsark.processes.child import Process

log = logging.getLogger(__name__)


async def serve_until_signal(
    make: Callable[[Callable[[PulsarkError], None]], Process],
    ready: asyncio.Future[dict[str, Any]],
) -> None:
    """Start, set ``ready`` to what was started, and stop in order at the end.

    The end is a signal, also while it starts, or an error with which the process calls what
    ``make`` is given: it cannot go on. That is raised.
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
            log.info("serving", extra=info)
            ready.set_result(info)
        await ended
    finally:
        starting.cancel()
        await asyncio.wait({starting})
        end()  # from here on, a part that ends has not failed
        await process.stop()
