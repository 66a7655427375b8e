"""Ids of ledgers, shared with all clients of a cluster: the numbers of sequential nodes.

A counter belongs to the parent node and never falls. Its range is that of 31 bits; then the upper
32 bits of an id are counted in nodes of their own, as all clients of BookKeeper do.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataError, OutcomeUnknownError
from pulsark.metadata.zookeeper.nodes import (
    CreateNode,
    DeleteNode,
    NodeExistsError,
    NoNodeError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.metadata.zookeeper.lasting import RawNodes

log = logging.getLogger(__name__)

SHORT: Final = "idgen"
LONG: Final = "idgen-long"
_HIGH: Final = "HOB-"
_END: Final = 2**31 - 1
_ATTEMPTS: Final = 5
_AT_ONCE: Final = 100


class LedgerIds:
    """Gives out ids that no ledger of the cluster ever had, ascending."""

    def __init__(self, zookeeper: RawNodes, root: str) -> None:
        self._zookeeper = zookeeper
        self._root = root
        self._high: int | None = None
        """The upper half; 0 as long as the lower one suffices, ``None`` before it was looked up."""
        self._last = -1
        """The last one that was given here."""
        self._waiting: list[asyncio.Future[int]] = []
        self._giving: asyncio.Task[None] | None = None
        self._deleting: set[asyncio.Task[None]] = set()

    async def new(self) -> int:
        """The next id. ``MetadataError``; ``OutcomeUnknownError`` if no answer comes.

        Those of one turn of the event loop are asked for together.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        self._waiting.append(future)
        if self._giving is None or self._giving.done():
            self._giving = loop.create_task(self._give())
        return await future

    async def _give(self) -> None:
        await asyncio.sleep(0)  # the rest of this turn
        while waiting := [each for each in self._waiting if not each.done()]:
            self._waiting, some = waiting, waiting[:_AT_ONCE]
            try:
                for future, ledger_id in zip(some, await self._some(len(some)), strict=False):
                    if not future.done():
                        future.set_result(ledger_id)
            except Exception as error:  # noqa: BLE001 - each is told to those who wait
                for future in some:
                    if not future.done():
                        future.set_exception(error)
            except BaseException:
                for future in self._waiting:
                    future.cancel()
                raise
        self._waiting = []

    async def _some(self, count: int) -> list[int]:
        """At most so many ids, and at least one; ascending."""
        if self._high is None:
            self._high = await self._highest()
        while True:
            high = self._high
            prefix = f"{SHORT}/ID-" if not high else f"{LONG}/{_half(high)}/ID-"
            lows = [low for low in await self._next(prefix, count) if 0 <= low < _END]
            if lows:
                if high << 32 | lows[0] <= self._last:
                    raise MetadataError(
                        f"ZooKeeper went back: it gives ledger id {high << 32 | lows[0]}, and has "
                        f"given {self._last} before. Put its newer data back"
                    )
                self._last = high << 32 | lows[-1]
                return [high << 32 | low for low in lows]
            # Others may have gone there before.
            self._high = max(await self._highest(), high + 1)
            await self._make(f"{LONG}/{_half(self._high)}")

    async def upcoming(self) -> int:
        """What ``new`` would return next, without taking it. Others may take it meanwhile."""
        high = await self._highest()
        parent = f"{self._root}/{LONG}/{_half(high)}" if high else f"{self._root}/{SHORT}"
        await self._zookeeper.sync()
        found = await self._zookeeper.get(parent)
        return high << 32 | (0 if found is None else found.created_children)

    async def _highest(self) -> int:
        try:
            names = await self._zookeeper.children(f"{self._root}/{LONG}")
        except NoNodeError:
            return 0
        return max((int(n.removeprefix(_HIGH)) for n in names if n.startswith(_HIGH)), default=0)

    async def _next(self, prefix: str, count: int) -> list[int]:
        path = f"{self._root}/{prefix}"
        new = [CreateNode(path, ephemeral=True, sequential=True)] * count
        for attempt in range(_ATTEMPTS):
            try:
                made = [str(each) for each in await self._zookeeper.multi(new)]
            except NoNodeError:
                await self._make(prefix.rpartition("/")[0])
            except OutcomeUnknownError:
                # If there are nodes, then for nobody; they go with the session.
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                self._delete(made)
                return [int(each[len(path) :]) for each in made]
        raise MetadataError(f"no ids are given out below {path}")

    async def _make(self, path: str) -> None:
        try:
            await self._zookeeper.make(f"{self._root}/{path}")
        except NodeExistsError:
            return

    def _delete(self, paths: Sequence[str]) -> None:
        """Without waiting: only the numbers were wanted."""
        task = asyncio.get_running_loop().create_task(self._delete_nodes(paths))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def _delete_nodes(self, paths: Sequence[str]) -> None:
        try:
            await self._zookeeper.multi([DeleteNode(path) for path in paths])
        except MetadataError as e:
            log.debug("%s and others go with the session: %s", paths[0], e)


def _half(high: int) -> str:
    return f"{_HIGH}{high:010d}"
