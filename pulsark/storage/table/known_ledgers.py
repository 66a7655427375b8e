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
        self._known: OrderedDict[str, SealedLedger] = OrderedDict()
        self.forgotten = 0
        """How often something was: what was being read then may be what it was before."""

    def get(self, table: str, ledger_id: int) -> SealedLedger | None:
        """What is known of a ledger; ``table`` is the path of the table's record."""
        key = f"{table}/{ledger_id}"
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
        return found

    def add(self, table: str, sealed: SealedLedger) -> None:
        """Remember a ledger as it is now."""
        self._known[f"{table}/{sealed.ledger_id}"] = sealed
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def forget(self, table: str, ledger_ids: Iterable[int] | None = None) -> None:
        """Some ledgers of a table have changed, or all of them."""
        self.forgotten += 1
        if ledger_ids is not None:
            for ledger_id in ledger_ids:
                self._known.pop(f"{table}/{ledger_id}", None)
            return
        for key in [key for key in self._known if key.rpartition("/")[0] == table]:
            del self._known[key]

    def clear(self) -> None:
        """Any ledger of any table may have changed."""
        self.forgotten += 1
        self._known.clear()
