"""Telling a metadata store from an older copy of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsark.limits import METADATA_SESSIONS_KEPT
from pulsark.metadata.history import NO_MARK, History, StoreStart, mark_of

BEGUN = History((StoreStart(1, 11), StoreStart(50, 22)), 100)


def test_marks_of_the_own_past_are_known() -> None:
    for commit in range(1, 101):
        assert BEGUN.knows(mark_of(commit, 11 if commit < 50 else 22))
    assert BEGUN.knows(BEGUN.mark)
    assert BEGUN.knows(NO_MARK)


def test_a_commit_before_the_newest_session_has_the_mark_of_its_own() -> None:
    """Where several processes share a store, another one may begin right behind a commit."""
    begun_behind = BEGUN.with_session(33)
    assert begun_behind.at(100).mark == BEGUN.mark
    assert begun_behind.at(40).mark == mark_of(40, 11)


def test_marks_rise_whatever_the_nonce() -> None:
    assert mark_of(2, 0) > mark_of(1, (1 << 20) - 1)


def test_an_earlier_state_does_not_know_what_came_later() -> None:
    earlier = replace(BEGUN, last_commit=90)
    assert not earlier.knows(BEGUN.mark)


@pytest.mark.parametrize("starts", range(1, 20))
def test_nor_after_any_number_of_starts(starts: int) -> None:
    earlier = replace(BEGUN, last_commit=90)
    for number in range(starts):
        earlier = earlier.with_session(1000 + number)
    assert not earlier.knows(BEGUN.mark)


def test_a_copy_that_lived_on_is_told_from_the_original() -> None:
    original, copy = BEGUN.with_session(33), BEGUN.with_session(44)
    original, copy = replace(original, last_commit=200), replace(copy, last_commit=300)
    assert not copy.knows(original.mark)
    assert not original.knows(copy.mark)
    assert copy.knows(BEGUN.mark)
    assert original.knows(BEGUN.mark)


def test_after_the_adoption_only_what_comes_now_counts() -> None:
    earlier = replace(BEGUN, last_commit=90)
    adopted = earlier.with_session(55, [BEGUN.mark, mark_of(97, 66)])
    assert adopted.mark > BEGUN.mark
    assert adopted.knows(adopted.mark)
    assert adopted.knows(mark_of(89, 22))
    assert not any(adopted.knows(mark_of(commit, 22)) for commit in range(91, 101))


def test_sessions_that_are_long_past_are_forgotten() -> None:
    history = History((), 0)
    marks = []
    for number in range(METADATA_SESSIONS_KEPT + 50):
        history = history.with_session(number)
        marks.append(history.mark)
    assert len(history.sessions) == METADATA_SESSIONS_KEPT
    assert all(history.knows(mark) for mark in marks)
