"""Entries that the metadata store knows, and that neither a bookie nor a table has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsark.cli.doctor.ledgers import missing
from pulsark.storage.bookie.index import BookieIndex, SegmentState
from pulsark.storage.ledger.metadata import Ensemble, LedgerConfig, LedgerMetadata, LedgerState

LEDGER = LedgerMetadata(
    7, LedgerConfig(2, 1, 1), LedgerState.CLOSED, (Ensemble(0, 0, ("a", "b")),), 0, 9, 100
)


def index(*spans: tuple[int, int]) -> BookieIndex:
    found = BookieIndex()
    found.segments[1] = SegmentState(1, 0, 0)
    for number, (first, last) in enumerate(spans):
        found.add(7, first, last - first + 1, -1, 1, 100 * number, 10, -1)
    return found


@pytest.mark.parametrize(
    ("first", "second", "sealed", "gone"),
    [
        (index((0, 9)), index(), -1, 0),
        (index((0, 4)), index((5, 9)), -1, 0),
        (index((0, 2), (5, 6)), index((3, 3)), -1, 4),
        (index(), index(), -1, 10),
        (index(), index(), 9, 0),
        (index((8, 9)), index(), 4, 3),
        (index((0, 9)), index((0, 20)), -1, 0),
    ],
)
def test_entries_are_on_some_bookie_or_in_the_table(
    first: BookieIndex, second: BookieIndex, sealed: int, gone: int
) -> None:
    assert missing(LEDGER, {"a": first, "b": second}, sealed) == gone


def test_what_a_bookie_released_is_in_the_table() -> None:
    released = index((5, 9))
    released.ledgers[7].released = 4
    assert missing(replace(LEDGER, last_entry_id=9), {"a": released, "b": index()}, -1) == 0
