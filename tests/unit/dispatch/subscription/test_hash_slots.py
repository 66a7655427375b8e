"""Which consumer owns which slot: the ring, ranges that split, ranges that consumers name."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsark.dispatch.model.subscription_type import PlaceTakenError
from pulsark.dispatch.subscription.hash_ranges import AutoSplitRanges, SlotRanges, StickyRanges
from pulsark.dispatch.subscription.hash_ring import HashRing
from pulsark.errors import ClientError, ServerError
from pulsark.limits import KEY_RANGES_MAX
from pulsark.wire.hashes import murmur3_32
from tests.support.fake_consumers import FakeConsumer

SLOTS = range(1, 65536)


def owners(selector: Any) -> list[str | None]:
    """The name of the owner of each slot."""
    found = [selector.owner(slot) for slot in SLOTS]
    return [consumer and consumer.name for consumer in found]


def by_ranges(selector: Any) -> list[str | None]:
    return [consumer and consumer.name for consumer in by_ranges_of(selector)]


def by_ranges_of(selector: Any) -> list[FakeConsumer | None]:
    found: list[FakeConsumer | None] = [None] * len(SLOTS)
    for first, last, consumer in selector.ranges():
        for slot in range(max(first, 1), min(last, 65535) + 1):
            found[slot - 1] = consumer
    return found


# -- the ring --------------------------------------------------------------------------------------


def test_a_key_has_the_slot_that_pulsar_gives_it() -> None:
    assert murmur3_32("key1") == 462881061
    assert HashRing().slot(462881061) == 462881061 % 65535 + 1
    assert AutoSplitRanges().slot(462881061) == 462881061 % 65536
    assert AutoSplitRanges().slot(65536) == 1  # there is no slot 0


def test_the_ring_has_a_hundred_points_a_consumer_and_the_next_one_owns() -> None:
    ring = HashRing(points=100)
    for name in "ab":
        ring.add(FakeConsumer(name))
    points = {}
    for name in "ba":  # where both want a point, the one who came first has it
        for i in range(100):
            points[murmur3_32(f"{name}\0{0}\0{i}") % 65535 + 1] = name
    places = sorted(points)
    for slot in (1, 2, 77, 30000, 65000, 65535):
        expected = points[places[bisect_left(places, slot) % len(places)]]
        assert ring.owner(slot).name == expected


def test_consumers_of_one_name_share_and_a_freed_number_is_used_again() -> None:
    ring = HashRing()
    twins = [FakeConsumer("same") for _ in range(3)]
    for twin in twins:
        ring.add(twin)
    before = [ring.owner(slot) for slot in SLOTS]
    assert set(before) == set(twins)
    ring.remove(twins[1])
    assert {ring.owner(slot) for slot in SLOTS} == {twins[0], twins[2]}
    newcomer = FakeConsumer("same")
    ring.add(newcomer)
    after = [ring.owner(slot) for slot in SLOTS]
    assert after == [newcomer if owner is twins[1] else owner for owner in before]


def test_a_ring_spreads_slots_and_moves_few() -> None:
    ring = HashRing()
    for number in range(10):
        ring.add(FakeConsumer(f"c{number}"))
    before = owners(ring)
    shares = Counter(before)
    assert len(shares) == 10
    assert max(shares.values()) < 2 * len(SLOTS) / 10
    ring.add(FakeConsumer("new"))
    moved = [now for was, now in zip(before, owners(ring), strict=True) if was != now]
    assert set(moved) == {"new"}
    assert len(moved) < len(SLOTS) / 5


def test_an_empty_ring_has_no_owner() -> None:
    ring = HashRing()
    assert ring.owner(1) is None
    only = FakeConsumer("a")
    ring.add(only)
    ring.remove(only)
    assert ring.owner(1) is None
    assert ring.ranges() == []


# -- ranges that split -----------------------------------------------------------------------------


def test_a_newcomer_gets_the_lower_half_of_the_largest_range() -> None:
    ranges = AutoSplitRanges()
    for name in "abc":
        ranges.add(FakeConsumer(name))
    assert [(first, last, c.name) for first, last, c in ranges.ranges()] == [
        (1, 16384, "c"),
        (16385, 32768, "b"),
        (32769, 65536, "a"),
    ]


@pytest.mark.parametrize(
    ("leaver", "left"),
    [
        ("a", [(16384, "c"), (65536, "b")]),
        ("b", [(16384, "c"), (65536, "a")]),
        ("c", [(32768, "b"), (65536, "a")]),
    ],
)
def test_a_leavers_range_joins_its_neighbour(leaver: str, left: list[tuple[int, str]]) -> None:
    ranges = AutoSplitRanges()
    consumers = {name: FakeConsumer(name) for name in "abc"}
    for consumer in consumers.values():
        ranges.add(consumer)
    ranges.remove(consumers[leaver])
    assert [(last, c.name) for _, last, c in ranges.ranges()] == left


def test_ranges_of_one_slot_are_not_split() -> None:
    ranges = AutoSplitRanges()
    for number in range(65536):
        ranges._bounds.append(number + 1)
        ranges._owners.append(FakeConsumer("c"))
    with pytest.raises(ClientError, match="No range") as refused:
        ranges.add(FakeConsumer("late"))
    assert refused.value.code == ServerError.ConsumerAssignError


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=40))
def test_every_slot_has_one_owner_whoever_comes_and_goes(steps: list[tuple[bool, int]]) -> None:
    for selector in (HashRing(points=7), AutoSplitRanges()):
        members: list[FakeConsumer] = []
        for joins, number in steps:
            if joins:
                members.append(FakeConsumer(f"c{number}"))
                selector.add(members[-1])
            elif members:
                selector.remove(members.pop(number % len(members)))
        spans = selector.ranges()
        assert {id(c) for _, _, c in spans} <= set(map(id, members))
        assert bool(spans) == bool(members)
        end = 0
        for first, last, consumer in spans:
            assert first == end + 1
            assert selector.owner(first) is selector.owner(last) is consumer
            end = last
        assert not members or end >= 65535


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=8))
@settings(max_examples=20)
def test_who_comes_or_goes_tells_which_slots_moved(steps: list[tuple[bool, int]]) -> None:
    for selector in (HashRing(points=7), AutoSplitRanges()):
        members: list[FakeConsumer] = []
        before = by_ranges_of(selector)
        for joins, number in steps:
            if joins:
                members.append(FakeConsumer(f"c{number % 3}"))
                moved = selector.add(members[-1])
            elif members:
                moved = selector.remove(members.pop(number % len(members)))
            else:
                continue
            after = by_ranges_of(selector)
            changed = {slot for slot in SLOTS if before[slot - 1] is not after[slot - 1]}
            assert set(moved) - {65536} == changed
            before = after


# -- ranges that consumers name --------------------------------------------------------------------


def sticky(name: str, *ranges: tuple[int, int]) -> FakeConsumer:
    return FakeConsumer(name, key_ranges=ranges)


def test_sticky_ranges_have_both_ends_and_gaps_belong_to_nobody() -> None:
    ranges = StickyRanges()
    ranges.add(sticky("a", (0, 9), (30, 39)))
    ranges.add(sticky("b", (10, 19)))
    names = owners(ranges)
    assert [names[slot - 1] for slot in (1, 9, 10, 19, 20, 29, 30, 39, 40, 65535)] == [
        *"aabb",
        None,
        None,
        *"aa",
        None,
        None,
    ]
    assert names == by_ranges(ranges)


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ((5, 4),),
        ((-1, 3),),
        ((0, 65536),),
        ((1, 5), (5, 9)),
        ((1, 9), (2, 3)),
        tuple((2 * n, 2 * n) for n in range(KEY_RANGES_MAX + 1)),
    ],
)
def test_sticky_ranges_that_cannot_be_are_refused(wrong: tuple[tuple[int, int], ...]) -> None:
    ranges = StickyRanges()
    with pytest.raises(ClientError, match="Ranges of hashes") as refused:
        ranges.add(sticky("a", *wrong))
    assert refused.value.code == ServerError.ConsumerAssignError
    assert ranges.ranges() == []


def test_the_ranges_of_a_consumer_take_little_memory() -> None:
    given = [(2 * n, 2 * n) for n in range(KEY_RANGES_MAX)]
    ranges = SlotRanges(given)
    assert list(ranges) == given
    assert len(ranges) == KEY_RANGES_MAX
    assert (4, 4) in ranges
    assert (5, 5) not in ranges
    assert sys.getsizeof(ranges._ends) < 6 * KEY_RANGES_MAX
    with pytest.raises(ClientError, match="Ranges of hashes"):
        SlotRanges([(5, 4)])


@pytest.mark.parametrize("second", [(9, 30), (0, 1), (0, 65535), (4, 5)])
def test_a_range_that_another_consumer_has_is_refused_and_names_it(second: tuple[int, int]) -> None:
    ranges = StickyRanges()
    holder = sticky("a", (1, 9))
    ranges.add(holder)
    with pytest.raises(PlaceTakenError, match="conflict") as refused:
        ranges.add(sticky("b", second))
    assert refused.value.holder is holder
    assert set(ranges.remove(holder)) == set(range(1, 10))
    assert set(ranges.add(sticky("b", second))) == set(range(second[0], second[1] + 1))
    assert ranges.owner(5) is None or ranges.owner(5).name == "b"
