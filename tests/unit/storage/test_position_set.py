"""Sets of positions, against a plain set."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyroaring import BitMap

from pulsark.storage.position_set import MAX_ENTRY_ID, PositionSet
from pulsark.wire.position import Position

P = Position
entry_ids = st.one_of(st.integers(0, 12), st.sampled_from([65_535, 65_536, MAX_ENTRY_ID]))
ledger_ids = st.integers(3, 6)
positions = st.builds(Position, ledger_ids, entry_ids)
position_sets = st.sets(positions)


def test_the_lowest_comes_first() -> None:
    waiting = PositionSet()
    assert waiting.lowest() is None
    for position in (P(7, 1), P(4, 9), P(7, 0), P(4, 3)):
        waiting.add(position)
    assert waiting.lowest() == P(4, 3)
    waiting.discard(P(4, 3))
    waiting.discard(P(4, 9))
    assert waiting.lowest() == P(7, 0)


@pytest.mark.parametrize("entry_id", [-1, MAX_ENTRY_ID + 1, 2**63 - 1])
def test_a_position_that_no_entry_has_may_be_discarded(entry_id: int) -> None:
    """Clients name any."""
    waiting = PositionSet([P(4, 0)])
    waiting.discard(P(4, entry_id))
    assert list(waiting) == [P(4, 0)]


def test_memory_is_two_bytes_a_lone_member_and_a_bit_a_close_one() -> None:
    lone = PositionSet(P(4, 100 * i) for i in range(10_000))
    assert 15_000 < lone.memory_bytes < 25_000
    close = PositionSet(P(4, 2 * i) for i in range(100_000))
    assert close.memory_bytes < 40_000


class PositionSetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.set = PositionSet()
        self.model: set[Position] = set()

    @rule(position=positions)
    def add(self, position: Position) -> None:
        self.set.add(position)
        self.model.add(position)

    @rule(position=positions)
    def discard(self, position: Position) -> None:
        self.set.discard(position)
        self.model.discard(position)

    @rule(other=position_sets)
    def update(self, other: set[Position]) -> None:
        added = PositionSet(other)
        self.set.update(added)
        self.model |= other
        for position in sorted(other)[:1]:
            self.set.discard(position)
            self.model.discard(position)
        assert set(added) == other, "the other set stays apart"

    @rule(ledger_id=ledger_ids, entries=st.sets(entry_ids))
    def add_entries(self, ledger_id: int, entries: set[int]) -> None:
        self.set.add_entries(ledger_id, BitMap(entries))
        self.model |= {P(ledger_id, entry_id) for entry_id in entries}

    @rule(other=position_sets)
    def take(self, other: set[Position]) -> None:
        taken = self.set.take(PositionSet(other))
        self.check(taken, self.model & other)
        self.model -= other

    @rule(one=positions, other=positions)
    def take_between(self, one: Position, other: Position) -> None:
        first, last = min(one, other), max(one, other)
        taken = self.set.take_between(first, last)
        self.check(taken, {p for p in self.model if first <= p <= last})
        self.model = {p for p in self.model if not first <= p <= last}

    @rule(count=st.integers(0, 9))
    def pop_lowest(self, count: int) -> None:
        assert self.set.pop_lowest(count) == sorted(self.model)[:count]
        self.model = set(sorted(self.model)[count:])

    @rule(ledger_id=ledger_ids)
    def drop_ledgers_below(self, ledger_id: int) -> None:
        self.set.drop_ledgers_below(ledger_id)
        self.model = {p for p in self.model if p.ledger_id >= ledger_id}

    @rule()
    def clear(self) -> None:
        self.set.clear()
        self.model.clear()

    @rule()
    def made_anew(self) -> None:
        self.set = PositionSet(iter(self.model))

    @invariant()
    def agrees(self) -> None:
        self.check(self.set, self.model)

    def check(self, found: PositionSet, model: set[Position]) -> None:
        assert list(found) == sorted(model)
        assert len(found) == len(model)
        assert bool(found) == bool(model)
        assert found.lowest() == min(model, default=None)
        if model:
            assert found.bounds() == (min(model), max(model))
        assert all(found.ledgers.values()), "a ledger without entries is forgotten"
        assert all(isinstance(position, Position) for position in found)

    def teardown(self) -> None:
        for ledger_id in range(3, 7):
            for entry_id in (0, 5, 12, 65_536, MAX_ENTRY_ID):
                assert (P(ledger_id, entry_id) in self.set) == (
                    P(ledger_id, entry_id) in self.model
                )


PositionSetMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None
)
TestPositionSet = PositionSetMachine.TestCase


@given(position_sets, position_sets)
def test_what_was_taken_is_independent(mine: set[Position], other: set[Position]) -> None:
    here, wanted = PositionSet(mine), PositionSet(other)
    taken = here.take(wanted)
    for position in other:
        taken.add(position)
    assert set(here) == mine - other
    assert set(wanted) == other
