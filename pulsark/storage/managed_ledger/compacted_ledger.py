"""The ledger that holds what compaction left of a topic.

An entry of it is an entry of the topic behind the position that it has there::

    ledger id (8 bytes), entry id (8 bytes), the entry

Positions rise, so one is found by bisection. Ledgers of this kind are written once and
replaced as a whole.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from pulsark.storage.managed_ledger.ledger_list import LedgerInfo, LedgerList
from pulsark.storage.managed_ledger.time_search import find_by_publish_time
from pulsark.wire.compacted_entry import pack, unpack
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from pulsark.errors import StorageError
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.ledger.metadata import LedgerConfig
    from pulsark.storage.ledger.writer import LedgerWriter


class CompactedTo(NamedTuple):
    """The compacted ledger, and the last entry of the topic that it accounts for."""

    ledger_id: int
    horizon: Position


class CompactedLedgerWriter:
    """Writes one compacted ledger. See ``CompactedForm.write``."""

    def __init__(self) -> None:
        self._writer: LedgerWriter
        self._failure: StorageError | None = None
        self._waiting: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls, manager: LedgerManager, config: LedgerConfig, ledger_id: int
    ) -> CompactedLedgerWriter:
        """Begin a ledger, with an id from ``LedgerManager.new_ids``."""
        made = cls()
        made._writer = await manager.create(config, made, ledger_id=ledger_id)
        return made

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        return self._writer.ledger_id

    async def append(self, entries: list[tuple[Position, bytes]]) -> None:
        """Store entries behind all before; returns once they are durable."""
        if not entries:
            return
        last = self._writer.append([pack(*each) for each in entries])
        last += len(entries) - 1
        while self._writer.last_confirmed < last:
            if self._failure is not None:
                raise self._failure
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    async def close(self) -> None:
        """Close the ledger at its end."""
        await self._writer.close()

    def abandon(self) -> None:
        """Write no more."""
        self._writer.abandon()

    def ledger_confirmed(self, ledger_id: int, last_confirmed: int) -> None:
        """The writer's report."""
        self._wake()

    def ledger_failed(self, ledger_id: int, error: StorageError) -> None:
        """The writer's report."""
        self._failure = error
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class CompactedLedger:
    """Reads a compacted ledger by the topic's positions."""

    def __init__(self, manager: LedgerManager, ledger_id: int) -> None:
        self._manager = manager
        self._ledger_id = ledger_id
        self._count = -1
        # Where the last read ended, because mostly the next one begins there.
        self._next = (Position(-1, -1), 0)

    async def read(
        self, position: Position, max_entries: int, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        """Entries at or after a position; empty behind the last one."""
        index = await self._index_of(position)
        if index == await self._entries():
            return []
        found = await self._at(index, max_entries, max_bytes)
        self._next = (found[-1][0], index + len(found))
        return found

    async def last(self) -> tuple[Position, bytes] | None:
        """The last entry, if there is any."""
        count = await self._entries()
        return (await self._at(count - 1, 1, 1))[0] if count else None

    async def find_by_publish_time(self, ms: int) -> Position | None:
        """The position of the first entry published at ``ms`` (epoch) or later, about."""
        count = await self._entries()
        if not count:
            return None
        here = LedgerList([LedgerInfo(self._ledger_id, count, 0, 0)])

        async def read(
            position: Position, max_entries: int, max_bytes: int
        ) -> list[tuple[Position, bytes]]:
            last = min(position.entry_id + max_entries, count) - 1
            stored = await self.stored(position.entry_id, last, max_bytes)
            return [(at, unpack(data)[1]) for at, data in stored]

        found = await find_by_publish_time(here, read, ms)
        return (await self._at(found.entry_id, 1, 1))[0][0] if found.entry_id < count else None

    async def extent(self) -> tuple[int, int]:
        """Number of entries, and their bytes."""
        metadata = await self._manager.open(self._ledger_id)
        return metadata.last_entry_id + 1, metadata.length

    async def stored(self, first: int, last: int, max_bytes: int) -> list[tuple[Position, bytes]]:
        """Entries by their numbers in this ledger, as they are stored (``compacted_entry``)."""
        found = await self._manager.read(self._ledger_id, first, last, max_bytes)
        return [(Position(self._ledger_id, number), data) for number, data in found]

    async def _entries(self) -> int:
        if self._count < 0:
            self._count, _ = await self.extent()
        return self._count

    async def _at(
        self, index: int, max_entries: int, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        stored = await self.stored(index, index + max_entries - 1, max_bytes)
        return [unpack(data) for _, data in stored]

    async def _index_of(self, position: Position) -> int:
        before, index = self._next
        if position == Position(before.ledger_id, before.entry_id + 1):
            return index
        low, high = 0, await self._entries()
        while low < high:
            middle = (low + high) // 2
            found, _ = (await self._at(middle, 1, 1))[0]
            if found < position:
                low = middle + 1
            else:
                high = middle
        return low
