"""What is known of sealed ledgers, so that a read does not ask the metadata store each time."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsark.storage.table.files.record import SealedLedger

LEDGERS_KNOWN_MAX = 4096


class KnownLedgers:
    """The sealed ledgers that were used last, in all tables of a process."""

    def __init__(self, most: int = LEDGERS_KNOWN_MAX) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str, int], SealedLedger] = OrderedDict()
        self._of_table: dict[str, set[int]] = {}
        """Their ids, by table; none of them is empty."""
        self.forgotten = 0
        """How often something was: what was being read then may be what it was before."""

    def get(self, table: str, ledger_id: int) -> SealedLedger | None:
        """What is known of a ledger; ``table`` is the path of the table's record."""
        key = table, ledger_id
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
        return found

    def add(self, table: str, sealed: SealedLedger) -> None:
        """Remember a ledger as it is now."""
        self._known[table, sealed.ledger_id] = sealed
        self._of_table.setdefault(table, set()).add(sealed.ledger_id)
        while len(self._known) > self._most:
            self._drop(*next(iter(self._known)))

    def forget(self, table: str, ledger_ids: Iterable[int] | None = None) -> None:
        """Some ledgers of a table have changed, or all of them."""
        self.forgotten += 1
        known = self._of_table.get(table, set())
        for ledger_id in list(known if ledger_ids is None else known.intersection(ledger_ids)):
            self._drop(table, ledger_id)

    def clear(self) -> None:
        """Any ledger of any table may have changed."""
        self.forgotten += 1
        self._known.clear()
        self._of_table.clear()

    def _drop(self, table: str, ledger_id: int) -> None:
        del self._known[table, ledger_id]
        known = self._of_table[table]
        known.discard(ledger_id)
        if not known:
            del self._of_table[table]
