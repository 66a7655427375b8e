"""Masks of batches that are acknowledged in part, by ledger.

A mask is an int: bit i is message i of the batch, **1 means not acknowledged**, as on the wire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyroaring import BitMap


def weight_of(mask: int) -> int:
    """What a mask takes: its words, and about as much as eight of them around it."""
    return (mask.bit_length() + 63) // 64 + 8


class BatchMasks:
    """A map from position to mask, iterated in order. No ledger in ``ledgers`` is empty."""

    __slots__ = ("ledgers", "weight")

    def __init__(self) -> None:
        self.ledgers: dict[int, dict[int, int]] = {}
        self.weight = 0
        """What they take, as ``weight_of`` says."""

    def __bool__(self) -> bool:
        return bool(self.ledgers)

    def __len__(self) -> int:
        return sum(map(len, self.ledgers.values()))

    def __iter__(self) -> Iterator[Position]:
        for ledger_id in sorted(self.ledgers):
            for entry_id in sorted(self.ledgers[ledger_id]):
                yield Position(ledger_id, entry_id)

    def get(self, position: Position) -> int | None:
        """The mask of a batch; ``None`` if no message of it is acknowledged, or all are."""
        masks = self.ledgers.get(position[0])
        return None if masks is None else masks.get(position[1])

    def put(self, position: Position, mask: int) -> None:
        """Set the mask of a batch; not 0."""
        masks = self.ledgers.get(position[0])
        if masks is None:
            masks = self.ledgers[position[0]] = {}
        before = masks.get(position[1])
        if before is not None:
            self.weight -= weight_of(before)
        masks[position[1]] = mask
        self.weight += weight_of(mask)

    def discard(self, position: Position) -> None:
        """Forget one batch, if it is here."""
        masks = self.ledgers.get(position[0])
        mask = None if masks is None else masks.pop(position[1], None)
        if mask is not None:
            self.weight -= weight_of(mask)
            if not masks:
                del self.ledgers[position[0]]

    def discard_entries(self, ledger_id: int, entries: BitMap) -> None:
        """Forget batches of one ledger. The cost is the lower of both numbers."""
        masks = self.ledgers.get(ledger_id)
        if masks is None:
            return
        if len(entries) < len(masks):
            gone = [entry_id for entry_id in entries if entry_id in masks]
        else:
            gone = [entry_id for entry_id in masks if entry_id in entries]
        self._remove(ledger_id, masks, gone)

    def discard_range(self, ledger_id: int, first: int, last: int) -> None:
        """Forget batches of one ledger from ``first`` to ``last``. Again the lower of both."""
        masks = self.ledgers.get(ledger_id)
        if masks is None:
            return
        if last - first < len(masks):
            gone = [entry_id for entry_id in range(first, last + 1) if entry_id in masks]
        else:
            gone = [entry_id for entry_id in masks if first <= entry_id <= last]
        self._remove(ledger_id, masks, gone)

    def drop_ledgers_below(self, ledger_id: int) -> None:
        """Forget all batches of ledgers with a lower id."""
        for gone in [i for i in self.ledgers if i < ledger_id]:
            self.weight -= sum(map(weight_of, self.ledgers.pop(gone).values()))

    def copy(self) -> BatchMasks:
        """An independent copy."""
        twin = BatchMasks()
        twin.ledgers = {ledger_id: dict(masks) for ledger_id, masks in self.ledgers.items()}
        twin.weight = self.weight
        return twin

    def _remove(self, ledger_id: int, masks: dict[int, int], gone: list[int]) -> None:
        for entry_id in gone:
            self.weight -= weight_of(masks.pop(entry_id))
        if not masks:
            del self.ledgers[ledger_id]
