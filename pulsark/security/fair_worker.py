"""A thread for work that takes long, shared fairly: clients' addresses take turns.

One job is with the thread at a time, and a client that goes away before its turn leaves nothing
behind. So whoever floods the broker with logins waits for itself, and others for one job of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from pulsark.runtime import run_in_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.runtime import Runtime, Worker

T = TypeVar("T")


class FairWorker:
    """Runs jobs for addresses, in turn. The thread starts with the first one."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self._name = name
        self._worker: Worker | None = None
        self._busy = False
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """Whoever waits, by address; the first address is the next."""
        self.waiting = 0

    async def run(self, address: str, job: Callable[[], T]) -> T:
        """The result of a job, once the turn of the address has come."""
        if self._busy:
            await self._turn(address)
        self._busy = True
        if self._worker is None:
            self._worker = self._runtime.new_worker(self._name)
        running = asyncio.ensure_future(run_in_worker(self._worker, job))
        running.add_done_callback(lambda _: self._next())
        # Whoever waits may go; the thread goes on, and is not free before it is done.
        return await asyncio.shield(running)

    async def _turn(self, address: str) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(address, deque()).append(mine)
        self.waiting += 1
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                self._leave(address, mine)
            else:
                self._next()
            raise

    def _leave(self, address: str, mine: asyncio.Future[None]) -> None:
        queue = self._queues[address]
        queue.remove(mine)
        self.waiting -= 1
        if not queue:
            del self._queues[address]

    def _next(self) -> None:
        for address, queue in self._queues.items():
            following = next((each for each in queue if not each.done()), None)
            if following is None:
                continue  # whoever is there has gone, and is about to leave
            del self._queues[address]
            queue.remove(following)
            self.waiting -= 1
            if queue:
                self._queues[address] = queue
            following.set_result(None)
            return
        self._busy = False
