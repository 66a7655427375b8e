"""Where a subscription reads next, and from what: from the topic, or what compaction left of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.wire.position import Position

if TYPE_CHECKING:
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.members import Members
    from pulsark.dispatch.subscription.delayed_entries import HeldBack
    from pulsark.dispatch.subscription.stored_topic import (
        CompactedSource,
        EntrySource,
        StoredTopic,
    )
    from pulsark.storage.cursor.state import AckedSet
    from pulsark.storage.position_set import PositionSet

READ_ENTRIES = 500
"""Entries that are read and dispatched in a row: some milliseconds of the event loop."""
READ_BYTES = 4 << 20


class Reader:
    """The read position of one subscription. Entries at it and after it have not been offered."""

    __slots__ = ("_budget", "_members", "_topic", "position")

    def __init__(self, topic: StoredTopic, members: Members) -> None:
        self.position = Position(-1, 0)
        self._topic = topic
        self._members = members
        self._budget = topic.cache_budget

    @property
    def _compacted(self) -> CompactedSource | None:
        """What the active consumer reads, if it reads what compaction left."""
        active = self._members.type.active
        compacted = self._topic.entries.compacted
        return compacted if active is not None and active.read_compacted else None

    @property
    def _source(self) -> EntrySource:
        entries = self._topic.entries
        return entries if entries.compacted is None else self._compacted or entries

    def rewind(self, mark_delete: Position) -> None:
        """Go back to the first entry behind the cursor."""
        ledger, view = self._topic.ledger, self._compacted
        if view is not None and mark_delete < view.horizon:
            self.position = Position(mark_delete.ledger_id, mark_delete.entry_id + 1)
        else:
            self.position = ledger.valid_position_at_or_after(ledger.next_position(mark_delete))

    def pass_over(self, through: Position) -> bool:
        """Go on behind a position; whether the next entry was not behind it yet."""
        if self.position > through:
            return False
        self.position = self._topic.ledger.next_position(through)
        return True

    def skip(self, state: AckedSet, held_back: HeldBack, delayed: PositionSet) -> None:
        """Move on to the first entry that has to be read.

        Acknowledged entries need no reading. Those of ``delayed`` are held back without it.
        """
        if not (state.acked or delayed.ledgers) or self._compacted is not None:
            return
        while True:
            place = held_back.skip(self.position, state, delayed)
            if place == self.position:
                return
            self.position = self._topic.ledger.valid_position_at_or_after(place)

    def skip_gap(self) -> bool:
        """Move on to an entry that exists; whether that changed the position."""
        position = self._source.valid_position_at_or_after(self.position)
        if position == self.position:
            return False
        self.position = position
        return True

    def cached(self, max_entries: int) -> list[Entry] | None:
        """The next entries; ``None`` if they have to be read from storage."""
        return self._source.read_cached(self.position, max_entries, READ_BYTES)

    async def stored(self) -> list[Entry]:
        """The next entries, from storage."""
        room = self._budget.read_bytes(READ_BYTES)
        return await self._source.read(self.position, READ_ENTRIES, room)

    async def stored_at(self, position: Position) -> list[Entry]:
        """Entries from a position on that was read before, from storage."""
        room = self._budget.read_bytes(READ_BYTES)
        return await self._topic.entries.read(position, READ_ENTRIES, room)
