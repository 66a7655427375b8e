"""A thread for slow work, shared fairly: clients' addresses take turns.

The thread runs one job at a time. An address that floods the broker waits for its own jobs; other
addresses wait for at most one of those. When too many wait, the address with most loses one. The
job of a client that leaves before its turn is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from pulsark.runtime import run_in_worker
from pulsark.security.networks import network_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.runtime import Runtime, Worker

T = TypeVar("T")


class CrowdedError(Exception):
    """Too many jobs wait, and this address has most of them."""


class FairWorker:
    """Runs jobs for addresses, in turn. The thread starts with the first one."""

    def __init__(self, runtime: Runtime, name: str, most: int) -> None:
        """At most ``most`` jobs wait."""
        self._runtime = runtime
        self._name = name
        self._most = most
        self._worker: Worker | None = None
        self._busy = False
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting jobs by address, in the order of the addresses' turns."""
        self.waiting = 0

    async def run(self, address: str, job: Callable[[], T]) -> T:
        """Run a job in the address's turn, and return its result; ``CrowdedError``."""
        if self._busy:
            await self._turn(network_of(address))
        self._busy = True
        if self._worker is None:
            self._worker = self._runtime.new_worker(self._name)
        running = asyncio.ensure_future(run_in_worker(self._worker, job))
        running.add_done_callback(lambda _: self._next())
        # A waiting client may leave; the thread still finishes its job.
        return await asyncio.shield(running)

    async def _turn(self, address: str) -> None:
        if self.waiting >= self._most:
            self._make_room(address)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(address, deque()).append(mine)
        self.waiting += 1
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                self._leave(address, mine)
            elif mine.exception() is None:
                self._next()
            raise

    def _make_room(self, address: str) -> None:
        """Refuse the newest job of the address with most; ``CrowdedError`` if that is this one."""
        longest = max(self._queues, key=lambda each: len(self._queues[each]))
        queue = self._queues[longest]
        newest = next((each for each in reversed(queue) if not each.done()), None)
        if newest is None or len(queue) <= len(self._queues.get(address, ())) + 1:
            raise CrowdedError
        self._leave(longest, newest)
        newest.set_exception(CrowdedError())

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
                continue  # its client is gone
            del self._queues[address]
            queue.remove(following)
            self.waiting -= 1
            if queue:
                self._queues[address] = queue
            following.set_result(None)
            return
        self._busy = False
