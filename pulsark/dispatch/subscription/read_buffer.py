"""Entries that a subscription keeps in memory, within the budget of all subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.limits import PUT_ASIDE_BYTES_MAX

if TYPE_CHECKING:
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.subscription.stored_topic import ReadBudget
    from pulsark.wire.position import Position


class ReadBuffer:
    """Entries that were read ahead, and the content of some that wait to be delivered."""

    __slots__ = ("_ahead_bytes", "_aside_bytes", "_budget", "ahead", "aside")

    def __init__(self, budget: ReadBudget) -> None:
        self.ahead: list[Entry] = []
        """Entries from the read position on that were read from storage."""
        self.aside: dict[Position, Entry] = {}
        """Waiting entries whose content is at hand; others have to be fetched."""
        self._budget = budget
        self._ahead_bytes = 0
        """Size of what was read, until all of it is dispatched."""
        self._aside_bytes = 0

    def read_ahead(self, entries: list[Entry]) -> None:
        """Entries at the read position were read from storage."""
        self.ahead = entries
        size = sum(len(entry.data) for entry in entries)
        self._budget.at_hand(size - self._ahead_bytes)
        self._ahead_bytes = size

    def pass_over(self, through: Position) -> None:
        """What was read ahead up to a position needs no dispatch."""
        self.ahead = [entry for entry in self.ahead if entry.position > through]
        if not self.ahead:
            self.drop_ahead()

    def drop_ahead(self) -> None:
        """The entries that were read ahead are dispatched, or void."""
        self.ahead = []
        if self._ahead_bytes:
            self._budget.at_hand(-self._ahead_bytes)
            self._ahead_bytes = 0

    def keep(self, entry: Entry) -> None:
        """Keep the content of an entry that waits, for as long as there is room."""
        position = entry.position
        if position in self.aside:
            return
        size = len(entry.data)
        if self._aside_bytes + size > PUT_ASIDE_BYTES_MAX or not self._budget.has_room(size):
            self._drop_aside()
        self._aside_bytes += size
        self._budget.at_hand(size)
        self.aside[position] = entry

    def drop(self, position: Position) -> None:
        """An entry does not wait any more."""
        entry = self.aside.pop(position, None)
        if entry is not None:
            self._aside_bytes -= len(entry.data)
            self._budget.at_hand(-len(entry.data))

    def _drop_aside(self) -> None:
        self.aside.clear()
        self._budget.at_hand(-self._aside_bytes)
        self._aside_bytes = 0

    def clear(self) -> None:
        """Keep nothing."""
        self.drop_ahead()
        self._drop_aside()
