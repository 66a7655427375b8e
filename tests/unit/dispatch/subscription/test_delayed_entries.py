"""What a subscription passes over because it is not due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from pulsark.dispatch.subscription import delayed_entries
from pulsark.dispatch.subscription.delayed_entries import HeldBack
from pulsark.storage.cursor.state import AckedSet
from pulsark.storage.position_set import PositionSet
from pulsark.wire.position import Position

P = Position
WINDOW = 8
END = 24
entry_ids = st.integers(0, END - 1)
sets = st.sets(entry_ids)


def state_of(acked: set[int], mark_delete: int = -1) -> AckedSet:
    state = AckedSet(P(5, mark_delete))
    if acked:
        state.add_entries(5, BitMap(acked))
    return state


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_entries, "SKIP_ENTRIES", WINDOW)


@given(entry_ids, sets, sets, sets)
def test_skipping(start: int, acked: set[int], delayed: set[int], before: set[int]) -> None:
    """It passes over what needs no reading, as far as one call looks, and holds what is early."""
    held = HeldBack()
    held.waiting.add_entries(5, BitMap(before))
    known = PositionSet([P(5, entry_id) for entry_id in delayed] + [P(6, start)])
    end = held.skip(P(5, start), state_of(acked), known)
    passed = set(range(start, end.entry_id))
    assert end.ledger_id == 5
    assert len(passed) <= WINDOW
    assert passed <= acked | delayed, "nothing is passed over that has to be read"
    assert end.entry_id not in acked | delayed or len(passed) == WINDOW, "as far as it can"
    assert set(held.waiting) == {P(5, i) for i in before | (passed & delayed) - acked}
    assert not held.due
    assert len(known) == len(delayed) + 1


@given(entry_ids, sets, sets)
def test_skipping_ends_at_the_first_entry_to_read(
    start: int, acked: set[int], delayed: set[int]
) -> None:
    held, state = HeldBack(), state_of(acked)
    known = PositionSet(P(5, entry_id) for entry_id in delayed)
    position = P(5, start)
    while (following := held.skip(position, state, known)) != position:
        position = following
    expected = next(i for i in range(start, END + 1) if i not in acked | delayed)
    assert position == P(5, expected)
    assert set(held.waiting) == {P(5, i) for i in range(start, expected) if i in delayed - acked}


def test_nothing_is_known_of_the_ledger() -> None:
    held = HeldBack()
    assert held.skip(P(5, 3), state_of(set()), PositionSet([P(4, 3)])) == P(5, 3)
    assert not held


@given(sets, sets, st.integers(-1, END), sets)
def test_counting(waiting: set[int], due: set[int], mark_delete: int, acked: set[int]) -> None:
    """Acknowledged entries may be among what is held; they are not counted."""
    held = HeldBack()
    held.waiting.add_entries(5, BitMap(waiting))
    held.due.add_entries(5, BitMap(due - waiting))
    held.waiting.add(P(4, 0))
    left = {i for i in waiting | due if i > mark_delete and i not in acked}
    state = state_of(acked, mark_delete)
    assert held.count(state) == len(left)
    state.mark_delete = P(3, 0)
    state.acked.clear()
    assert held.count(state) == len(waiting | due) + 1


@given(sets, sets)
def test_what_is_released_is_due_once(waiting: set[int], released: set[int]) -> None:
    held = HeldBack()
    held.waiting.add_entries(5, BitMap(waiting))
    news = PositionSet(P(5, entry_id) for entry_id in released)
    assert held.release(news) == bool(waiting & released)
    assert not held.release(news)
    assert set(held.due) == {P(5, i) for i in waiting & released}
    assert set(held.waiting) == {P(5, i) for i in waiting - released}
    held.release_all()
    assert set(held.due) == {P(5, i) for i in waiting}
    held.drop_ledgers_below(6)
    assert not held
