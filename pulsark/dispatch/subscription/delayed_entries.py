"""Entries that one subscription has passed over because their delivery time has not come.

They are below the read position and neither pending nor waiting at the type. When the topic's
tracker says that they are due they are *released*; then they wait here until the type has room,
which treats them as entries that wait to be delivered again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroaring import BitMap

from pulsark.storage.position_set import PositionSet
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from pulsark.storage.cursor.state import AckedSet

SKIP_ENTRIES = 1 << 16
"""Entries that one call of ``skip`` looks at."""


class HeldBack:
    """The delayed entries of one subscription. Some may be acknowledged: check before delivery."""

    __slots__ = ("due", "waiting")

    def __init__(self) -> None:
        self.waiting = PositionSet()
        """Their delivery time has not come."""
        self.due = PositionSet()
        """Due, and not yet offered to a consumer."""

    def __bool__(self) -> bool:
        return bool(self.waiting.ledgers or self.due.ledgers)

    def release(self, positions: PositionSet) -> bool:
        """These are due now; whether any of them is here."""
        taken = self.waiting.take(positions)
        self.due.update(taken)
        return bool(taken)

    def release_all(self) -> None:
        """Everything is due now."""
        self.due.update(self.waiting)
        self.waiting.clear()

    def clear(self) -> None:
        """Nothing is held back: the subscription begins again."""
        self.waiting.clear()
        self.due.clear()

    def drop_ledgers_below(self, ledger_id: int) -> None:
        """Entries of earlier ledgers are gone."""
        self.waiting.drop_ledgers_below(ledger_id)
        self.due.drop_ledgers_below(ledger_id)

    def count(self, state: AckedSet) -> int:
        """How many of them are not acknowledged."""
        total = 0
        for held in (self.waiting, self.due):
            for ledger_id, entries in held.ledgers.items():
                if ledger_id < state.mark_delete.ledger_id:
                    continue
                acked = state.acked.get(ledger_id)
                left = len(entries) if acked is None else entries.difference_cardinality(acked)
                if ledger_id == state.mark_delete.ledger_id and state.mark_delete.entry_id >= 0:
                    # Nothing up to mark-delete is in ``acked``.
                    left -= entries.range_cardinality(0, state.mark_delete.entry_id + 1)
                total += left
        return total

    @property
    def memory_bytes(self) -> int:
        """Memory taken, about."""
        return self.waiting.memory_bytes + self.due.memory_bytes

    def skip(self, position: Position, state: AckedSet, delayed: PositionSet) -> Position:
        """The first position, at ``position`` or after it, whose entry has to be read.

        Those of ``delayed`` are known to be early: they are held back without being read.
        Acknowledged ones need no reading either.
        """
        ledger_id, start = position
        known, acked = delayed.ledgers.get(ledger_id), state.acked.get(ledger_id)
        if (known is None or start not in known) and (acked is None or start not in acked):
            return position
        to_read = BitMap()
        to_read.add_range(start, start + SKIP_ENTRIES)
        held = BitMap() if known is None else to_read & known
        to_read -= held
        if acked is not None:
            to_read -= acked
            held -= acked
        end = to_read.min() if to_read else start + SKIP_ENTRIES
        held.remove_range(end, start + SKIP_ENTRIES)
        self.waiting.add_entries(ledger_id, held)
        return Position(ledger_id, end)
