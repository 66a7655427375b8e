"""Which files are merged, and what that comes to while a ledger grows."""

from __future__ import annotations

import random

import pytest

from pulsark.storage.table.files.merging import due_merge, is_scattered
from pulsark.storage.table.files.table_limits import TableLimits

LIMITS = TableLimits(files_merged=10, files_of_open_ledger=60, files_per_step=40)
TARGET = 128 << 20


def settled(
    sizes: list[int], target: int = TARGET, *, complete: bool = False
) -> tuple[list[int], int]:
    """The sizes when nothing is due any more, and how many bytes were written for that."""
    written = 0
    while (due := due_merge(sizes, target, LIMITS, complete=complete)) is not None:
        assert len(due) > 1
        assert due.stop <= len(sizes)
        assert len(due) <= LIMITS.files_per_step
        together = sum(sizes[due.start : due.stop])
        assert together <= target
        written += together
        sizes = [*sizes[: due.start], together, *sizes[due.stop :]]
    return sizes, written


def test_ten_files_of_one_size_become_one() -> None:
    assert due_merge([5] * 9, TARGET, LIMITS, complete=False) is None
    assert due_merge([5] * 10, TARGET, LIMITS, complete=False) == range(10)
    assert due_merge([500, *[5] * 10], TARGET, LIMITS, complete=False) == range(1, 11)


def test_what_is_large_is_not_written_again_for_what_is_small() -> None:
    assert due_merge([500, *[5] * 9], TARGET, LIMITS, complete=False) is None
    assert due_merge([500, 5, 5, 5, 5] * 6, TARGET, LIMITS, complete=False) is None
    assert due_merge([500] * 5 + [5] * 5, TARGET, LIMITS, complete=False) == range(10)


@pytest.mark.parametrize("pattern", ["equal", "random", "spikes", "falling"])
def test_a_ledger_that_grows_has_few_files_and_is_seldom_written_again(pattern: str) -> None:
    rng = random.Random(pattern)
    size = {
        "equal": lambda i: 6000,
        "random": lambda i: rng.randint(5000, 500_000),
        "spikes": lambda i: 6000 if rng.random() < 0.8 else rng.randint(6000, 20 << 20),
        "falling": lambda i: max(6000, (20 << 20) // (i + 1)),
    }[pattern]
    sizes: list[int] = []
    arrived = written = most = 0
    for i in range(3000):
        sizes.append(size(i))
        arrived += sizes[-1]
        if i % 30 == 0:  # so many come between two times of tidying
            sizes, more = settled(sizes)
            written += more
            most = max(most, len(sizes))
    assert most <= LIMITS.files_of_open_ledger + arrived // (TARGET // 10)
    assert written <= 5 * arrived
    assert sum(sizes) == arrived


def test_a_crowd_is_merged_although_sizes_differ() -> None:
    sizes = [100_000 >> (i % 5 * 4) or 1 for i in range(100)]
    found, _ = settled(sizes)
    assert len(found) <= LIMITS.files_of_open_ledger


def test_a_complete_ledger_gets_as_few_files_as_there_can_be_in_steps() -> None:
    assert settled([6000] * 1000, complete=True)[0] == [6_000_000]
    found, written = settled([1 << 20] * 1000, complete=True)
    assert not is_scattered(found, TARGET)
    assert len(found) <= 16
    assert written <= 3 * sum(found)


def test_a_complete_ledger_with_few_files_stays_as_it_is() -> None:
    assert due_merge([5, 5], TARGET, LIMITS, complete=True) is None
    assert due_merge([TARGET, 1, TARGET, 1], TARGET, LIMITS, complete=True) is None
    assert due_merge([TARGET] * 9, TARGET, LIMITS, complete=True) is None
    assert due_merge([], TARGET, LIMITS, complete=True) is None
