"""How old entries are by the broker's own clock, so that no client's clock makes them expire.

Samples say of what this broker stored: up to this entry everything was here at that time, by
the monotonic clock. A ledger that was closed before the topic was loaded is as old as its end,
because that is all that its record says. Both err on the side of too young: what expires is as old
as it has to be.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from pulsark.limits import ARRIVAL_SAMPLES_MAX
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.runtime import Clock, SureClock
    from pulsark.storage.managed_ledger.ledger_list import LedgerInfo

SAMPLE_SECONDS = 1.0
"""Entries that came within this time share a sample."""

COARSENESS = 32
"""Samples of an age are this part of it apart, so that their number hardly grows with the age."""

NOTHING = Position(-1, -1)


class AgingLedgers(Protocol):
    """What is asked of a managed ledger."""

    def each_ledger(self, first: int = 0) -> Iterator[LedgerInfo]:
        """The ledgers from an id on, oldest first."""


class Arrivals:
    """The arrivals of one loaded topic."""

    def __init__(self, clock: Clock, sure_clock: SureClock, ledgers: AgingLedgers) -> None:
        self._clock = clock
        self._sure_clock = sure_clock
        self._ledgers = ledgers
        self._ledger_ids = array("q")
        self._entry_ids = array("q")
        self._times = array("d")
        self._next_sample = 0.0
        self._first_ledger_id: int | None = None
        """The first one that got entries here; of those before it only the record knows."""

    def __len__(self) -> int:
        return len(self._times)

    def stored(self, ledger_id: int, entry_id: int) -> None:
        """Everything up to this entry is here now."""
        now = self._clock.monotonic()
        if self._first_ledger_id is None:
            self._first_ledger_id = ledger_id
        if self._times and now < self._next_sample:
            self._ledger_ids[-1], self._entry_ids[-1], self._times[-1] = ledger_id, entry_id, now
            return
        if len(self._times) >= ARRIVAL_SAMPLES_MAX:
            self._thin_out(now)
        self._ledger_ids.append(ledger_id)
        self._entry_ids.append(entry_id)
        self._times.append(now)
        self._next_sample = now + SAMPLE_SECONDS

    def older_than(self, seconds: float) -> Position:
        """The last entry that is certainly older, with all before it; -1:-1 if there is none."""
        index = bisect_left(self._times, self._clock.monotonic() - seconds) - 1
        newest = NOTHING if index < 0 else self._sample(index)
        closed_before = self._sure_clock.now_ms() - seconds * 1000
        for info in takewhile(
            lambda info: self._is_former(info) and info.timestamp_ms < closed_before,
            self._ledgers.each_ledger(),
        ):
            if info.entries:
                newest = max(newest, Position(info.ledger_id, info.entries - 1))
        return newest

    def age(self, position: Position) -> float:
        """For how many seconds an entry has certainly been here."""
        index = bisect_left(range(len(self)), position, key=self._sample)
        found = self._clock.monotonic() - self._times[index] if index < len(self) else 0.0
        for info in self._ledgers.each_ledger(position.ledger_id):
            if self._is_former(info):
                return max(found, (self._sure_clock.now_ms() - info.timestamp_ms) / 1000)
        return found

    def _is_former(self, info: LedgerInfo) -> bool:
        """Whether a ledger was closed before anything was stored here."""
        first = self._first_ledger_id
        return not info.open and (first is None or info.ledger_id < first)

    def _sample(self, index: int) -> Position:
        return Position(self._ledger_ids[index], self._entry_ids[index])

    def _thin_out(self, now: float) -> None:
        """Keep fewer samples of what is older. Entries without a sample count with the next one."""
        kept = []
        before = float("-inf")
        for index, time in enumerate(self._times[:-1]):
            following = self._times[index + 1]
            if following - before > max(SAMPLE_SECONDS, (now - following) / COARSENESS):
                kept.append(index)
                before = time
        kept.append(len(self) - 1)
        self._ledger_ids = array("q", [self._ledger_ids[i] for i in kept])
        self._entry_ids = array("q", [self._entry_ids[i] for i in kept])
        self._times = array("d", [self._times[i] for i in kept])
