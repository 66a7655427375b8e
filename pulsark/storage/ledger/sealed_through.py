"""Up to where ledgers are in their topics' tables: the table is the truth there.

A bookie that was not told, because it was away or its journal stopped, still has entries of before,
messages among them that were erased since. So bookies are not asked for what is in the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pulsark.storage.ledger.metadata import LedgerMetadata

_KNOWN_LEDGERS: Final = 4096

Entries = list[tuple[int, bytes]]
"""``(entry id, payload)``, ascending."""


class SealedEntries(Protocol):
    """Entries that left the journal for a topic's table."""

    async def read_of(
        self, owner: str, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> Entries:
        """As ``LedgerManager.read``; ``owner`` is the path of the record that lists the ledger.

        ``NoSuchEntryError`` if the table does not have the first one.
        """

    async def sealed_through(self, owner: str, ledger_id: int) -> int:
        """The last entry of a ledger that its topic's table has; -1 if it has none."""


class SealedThrough:
    """What the table has of ledgers that were read lately, and which bookies were not told."""

    def __init__(self, sealed: SealedEntries) -> None:
        self._sealed = sealed
        self._through: dict[int, int] = {}
        self._untold: dict[int, frozenset[str]] = {}

    async def of(self, metadata: LedgerMetadata) -> int:
        """The last entry that is in the table, -1 if none is. ``MetadataError``."""
        ledger_id = metadata.ledger_id
        known = self._through.get(ledger_id)
        if known is None:
            found = await self._sealed.sealed_through(metadata.config.owner, ledger_id)
            known = self.raised(ledger_id, found)
        return known

    def raised(self, ledger_id: int, through: int) -> int:
        """The entries up to ``through`` are in the table; returns the last one there."""
        known = self._through
        newest = max(through, known.get(ledger_id, -1))
        if ledger_id not in known:
            while len(known) >= _KNOWN_LEDGERS:
                del known[next(iter(known))]
        known[ledger_id] = newest
        return newest

    def told(self, ledger_id: int, untold: frozenset[str]) -> None:
        """Bookies were told up to where, but these."""
        if untold:
            self._untold[ledger_id] = untold
        else:
            self._untold.pop(ledger_id, None)

    @property
    def untold(self) -> list[str]:
        """Bookies that still have what they need not have, sorted."""
        return sorted({name for names in self._untold.values() for name in names})

    def forget(self, ledger_id: int) -> None:
        """The ledger is gone."""
        self._through.pop(ledger_id, None)
        self._untold.pop(ledger_id, None)
