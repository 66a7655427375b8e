"""Masks by ledger, against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from pulsark.storage.cursor.batch_masks import BatchMasks, weight_of
from pulsark.wire.position import Position

positions = st.builds(Position, st.integers(3, 6), st.integers(0, 30))
maps = st.dictionaries(positions, st.integers(1, 2**70))


def masks_of(model: dict[Position, int]) -> BatchMasks:
    masks = BatchMasks()
    for position, mask in model.items():
        masks.put(position, mask)
    return masks


def check(masks: BatchMasks, model: dict[Position, int]) -> None:
    assert list(masks) == sorted(model)
    assert {position: masks.get(position) for position in masks} == model
    assert len(masks) == len(model)
    assert masks.weight == sum(map(weight_of, model.values()))
    assert bool(masks) == bool(model)
    assert all(masks.ledgers.values()), "a ledger without masks is forgotten"


@given(maps, st.lists(positions))
def test_put_and_discard(model: dict[Position, int], gone: list[Position]) -> None:
    masks = masks_of(model)
    twin = masks.copy()
    check(masks, model)
    left = dict(model)
    for position in gone:
        masks.discard(position)
        left.pop(position, None)
        assert masks.get(position) is None
    check(masks, left)
    check(twin, model)


@given(maps, st.integers(3, 6), st.sets(st.integers(0, 30)))
def test_entries_of_a_ledger_are_discarded(
    model: dict[Position, int], ledger_id: int, entries: set[int]
) -> None:
    masks = masks_of(model)
    masks.discard_entries(ledger_id, BitMap(entries))
    check(masks, {p: m for p, m in model.items() if p[0] != ledger_id or p[1] not in entries})


@given(maps, st.integers(3, 6), st.integers(-1, 31), st.integers(-1, 31))
def test_a_range_of_a_ledger_is_discarded(
    model: dict[Position, int], ledger_id: int, first: int, last: int
) -> None:
    masks = masks_of(model)
    masks.discard_range(ledger_id, first, last)
    left = {p: m for p, m in model.items() if p[0] != ledger_id or not first <= p[1] <= last}
    check(masks, left)


@given(maps, st.integers(2, 7))
def test_ledgers_are_dropped(model: dict[Position, int], ledger_id: int) -> None:
    masks = masks_of(model)
    masks.drop_ledgers_below(ledger_id)
    check(masks, {p: m for p, m in model.items() if p[0] >= ledger_id})
