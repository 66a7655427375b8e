"""Ranges and splits: every message in exactly one split, whatever the cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.datasource.admin.partitions import Ledger, PartitionState
from pulsark.datasource.options.errors import DataLossError
from pulsark.datasource.options.offsets import NOTHING
from pulsark.datasource.plan.plan import (
    LARGE_BYTES,
    SMALL_BYTES,
    Split,
    check_available,
    comes_after,
    consecutive,
    cut,
    cut_at_least,
    cut_rows,
    group,
    range_of,
    within_bytes,
)
from pulsark.datasource.read.following import acknowledged_through, read_through
from pulsark.wire.message_id import MessageId


def state(*ledgers: tuple[int, int, int], name: str = "t") -> PartitionState:
    """A partition from (ledger, entries, bytes per entry)."""
    held = tuple(Ledger(ledger, entries, entries * size) for ledger, entries, size in ledgers)
    full = [ledger for ledger in held if ledger.entries]
    last = MessageId(full[-1].ledger_id, full[-1].entries - 1) if full else NOTHING
    first = MessageId(held[0].ledger_id, 0) if held else NOTHING
    return PartitionState(name, name, -1, "id", "grpc://h", first, last, held)


def entries_of(split: Split | None) -> list[tuple[int, int]]:
    if split is None:
        return []
    return [(s.ledger_id, e) for s in split.spans for e in range(s.first, s.last + 1)]


def everything(of: PartitionState) -> list[tuple[int, int]]:
    return [(ledger.ledger_id, e) for ledger in of.ledgers for e in range(ledger.entries)]


ledger_lists = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 50)), max_size=4
).map(lambda raw: [(i * 4 + gap, n, size) for i, (gap, n, size) in enumerate(raw)])


@given(ledger_lists, st.data())
def test_a_range_is_what_lies_between_its_ends(ledgers: Any, data: st.DataObject) -> None:
    held = state(*ledgers)
    ends = [NOTHING, held.earliest(), *(MessageId(*at) for at in everything(held))]
    after, through = sorted([data.draw(st.sampled_from(ends)), data.draw(st.sampled_from(ends))])
    wanted = [at for at in everything(held) if after.position < at <= through.position]
    assert entries_of(range_of(held, after, through)) == wanted
    check_available(held, after, through)


@given(st.lists(ledger_lists, max_size=3), st.integers(1, 40), st.booleans())
def test_cutting_loses_and_repeats_nothing(lists: Any, wanted: int, at_least: bool) -> None:
    ranges = []
    for number, ledgers in enumerate(lists):
        held = state(*ledgers, name=f"t-{number}")
        item = range_of(held, held.earliest(), held.latest())
        ranges += [item] if item is not None else []
    splits = (cut_at_least if at_least else cut)(ranges, wanted)
    for item in ranges:
        mine = [split for split in splits if split.name == item.name]
        assert [at for split in mine for at in entries_of(split)] == entries_of(item)
    assert all(split.entries for split in splits)
    if at_least:
        total = sum(item.entries for item in ranges)
        assert len(splits) >= min(wanted, total)


Place = tuple[int, int, int]
"""A message: its ledger, its entry, and its index in the batch; -1 if it is alone."""


def messages_of(split: Split, batches: dict[tuple[int, int], int]) -> list[Place]:
    """The messages that a reader makes of a split; ``batches`` has the sizes of entries."""
    found: list[Place] = []
    entries = entries_of(split)
    for at in entries:
        first = split.skip_through + 1 if at == entries[0] else 0
        size = batches[at]
        last = size - 1 if at != entries[-1] or split.stop_after < 0 else split.stop_after
        found += [(*at, index) for index in range(first, last + 1)] if size else [(*at, -1)]
    return found


@st.composite
def message_ranges(draw: st.DrawFn) -> tuple[PartitionState, dict[tuple[int, int], int], Any, Any]:
    """Ledgers of few entries, so that several often end at the same one, and two places."""
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    held = state(*((3 * number, n, SMALL_BYTES) for number, n in enumerate(sizes)))
    batches = {at: draw(st.sampled_from([0, 1, 2, 3])) for at in everything(held)}
    places = [
        MessageId(*at, batch_index=index)
        for at, size in batches.items()
        for index in (-1, *range(size))
    ]
    ends = st.sampled_from([held.earliest(), *places])
    return held, batches, draw(ends), draw(ends)


def is_read(message: Place, place: MessageId) -> bool:
    """Whether reading up to a place has read a message."""
    if message[:2] != place.position:
        return message[:2] < place.position
    return place.batch_index < 0 or message[2] <= place.batch_index


@given(message_ranges(), st.integers(1, 12), st.data())
def test_each_message_between_two_places_is_in_one_split(
    given_range: Any, wanted: int, data: st.DataObject
) -> None:
    held, batches, after, through = given_range
    every = [
        (*at, index) for at, size in batches.items() for index in (range(size) if size else (-1,))
    ]
    expected = [each for each in every if is_read(each, through) and not is_read(each, after)]
    item = range_of(held, after, through)
    splits = [] if item is None else cut_at_least([item], wanted)
    assert [each for split in splits for each in messages_of(split, batches)] == expected
    if item is None:
        return
    grouped = [split for some in group(splits, data.draw(st.integers(1, 5))) for split in some]
    assert grouped == splits
    by_rows = cut_rows([item], lambda split: len(messages_of(split, batches)), 2)
    assert [each for split in by_rows for each in messages_of(split, batches)] == expected
    # Some spans of it, with gaps: each message of theirs, and nothing else.
    kept = [span for span in item.spans if data.draw(st.booleans())]
    parts = [
        span.part(
            first := data.draw(st.integers(span.first, span.last)),
            data.draw(st.integers(first, span.last)),
        )
        for span in kept
    ]
    of_parts = {(span.ledger_id, e) for span in parts for e in range(span.first, span.last + 1)}
    assert [each for split in consecutive(item, parts) for each in messages_of(split, batches)] == [
        each for each in expected if each[:2] in of_parts
    ]


@given(message_ranges())
def test_the_place_that_may_be_acknowledged_has_no_unread_message_before_it(
    given_range: Any,
) -> None:
    _, batches, read, _ = given_range
    place = read_through(read)
    for at, size in batches.items():
        whole = all(is_read((*at, i), read) for i in (range(size) if size else (-1,)))
        if at <= place.position:
            assert whole
        elif at[0] == read.ledger_id and at > place.position and read.batch_index < 0:
            assert not whole
    acknowledged = acknowledged_through(read)
    assert acknowledged == (place if place.entry_id >= 0 else None)


def test_batch_indexes_go_to_the_outer_splits_only() -> None:
    held = state((1, 8, SMALL_BYTES))
    item = range_of(held, MessageId(1, 2, batch_index=5), MessageId(1, 6, batch_index=3))
    assert item is not None
    first, *_, last = cut([item], 4)
    assert entries_of(item) == [(1, 2), (1, 3), (1, 4), (1, 5), (1, 6)]
    assert (first.skip_through, first.stop_after) == (5, -1)
    assert (last.skip_through, last.stop_after) == (-1, 3)


def test_small_ranges_are_not_cut_unless_asked() -> None:
    held = state((1, 100, 100))
    item = range_of(held, held.earliest(), held.latest())
    assert item is not None
    assert len(cut([item], 8)) == 1
    assert [split.entries for split in cut_at_least([item], 8)] == [12, 13, 12, 13, 12, 13, 12, 13]
    assert len(cut_at_least([item], 1000)) == 100


def test_large_ranges_are_cut_more_often_than_asked() -> None:
    held = state((1, 1000, LARGE_BYTES // 100))
    item = range_of(held, held.earliest(), held.latest())
    assert item is not None
    assert len(cut([item], 2)) == 10


def test_one_partition_gives_as_many_splits_as_wanted() -> None:
    held = state((1, 50, 1 << 20), (2, 50, 1 << 20))
    item = range_of(held, held.earliest(), held.latest())
    assert item is not None
    assert [split.entries for split in cut([item], 4)] == [25] * 4


@pytest.mark.parametrize(
    ("place", "other", "after"),
    [
        (MessageId(1, 2), MessageId(1, 1), True),
        (MessageId(1, 2), MessageId(1, 2), False),
        (MessageId(1, 2, batch_index=3), MessageId(1, 2), False),
        (MessageId(1, 2), MessageId(1, 2, batch_index=3), True),
        (MessageId(1, 2, batch_index=3), MessageId(1, 2, batch_index=3), False),
        (MessageId(1, 2, batch_index=4), MessageId(1, 2, batch_index=3), True),
        (MessageId(1, 2, batch_index=2), MessageId(1, 2, batch_index=3), False),
        (MessageId(2, -1), MessageId(1, 9), True),
    ],
)
def test_which_place_reads_more(place: MessageId, other: MessageId, after: bool) -> None:
    assert comes_after(place, other) is after


def test_messages_that_are_gone_are_noticed() -> None:
    held = state((5, 10, 1), (6, 10, 1))
    check_available(held, NOTHING, MessageId(6, 3))
    check_available(held, MessageId(5, 9), MessageId(6, 3))
    check_available(held, MessageId(4, 7), MessageId(6, 3))  # so ledger 4 has ended there
    held = replace(held, trimmed=MessageId(4, 8))
    with pytest.raises(DataLossError, match=r"after 4:7 were deleted, up to 4:8; .* 5:0"):
        check_available(held, MessageId(4, 7), MessageId(6, 3))
    with pytest.raises(DataLossError, match="longer or use the option subscription to prevent"):
        check_available(held, MessageId(4, 7), MessageId(6, 3), streaming=True)
    with pytest.raises(DataLossError, match="keep messages longer to prevent"):
        check_available(held, MessageId(4, 7), MessageId(6, 3))
    check_available(held, MessageId(4, 8), MessageId(6, 3))
    with pytest.raises(DataLossError, match="after 4:8:1 were deleted"):
        check_available(held, MessageId(4, 8, batch_index=1), MessageId(6, 3))
    with pytest.raises(DataLossError, match="after -1:-1 were deleted"):
        check_available(held, NOTHING, MessageId(6, 3))
    check_available(held, MessageId(4, 7), MessageId(4, 7))
    with pytest.raises(DataLossError, match="up to 7:0 are gone, the last one is 6:9"):
        check_available(held, MessageId(6, 9), MessageId(7, 0))


@given(ledger_lists, st.integers(1, 400), st.data())
def test_a_byte_limit_moves_on_and_stays_inside(
    ledgers: Any, budget: int, data: st.DataObject
) -> None:
    held = state(*ledgers)
    ends = [held.earliest(), *(MessageId(*at) for at in everything(held))]
    after = data.draw(st.sampled_from(ends))
    reached = within_bytes(held, after, held.latest(), budget)
    assert reached <= held.latest()
    item = range_of(held, after, reached)
    if range_of(held, after, held.latest()) is None:
        assert reached == held.latest()
    else:
        assert item is not None
        assert item.entries == 1 or item.size <= budget


def test_the_ends_of_an_empty_topic() -> None:
    assert state().earliest() == state().latest() == NOTHING
    assert state((7, 0, 0)).latest() == MessageId(7, -1)
    assert range_of(state((7, 0, 0)), NOTHING, MessageId(7, -1)) is None
