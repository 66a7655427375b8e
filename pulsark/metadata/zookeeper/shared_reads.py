"""Reads of values that many ask for at a time, such as that of a namespace.

Who asks while the same one is being read waits for the next read of it, and shares that with all
who have asked by then, with what was made of the answer. The answer that is on its way may be older
than the question.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class SharedReads(Generic[T]):
    """Those of one client. Nothing is kept of a path that nobody reads."""

    def __init__(self, get: Callable[[str], Awaitable[T]]) -> None:
        self._get = get
        self._waiting: dict[str, list[asyncio.Future[T]]] = {}
        """By path that is being read, who waits for the next read."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, path: str) -> T:
        """What is there now or later. The errors are those of the read."""
        waiting = self._waiting.get(path)
        if waiting is not None:
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            waiting.append(future)
            return await future
        self._waiting[path] = []
        try:
            return await self._get(path)
        finally:
            self._go_on(path)

    def _go_on(self, path: str) -> None:
        waiting = [each for each in self._waiting.pop(path) if not each.done()]
        if waiting:
            self._waiting[path] = []
            task = asyncio.get_running_loop().create_task(self._read_for(path, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read_for(self, path: str, waiting: list[asyncio.Future[T]]) -> None:
        try:
            found = await self._get(path)
        except Exception as error:  # noqa: BLE001 - it is told to those who wait
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
        except BaseException:
            for future in waiting:
                future.cancel()
            raise
        else:
            for future in waiting:
                if not future.done():
                    future.set_result(found)
        finally:
            self._go_on(path)
