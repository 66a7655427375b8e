"""Ids of ledgers, shared with all clients of a cluster: the numbers of sequential nodes.

A counter belongs to the parent node and never falls. Its range is that of 31 bits; then the upper
32 bits of an id are counted in nodes of their own, as all clients of BookKeeper do.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataError, OutcomeUnknownError
from pulsark.metadata.zookeeper.nodes import NodeExistsError, NoNodeError

if TYPE_CHECKING:
    from pulsark.metadata.zookeeper.lasting import RawNodes

log = logging.getLogger(__name__)

SHORT: Final = "idgen"
LONG: Final = "idgen-long"
_HIGH: Final = "HOB-"
_END: Final = 2**31 - 1
_ATTEMPTS: Final = 5


class LedgerIds:
    """Gives out ids that no ledger of the cluster ever had, ascending."""

    def __init__(self, zookeeper: RawNodes, root: str) -> None:
        self._zookeeper = zookeeper
        self._root = root
        self._high: int | None = None
        """The upper half; 0 as long as the lower one suffices, ``None`` before it was looked up."""
        self._last = -1
        """The last one that was given here."""
        self._deleting: set[asyncio.Task[None]] = set()

    async def new(self) -> int:
        """The next id. ``MetadataError``; ``OutcomeUnknownError`` if no answer comes."""
        if self._high is None:
            self._high = await self._highest()
        while True:
            high, before = self._high, self._last
            low = await self._next(f"{SHORT}/ID-" if not high else f"{LONG}/{_half(high)}/ID-")
            if 0 <= low < _END:
                ledger_id = high << 32 | low
                if ledger_id <= before:
                    raise MetadataError(
                        f"ZooKeeper went back: it gives ledger id {ledger_id}, and has given "
                        f"{before} before. Put its newer data back"
                    )
                self._last = max(self._last, ledger_id)
                return ledger_id
            # Others may have gone there before.
            self._high = max(await self._highest(), high + 1)
            await self._make(f"{LONG}/{_half(self._high)}")

    async def upcoming(self) -> int:
        """What ``new`` would return next, without taking it. Others may take it meanwhile."""
        high = await self._highest()
        parent = f"{self._root}/{LONG}/{_half(high)}" if high else f"{self._root}/{SHORT}"
        await self._zookeeper.sync(parent)
        found = await self._zookeeper.get(parent)
        return high << 32 | (0 if found is None else found.created_children)

    async def _highest(self) -> int:
        try:
            names = await self._zookeeper.children(f"{self._root}/{LONG}")
        except NoNodeError:
            return 0
        return max((int(n.removeprefix(_HIGH)) for n in names if n.startswith(_HIGH)), default=0)

    async def _next(self, prefix: str) -> int:
        path = f"{self._root}/{prefix}"
        for attempt in range(_ATTEMPTS):
            try:
                made = await self._zookeeper.create(path, ephemeral=True, sequential=True)
            except NoNodeError:
                await self._make(prefix.rpartition("/")[0])
            except OutcomeUnknownError:
                # If there is a node, then for nobody; it goes with the session.
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                self._delete(made)
                return int(made[len(path) :])
        raise MetadataError(f"no ids are given out below {path}")

    async def _make(self, path: str) -> None:
        try:
            await self._zookeeper.make(f"{self._root}/{path}")
        except NodeExistsError:
            return

    def _delete(self, path: str) -> None:
        """Without waiting: only the number was wanted."""
        task = asyncio.get_running_loop().create_task(self._delete_node(path))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def _delete_node(self, path: str) -> None:
        try:
            await self._zookeeper.delete(path)
        except MetadataError as e:
            log.debug("%s goes with the session: %s", path, e)


def _half(high: int) -> str:
    return f"{_HIGH}{high:010d}"
