"""Where sealing gets entries from: the journal, or the table where they are sealed already."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from pulsark.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.table.files.seal_range import SealRange
    from pulsark.storage.table.process.process import Entries, Piece

READ_BYTES = 16 << 10
"""Bytes of entries that go to the table process at a time; other work may wait for them."""

REST_SECONDS = 0.002
"""Between two of them: the event loop is for clients."""

UNHURRIED_BYTES = 32 << 20
"""A range with more is what was left behind, and goes without rests."""


class RangeReader:
    """Reads ranges of ledgers, a piece at a time."""

    def __init__(self, ledgers: LedgerManager) -> None:
        self._ledgers = ledgers

    async def entries(self, wanted: SealRange) -> AsyncIterator[Entries]:
        """The entries of a range (``EntriesOf``). ``StorageError`` if one cannot be read."""
        rest = REST_SECONDS if wanted.size <= UNHURRIED_BYTES else 0.0
        first = wanted.first
        while first <= wanted.last:
            if first > wanted.first:
                await asyncio.sleep(rest)
            found = await self._ledgers.read(
                wanted.ledger_id, first, wanted.last, READ_BYTES, confirmed=wanted.last
            )
            if not found:
                raise StorageError(f"entry {wanted.ledger_id}:{first} cannot be read")
            yield found
            first = found[-1][0] + 1

    async def located(self, wanted: SealRange) -> AsyncIterator[Piece]:
        """As ``entries`` (``PiecesOf``); a journal of this machine is left to be read there."""
        first = wanted.first
        while excerpt := await self._ledgers.excerpt(wanted.ledger_id, first, wanted.last):
            yield excerpt
            first = excerpt.last + 1
            if first > wanted.last:
                return
            await asyncio.sleep(REST_SECONDS)
        async for entries in self.entries(replace(wanted, first=first)):
            yield entries
