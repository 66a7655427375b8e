"""The last message of a topic that can be delivered: what readers ask for again and again.

It is looked for from the end back over what is never delivered, markers and what was erased, of
which there may be very many. So it is remembered how far that is known.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.loop.turns import Pace
from pulsark.dispatch.model.erased_entries import is_gone, last_index
from pulsark.limits import ENTRIES_PER_TURN_MAX
from pulsark.wire.message_id import MessageId
from pulsark.wire.position import EARLIEST, Position

if TYPE_CHECKING:
    from pulsark.dispatch.model.entry import Entry
    from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger

NOTHING = MessageId(*EARLIEST)


class Entries(Protocol):
    """The entries of a topic."""

    ledger: ManagedLedger

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from ``position`` on."""


class LastMessageFinder:
    """Finds the last message of one topic."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._known: tuple[Position, MessageId] | None = None
        """The last deliverable message among all entries up to a position."""
        self._forgotten = 0
        self._looking = asyncio.Lock()

    def forget(self) -> None:
        """Entries are gone, or are not delivered any more."""
        self._known = None
        self._forgotten += 1

    async def find(self) -> MessageId:
        """What there is now; ``NOTHING`` if there is none."""
        async with self._looking:
            ledger, pace = self._entries.ledger, Pace(ENTRIES_PER_TURN_MAX)
            end = position = ledger.last_confirmed
            before, forgotten = self._known, self._forgotten
            found = NOTHING
            while position.ledger_id >= 0:
                if before is not None and position <= before[0]:
                    found = before[1]
                    break
                entries = await self._entries.read(position, 1, 1)
                if not entries or entries[0].position != position:
                    break  # trimmed
                if not is_gone(entries[0]):
                    found = MessageId(*position, batch_index=last_index(entries[0]))
                    break
                position = ledger.previous_position(position)
                await pace.step()
            if self._forgotten == forgotten:
                self._known = end, found
            return found
