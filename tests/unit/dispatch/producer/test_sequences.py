"""The memory of deduplication, against a naive one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.dispatch.producer.sequences import ProducerSequences, SequenceTable, Verdict
from pulsark.wire.position import Position


class Timer:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def table(
    names_max: int = 100, forget_after: float = 60, return_seconds: float = 0
) -> tuple[SequenceTable, Timer]:
    timer = Timer()
    return SequenceTable(names_max, forget_after, timer, return_seconds), timer


def names(found: SequenceTable) -> set[str]:
    return set(found.snapshot())


def test_an_entry_is_new_then_under_way_then_stored() -> None:
    known = ProducerSequences()
    assert known.check(0, 0) is Verdict.NEW
    assert known.check(0, 0) is Verdict.UNDECIDED
    known.store(0)
    assert known.check(0, 0) is Verdict.STORED
    assert known.check(5, 9) is Verdict.NEW
    assert known.check(5, 9) is Verdict.UNDECIDED
    assert known.check(0, 0) is Verdict.STORED
    known.store(9)
    assert [known.check(n, n) for n in (7, 9, 10)] == [Verdict.STORED] * 2 + [Verdict.NEW]


def test_a_failed_entry_is_new_again_once_that_is_known() -> None:
    known = ProducerSequences()
    known.check(0, 0)
    known.store(0)
    known.check(1, 1)
    known.doubt()
    assert not known.decided
    assert [known.check(n, n) for n in (0, 1, 2)] == [Verdict.STORED] + [Verdict.UNDECIDED] * 2
    known.decide()
    assert known.decided
    assert known.check(1, 1) is Verdict.NEW


def test_a_failed_entry_that_exists_after_all_is_not_new() -> None:
    known = ProducerSequences()
    known.check(0, 0)
    known.doubt()
    known.store(0)  # found by recovery
    known.decide()
    assert known.check(0, 0) is Verdict.STORED


def test_a_batch_is_judged_by_its_first_id_and_counts_with_its_last() -> None:
    known = ProducerSequences()
    known.store(5)
    assert known.check(4, 8) is Verdict.STORED
    assert known.pushed == 5
    assert known.check(6, 8) is Verdict.NEW
    assert [known.check(7, 9), known.check(8, 8)] == [Verdict.UNDECIDED] * 2
    known.store(8)
    assert known.check(7, 9) is Verdict.STORED
    assert known.check(9, 9) is Verdict.NEW


def test_pieces_of_a_message_are_judged_but_do_not_count() -> None:
    known = ProducerSequences()
    assert [known.judge(3), known.judge(3)] == [Verdict.NEW] * 2
    assert known.check(3, 3) is Verdict.NEW
    assert known.judge(3) is Verdict.UNDECIDED
    known.store(3)
    assert known.judge(3) is Verdict.STORED


@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "confirm", "fail", "lost"]), st.integers(0, 12)),
        max_size=40,
    )
)
def test_every_id_is_stored_once_and_what_failed_is_taken_again(steps) -> None:
    """Against storage that keeps a list, confirms in order, and keeps part of what failed."""
    known, stored, under_way = ProducerSequences(), [], []
    for what, number in steps:
        if what == "send":
            verdict = known.check(number, number)
            above = number > max([*stored, *under_way], default=-1)
            assert (verdict is Verdict.NEW) == above
            assert (verdict is Verdict.STORED) == (number <= max(stored, default=-1))
            if verdict is Verdict.NEW:
                under_way.append(number)
        elif what == "confirm" and under_way:
            stored.append(under_way.pop(0))
            known.store(stored[-1])
        elif what in ("fail", "lost") and under_way:
            known.doubt()
            assert known.check(number, number) is not Verdict.NEW
            survivors = under_way[:number] if what == "lost" else []
            under_way = []
            for survivor in survivors:
                stored.append(survivor)
                known.store(survivor)
            known.decide()
        assert stored == sorted(set(stored))


# -- the table -----------------------------------------------------------------------------------


def test_a_snapshot_is_what_is_stored() -> None:
    found, _ = table()
    found.of("a").check(7, 7)
    found.of("a").store(7)
    found.of("b").check(3, 3)
    assert found.snapshot() == {"a": "7"}
    other, _ = table()
    other.restore(found.snapshot())
    assert other.of("a").check(7, 7) is Verdict.STORED
    with pytest.raises(ValueError, match="seven"):
        other.restore({"a": "seven"})


def test_a_snapshot_says_where_a_batch_is_and_what_was_found_in_one() -> None:
    found, _ = table()
    place = Position(3, 4)
    found.of("a").store(7, place)
    found.of("b").store(7, place)
    found.of("b").looked_into(place, 9)
    found.of("c").store(7, place)
    found.of("c").looked_into(place, 9)
    found.of("c").store(8, Position(3, 5))
    found.of("d").store(7, place)
    found.of("d").looked_into(place, 9)
    found.of("d").store(12)
    assert found.snapshot() == {"a": "7,7,3:4", "b": "7,9", "c": "8,9,3:5", "d": "12"}
    other, _ = table()
    other.restore(found.snapshot())
    assert {name: (k.last, k.batch) for name in "abcd" if (k := other.of(name))} == {
        "a": (7, place),
        "b": (9, None),
        "c": (9, Position(3, 5)),
        "d": (12, None),
    }
    assert other.snapshot() == found.snapshot()


def test_a_number_that_no_client_can_be_told_is_not_taken_in() -> None:
    found, _ = table()
    found.restore({"a": str(2**64 - 1)})
    assert found.of("a").last == -1
    assert found.of("a").check(0, 0) is Verdict.NEW


def test_names_are_forgotten_some_time_after_they_were_left() -> None:
    found, timer = table(forget_after=60)
    found.restore({"old": "1", "late": "1", "here": "1"})
    found.joined("here")
    found.joined("late")
    timer.now = 30
    found.of("late").store(2)
    found.left("late")
    kept = []
    for now in (59, 60, 89, 90, 1000):
        timer.now = now
        found.forget_left()
        kept.append(names(found))
    assert kept == [
        {"old", "late", "here"},
        {"late", "here"},
        {"late", "here"},
        {"here"},
        {"here"},
    ]


def test_a_name_that_is_used_from_elsewhere_is_kept() -> None:
    found, timer = table(forget_after=60)
    for sequence in range(5):
        found.of("remote").store(sequence)
        timer.now += 61
        found.forget_left()
        assert names(found) == {"remote"}
    timer.now += 61
    found.forget_left()
    assert not names(found)


def test_of_too_many_names_those_go_that_were_left_first() -> None:
    found, timer = table(names_max=3)
    for number in range(3):
        timer.now += 1
        found.joined(str(number))
        found.of(str(number)).store(number)
    found.joined("connected")  # one more than remembered, but in use
    assert len(found) == 4
    found.left("1")
    found.left("0")
    found.of("connected").store(1)
    assert names(found) == {"0", "2", "connected"}
    found.joined("5")
    found.of("5").store(5)
    found.joined("6")
    assert names(found) == {"2", "connected", "5"}


@pytest.mark.feature("F54")
def test_names_are_bounded_by_those_in_use_and_those_remembered() -> None:
    found, timer = table(names_max=1000, forget_after=3600, return_seconds=10)
    for number in range(20_000):
        timer.now += 0.01
        name = f"producer-{number}"
        found.joined(name)
        found.of(name).store(number)
        if number % 10:
            found.left(name)
        assert len(found) <= number // 10 + 1 + 1001 + 1000
    timer.now += 10
    found.forget_left()
    in_use = {f"producer-{number}" for number in range(0, 20_000, 10)}
    assert in_use <= names(found), "more than are remembered, and none of them lost"
    assert len(found) <= len(in_use) + 1


@pytest.mark.feature("F54")
def test_producers_that_are_cut_off_together_find_all_that_they_sent() -> None:
    """More of them than are remembered: their connections broke, or the broker started anew."""
    found, timer = table(names_max=10, return_seconds=100)
    everyone = {str(number) for number in range(50)}
    for name in everyone:
        found.joined(name)
        found.of(name).store(7)
    for name in everyone:
        found.left(name)
    assert names(found) == everyone
    restarted, timer = table(names_max=10, forget_after=3600, return_seconds=100)
    restarted.restore(found.snapshot())
    assert names(restarted) == everyone
    back = {str(number) for number in range(30)}
    for name in back:
        timer.now += 3
        restarted.joined(name)
        assert restarted.of(name).check(7, 7) is Verdict.STORED
    timer.now = 101
    restarted.forget_left()
    assert back <= names(restarted)
    assert len(restarted) <= len(back) + 1


def test_a_name_under_which_nothing_was_sent_leaves_nothing() -> None:
    found, _ = table()
    found.joined("a")
    found.left("a")
    assert len(found) == 0


def test_a_name_in_doubt_is_not_forgotten() -> None:
    found, timer = table(names_max=1, forget_after=60)
    found.joined("a")
    found.of("a").check(1, 1)
    found.of("a").doubt()
    found.left("a")
    timer.now = 1000
    found.forget_left()
    found.joined("b")
    assert len(found) == 2
    assert found.get("a") is not None
