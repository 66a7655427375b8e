"""Reads of nodes that many ask for at a time, such as that of a namespace.

Who asks while the same node is being read waits for the next read of it, and shares that with all
who have asked by then. The answer that is on its way may be older than the question.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.metadata.zookeeper.nodes import Node

    Waiting = asyncio.Future[Node | None]


class SharedReads:
    """Those of one client. Nothing is kept of a node that nobody reads."""

    def __init__(self, get: Callable[[str], Awaitable[Node | None]]) -> None:
        self._get = get
        self._waiting: dict[str, list[Waiting]] = {}
        """By node that is being read, who waits for the next read."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, node: str) -> Node | None:
        """The node as it is now or later, or ``None``. The errors are those of the client."""
        waiting = self._waiting.get(node)
        if waiting is not None:
            future: Waiting = asyncio.get_running_loop().create_future()
            waiting.append(future)
            return await future
        self._waiting[node] = []
        try:
            return await self._get(node)
        finally:
            self._go_on(node)

    def _go_on(self, node: str) -> None:
        waiting = [each for each in self._waiting.pop(node) if not each.done()]
        if waiting:
            self._waiting[node] = []
            task = asyncio.get_running_loop().create_task(self._read_for(node, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read_for(self, node: str, waiting: list[Waiting]) -> None:
        try:
            found = await self._get(node)
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
            self._go_on(node)
