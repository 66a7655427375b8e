"""Sets of positions: one compressed bitmap a ledger.

A member takes two bytes or less, and one bit where members lie close together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroaring import BitMap

from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_ENTRY_ID = 2**32 - 1


class PositionSet:
    """Sorted, with operations on whole sets. No bitmap in ``ledgers`` is empty."""

    __slots__ = ("ledgers",)

    def __init__(self, positions: Iterable[tuple[int, int]] = ()) -> None:
        self.ledgers: dict[int, BitMap] = {}
        by_ledger: dict[int, list[int]] = {}
        for ledger_id, entry_id in positions:
            by_ledger.setdefault(ledger_id, []).append(entry_id)
        for ledger_id, entry_ids in by_ledger.items():
            self.ledgers[ledger_id] = BitMap(entry_ids)

    def __bool__(self) -> bool:
        return bool(self.ledgers)

    def __len__(self) -> int:
        return sum(map(len, self.ledgers.values()))

    def __contains__(self, position: tuple[int, int]) -> bool:
        entries = self.ledgers.get(position[0])
        return entries is not None and position[1] in entries

    def __iter__(self) -> Iterator[Position]:
        for ledger_id in sorted(self.ledgers):
            for entry_id in self.ledgers[ledger_id]:
                yield Position(ledger_id, entry_id)

    def add(self, position: tuple[int, int]) -> None:
        """Add one position."""
        entries = self.ledgers.get(position[0])
        if entries is None:
            entries = self.ledgers[position[0]] = BitMap()
        entries.add(position[1])

    def discard(self, position: tuple[int, int]) -> None:
        """Remove a position if it is there; any that a client names will do."""
        entries = self.ledgers.get(position[0])
        if entries is not None and 0 <= position[1] <= MAX_ENTRY_ID:
            entries.discard(position[1])
            if not entries:
                del self.ledgers[position[0]]

    def lowest(self) -> Position | None:
        """The lowest position; ``None`` of an empty set."""
        if not self.ledgers:
            return None
        ledger_id = min(self.ledgers)
        return Position(ledger_id, self.ledgers[ledger_id].min())

    def bounds(self) -> tuple[Position, Position]:
        """The lowest and the highest position of a set that is not empty."""
        low, high = min(self.ledgers), max(self.ledgers)
        return Position(low, self.ledgers[low].min()), Position(high, self.ledgers[high].max())

    def pop_lowest(self, count: int) -> list[Position]:
        """Remove the ``count`` lowest positions; returns them in order."""
        popped: list[Position] = []
        while self.ledgers and len(popped) < count:
            ledger_id = min(self.ledgers)
            entries = self.ledgers[ledger_id]
            if len(entries) <= count - len(popped):
                popped += [Position(ledger_id, entry_id) for entry_id in entries]
                del self.ledgers[ledger_id]
            else:
                taken = entries[: count - len(popped)]
                popped += [Position(ledger_id, entry_id) for entry_id in taken]
                entries -= taken
        return popped

    def clear(self) -> None:
        """Remove everything."""
        self.ledgers.clear()

    def update(self, other: PositionSet) -> None:
        """Add all members of another set."""
        for ledger_id, entries in other.ledgers.items():
            self.add_entries(ledger_id, entries)

    def add_entries(self, ledger_id: int, entries: BitMap) -> None:
        """Add entries of one ledger."""
        mine = self.ledgers.get(ledger_id)
        if mine is not None:
            mine |= entries
        elif entries:
            self.ledgers[ledger_id] = BitMap(entries)

    def take(self, other: PositionSet) -> PositionSet:
        """Remove the members of another set; returns those that were here."""
        taken = PositionSet()
        for ledger_id, entries in other.ledgers.items():
            mine = self.ledgers.get(ledger_id)
            if mine is not None:
                self._remove(ledger_id, mine & entries, taken)
        return taken

    def take_between(self, first: Position, last: Position) -> PositionSet:
        """Remove what lies in ``[first, last]``; returns it."""
        taken = PositionSet()
        for ledger_id in [i for i in self.ledgers if first.ledger_id <= i <= last.ledger_id]:
            entries = self.ledgers[ledger_id]
            low = first.entry_id if ledger_id == first.ledger_id else 0
            high = entries.max()
            if ledger_id == last.ledger_id:
                high = min(high, last.entry_id)
            within = BitMap()
            within.add_range(low, max(high + 1, low))
            self._remove(ledger_id, entries & within, taken)
        return taken

    def _remove(self, ledger_id: int, entries: BitMap, taken: PositionSet) -> None:
        if not entries:
            return
        taken.ledgers[ledger_id] = entries
        mine = self.ledgers[ledger_id]
        mine -= entries
        if not mine:
            del self.ledgers[ledger_id]

    def drop_ledgers_below(self, ledger_id: int) -> None:
        """Remove all positions of ledgers with a lower id."""
        for gone in [i for i in self.ledgers if i < ledger_id]:
            del self.ledgers[gone]

    @property
    def memory_bytes(self) -> int:
        """Memory for the members, without what each object costs."""
        total = 0
        for entries in self.ledgers.values():
            found = entries.get_statistics()
            total += found["n_bytes_array_containers"]
            total += found["n_bytes_run_containers"]
            total += found["n_bytes_bitset_containers"]
        return total
