"""The ledgers that this process writes, and what is known of those that are closed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from pulsark.tasks import unattended

if TYPE_CHECKING:
    from pulsark.storage.ledger.metadata import LedgerMetadata
    from pulsark.storage.ledger.writer import LedgerWriter

_CLOSED_MAX: Final = 4096
_TURN_LEDGERS: Final = 1000
_GROUP_LEDGERS: Final = 200
_GROUP_SECONDS: Final = 0.1
"""So ten thousand ledgers have another bookie within 5 s, and the metadata store other work too."""


class OpenLedgers:
    """Writers by ledger, as long as somebody holds them."""

    def __init__(self) -> None:
        self._writers: WeakValueDictionary[int, LedgerWriter] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, writer: LedgerWriter) -> None:
        """A ledger is written."""
        self._writers[writer.ledger_id] = writer

    def get(self, ledger_id: int) -> LedgerWriter | None:
        """Its writer, if it was written here."""
        return self._writers.get(ledger_id)

    def pop(self, ledger_id: int) -> LedgerWriter | None:
        """Its writer, which is not known any more."""
        return self._writers.pop(ledger_id, None)

    def bookie_lost(self, bookie_id: str) -> None:
        """Replace a bookie that is gone, also in ledgers to which nothing is appended now.

        BookKeeper's auto-recovery closes an open ledger whose last ensemble names a lost bookie
        for half a minute.
        """
        task = unattended(self._replace(bookie_id), f"replacing bookie {bookie_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _replace(self, bookie_id: str) -> None:
        replaced = 0
        for number, ledger_id in enumerate(list(self._writers), 1):
            writer = self._writers.get(ledger_id)
            if writer is not None and writer.bookie_lost(bookie_id):
                replaced += 1
                if replaced % _GROUP_LEDGERS == 0:
                    await asyncio.sleep(_GROUP_SECONDS)
            if number % _TURN_LEDGERS == 0:
                await asyncio.sleep(0)


class ClosedLedgers:
    """Metadata of closed ledgers that were read lately. Repairs may have changed them since."""

    def __init__(self) -> None:
        self._known: dict[int, LedgerMetadata] = {}

    def get(self, ledger_id: int) -> LedgerMetadata | None:
        """A closed ledger, if it is known."""
        return self._known.get(ledger_id)

    def remember(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Keep them if the ledger is closed; returns them."""
        if metadata.is_closed:
            if metadata.ledger_id not in self._known:
                while len(self._known) >= _CLOSED_MAX:
                    del self._known[next(iter(self._known))]
            self._known[metadata.ledger_id] = metadata
        return metadata

    def forget(self, ledger_id: int) -> None:
        """It is to be read again."""
        self._known.pop(ledger_id, None)
