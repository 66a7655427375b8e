"""When a ledger with too few copies is left for the next one.

A ledger goes on with an ack quorum of its bookies. That is no state to stay in: with the next
bookie that fails nothing can be confirmed, what lacks a copy lacks it for long, and BookKeeper's
auto-recovery closes the ledger of a bookie that is gone. So the topic goes on in a new ledger once
that would have all copies, or before auto-recovery comes. A bookie that is there and fails again
and again causes few ledgers: it is suspect for longer each time, and a suspect one does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pulsark.storage.ledger.manager import Shortage

if TYPE_CHECKING:
    from pulsark.runtime import Clock
    from pulsark.storage.ledger.manager import LedgerManager, LedgerWriter

LOOK_SECONDS: Final = 1.0
WAIT_SECONDS: Final = {Shortage.NEEDLESS: 0.0, Shortage.PRESSING: 10.0}
SPREAD_SECONDS: Final = 10.0
"""Ledgers of one broker that lack the same bookie are left one after the other."""


class Shortages:
    """Of one managed ledger."""

    def __init__(self, manager: LedgerManager, clock: Clock) -> None:
        self._manager = manager
        self._clock = clock
        self._look_at = 0.0
        self._kind = Shortage.NONE
        self._since = 0.0
        self._ledger_id = -1

    def is_to_end(self, writer: LedgerWriter, wanted: int) -> bool:
        """Whether a ledger is to be left. Cheap, and the same until it has been left."""
        now = self._clock.monotonic()
        if now >= self._look_at or writer.ledger_id != self._ledger_id:
            self._look_at = now + LOOK_SECONDS
            size = writer.metadata.config.ensemble_size
            kind = self._manager.shortage(writer.failed, size, wanted)
            if kind is not self._kind or writer.ledger_id != self._ledger_id:
                self._kind, self._since, self._ledger_id = kind, now, writer.ledger_id
        wait = WAIT_SECONDS.get(self._kind)
        if wait is None:
            return False
        return now >= self._since + wait + writer.ledger_id % 100 / 100 * SPREAD_SECONDS
