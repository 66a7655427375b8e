"""Scripted scenarios for the subscription types: who takes the next entry."""

from __future__ import annotations

import sys

import pytest

from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.subscription import shared
from pulsark.dispatch.subscription.exclusive import Exclusive
from pulsark.dispatch.subscription.failover import Failover
from pulsark.dispatch.subscription.shared import Shared
from pulsark.errors import ClientError, ServerError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from tests.support.fake_consumers import FakeConsumer
from tests.support.fake_consumers import take as take_entries

METADATA = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
ENTRY = Entry(build_entry(METADATA, b""), 1, False, False)


def take(policy, count: int) -> list[str]:
    """Names of the consumers that take the next entries."""
    return take_entries(policy, *[ENTRY] * count)


def active_of(consumers, topic: str, partition: int) -> str | None:
    """The name of the active consumer, once all have joined in this order."""
    policy = Failover(topic, partition)
    for consumer in consumers:
        policy.add(consumer)
    return None if policy.active is None else policy.active.name


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
    assert active_of(consumers, "topic", 0) == "b"
    assert active_of(consumers, "topic", 1) == "c"
    assert active_of([], "topic", 0) is None


@pytest.mark.feature("F30")
def test_failover_spreads_topics_without_partitions() -> None:
    consumers = [FakeConsumer(name) for name in "abcd"]
    chosen = {active_of(consumers, f"persistent://t/n/{i}", -1) for i in range(64)}
    assert chosen == set("abcd")


def test_failover_hands_over_when_the_active_consumer_leaves() -> None:
    policy = Failover("t", 0)
    first, second = FakeConsumer("a", permits=5), FakeConsumer("b", permits=5)
    policy.add(first)
    policy.add(second)
    assert take(policy, 2) == ["a", "a"]
    policy.remove(first)
    assert take(policy, 1) == ["b"]


def test_shared_gives_several_entries_in_a_row_and_a_pump_begins_with_the_next_consumer() -> None:
    policy = Shared(entries_in_a_row=2)
    for name in "ab":
        policy.add(FakeConsumer(name, permits=9))
    assert take(policy, 5) == ["a", "a", "b", "b", "a"]
    assert policy.room() == 13
    assert take(policy, 2) == ["b", "b"]


def test_shared_gives_a_better_level_its_due_in_the_middle_of_a_row() -> None:
    policy = Shared(entries_in_a_row=9)
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


def chunk(uuid: str, chunk_id: int, chunks: int = 3) -> Entry:
    metadata = pb.MessageMetadata()
    metadata.CopyFrom(METADATA)
    metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = uuid, chunk_id, chunks
    data = build_entry(metadata, b"x")
    return Entry(data, 1, False, False, is_chunk=True, ledger_id=1, entry_id=chunk_id)


@pytest.mark.feature("F32")
def test_all_chunks_of_a_message_go_to_one_consumer_even_beyond_its_permits() -> None:
    policy = Shared()
    for name, permits in (("a", 1), ("b", 99)):
        policy.add(FakeConsumer(name, permits=permits))
    sent = [chunk("m", 0), ENTRY, chunk("m", 1), chunk("m", 2), chunk("n", 0), ENTRY, chunk("n", 1)]
    assert take_entries(policy, *sent) == ["a", "b", "a", "a", "b", "b", "b"]


def test_of_a_large_message_id_little_is_kept() -> None:
    policy = Shared()
    for name in "ab":
        policy.add(FakeConsumer(name, permits=99))
    ids = ["m" * 100_000, "m" * 100_001, "\N{PILE OF POO}" * 100_000]
    sent = [chunk(uuid, number) for number in range(3) for uuid in ids]
    assert take_entries(policy, *sent) == ["a", "b", "a"] * 3
    policy = Shared()
    policy.add(FakeConsumer("a", permits=99))
    take_entries(policy, *(chunk(uuid, 0) for uuid in ids))
    assert sum(map(sys.getsizeof, policy._chunked)) < 1000


def test_the_next_message_with_chunks_is_anybodys() -> None:
    policy = Shared()
    for name in "ab":
        policy.add(FakeConsumer(name, permits=9))
    whole = [chunk("m", i) for i in range(3)]
    assert take_entries(policy, *whole) == ["a"] * 3
    assert take_entries(policy, *whole) == ["b"] * 3


def test_chunks_whose_receiver_left_go_to_another_one_from_the_first_on() -> None:
    policy = Shared()
    gone, stays = FakeConsumer("a", permits=9), FakeConsumer("b", permits=9)
    policy.add(gone)
    policy.add(stays)
    pieces = [chunk("m", i) for i in range(3)]
    assert take_entries(policy, *pieces[:2]) == ["a", "a"]
    policy.remove(gone)
    for piece in pieces[:2]:
        policy.give_back(piece.position)
    assert policy.next_replay() == pieces[0].position
    assert take_entries(policy, *pieces) == ["b"] * 3


def test_chunks_wait_for_a_receiver_that_does_not_read() -> None:
    policy = Shared()
    reader = FakeConsumer("a", permits=9)
    policy.add(reader)
    policy.add(FakeConsumer("b", permits=9))
    assert take_entries(policy, chunk("m", 0)) == ["a"]
    reader.can_continue = lambda: False  # type: ignore[method-assign]
    assert take_entries(policy, chunk("m", 1)) == ["-"]
    assert not policy.put_aside(chunk("m", 1))


def test_messages_that_never_come_to_an_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "CHUNKED_MESSAGES_MAX", 3)
    policy = Shared()
    policy.add(FakeConsumer("a", permits=99))
    for number in range(9):
        take_entries(policy, chunk(f"m{number}", 0))
    assert list(policy._chunked) == ["m6", "m7", "m8"]
