"""Arithmetic of positions over a managed ledger's list of ledgers. Pure, O(log n) a question.

A position need not exist: its ledger may be trimmed, or its entry beyond the ledger's end.
Everything reduces to ``rank``, the number of entries before a position, and its inverse.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from pulsark.storage.position import Position

_MAX_ID = 2**63 - 1


class LedgerInfo(NamedTuple):
    """One ledger of a managed ledger.

    ``entries`` and ``size`` (bytes) are final unless ``open``. ``timestamp_ms`` is when the
    ledger was closed, or created as long as it is open.
    """

    ledger_id: int
    entries: int
    size: int
    timestamp_ms: int
    open: bool = False


class LedgerList:
    """Ledgers by ascending id; only the last may grow. ``trimmed`` is the last entry removed."""

    def __init__(self, ledgers: Iterable[LedgerInfo] = (), trimmed: Position | None = None) -> None:
        self._ledgers = list(ledgers)
        self._ids = [info.ledger_id for info in self._ledgers]
        self._counts = [info.entries for info in self._ledgers]
        self._starts = [0, *accumulate(self._counts)][: len(self._counts)]
        self._bytes_before = [0, *accumulate([info.size for info in self._ledgers])]
        self._trimmed = trimmed if trimmed is not None else Position(-1, -1)
        assert self._ids == sorted(set(self._ids)), "ledger ids must rise"

    def grow(self, entries: int) -> None:
        """Set the number of entries of the last ledger."""
        self._counts[-1] = entries

    @property
    def closed_bytes(self) -> int:
        """Bytes of all ledgers that are closed."""
        return self._bytes_before[-1]

    @property
    def entries(self) -> int:
        """Entries of all ledgers."""
        return self._starts[-1] + self._counts[-1] if self._starts else 0

    def bytes_after(self, position: Position, open_bytes: int = 0) -> int:
        """Bytes of the entries after a position; those within one ledger count as equally large.

        ``open_bytes`` are those of the last ledger, if it is open.
        """
        ledger_id, entry_id = position
        index = bisect_left(self._ids, ledger_id)
        total = self.closed_bytes + open_bytes
        if index == len(self._ids):
            return 0
        before = self._bytes_before[index]
        if self._ids[index] == ledger_id and self._counts[index]:
            done = max(0, min(entry_id + 1, self._counts[index]))
            before += self._size_at(index, open_bytes) * done // self._counts[index]
        return total - before

    def position_leaving(self, size: int, open_bytes: int = 0) -> Position:
        """The first position after which are at most ``size`` bytes, as ``bytes_after`` counts."""
        total = self.closed_bytes + open_bytes
        index = bisect_left(self._bytes_before, total - size, hi=len(self._ids)) - 1
        if index < 0:
            return self._trimmed
        count, here = self._counts[index], self._size_at(index, open_bytes)
        missing = total - size - self._bytes_before[index]
        entries = -(-missing * count // here) if here else count
        return Position(self._ids[index], min(entries, count) - 1)

    def _size_at(self, index: int, open_bytes: int) -> int:
        info = self._ledgers[index]
        return open_bytes if info.open else info.size

    def infos(self, first: int = 0) -> list[LedgerInfo]:
        """The ledgers from an id on, with their present numbers of entries."""
        index = bisect_left(self._ids, first)
        return [
            info._replace(entries=count)
            for info, count in zip(self._ledgers[index:], self._counts[index:], strict=True)
        ]

    def index_of(self, ledger_id: int) -> int | None:
        """Place of a ledger in the list, or ``None``."""
        index = bisect_left(self._ids, ledger_id)
        return index if index < len(self._ids) and self._ids[index] == ledger_id else None

    def count_of(self, ledger_id: int) -> int:
        """Entries of one ledger; 0 if it is not in the list."""
        index = self.index_of(ledger_id)
        return 0 if index is None else self._counts[index]

    def rank(self, position: Position) -> int:
        """Entries before ``position``, whether there is one at it or not."""
        ledger_id, entry_id = position
        ids = self._ids
        index = bisect_left(ids, ledger_id)
        if index == len(ids):
            return self.entries
        if ids[index] != ledger_id:
            return self._starts[index]
        return self._starts[index] + max(0, min(entry_id, self._counts[index]))

    def at(self, rank: int) -> Position:
        """The position of the entry with ``rank`` entries before it; it must exist."""
        # Empty ledgers share their start with the next one: the rightmost has the entry.
        index = bisect_right(self._starts, rank) - 1
        return Position(self._ids[index], rank - self._starts[index])

    def last(self) -> Position:
        """The last entry, or the last that was trimmed; (-1, -1) if there never was one."""
        entries = self.entries
        return self.at(entries - 1) if entries else self._trimmed

    def at_or_after(self, position: Position) -> Position:
        """The first entry that is not before ``position``; or else the place after the last."""
        rank = self.rank(position)
        if rank < self.entries:
            return self.at(rank)
        ledger_id, entry_id = self.last()
        return Position(ledger_id, entry_id + 1)

    def after(self, position: Position) -> Position:
        """The first entry after ``position``; or else the place after the last entry."""
        return self.at_or_after(_successor(position))

    def before(self, position: Position) -> Position:
        """The last entry before ``position``; or else the last that was trimmed."""
        rank = self.rank(position)
        return self.at(rank - 1) if rank else self._trimmed

    def between(self, after: Position, through: Position) -> int:
        """Entries after ``after`` and up to ``through``; 0 if they are in the other order."""
        return max(0, self.rank(_successor(through)) - self.rank(_successor(after)))


def _successor(position: Position) -> Position:
    """The least position greater than this one."""
    ledger_id, entry_id = position
    return Position(ledger_id, entry_id + 1) if entry_id < _MAX_ID else Position(ledger_id + 1, 0)
