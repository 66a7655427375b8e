"""Entries that a subscription keeps in memory are counted in the budget, to the byte."""

from __future__ import annotations

import pytest

from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.subscription import read_buffer
from pulsark.dispatch.subscription.read_buffer import ReadBuffer
from pulsark.dispatch.topic.cache import CacheBudget
from pulsark.wire.position import Position


def entries(*sizes: int) -> list[Entry]:
    return [
        Entry(bytes(size), 1, False, False, ledger_id=1, entry_id=i) for i, size in enumerate(sizes)
    ]


def test_what_was_read_ahead_counts_until_all_of_it_is_dispatched() -> None:
    budget = CacheBudget(1000)
    buffer = ReadBuffer(budget)
    buffer.read_ahead(entries(10, 20, 30))
    assert budget.at_hand_bytes == 60
    buffer.ahead = buffer.ahead[1:]
    assert budget.at_hand_bytes == 60
    buffer.read_ahead(entries(5))
    assert budget.at_hand_bytes == 5
    buffer.drop_ahead()
    assert (buffer.ahead, budget.at_hand_bytes) == ([], 0)


def test_what_is_passed_over_is_not_dispatched_and_counts_no_more_when_nothing_is_left() -> None:
    budget = CacheBudget(1000)
    buffer = ReadBuffer(budget)
    read = entries(10, 20, 30)
    buffer.read_ahead(read)
    buffer.pass_over(Position(1, 1))
    assert (buffer.ahead, budget.at_hand_bytes) == (read[2:], 60)
    buffer.pass_over(Position(2, 0))
    assert (buffer.ahead, budget.at_hand_bytes) == ([], 0)


def test_waiting_entries_are_kept_once_each() -> None:
    budget = CacheBudget(1000)
    buffer = ReadBuffer(budget)
    first, second = entries(10, 20)
    for entry in (first, second, first):
        buffer.keep(entry)
    assert budget.at_hand_bytes == 30
    buffer.drop(first.position)
    buffer.drop(first.position)
    assert (buffer.aside, budget.at_hand_bytes) == ({second.position: second}, 20)
    buffer.clear()
    assert (buffer.aside, budget.at_hand_bytes) == ({}, 0)


@pytest.mark.parametrize("limit", ["subscription", "budget"])
def test_an_entry_for_which_there_is_no_room_displaces_the_others(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit == "subscription":
        monkeypatch.setattr(read_buffer, "PUT_ASIDE_BYTES_MAX", 50)
    budget = CacheBudget(1000 if limit == "subscription" else 100)
    buffer = ReadBuffer(budget)
    first, second, third = entries(20, 20, 20)
    for entry in (first, second, third):
        buffer.keep(entry)
    assert (list(buffer.aside), budget.at_hand_bytes) == ([third.position], 20)
