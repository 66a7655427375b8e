"""Who is active of many Failover consumers, beside the definition, and what finding out costs."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.dispatch.subscription import failover
from pulsark.dispatch.subscription.failover import RING_POINTS, Failover
from pulsark.wire.hashes import murmur3_32
from tests.support.fake_consumers import FakeConsumer

TOPIC = "persistent://public/default/t"


def by_definition(consumers: list[FakeConsumer], partition: int) -> FakeConsumer | None:
    """As Pulsar's clients expect it: the ring with all points of all who are eligible."""
    if not consumers:
        return None
    best = min(c.priority for c in consumers)
    eligible = sorted((c for c in consumers if c.priority == best), key=lambda c: c.name)
    if partition >= 0:
        return eligible[partition % len(eligible)]
    ring = sorted(
        (murmur3_32(f"{c.name}{point}"), index)
        for index, c in enumerate(eligible)
        for point in range(RING_POINTS)
    )
    place = bisect_left(ring, (murmur3_32(TOPIC), -1))
    return eligible[ring[place % len(ring)][1]]


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abcdefgh"), st.integers(-2, 2)),  # somebody joins
        st.integers(0, 30),  # somebody leaves
    ),
    max_size=25,
)


@given(changes=CHANGES, partition=st.integers(-1, 12))
def test_the_active_one_is_that_of_the_definition(changes, partition: int) -> None:
    policy = Failover(TOPIC, partition)
    consumers: list[FakeConsumer] = []
    for change in changes:
        if isinstance(change, tuple):
            consumers.append(FakeConsumer(change[0], priority=change[1]))
            policy.add(consumers[-1])
        elif consumers:
            policy.remove(consumers.pop(change % len(consumers)))
        assert policy.active is by_definition(consumers, partition)
        assert policy.consumers == consumers
        assert policy.consumer_count == len(consumers)


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_name_is_hashed_once_and_nobody_is_looked_at_when_others_come_and_go(
    monkeypatch: pytest.MonkeyPatch, partition: int
) -> None:
    hashed = 0

    def counting(data: str) -> int:
        nonlocal hashed
        hashed += 1
        return murmur3_32(data)

    policy = Failover(TOPIC, partition)
    monkeypatch.setattr(failover, "murmur3_32", counting)
    consumers = [FakeConsumer(f"c{i}") for i in range(300)]
    for consumer in consumers:
        policy.add(consumer)
    assert hashed == (300 * RING_POINTS if partition < 0 else 0)
    for consumer in consumers:
        policy.remove(consumer)
    assert policy.active is None
    assert hashed == (300 * RING_POINTS if partition < 0 else 0)


def test_a_stranger_that_leaves_changes_nothing() -> None:
    policy = Failover(TOPIC, -1)
    first = FakeConsumer("a")
    policy.add(first)
    policy.remove(FakeConsumer("a"))
    assert policy.active is first
