"""Shares of groups: no two consumers on a segment at a time, and none waits for ever."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsark.dispatch.scalable.limits import (
    SEGMENT_HAND_OVER_SECONDS,
    SHARE_ASKED_AGAIN_SECONDS,
    STREAM_CONSUMER_GRACE_SECONDS,
)
from pulsark.dispatch.scalable.shares import Shares, dealt

NAMES = st.lists(st.text("abc", min_size=1, max_size=2), unique=True, max_size=9).map(sorted)
QUIET = 3 * (SEGMENT_HAND_OVER_SECONDS + STREAM_CONSUMER_GRACE_SECONDS)


@given(before=st.lists(st.sampled_from(["a", "b", "c", "z", None]), max_size=30), names=NAMES)
def test_dealing_is_even_and_moves_little(before: list[str | None], names: list[str]) -> None:
    after = dealt(before, names)
    assert len(after) == len(before)
    if not names:
        assert set(after) <= {None}
        return
    counts = Counter(after)
    assert counts.keys() <= set(names)
    sizes = [counts[name] for name in names]
    assert max(sizes) - min(sizes) <= 1
    kept = sum(1 for old, new in zip(before, after, strict=True) if old == new)
    had = Counter(name for name in before if name in names)
    each, more = divmod(len(before), len(names))
    most = sum(min(n, each) for n in had.values())
    most += min(more, sum(1 for n in had.values() if n > each))
    assert kept == most
    assert dealt(after, names) == after


@dataclass
class Consumer:
    """A client as those of Pulsar 5 are: it closes what it lost, and attaches to what it got."""

    name: str
    told: set[int] = field(default_factory=set)
    """What it was told last."""
    wants: set[int] = field(default_factory=set)
    """What it has read of that."""
    attached: set[int] = field(default_factory=set)
    stubborn: bool = False
    """It closes nothing that it lost."""


class World:
    """A group, its consumers, and a subscription that refuses two on one segment."""

    def __init__(self, seed: int, segments: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.segments = segments
        self.shares = Shares(segments, exclusive=True)
        self.here: dict[str, Consumer] = {}
        self.taken_from: set[str] = set()

    def holders(self, segment: int) -> list[str]:
        return [c.name for c in self.here.values() if segment in c.attached]

    def tell(self) -> None:
        shares = self.shares.shares()
        for consumer in self.here.values():
            consumer.told = set(shares.get(consumer.name, ()))
            asked = self.shares.asked(consumer.name)
            consumer.told |= set() if asked is None else {asked}

    def check(self) -> None:
        """At all times: one owner, no two on a segment, and each is on what it owns."""
        owners = [self.shares.owner(k) for k in range(self.segments)]
        assert self.shares.is_over or None not in owners
        shares = self.shares.shares()
        given = [k for share in shares.values() for k in share]
        assert len(given) == len(set(given))
        for segment in range(self.segments):
            holders = self.holders(segment)
            assert len(holders) <= 1
            if holders:
                assert owners[segment] == holders[0]

    # -- what happens ---

    def join(self) -> None:
        name = f"c{self.random.randrange(10)}"
        if name not in self.here:
            stubborn = self.random.random() < 0.2
            self.here[name] = Consumer(name, stubborn=stubborn)
            self.shares.join(name, self.now)

    def some(self) -> Iterator[Consumer]:
        if self.here:
            yield self.random.choice(list(self.here.values()))

    def vanish(self) -> None:
        for consumer in self.some():
            del self.here[consumer.name]
            self.shares.lose(consumer.name, self.now)

    def leave(self) -> None:
        """It says so, and closes everything; or it only closes."""
        for consumer in self.some():
            kept = sorted(consumer.attached & consumer.told)
            if self.random.random() < 0.5 or not kept:
                self.shares.leave(consumer.name, self.now)
            for segment in sorted(consumer.attached):
                self.shares.close(consumer.name, segment, self.now)
            del self.here[consumer.name]

    def read(self) -> None:
        """It hears what it was told: it closes, and asks for what is new."""
        for consumer in self.some():
            self.follow(consumer)

    def follow(self, consumer: Consumer) -> None:
        consumer.wants = set(consumer.told)
        for segment in sorted(consumer.attached - consumer.wants):
            if not consumer.stubborn:
                consumer.attached.discard(segment)
                self.shares.close(consumer.name, segment, self.now)
        for segment in sorted(consumer.wants - consumer.attached):
            self.shares.hear(consumer.name, self.now)
            # What was taken meanwhile is refused, as the broker does.
            if self.shares.owner(segment) == consumer.name:
                assert self.holders(segment) == []
                consumer.attached.add(segment)

    def grow(self) -> None:
        if self.segments < 20:
            self.segments += self.random.randrange(1, 4)
            self.shares.resize(self.segments, self.now)

    def wait(self) -> None:
        self.now += self.random.choice([0.1, 1.0, 4.0, 20.0])

    def pass_time(self) -> None:
        def attached(name: str, segment: int) -> bool:
            return name in self.here and segment in self.here[name].attached

        before = {k: self.holders(k) for k in range(self.segments)}
        for segment in self.shares.pass_time(self.now, attached):
            (holder,) = before[segment]
            self.here[holder].attached.discard(segment)
            self.taken_from.add(holder)

    def step(self) -> None:
        steps = [self.join, self.vanish, self.leave, self.read, self.grow, self.wait]
        self.random.choices(steps, [4, 2, 2, 8, 1, 4])[0]()
        self.pass_time()
        self.tell()
        self.check()


@pytest.mark.parametrize("block", range(10))
def test_a_thousand_random_histories(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        world = World(seed, 1 + seed % 9)
        for _ in range(40):
            world.step()
        end = world.now + QUIET
        while world.now < end:
            world.now += 1
            world.pass_time()
            world.tell()
            for consumer in list(world.here.values()):
                world.follow(consumer)
            world.check()
        shares = world.shares.shares()
        assert set(world.shares.members) == set(world.here)
        assert not world.shares.hands_over
        assert world.shares.unsettled() == set()
        assert world.shares.next_deadline() is None
        for name, consumer in world.here.items():
            assert consumer.attached == set(shares.get(name, ()))
        sizes = [len(shares.get(name, ())) for name in world.here]
        if sizes:
            assert sum(sizes) == world.segments
            assert max(sizes) - min(sizes) <= 1


def free(_name: str, _segment: int) -> bool:
    return False


def held(_name: str, _segment: int) -> bool:
    return True


def test_a_segment_passes_when_its_owner_has_closed_it() -> None:
    shares = Shares(4, exclusive=True)
    shares.join("one", 0)
    assert shares.shares() == {"one": [0, 1, 2, 3]}
    shares.join("two", 0)
    assert shares.shares() == {"one": [0, 1]}
    assert shares.unsettled() == {"two"}
    assert shares.pass_time(1, held) == []
    shares.close("one", 3, 1)
    assert shares.shares() == {"one": [0, 1], "two": [3]}
    shares.close("one", 2, 1)
    assert shares.shares() == {"one": [0, 1], "two": [2, 3]}
    assert shares.unsettled() == set()


def test_who_does_not_close_in_time_loses_it() -> None:
    shares = Shares(2, exclusive=True)
    shares.join("one", 0)
    shares.join("two", 0)
    assert shares.next_deadline() == SEGMENT_HAND_OVER_SECONDS
    assert shares.pass_time(SEGMENT_HAND_OVER_SECONDS, held) == [1]
    assert shares.shares() == {"one": [0], "two": [1]}


def test_who_was_never_there_has_time_to_attach_and_close() -> None:
    shares = Shares(2, exclusive=True)
    shares.join("one", 0)
    shares.join("two", 0)
    assert shares.pass_time(0.1, free) == []
    assert shares.shares() == {"one": [0]}
    shares.pass_time(0.2, held)
    shares.pass_time(0.3, free)
    assert shares.shares() == {"one": [0], "two": [1]}


def test_a_lost_connection_keeps_its_share_for_a_while() -> None:
    shares = Shares(2, exclusive=True)
    shares.join("one", 0)
    shares.join("two", 0)
    shares.close("one", 1, 0)
    shares.lose("two", 0)
    assert shares.is_away("two")
    assert shares.shares() == {"one": [0], "two": [1]}
    shares.join("two", 1)
    assert shares.shares() == {"one": [0], "two": [1]}
    shares.lose("two", 1)
    shares.pass_time(1 + STREAM_CONSUMER_GRACE_SECONDS, free)
    assert shares.shares() == {"one": [0, 1]}
    assert list(shares.members) == ["one"]


def test_closing_what_one_is_to_keep_is_leaving() -> None:
    shares = Shares(2, exclusive=True)
    shares.join("one", 0)
    shares.join("two", 0)
    shares.close("one", 1, 0)
    shares.close("one", 0, 1)
    assert list(shares.members) == ["two"]
    assert shares.shares() == {"two": [0, 1]}


def test_what_comes_back_to_its_owner_is_closed_first() -> None:
    shares = Shares(2, exclusive=True)
    shares.join("one", 0)
    shares.join("two", 0)
    shares.leave("two", 0)
    assert shares.shares() == {"one": [0]}
    shares.close("one", 1, 0)
    assert list(shares.members) == ["one"]
    assert shares.shares() == {"one": [0, 1]}


def test_those_who_were_there_before_the_broker_keep_what_they_have() -> None:
    shares = Shares(4, exclusive=True)
    for segment in (1, 3):
        shares.hold("two", segment, 0)
    shares.join("one", 0)
    assert shares.shares() == {"one": [0, 2], "two": [1, 3]}
    shares.pass_time(STREAM_CONSUMER_GRACE_SECONDS, held)
    assert shares.shares() == {"one": [0, 2]}
    end = STREAM_CONSUMER_GRACE_SECONDS + SEGMENT_HAND_OVER_SECONDS
    assert shares.pass_time(end, held) == [1, 3]
    assert shares.shares() == {"one": [0, 1, 2, 3]}


def test_readers_of_a_group_need_no_pause() -> None:
    shares = Shares(4, exclusive=False)
    shares.join("one", 0)
    shares.join("two", 0)
    assert shares.shares() == {"one": [0, 1], "two": [2, 3]}
    shares.close("two", 2, 0)
    assert shares.shares() == {"one": [0, 1, 2, 3]}


def test_more_consumers_than_segments_wait_with_nothing() -> None:
    shares = Shares(1, exclusive=True)
    shares.join("a", 0)
    shares.join("b", 0)
    assert shares.shares() == {"a": [0]}
    assert shares.unsettled() == set()
    shares.close("a", 0, 1)
    assert shares.shares() == {"b": [0]}


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("segments", [2, 4, 8])
def test_two_get_the_same_whoever_came_first(order: str, segments: int) -> None:
    shares = Shares(segments, exclusive=False)
    for name in order:
        shares.join(name, 0)
    half = segments // 2
    got = shares.shares()
    assert got["a"][:half] == list(range(half))
    assert got["b"][-half:] == list(range(segments - half, segments))


def test_who_is_idle_gets_its_share_when_it_comes_for_it() -> None:
    shares = Shares(2, exclusive=True)
    for name in "abcd":
        shares.join(name, 0)
        shares.pass_time(0, free)
        for owner, segments in shares.owned().items():
            for segment in set(segments) - set(shares.shares().get(owner, ())):
                shares.close(owner, segment, 0)
    assert shares.shares() == {"a": [0], "b": [1]}
    assert (shares.asked("c"), shares.asked("d")) == (None, None)
    shares.close("a", 0, 1)
    assert shares.shares() == {"b": [0, 1]}
    assert (shares.asked("c"), shares.asked("d")) == (0, 1)
    shares.silence("c", 2)
    assert shares.asked("c") is None
    shares.hear("d", 2)
    assert shares.asked("d") == 1
    shares.close("b", 1, 2)
    assert shares.shares() == {"b": [0], "d": [1]}
    shares.close("b", 0, 3)
    assert shares.shares() == {"d": [0, 1]}
    assert shares.asked("c") is None
    shares.pass_time(2 + SHARE_ASKED_AGAIN_SECONDS, free)
    assert shares.asked("c") == 0


@settings(max_examples=50)
@given(old=st.integers(0, 10), new=st.integers(0, 10))
def test_a_topic_made_anew_has_its_own_number_of_segments(old: int, new: int) -> None:
    shares = Shares(old, exclusive=True)
    shares.join("a", 0)
    shares.resize(new, 0)
    assert shares.shares().get("a", []) == list(range(new))


def test_a_silent_member_gets_something_only_if_there_is_nobody_else() -> None:
    shares = Shares(2, exclusive=True)
    shares.join("a", 0)
    shares.join("b", 0)
    shares.close("a", 1, 0)
    shares.silence("b", 1)
    shares.pass_time(1, free)
    assert shares.shares() == {"a": [0, 1]}
    assert sorted(shares.members) == ["a", "b"]
    shares.leave("a", 2)
    shares.pass_time(2, free)
    assert shares.shares() == {"b": [0, 1]}
    shares.join("c", 3)
    shares.pass_time(3, free)
    assert shares.shares() == {"c": [0, 1]}
    shares.hear("b", 4)
    shares.close("c", 0, 4)
    assert shares.shares() == {"b": [0], "c": [1]}
