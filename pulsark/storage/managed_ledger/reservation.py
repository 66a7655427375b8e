"""New ledgers at the end of a topic partition, from their ids to the moment they exist.

1. ``add``: ids behind all others, and the record shows them as pending. Appends go on in the
   open ledger, which is older.
2. ``close_ledger``: what was appended is confirmed and its ledger closed, or its end is found if
   it failed. Appends wait from here on; the ledger that takes them is opened later, so its id is
   above those that are reserved.
3. Elsewhere one compare-and-set decides about the ledgers of all partitions together.
4. ``decide``: the record lists the ledgers, or forgets them, and appends go on.

A process that dies in between leaves pending ledgers: the next owner of the partition asks the
table about them before it does anything else.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from pulsark.errors import LedgerFencedError, MetadataError
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.managed_ledger.states import Event, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.runtime import Clock
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.managed_ledger.append_queue import AppendQueue
    from pulsark.storage.managed_ledger.last_ledger import LastLedger
    from pulsark.storage.managed_ledger.owned_record import OwnedRecord
    from pulsark.storage.managed_ledger.record import ManagedLedgerRecord

log = logging.getLogger(__name__)

ATTEMPTS = 5
RETRY_SECONDS = 1.0


class NewLedger(NamedTuple):
    """What will be in a ledger; ``length`` in bytes."""

    entries: int
    length: int


class Reservation:
    """A reservation excludes other changes of its managed ledger; ``ManagedLedger.reservation``."""

    def __init__(
        self,
        stored: OwnedRecord,
        manager: LedgerManager,
        last: LastLedger,
        clock: Clock,
        appends: AppendQueue,
    ) -> None:
        self._stored = stored
        self._manager = manager
        self._last = last
        self._clock = clock
        self._appends = appends
        self._record: ManagedLedgerRecord | None = None
        """With the open ledger closed; not saved yet."""

    async def add(self, wanted: Sequence[NewLedger]) -> list[int]:
        """Reserve ledgers; returns their ids, ascending. ``StorageError``, ``MetadataError``."""
        await self._last.recover()
        stored, now = self._stored, self._clock.now_ms()
        ids = await self._manager.new_ids(len(wanted))
        infos = [
            LedgerInfo(ledger_id, new.entries, new.length, now)
            for ledger_id, new in zip(ids, wanted, strict=True)
        ]
        await stored.save(stored.now.with_pending(infos))
        making = [
            self._manager.add_sealed(i.ledger_id, stored.path, i.entries, i.size) for i in infos
        ]
        # All have come to an end before they are removed, should one of them fail.
        for error in await asyncio.gather(*making, return_exceptions=True):
            if error is not None:
                raise error
        return ids

    async def close_ledger(self) -> None:
        """Confirm all that was appended, and let later appends wait; ``StorageError``."""
        self._record = await self._last.reserve()

    async def decide(self, exist: bool | None) -> None:
        """The ledgers exist, or never will; ``None``: that cannot be known here.

        Does not raise. If the record cannot be written, or nothing is known, the managed ledger
        stops, and its next owner finds out.
        """
        life = self._last.life
        record = self._record if self._record is not None else self._stored.now
        if life.is_final or (self._record is None and not record.pending):
            return
        is_reserved = life.state is State.RESERVED
        joined = record.pending if exist else ()
        if exist is None or (joined and not is_reserved):
            self.doubt()
            return
        if not await self._saved(record.decided({info.ledger_id for info in joined})):
            self.doubt()
            return
        if is_reserved:
            life.on(Event.DECIDED)
        if joined:
            self._appends.listener.ledgers_attached(joined)

    def leave(self) -> None:
        """Nothing more is heard of it."""
        is_reserved = self._last.life.state is State.RESERVED
        if is_reserved or (self._stored.now.pending and not self._last.life.is_final):
            self.doubt()

    def doubt(self) -> None:
        """Let the managed ledger's next owner ask the table what became of the ledgers."""
        self._last.lost(LedgerFencedError(f"{self._stored.path}: its new ledgers are in doubt"))

    async def _saved(self, record: ManagedLedgerRecord) -> bool:
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(RETRY_SECONDS)
            try:
                await self._stored.save(record)
            except LedgerFencedError:
                return False
            except MetadataError as e:
                log.warning(
                    "%s: cannot add reserved ledgers to its list yet: %s", self._stored.path, e
                )
            else:
                return True
        return False
