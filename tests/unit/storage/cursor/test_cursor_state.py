"""The pure state of a cursor, against a model that is a plain set of positions."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyroaring import BitMap

from pulsark.storage.cursor import state as cursor_state
from pulsark.storage.cursor.batch_masks import weight_of
from pulsark.storage.cursor.state import (
    MAX_ACK_SET_WORDS,
    AckedSet,
    CursorState,
)
from pulsark.wire.ack_set import words_of_mask
from pulsark.wire.position import EARLIEST, LATEST, Position
from tests.support.cursors import TopicLedgers, contents

P = Position


def state_over(*ledgers: tuple[int, int], mark_delete: Position = EARLIEST) -> CursorState:
    return CursorState(TopicLedgers(*ledgers), mark_delete)


def has_holes(state: CursorState) -> bool:
    """Whether anything above the mark-delete position is acknowledged, in full or in part."""
    return bool(state.acked or state.masks)


def test_acks_in_order_move_mark_delete_over_ledger_ends() -> None:
    state = state_over((3, 2), (4, 0), (7, 3))
    for position in (P(3, 0), P(3, 1), P(7, 0)):
        assert state.ack(position) == 0
        assert state.mark_delete == position
    assert not has_holes(state)
    assert state.backlog() == 2


def test_acks_in_reverse_order_leave_holes_until_the_first() -> None:
    state = state_over((3, 2), (7, 3))
    for position in (P(7, 2), P(7, 1), P(7, 0), P(3, 1)):
        state.ack(position)
        assert state.mark_delete == EARLIEST
    assert state.backlog() == 1
    assert state.next_unacked(EARLIEST) == P(3, 0)
    assert state.next_unacked(P(3, 0)) == P(7, 3)
    state.ack(P(3, 0))
    assert state.mark_delete == P(7, 2)
    assert not has_holes(state)
    assert state.backlog() == 0


def test_what_does_not_exist_cannot_be_acknowledged() -> None:
    state = state_over((3, 2), (7, 3))
    for position in (P(3, 2), P(3, -1), P(4, 0), P(7, 3), P(9, 0), LATEST, P(-1, -1), P(2, 0)):
        assert state.ack(position) == 0
        assert state.ack(position, [0], 1) == 0
    assert state.ack_cumulative(P(7, 3)) is False
    assert state.ack_cumulative(LATEST) is False
    assert state.mark_delete == EARLIEST
    assert not has_holes(state)
    assert not state.changed


@pytest.mark.feature("F12")
def test_batch_indexes_are_anded_and_the_last_one_completes_the_entry() -> None:
    state = state_over((3, 4))
    assert state.ack(P(3, 1), [0b0111], 4) == 3
    assert state.ack(P(3, 1), [0b1110], 4) == 2, "a client may begin each ack set anew"
    assert state.ack_set_of(P(3, 1)) == [0b0110]
    assert state.ack(P(3, 1), [0b1111], 4) == 2
    assert not state.is_acked(P(3, 1))
    assert state.ack(P(3, 1), [0b1001], 4) == 0
    assert state.is_acked(P(3, 1))
    assert state.ack_set_of(P(3, 1)) is None
    assert state.ack(P(3, 1), [0b1111], 4) == 0


def test_bits_beyond_the_batch_do_not_count() -> None:
    state = state_over((3, 4))
    assert state.ack(P(3, 0), [-1, -1], 3) == 3
    assert not has_holes(state)
    assert state.ack(P(3, 0), [-8], 3) == 0
    assert state.mark_delete == P(3, 0)


def test_an_ack_set_without_batch_size_is_taken_as_it_is() -> None:
    state = state_over((3, 4))
    assert state.ack(P(3, 0), [0b110]) == 2
    assert state.ack(P(3, 0), [0b011]) == 1
    assert state.ack_set_of(P(3, 0)) == [0b010]


@pytest.mark.parametrize("batch_size", [-1, 0, 2**31 - 1])
def test_a_senseless_batch_size_takes_no_memory(batch_size: int) -> None:
    state = state_over((3, 4))
    assert state.ack(P(3, 0), [0b110], batch_size) == 2


def test_what_is_remembered_of_batches_in_part_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(cursor_state, "BATCH_MASKS_WEIGHT_MAX", 3 * weight_of(1))
    state = state_over((3, 10))
    assert [state.ack(P(3, i), [0b110], 3) for i in range(5)] == [2] * 5
    assert [state.ack_set_of(P(3, i)) for i in range(5)] == [[0b110]] * 3 + [None] * 2
    assert state.ack(P(3, 1), [0b100], 3) == 1  # what is known becomes less
    assert state.ack(P(3, 4), [0], 3) == 0
    assert state.ack(P(3, 1)) == 0
    assert state.ack(P(3, 5), [0b110], 3) == 2
    assert state.ack_set_of(P(3, 5)) == [0b110]


def test_a_giant_ack_set_is_ignored() -> None:
    state = state_over((3, 4))
    assert state.ack(P(3, 0), [1] * (MAX_ACK_SET_WORDS + 1), 10) == 10
    assert not has_holes(state)


@pytest.mark.feature("F18")
def test_cumulative_acks() -> None:
    state = state_over((3, 4), (7, 3))
    state.ack(P(3, 3))
    state.ack(P(7, 1))
    assert state.ack_cumulative(P(3, 1))
    assert state.mark_delete == P(3, 1)
    assert not state.ack_cumulative(P(3, 0)), "never back"
    assert state.ack_cumulative(P(3, 2))
    assert state.mark_delete == P(3, 3), "over what was acknowledged one by one"
    assert state.ack_cumulative(P(7, -1)), "everything before the first entry of a ledger"
    assert state.next_unacked(EARLIEST) == P(7, 0)
    assert state.ack_cumulative(P(7, 0))
    assert state.mark_delete == P(7, 1)
    assert state.backlog() == 1


def test_cumulative_ack_inside_a_batch() -> None:
    state = state_over((3, 4))
    assert state.ack_cumulative(P(3, 2), [0b1100], 4)
    assert state.mark_delete == P(3, 1)
    assert state.ack_set_of(P(3, 2)) == [0b1100]
    assert not state.ack_cumulative(P(3, 2), [0b1110], 4), "the higher one stays"
    assert state.ack_set_of(P(3, 2)) == [0b1100]
    assert state.ack_cumulative(P(3, 2), [0b1000], 4)
    assert state.ack_cumulative(P(3, 2), [0], 4)
    assert state.mark_delete == P(3, 2)
    assert not has_holes(state)


def test_cumulative_ack_inside_the_first_batch_of_a_ledger() -> None:
    state = state_over((3, 2), (5, 2))
    assert state.ack_cumulative(P(5, 0), [0b10], 2)
    assert state.next_unacked(EARLIEST) == P(5, 0)
    assert state.ack_set_of(P(5, 0)) == [0b10]


def test_reset_forgets_and_begins_an_era() -> None:
    state = state_over((3, 4), (7, 3))
    state.ack_cumulative(P(3, 2))
    state.ack(P(7, 1))
    saved = state.take_unsaved()
    state.reset(P(3, 1), [0b10])
    assert state.mark_delete == P(3, 0)
    assert not state.is_acked(P(7, 1))
    assert state.ack_set_of(P(3, 1)) == [0b10]
    late = state.take_unsaved()
    for first, second in ((saved, late), (late, saved)):
        merged = AckedSet()
        merged.merge(first)
        merged.merge(second)
        assert contents(merged) == contents(state)
    state.reset(P(-1, -1))
    assert state.mark_delete == EARLIEST
    assert state.backlog() == 7


def test_a_ledger_that_turns_out_empty_does_not_stop_the_mark_delete_position() -> None:
    ledgers = TopicLedgers((3, 1), (4, 1), (5, 2))
    state = CursorState(ledgers)
    state.ack(P(3, 0))
    state.ack(P(5, 0))
    ledgers.ledgers[1][1] = 0
    assert state.mark_delete == P(3, 0)
    state.ledgers_changed()
    assert state.mark_delete == P(5, 0)


def test_a_saved_state_finds_its_ledgers_trimmed() -> None:
    saved = AckedSet(P(2, 9))
    saved.merge(state_with(P(5, 0), P(5, 1)))
    state = CursorState.of(saved, TopicLedgers((5, 4)))
    assert state.mark_delete == P(5, 1)
    assert state.backlog() == 2


def state_with(*positions: Position) -> AckedSet:
    acked = AckedSet()
    for ledger_id, entry_id in positions:
        acked.masks.put(P(ledger_id, entry_id), 0b11)
        other = AckedSet()
        other.masks.put(P(ledger_id, entry_id), 0b100)
        acked.merge(other)
    return acked


def test_runs_of_a_range() -> None:
    state = state_over((3, 10), (4, 0), (6, 3))
    for entry_id in (0, 4, 5, 9):
        state.ack(P(3, entry_id))
    assert state.unacked_runs(EARLIEST, LATEST, 9) == [
        (P(3, 1), P(3, 3)),
        (P(3, 6), P(3, 8)),
        (P(6, 0), P(6, 2)),
    ]
    middle = [(P(3, 3), P(3, 3)), (P(3, 6), P(3, 6))]
    assert state.unacked_runs(P(3, 2), P(3, 6), 9) == middle
    assert state.unacked_runs(P(3, 2), LATEST, 1) == middle[:1]


class CountingLedgers(TopicLedgers):
    """Counts what it is asked."""

    asked = 0

    def next_position(self, position: Position) -> Position:
        self.asked += 1
        return super().next_position(position)

    def entries_between(self, after: Position, last: Position) -> int:
        self.asked += 1
        return super().entries_between(after, last)

    def position_at(self, index: int) -> Position:
        self.asked += 1
        return super().position_at(index)


def test_a_place_among_very_many_holes_is_found_without_a_walk() -> None:
    ledgers = CountingLedgers((3, 60_000), (4, 10), (5, 60_000))
    state = CursorState(ledgers, P(3, 9))
    for ledger_id in (3, 5):
        state.add_entries(ledger_id, BitMap(range(11, 60_000, 2)))
    ledgers.asked = 0
    assert state.nth_unacked(1) == (1, P(3, 10))
    assert state.nth_unacked(29_995) == (29_995, P(3, 59_998))
    assert state.nth_unacked(30_005) == (30_005, P(4, 9))
    assert state.nth_unacked(45_000)[1] == P(5, 2 * (45_000 - 30_006) - 10)
    assert state.nth_unacked(10**9)[0] == state.backlog()
    assert state.nth_unacked(0) == (0, None)
    assert ledgers.asked < 200


def test_a_place_in_ledgers_that_are_trimmed() -> None:
    saved = AckedSet(P(2, 9))
    saved.add_entries(3, BitMap([1, 2]))
    saved.add_entries(5, BitMap([1]))
    state = CursorState.of(saved, TopicLedgers((5, 4)))
    assert [state.nth_unacked(n)[1] for n in (1, 2, 3)] == [P(5, 0), P(5, 2), P(5, 3)]
    assert state.nth_unacked(4) == (3, P(5, 3))


def test_behind_the_last_acknowledgement_nothing_needs_to_be_looked_at() -> None:
    state = state_over((3, 10), (6, 3))
    state.ack(P(3, 4))
    assert state.acks_from(3, 4)
    assert not state.acks_from(3, 5)
    assert not state.acks_from(6, 0)
    state.ack(P(6, 1))
    assert state.acks_from(3, 5)
    state.ack_cumulative(P(6, 1))
    assert state.acks_from(6, 1)
    assert not state.acks_from(6, 2)


BATCH = 3
ledger_index = st.integers(0, 10)
entry_ids = st.integers(-1, 8)
masks = st.integers(0, 2**BATCH - 1)


class CursorMachine(RuleBasedStateMachine):
    """Random publishing, rolling over, acknowledging, seeking, trimming and saving."""

    def __init__(self) -> None:
        super().__init__()
        self.ledgers = TopicLedgers((1, 0))
        self.state = CursorState(self.ledgers)
        self.acked: set[Position] = set()
        self.masks: dict[Position, int] = {}
        self.saved = AckedSet()

    def place(self, index: int, entry_id: int) -> Position:
        """Often a position that exists, sometimes one that does not."""
        if index >= len(self.ledgers.ledgers):
            return P(index, entry_id)
        return P(self.ledgers.ledgers[index][0], entry_id)

    @rule(count=st.integers(1, 6))
    def publish(self, count: int) -> None:
        self.ledgers.ledgers[-1][1] += count

    @rule(step=st.integers(1, 2))
    def roll_over(self, step: int) -> None:
        if len(self.ledgers.ledgers) < 6:
            self.ledgers.ledgers.append([self.ledgers.ledgers[-1][0] + step, 0])

    @rule(index=ledger_index, entry_id=entry_ids)
    def ack(self, index: int, entry_id: int) -> None:
        position = self.place(index, entry_id)
        assert self.state.ack(position) == 0
        if position in self.ledgers.positions():
            self.acked.add(position)
            self.masks.pop(position, None)

    @rule(index=ledger_index, entry_id=entry_ids, mask=masks)
    def ack_part(self, index: int, entry_id: int, mask: int) -> None:
        position = self.place(index, entry_id)
        left = self.state.ack(position, words_of_mask(mask), BATCH)
        assert left == self.narrow(position, mask)

    def narrow(self, position: Position, mask: int) -> int:
        if position not in self.ledgers.positions() or position in self.acked:
            return 0
        left = self.masks.get(position, 2**BATCH - 1) & mask
        self.masks[position] = left
        if not left:
            self.acked.add(position)
            del self.masks[position]
        elif left == 2**BATCH - 1:
            del self.masks[position]
        return left.bit_count()

    @rule(index=ledger_index, entry_id=entry_ids)
    def ack_cumulative(self, index: int, entry_id: int) -> None:
        position = self.place(index, entry_id)
        self.state.ack_cumulative(position)
        if position <= self.ledgers.last_confirmed:
            self.cover(position)

    def cover(self, position: Position) -> None:
        self.acked.update(p for p in self.ledgers.positions() if p <= position)
        self.masks = {p: m for p, m in self.masks.items() if p > position}

    @rule(index=ledger_index, entry_id=entry_ids, mask=masks)
    def ack_cumulative_part(self, index: int, entry_id: int, mask: int) -> None:
        position = self.place(index, entry_id)
        self.state.ack_cumulative(position, words_of_mask(mask), BATCH)
        if position <= self.ledgers.last_confirmed:
            self.cover(position if mask == 0 else P(position.ledger_id, position.entry_id - 1))
            self.narrow(position, mask)

    @rule(index=ledger_index, entry_id=entry_ids)
    def seek(self, index: int, entry_id: int) -> None:
        position = self.place(index, max(entry_id, 0))
        if position <= self.ledgers.last_confirmed:
            self.state.reset(position)
            self.acked = {p for p in self.ledgers.positions() if p < position}
            self.masks = {}

    @precondition(lambda self: len(self.ledgers.ledgers) > 1)
    @rule()
    def trim(self) -> None:
        """The first ledger goes once the cursor is through with it."""
        ledger_id, entries = self.ledgers.ledgers[0]
        if self.state.mark_delete >= (ledger_id, entries - 1):
            del self.ledgers.ledgers[0]
            self.acked = {p for p in self.acked if p.ledger_id != ledger_id}
            self.state.ledgers_changed()

    @rule(again=st.booleans())
    def save(self, again: bool) -> None:
        unsaved = self.state.take_unsaved()
        self.saved.merge(unsaved)
        if again:
            self.saved.merge(unsaved)
        assert contents(self.saved) == contents(self.state)
        assert not self.state.changed

    @rule()
    def reload(self) -> None:
        self.save(False)
        self.state = CursorState.of(self.saved, self.ledgers)
        self.saved = self.saved.copy()
        self.saved.merge(self.state.take_unsaved())

    @invariant()
    def agrees(self) -> None:
        positions = self.ledgers.positions()
        open_positions = [p for p in positions if p not in self.acked]
        state = self.state
        assert [p for p in positions if not state.is_acked(p)] == open_positions
        untouched = [p in open_positions and p not in self.masks for p in positions]
        for place, position in enumerate(positions):
            assert state.acks_from(*position) or all(untouched[place:])
        assert {p: state.masks.get(p) for p in state.masks if p in positions} == self.masks
        assert all(state.masks.ledgers.values())
        assert state.backlog() == len(open_positions)
        assert state.count == sum(map(len, state.acked.values()))
        assert all(p > state.mark_delete for p in state.masks)
        self.runs_agree(open_positions)
        self.mark_delete_is_as_high_as_it_can_be(open_positions)

    def runs_agree(self, open_positions: list[Position]) -> None:
        in_runs = [
            P(first.ledger_id, entry_id)
            for first, last in self.state.unacked_runs(EARLIEST, LATEST, 10**6)
            for entry_id in range(first.entry_id, last.entry_id + 1)
        ]
        assert in_runs == open_positions
        places = enumerate(open_positions, 1)
        assert all(self.state.nth_unacked(n) == (n, place) for n, place in places)
        beyond = (open_positions or [None])[-1]
        assert self.state.nth_unacked(10**6) == (len(open_positions), beyond)
        following = self.state.next_unacked(EARLIEST)
        if open_positions:
            assert following == open_positions[0]
        else:
            assert following > self.ledgers.last_confirmed

    def mark_delete_is_as_high_as_it_can_be(self, open_positions: list[Position]) -> None:
        first_open = open_positions[0] if open_positions else LATEST
        above = [p for p in self.acked if self.state.mark_delete < p < first_open]
        assert not above


CursorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCursorMachine = CursorMachine.TestCase
