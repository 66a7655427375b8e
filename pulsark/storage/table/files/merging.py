"""Which files of a ledger are written together as one. Pure.

While a ledger grows, its files are merged as logs are: ten that follow each other become one, if
no byte is written again unless it comes to a file several times as large. So a byte is written a
few times in all, however long the ledger is open, and there are only a few files of each size.
When a ledger is complete, its files become as few as their target size allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pulsark.storage.table.files.table_limits import TableLimits


def due_merge(
    sizes: Sequence[int], target_bytes: int, limits: TableLimits, *, complete: bool
) -> range | None:
    """Files of a ledger, by their indexes, that are to be merged next; ``None``: none.

    ``complete``: no further files will come. To be asked again after each merge.
    """
    if complete:
        return _of_complete(sizes, target_bytes, limits)
    return _of_growing(sizes, target_bytes, limits)


def is_scattered(sizes: Sequence[int], target_bytes: int) -> bool:
    """Whether there could be less than half as many files."""
    return len(sizes) > 2 * max(1, sum(sizes) // target_bytes)


def _of_complete(sizes: Sequence[int], target_bytes: int, limits: TableLimits) -> range | None:
    if not is_scattered(sizes, target_bytes):
        return None
    found = max(_groups(sizes, target_bytes, limits.files_per_step), key=len)
    return found if len(found) > 1 else None


def _groups(sizes: Sequence[int], target_bytes: int, most: int) -> Iterator[range]:
    """Files that follow each other and make one of the target size, or a bit less."""
    first = total = 0
    for index, size in enumerate(sizes):
        if index > first and (total + size > target_bytes or index - first >= most):
            yield range(first, index)
            first, total = index, 0
        total += size
    yield range(first, len(sizes))


def _of_growing(sizes: Sequence[int], target_bytes: int, limits: TableLimits) -> range | None:
    fan = limits.files_merged
    crowded = len(sizes) > limits.files_of_open_ledger
    best: tuple[int, int] | None = None
    total = sum(sizes[: fan - 1])
    for first in range(len(sizes) - fan + 1):
        total += sizes[first + fan - 1]
        if total <= target_bytes and (best is None or total < best[0]):
            largest = max(sizes[first : first + fan])
            if crowded or 2 * total >= fan * largest:
                best = (total, first)
        total -= sizes[first]
    return range(best[1], best[1] + fan) if best is not None else None
