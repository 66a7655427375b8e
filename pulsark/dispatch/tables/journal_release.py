"""Letting the journals of bookies forget what is in tables."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pulsark.dispatch.tables.sealing_due import CHECK_SECONDS, TIDY_SECONDS
from pulsark.errors import StorageError

if TYPE_CHECKING:
    from pulsark.runtime import Clock
    from pulsark.storage.ledger.manager import LedgerManager

log = logging.getLogger(__name__)


class JournalRelease:
    """Tells bookies, and those that could not be told again."""

    def __init__(self, ledgers: LedgerManager, clock: Clock) -> None:
        self._ledgers = ledgers
        self._clock = clock
        self._untold: dict[int, int] = {}
        """By ledger: up to where some bookie is still to be told that entries are in the table."""
        self._again_at, self._pause = 0.0, CHECK_SECONDS

    async def tell(self, ledger_id: int, through: int) -> None:
        """Tell all bookies; those that cannot be reached are told later, or after their restart."""
        try:
            await self._ledgers.release(ledger_id, through)
        except StorageError as error:
            log.debug("ledger %d is not released everywhere yet: %s", ledger_id, error)
            self._untold[ledger_id] = through

    async def tell_again(self) -> None:
        """What could not be told, after pauses that grow."""
        now = self._clock.monotonic()
        if not self._untold or now < self._again_at:
            return
        again, self._untold = self._untold, {}
        for ledger_id, through in again.items():
            await self.tell(ledger_id, through)
        self._pause = min(2 * self._pause, TIDY_SECONDS) if self._untold else 0.0
        self._pause = max(self._pause, CHECK_SECONDS)
        self._again_at = now + self._pause
