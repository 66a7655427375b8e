"""Positions in a managed ledger."""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """Where an entry is: ordered by ledger, then entry. ``entry_id`` -1 is before the first."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    def to_json(self) -> dict[str, int]:
        """The form of the admin API."""
        return {"ledgerId": self.ledger_id, "entryId": self.entry_id}


EARLIEST = Position(-1, -1)
LATEST = Position(2**63 - 1, 2**63 - 1)
