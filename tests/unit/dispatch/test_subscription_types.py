"""Scripted scenarios for the subscription types: who takes the next entry."""

from __future__ import annotations

import pytest

from pulsark.dispatch.entry import Entry
from pulsark.dispatch.exclusive import Exclusive
from pulsark.dispatch.failover import Failover, pick_active
from pulsark.dispatch.shared import Shared
from pulsark.errors import ClientError, ServerError
from tests.support.fake_consumers import FakeConsumer
from tests.support.fake_consumers import take as take_entries

ENTRY = Entry(b"", 1, False, False)


def take(policy, count: int) -> list[str]:
    """Names of the consumers that take the next entries."""
    return take_entries(policy, *[ENTRY] * count)


def test_exclusive_refuses_a_second_consumer() -> None:
    policy = Exclusive()
    first = FakeConsumer("a", permits=2)
    policy.add(first)
    with pytest.raises(ClientError) as refused:
        policy.add(FakeConsumer("b"))
    assert refused.value.code == ServerError.ConsumerBusy
    assert take(policy, 3) == ["a", "a", "-"]
    policy.remove(first)
    policy.add(FakeConsumer("b"))
    assert take(policy, 1) == ["b"]


def test_exclusive_ignores_that_a_stranger_left() -> None:
    policy = Exclusive()
    policy.add(FakeConsumer("a"))
    policy.remove(FakeConsumer("a"))
    assert take(policy, 1) == ["a"]


def test_shared_takes_turns_and_skips_those_without_permits() -> None:
    policy = Shared()
    for name, permits in (("a", 3), ("b", 1), ("c", 3)):
        policy.add(FakeConsumer(name, permits=permits))
    assert take(policy, 8) == ["a", "b", "c", "a", "c", "a", "c", "-"]


def test_shared_uses_a_lower_level_only_when_the_better_is_full() -> None:
    policy = Shared()
    policy.add(FakeConsumer("low", priority=1, permits=2))
    policy.add(FakeConsumer("best", priority=0, permits=1))
    assert take(policy, 4) == ["best", "low", "low", "-"]


def test_shared_forgets_a_consumer_that_left() -> None:
    policy = Shared()
    gone, stays = FakeConsumer("a", permits=9), FakeConsumer("b", permits=9)
    policy.add(gone)
    policy.add(stays)
    policy.remove(gone)
    policy.remove(gone)
    assert take(policy, 2) == ["b", "b"]
    policy.remove(stays)
    assert not policy.room()
    assert take(policy, 1) == ["-"]


@pytest.mark.feature("F30")
@pytest.mark.parametrize(("partition", "active"), [(0, "a"), (1, "b"), (2, "c"), (3, "a")])
def test_failover_spreads_partitions_over_names(partition: int, active: str) -> None:
    policy = Failover("persistent://t/n/x-partition-0", partition)
    for name in ("c", "a", "b"):
        policy.add(FakeConsumer(name))
    assert policy.active is not None
    assert policy.active.name == active


@pytest.mark.feature("F30")
def test_failover_takes_the_best_priority_first() -> None:
    consumers = [FakeConsumer("a", priority=1), FakeConsumer("b"), FakeConsumer("c")]
    assert pick_active(consumers, "topic", 0).name == "b"
    assert pick_active(consumers, "topic", 1).name == "c"
    assert pick_active([], "topic", 0) is None


@pytest.mark.feature("F30")
def test_failover_spreads_topics_without_partitions() -> None:
    consumers = [FakeConsumer(name) for name in "abcd"]
    chosen = {pick_active(consumers, f"persistent://t/n/{i}", -1).name for i in range(64)}
    assert chosen == set("abcd")


def test_failover_hands_over_when_the_active_consumer_leaves() -> None:
    policy = Failover("t", 0)
    first, second = FakeConsumer("a", permits=5), FakeConsumer("b", permits=5)
    policy.add(first)
    policy.add(second)
    assert take(policy, 2) == ["a", "a"]
    policy.remove(first)
    assert take(policy, 1) == ["b"]


def test_shared_takes_turns_of_several_entries_and_a_pump_begins_a_new_turn() -> None:
    policy = Shared(turn_entries=2)
    for name in "ab":
        policy.add(FakeConsumer(name, permits=9))
    assert take(policy, 5) == ["a", "a", "b", "b", "a"]
    assert policy.room() == 13
    assert take(policy, 2) == ["b", "b"]


def test_shared_gives_a_better_level_its_due_in_the_middle_of_a_turn() -> None:
    policy = Shared(turn_entries=9)
    best = FakeConsumer("best", permits=0)
    policy.add(best)
    policy.add(FakeConsumer("low", priority=1, permits=9))
    assert take(policy, 1) == ["low"]
    best.permits = 1
    policy.wake(best)
    assert take(policy, 2) == ["best", "low"]


def test_a_consumer_without_room_is_asked_again_only_after_it_was_woken() -> None:
    asked = []

    class Counting(FakeConsumer):
        def can_receive(self) -> bool:
            asked.append(self.name)
            return super().can_receive()

    policy = Shared()
    full = Counting("full", permits=0)
    policy.add(full)
    policy.add(Counting("free", permits=99))
    asked.clear()
    for _ in range(20):
        policy.room()
        assert take(policy, 1) == ["free"]
    assert asked.count("full") == 1
    full.permits = 1
    policy.wake(full)
    assert "full" in take(policy, 2)
