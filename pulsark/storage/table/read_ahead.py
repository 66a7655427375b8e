"""Blocks of sealed entries in memory, and the next ones on their way before they are asked for.

A block is what the table process answers at once. A reader that goes in order finds each block
loaded while it was busy with the one before; several readers of one block share it. One reader
alone has a few blocks loaded ahead; those of different ledgers take turns at the process, a block
each. Blocks without readers leave memory soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final, NamedTuple

from pulsark.errors import PulsarkError
from pulsark.storage.table.process.block_cache import Blocks, Entries

BLOCK_BYTES: Final = 4 << 20
"""Entries that are asked for at a time."""

BLOCKS_BYTES_MAX: Final = 64 << 20
"""Blocks that are kept, all ledgers together. The one that is being read always is."""

KEPT_SECONDS: Final = 10.0
"""Time without a reader after which a block is forgotten, or twice that: consumers read what they
are behind once, and do not come back for it."""

BLOCKS_AHEAD: Final = 3
"""Blocks that are loaded before a reader asks for them, if no other reader asks for any."""

Load = Callable[[int], Awaitable[Entries]]
"""Reads a block that begins with an entry: consecutive ones, at least that one."""


class BlockKey(NamedTuple):
    """A block: a ledger of a table, and its first entry."""

    table: str
    ledger_id: int
    first: int


class ReadAhead:
    """Everything runs on the event loop."""

    def __init__(self, max_bytes: int = BLOCKS_BYTES_MAX) -> None:
        self._blocks = Blocks[tuple[str, int]](max_bytes, least=2)
        self._loading: dict[BlockKey, asyncio.Task[Entries]] = {}
        self._forgotten = 0
        """How often something was: what was being read then may be what it was before."""
        self._timer: asyncio.TimerHandle | None = None
        """Runs while there are blocks."""

    async def read(
        self,
        table: str,
        ledger_id: int,
        first: int,
        last: int,
        max_bytes: int,
        end: int,
        load: Load,
    ) -> Entries:
        """Entries from ``first`` on, up to ``last`` and about ``max_bytes``; at least one.

        ``end`` is the last entry of the ledger that is sealed. What ``load`` raises is raised.
        """
        found = self._blocks.with_entry((table, ledger_id), first)
        in_order = found is not None
        if found is None:
            key = BlockKey(table, ledger_id, first)
            in_order = key in self._loading
            found = await self._loaded(key, load)
        if in_order or first == 0:
            self._look_ahead(found, BlockKey(table, ledger_id, first), end, load)
        return _part(found, first, last, max_bytes)

    def forget(self, table: str, ledger_ids: Collection[int] | None = None) -> None:
        """Rows of these ledgers changed, or of all."""
        self._forgotten += 1
        kept = [BlockKey(*source, first) for source, first in self._blocks]
        for key in (*kept, *self._loading.keys()):
            if key.table == table and (ledger_ids is None or key.ledger_id in ledger_ids):
                self._blocks.drop(key[:2], key.first)
                task = self._loading.pop(key, None)
                if task is not None:
                    task.cancel()

    def close(self) -> None:
        """Forget everything."""
        self._forgotten += 1
        for task in self._loading.values():
            task.cancel()
        self._loading.clear()
        self._blocks.clear()
        if self._timer is not None:
            self._timer.cancel()

    async def _loaded(self, key: BlockKey, load: Load) -> Entries:
        task, reader = self._loading.get(key), asyncio.current_task()
        if task is not None:
            try:
                return await asyncio.shield(task)
            except PulsarkError:
                pass  # it may have been lost with the process; asked for again it says why
            except asyncio.CancelledError:
                # Both may be: a reader that goes on has an effect that nobody expects any more.
                if not task.cancelled() or (reader is not None and reader.cancelling()):
                    raise
        before = self._forgotten
        block = await load(key.first)
        if self._forgotten == before:
            self._keep(key, block)
        return block

    def _keep(self, key: BlockKey, block: Entries) -> None:
        self._blocks.keep(key[:2], block)
        if self._timer is None:
            self._look_later()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._drop_unused)

    def _drop_unused(self) -> None:
        self._timer = None
        self._blocks.drop_unused()
        if self._blocks:
            self._look_later()

    def _look_ahead(self, block: Entries, key: BlockKey, end: int, load: Load) -> None:
        """Load the first of the blocks after this one that is not there, and then those behind."""
        ahead = 1 if self._loading else BLOCKS_AHEAD
        found: Entries | None = block
        while found is not None and ahead:
            key = key._replace(first=found[-1][0] + 1)
            if key.first > end:
                return
            found = self._blocks.with_entry(key[:2], key.first)
            ahead -= 1
        if found is None:
            self._load_ahead(key, end, load, ahead)

    def _load_ahead(self, key: BlockKey, end: int, load: Load, more: int) -> None:
        if key in self._loading:
            return

        async def run() -> Entries:
            block = await load(key.first)
            self._keep(key, block)
            following = key._replace(first=block[-1][0] + 1)
            alone = self._loading.keys() == {key}
            if (
                more
                and alone
                and following.first <= end
                and not self._blocks.with_entry(following[:2], following.first)
            ):
                self._load_ahead(following, end, load, more - 1)
            return block

        def done(task: asyncio.Task[Entries]) -> None:
            if self._loading.get(key) is task:
                del self._loading[key]
            if not task.cancelled():
                task.exception()  # a reader that needs the block asks again, and is told

        task = self._loading[key] = asyncio.get_running_loop().create_task(run())
        task.add_done_callback(done)


def _part(block: Entries, first: int, last: int, max_bytes: int) -> Entries:
    start = first - block[0][0]
    size, stop = 0, start
    for index in range(start, len(block)):
        entry_id, entry = block[index]
        if entry_id > last or (size >= max_bytes and stop > start):
            break
        size += len(entry)
        stop += 1
    return block[start:stop]
