"""Ledgers that are no longer part of a topic, but that somebody still reads."""

from __future__ import annotations

from pulsark.limits import COMPACTED_HOLD_SECONDS
from pulsark.runtime import Clock


class HeldLedgers:
    """Each is held for ``COMPACTED_HOLD_SECONDS`` after it was asked for; a restart ends it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[int, float] = {}

    def hold(self, ledger_id: int) -> None:
        """Hold a ledger from now on."""
        now = self._clock.monotonic()
        self._until = {held: until for held, until in self._until.items() if until > now}
        self._until[ledger_id] = now + COMPACTED_HOLD_SECONDS

    def __contains__(self, ledger_id: int) -> bool:
        return self._until.get(ledger_id, 0.0) > self._clock.monotonic()

    def drop_all(self) -> None:
        """Nobody may read any of them any more."""
        self._until.clear()
