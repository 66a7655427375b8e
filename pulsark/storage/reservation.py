"""New ledgers at the end of a topic partition, from their ids to the moment they exist.

1. ``add``: ids behind all others, and the record shows them as pending. Appends go on in the
   open ledger, which is older.
2. ``hold``: what was appended is confirmed and its ledger closed. Appends wait from here on; the
   ledger that takes them is opened later, so its id is above those that are reserved.
3. Elsewhere one compare-and-set decides about the ledgers of all partitions together.
4. ``decide``: the record lists the ledgers, or forgets them, and appends go on.

A process that dies in between leaves pending ledgers: whoever opens the partition asks the table
about them before anything else happens to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pulsark.errors import LedgerFencedError, MetadataError
from pulsark.storage.ledger_list import LedgerInfo

if TYPE_CHECKING:
    from pulsark.storage.ledger_record import ManagedLedgerRecord
    from pulsark.storage.managed_ledger import ManagedLedger

log = logging.getLogger(__name__)

ATTEMPTS = 5
RETRY_SECONDS = 1.0


class NewLedger(NamedTuple):
    """What will be in a ledger; ``length`` in bytes."""

    entries: int
    length: int


class Reservation:
    """That of one managed ledger, whose changes it excludes. See ``ManagedLedger.reservation``."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger
        self._record: ManagedLedgerRecord | None = None
        """With the open ledger closed; not saved yet."""

    async def add(self, wanted: Sequence[NewLedger]) -> list[int]:
        """Reserve ledgers; returns their ids, ascending. ``StorageError``, ``MetadataError``."""
        ledger = self._ledger
        await ledger._close_unclosed()
        manager, now = ledger._manager, ledger._clock.now_ms()
        ids = await manager.new_ids(len(wanted))
        infos = [
            LedgerInfo(ledger_id, new.entries, new.length, now)
            for ledger_id, new in zip(ids, wanted, strict=True)
        ]
        await ledger._save(ledger._record.with_pending(infos))
        await asyncio.gather(
            *[manager.attach(i.ledger_id, ledger.path, i.entries, i.size) for i in infos]
        )
        return ids

    async def hold(self) -> None:
        """Confirm all that was appended, and let later appends wait; ``StorageError``."""
        self._record = await self._ledger._close_writer()

    async def decide(self, exist: bool | None) -> None:
        """The ledgers exist, or never will; ``None``: that cannot be known here.

        Does not raise. If the record cannot be written, or nothing is known, the managed ledger
        stops, and whoever opens it next finds out.
        """
        ledger = self._ledger
        record = self._record if self._record is not None else ledger._record
        if record is ledger._record and not record.pending:
            return
        joined = record.pending if exist else ()
        decided = record.decided({info.ledger_id for info in joined})
        if exist is None or not await self._saved(decided):
            ledger._stop(LedgerFencedError(f"{ledger.path}: its new ledgers are in doubt"))
        elif joined:
            ledger._listener.ledgers_attached(joined)

    async def _saved(self, record: ManagedLedgerRecord) -> bool:
        ledger = self._ledger
        closed = self._record is not None
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(RETRY_SECONDS)
            try:
                await ledger._save(record, 0 if closed else None)
            except LedgerFencedError:
                return False
            except MetadataError as e:
                log.warning("%s: its ledgers cannot be listed yet: %s", ledger.path, e)
            else:
                return True
        return False
