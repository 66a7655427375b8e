"""The entries of one topic to read: from memory if they are there, else from storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.model.entry import stored_entry
from pulsark.dispatch.topic.cache import CacheBudget, TopicCache
from pulsark.dispatch.topic.compacted_view import CompactedView
from pulsark.dispatch.topic.last_message import LastMessageFinder
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from pulsark.dispatch.model.entry import Entry
    from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger


class TopicEntries:
    """A managed ledger with a cache in front. No entry is seen before it is confirmed."""

    def __init__(self, ledger: ManagedLedger, budget: CacheBudget) -> None:
        self.ledger = ledger
        self.cache = TopicCache(budget)
        self.compacted: CompactedView | None = None
        """How consumers with ``read_compacted`` see the topic, once it was compacted."""
        self.last = LastMessageFinder(self)
        self.show_compacted()

    def show_compacted(self) -> None:
        """What was compacted is what the ledger's record says now."""
        self.compacted = CompactedView(self) if self.ledger.compacted.to else None

    def valid_position_at_or_after(self, position: Position) -> Position:
        """The place of the first entry from ``position`` on, or where the next will be."""
        return self.ledger.valid_position_at_or_after(position)

    def mark_delete_before(self, position: Position) -> Position:
        """The mark-delete position that makes ``position`` the next one delivered."""
        place = self.ledger.valid_position_at_or_after(position)
        return Position(place.ledger_id, place.entry_id - 1)

    def read_cached(
        self, position: Position, max_entries: int, max_bytes: int
    ) -> list[Entry] | None:
        """Entries from ``position`` on; ``None`` if they have to be read from storage."""
        if position > self.ledger.last_confirmed:
            return []
        return self.cache.read(position, max_entries, max_bytes)

    def cached_entry(self, position: Position) -> Entry | None:
        """The entry at exactly this position, if the cache holds it."""
        found = self.cache.read(position, 1, 1)
        return found[0] if found and found[0].position == position else None

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from ``position`` on, from the cache or from storage."""
        cached = self.read_cached(position, max_entries, max_bytes)
        if cached is not None:
            return cached
        stored = await self.ledger.read(position, max_entries, max_bytes)
        return [stored_entry(place, data) for place, data in stored]

    def trimmed(self) -> None:
        """Ledgers are gone."""
        self.cache.trim(self.ledger.record.trimmed.ledger_id)
        self.last.forget()

    def forget(self) -> None:
        """Keep no messages in memory."""
        self.cache.clear()
        self.last.forget()
