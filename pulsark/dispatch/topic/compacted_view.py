"""A topic as readers of compacted topics see it: what compaction left, then what came since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.model.entry import Entry, stored_entry
from pulsark.errors import ProtocolError
from pulsark.limits import IDS_PER_STEP_MAX
from pulsark.storage.managed_ledger.compaction import batch_members
from pulsark.wire.message_id import MessageId
from pulsark.wire.position import EARLIEST, Position

if TYPE_CHECKING:
    from pulsark.dispatch.topic.entries import TopicEntries

Stored = list[tuple[Position, bytes]]


class CompactedView:
    """Reads a topic: up to the horizon what compaction left, behind it what was published."""

    def __init__(self, entries: TopicEntries) -> None:
        self._entries = entries
        self._all = entries.ledger
        self._compacted = entries.ledger.compacted.open()

    @property
    def horizon(self) -> Position:
        """The last entry that the compacted part accounts for."""
        compacted_to = self._all.compacted.to
        return EARLIEST if compacted_to is None else compacted_to.horizon

    def valid_position_at_or_after(self, position: Position) -> Position:
        """As the ledger's, but positions in the compacted part need not exist elsewhere."""
        if self._compacted is not None and position <= self.horizon:
            return position
        return self._all.valid_position_at_or_after(position)

    def read_cached(
        self, position: Position, max_entries: int, max_bytes: int
    ) -> list[Entry] | None:
        """As the topic's."""
        if self._compacted is not None and position <= self.horizon:
            return None
        return self._entries.read_cached(position, max_entries, max_bytes)

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """As the topic's."""
        cached = self.read_cached(position, max_entries, max_bytes)
        if cached is not None:
            return cached
        stored = await self.stored(position, max_entries, max_bytes)
        return [stored_entry(place, data) for place, data in stored]

    async def stored(self, position: Position, max_entries: int, max_bytes: int) -> Stored:
        """Positions and entries, from the first at or after a position."""
        if self._compacted is not None and position <= self.horizon:
            found = await self._compacted.read(position, max_entries, max_bytes)
            if found:
                return found
            position = Position(self.horizon.ledger_id, self.horizon.entry_id + 1)
        position = self._all.valid_position_at_or_after(position)
        return await self._all.read(position, max_entries, max_bytes)

    async def find_by_publish_time(self, ms: int) -> Position:
        """As the ledger's, of what a reader of this view gets."""
        found = None if self._compacted is None else await self._compacted.find_by_publish_time(ms)
        if found is not None:
            return found
        behind = Position(self.horizon.ledger_id, self.horizon.entry_id + 1)
        return max(behind, await self._all.find_by_publish_time(ms))

    async def last_message(self) -> MessageId:
        """The last message of the compacted part."""
        found = None if self._compacted is None else await self._compacted.last()
        if found is None:
            return MessageId(*EARLIEST)
        position, data = found
        entry = stored_entry(position, data)
        index = await _last_index(data, entry.messages) if entry.batched else -1
        return MessageId(*position, batch_index=index)


async def _last_index(batch: bytes, messages: int) -> int:
    """Index of the last message of a batch that compaction did not remove."""
    last = -1
    try:
        async for index, (single, _) in in_turns(enumerate(batch_members(batch)), IDS_PER_STEP_MAX):
            if not single.compacted_out:
                last = index
    except ProtocolError:
        last = -1
    return messages - 1 if last < 0 else last
