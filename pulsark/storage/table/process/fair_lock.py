"""A lock that groups of callers get in turn, however many callers one group has."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class FairLock:
    """Serves groups round robin, and the callers of one group in order."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def held(self, group: str = "") -> AsyncIterator[None]:
        """Hold the lock for a caller of a group."""
        await self._acquire(group)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, group: str) -> None:
        if not self._is_held:
            self._is_held = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()
            else:
                self._leave(group, turn)
            raise

    def _leave(self, group: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting[group]
        waiting.remove(turn)
        if not waiting:
            del self._waiting[group]

    def _release(self) -> None:
        if not self._waiting:
            self._is_held = False
            return
        group, waiting = self._waiting.popitem(last=False)
        turn = waiting.popleft()
        if waiting:
            self._waiting[group] = waiting  # behind the other groups
        if turn.cancelled():
            self._release()
        else:
            turn.set_result(None)
