"""Arithmetic of positions over a managed ledger's list of ledgers. Pure, O(log n) a question.

A position need not exist: its ledger may be trimmed, or its entry beyond the ledger's end.
Everything reduces to ``rank``, the number of entries before a position, and its inverse.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from pulsark.storage.managed_ledger.ledger_runs import (
    NOTHING_FOLDED,
    FoldedLedgers,
    LedgerInfo,
    info_position_with,
)
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["LedgerInfo", "LedgerList"]

_MAX_ID = 2**63 - 1


class LedgerList:
    """Ledgers by ascending id; only the last may grow. ``trimmed`` is the last entry removed.

    Those that are ``folded`` come before ``ledgers``.
    """

    def __init__(
        self,
        ledgers: Iterable[LedgerInfo] = (),
        trimmed: Position | None = None,
        folded: FoldedLedgers = NOTHING_FOLDED,
    ) -> None:
        self._folded = folded
        self._last_folded = folded.last_id
        self._ledgers = list(ledgers)
        self._ids = [info.ledger_id for info in self._ledgers]
        self._counts = [info.entries for info in self._ledgers]
        self._starts = [*accumulate(self._counts, initial=folded.entries)][: len(self._counts)]
        sizes = [info.size for info in self._ledgers]
        self._bytes_before = [*accumulate(sizes, initial=folded.size)]
        self._trimmed = trimmed if trimmed is not None else Position(-1, -1)
        assert self._ids == sorted(set(self._ids)), "ledger ids must rise"
        assert not self._ids or self._ids[0] > folded.last_id, "ledger ids must rise"

    def __len__(self) -> int:
        return len(self._folded) + len(self._ids)

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
        return self._starts[-1] + self._counts[-1] if self._starts else self._folded.entries

    def bytes_after(self, position: Position, open_bytes: int = 0) -> int:
        """Bytes of the entries after a position; those within one ledger count as equally large.

        ``open_bytes`` are those of the last ledger, if it is open.
        """
        ledger_id, entry_id = position
        total = self.closed_bytes + open_bytes
        if ledger_id <= self._last_folded:
            return total - self._folded.bytes_through(position)
        index = bisect_left(self._ids, ledger_id)
        if index == len(self._ids):
            return 0
        before = self._bytes_before[index]
        if self._ids[index] == ledger_id and self._counts[index]:
            done = max(0, min(entry_id + 1, self._counts[index]))
            before += self._size_at(index, open_bytes) * done // self._counts[index]
        return total - before

    def position_leaving(self, size: int, open_bytes: int = 0) -> Position:
        """The first position after which are at most ``size`` bytes, as ``bytes_after`` counts."""
        total, size = self.closed_bytes + open_bytes, max(size, 0)
        if total <= size:
            return self._trimmed
        if total - size <= self._folded.size:
            return self._folded.position_with(total - size)
        index = bisect_left(self._bytes_before, total - size, hi=len(self._ids)) - 1
        here = LedgerInfo(
            self._ids[index], self._counts[index], self._size_at(index, open_bytes), 0
        )
        return info_position_with(here, total - size - self._bytes_before[index])

    def _size_at(self, index: int, open_bytes: int) -> int:
        info = self._ledgers[index]
        return open_bytes if info.open else info.size

    def infos(self, first: int = 0) -> Iterator[LedgerInfo]:
        """The ledgers from an id on, oldest first, as they are now."""
        index = bisect_left(self._ids, first)
        ledgers, counts = self._ledgers[index:], self._counts[index:]
        if first <= self._last_folded:
            yield from self._folded.infos(first)
        for info, count in zip(ledgers, counts, strict=True):
            yield info._replace(entries=count)

    def info(self, ledger_id: int) -> LedgerInfo | None:
        """One of the ledgers."""
        if ledger_id <= self._last_folded:
            return self._folded.info(ledger_id)
        index = self._index_of(ledger_id)
        return None if index is None else self._ledgers[index]._replace(entries=self._counts[index])

    def newest(self) -> LedgerInfo | None:
        """The last ledger."""
        if self._ids:
            return self.info(self._ids[-1])
        return self._folded.info(self._last_folded) if self._folded.runs else None

    def _index_of(self, ledger_id: int) -> int | None:
        index = bisect_left(self._ids, ledger_id)
        return index if index < len(self._ids) and self._ids[index] == ledger_id else None

    def __contains__(self, ledger_id: int) -> bool:
        return self.info(ledger_id) is not None

    def count_of(self, ledger_id: int) -> int:
        """Entries of one ledger; 0 if it is not in the list."""
        if ledger_id <= self._last_folded:
            info = self._folded.info(ledger_id)
            return 0 if info is None else info.entries
        index = self._index_of(ledger_id)
        return 0 if index is None else self._counts[index]

    def rank(self, position: Position) -> int:
        """Entries before ``position``, whether there is one at it or not."""
        ledger_id, entry_id = position
        if ledger_id <= self._last_folded:
            return self._folded.rank(position)
        ids = self._ids
        index = bisect_left(ids, ledger_id)
        if index == len(ids):
            return self.entries
        if ids[index] != ledger_id:
            return self._starts[index]
        return self._starts[index] + max(0, min(entry_id, self._counts[index]))

    def at(self, rank: int) -> Position:
        """The position of the entry with ``rank`` entries before it; it must exist."""
        if rank < self._folded.entries:
            return self._folded.at(rank)
        # Empty ledgers share their start with the next one: the rightmost has the entry.
        index = bisect_right(self._starts, rank) - 1
        return Position(self._ids[index], rank - self._starts[index])

    def last(self) -> Position:
        """The last entry, or the last that was trimmed; (-1, -1) if there never was one."""
        entries = self.entries
        return self.at(entries - 1) if entries else self._trimmed

    def at_or_after(self, position: Position) -> Position:
        """The first entry that is not before ``position``; or else the position after the last."""
        rank = self.rank(position)
        if rank < self.entries:
            return self.at(rank)
        ledger_id, entry_id = self.last()
        return Position(ledger_id, entry_id + 1)

    def after(self, position: Position) -> Position:
        """The first entry after ``position``; or else the position after the last entry."""
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
