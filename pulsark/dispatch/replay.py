"""Entries that wait to be delivered again."""

from __future__ import annotations

from pyroaring import BitMap

from pulsark.storage.cursor_state import MAX_ENTRY_ID
from pulsark.storage.position import Position


class ReplaySet:
    """A sorted set of positions, as one compressed bitmap a ledger."""

    def __init__(self) -> None:
        self._ledgers: dict[int, BitMap] = {}

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def __len__(self) -> int:
        return sum(map(len, self._ledgers.values()))

    def __contains__(self, position: Position) -> bool:
        entries = self._ledgers.get(position.ledger_id)
        return entries is not None and position.entry_id in entries

    def add(self, position: Position) -> None:
        """Add one position."""
        self._ledgers.setdefault(position.ledger_id, BitMap()).add(position.entry_id)

    def discard(self, position: Position) -> None:
        """Remove a position if it is there; any that a client names will do."""
        entries = self._ledgers.get(position.ledger_id)
        if entries is not None and 0 <= position.entry_id <= MAX_ENTRY_ID:
            entries.discard(position.entry_id)
            if not entries:
                del self._ledgers[position.ledger_id]

    def lowest(self) -> Position | None:
        """The lowest position; ``None`` of an empty set."""
        if not self._ledgers:
            return None
        ledger_id = min(self._ledgers)
        return Position(ledger_id, self._ledgers[ledger_id].min())

    def clear(self) -> None:
        """Remove everything."""
        self._ledgers.clear()
