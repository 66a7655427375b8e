"""A managed ledger's record in the hands of its owner: changed by compare-and-set."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pulsark.errors import BadVersionError, LedgerFencedError, OwnershipLostError
from pulsark.metadata.store import MAX_VALUE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.managed_ledger.ledger_list import LedgerList
    from pulsark.storage.managed_ledger.ledger_runs import FoldedLedgers
    from pulsark.storage.managed_ledger.record import ManagedLedgerRecord

log = logging.getLogger(__name__)


class OwnedRecord:
    """The record as this owner saved it last.

    ``on_saved`` is called once another one is true, ``on_lost`` once the record has another
    owner.
    """

    on_saved: Callable[[], None]
    on_lost: Callable[[LedgerFencedError], None]

    def __init__(
        self,
        path: str,
        record: ManagedLedgerRecord,
        folded: FoldedLedgers,
        version: int,
        metadata: MetadataStore,
    ) -> None:
        self.path = path
        self.now = record
        self.folded = folded
        """The ledgers of its runs."""
        self.metadata = metadata
        self.bytes = 0
        """Size of the record when it was saved last."""
        self.is_sure = True
        """The stored record is ``now``, as far as this owner knows. Only then may something be
        deleted because it is not needed: a write of unknown outcome may have come to need it."""
        self._version = version

    async def save(self, record: ManagedLedgerRecord, folded: FoldedLedgers | None = None) -> None:
        """Make a record true. ``folded``: the ledgers of its runs, if they change.

        ``LedgerFencedError``: it certainly is not. After any other error it may be, and until the
        next one is saved nothing is deleted.
        """
        self.is_sure = False
        value = record.encode()
        self._watch_size(len(value))
        try:
            self._version = await self.metadata.put(self.path, value, self._version)
        except (BadVersionError, OwnershipLostError) as e:
            error = LedgerFencedError(f"{self.path} has another owner")
            self.on_lost(error)
            raise error from e
        self.is_sure = True
        self.now = record
        if folded is not None:
            self.folded = folded
        self.on_saved()

    async def claim(self) -> None:
        """Be the one whose record it is."""
        if not self.is_sure:
            await self.save(self.now)

    def ledger_list(self) -> LedgerList:
        """All ledgers; the open one, if there is one, without entries."""
        return self.now.ledger_list(self.folded)

    @property
    def unsettled_from(self) -> int:
        """The first ledger that may have something that is not in the table, or that some bookie
        still has to be told of. Before it are only old ones."""
        unsettled = [line.first_id for line in self.now.folded if not line.settled]
        return unsettled[0] if unsettled else self.folded.last_id + 1

    def _watch_size(self, size: int) -> None:
        """The record may grow to ``MAX_VALUE_BYTES``; that it does is said in time."""
        before, self.bytes = self.bytes, size
        if size > MAX_VALUE_BYTES // 2 >= before:
            log.error(
                "%s: its record has %d bytes of at most %d: %d ledgers, %d to be removed, "
                "%d properties",
                self.path,
                size,
                MAX_VALUE_BYTES,
                len(self.now.ledgers),
                len(self.now.removing),
                len(self.now.properties),
            )
