"""Ledgers of which a table's documents say something new, since somebody last asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class TouchedLedgers:
    """The touched ledgers of watched tables; ``table`` is the path of a table's record."""

    def __init__(self) -> None:
        self._touched: dict[str, set[int]] = {}

    def watch(self, table: str) -> set[int] | None:
        """Note what is touched from now on; returns what was since the last call.

        ``None``: that is not known, and it may be any.
        """
        before = self._touched.get(table)
        self._touched[table] = set()
        return before

    def add(self, table: str, ledger_ids: Iterable[int]) -> None:
        """Documents of these are about to change."""
        known = self._touched.get(table)
        if known is not None:
            known.update(ledger_ids)

    def forget(self, table: str) -> None:
        """Nobody watches it any more, or everything of it may have changed."""
        self._touched.pop(table, None)
