"""How much of an ack set is believed."""

from __future__ import annotations

import pytest

from pulsark.dispatch.model.subscription_type import SubType
from pulsark.dispatch.subscription.ack_sets import credible, is_credible
from pulsark.dispatch.topic.cache import CacheBudget, TopicCache
from pulsark.errors import ClientError
from pulsark.limits import ACK_SET_WORDS_BELIEVED_MAX
from pulsark.wire.ack_set import bit_indexes, full_mask, words_of_mask
from pulsark.wire.position import Position
from tests.support.subscription_bench import LEDGER, Bench

P = Position(LEDGER, 0)
LARGE = 64 * ACK_SET_WORDS_BELIEVED_MAX + 1
"""Messages of a batch that is not believed in, unless it is known."""


@pytest.mark.parametrize(
    ("messages", "known", "expected"),
    [
        (LARGE - 1, None, True),
        (LARGE - 1, 1, True),
        (LARGE, None, False),
        (LARGE, 1, False),
        (LARGE, LARGE - 1, False),
        (LARGE, LARGE, True),
        (2 * LARGE, 2 * LARGE, True),
        (2 * LARGE, LARGE, False),
    ],
)
def test_a_long_one_has_to_be_of_a_batch_that_is_as_large(messages, known, expected) -> None:
    words = words_of_mask(full_mask(messages))
    assert is_credible(P, words, lambda _: known) is expected
    good = (P, None, None)
    acks = [good, (P, words, messages)]
    assert len(credible(acks, lambda _: known)) == 1 + expected


@pytest.mark.parametrize("where", ["cached", "pending", "nowhere"])
@pytest.mark.parametrize("messages", [1, 2 * LARGE])
def test_what_a_subscription_remembers_is_bounded_by_what_was_sent(where, messages) -> None:
    bench = Bench(SubType.Shared, acknowledgmentAtBatchIndexLevelEnabled=True)
    bench.connect("a")
    if where == "pending":
        bench.flow("a", 1)
    bench.publish(messages=messages)
    if where != "cached":
        bench.topic.cache = TopicCache(CacheBudget(0))
    words = words_of_mask(full_mask(2 * LARGE) - 1)
    subscription, consumer = bench.subscription, bench.consumers["a"]
    subscription.acks.individual(consumer, [(P, words, 2 * LARGE)], None, 0)
    believed = messages > 1 and where != "nowhere"
    assert (subscription.cursor.state.ack_set_of(P) is not None) is believed


def test_a_cumulative_one_that_cannot_be_is_refused() -> None:
    bench = Bench(SubType.Exclusive, acknowledgmentAtBatchIndexLevelEnabled=True)
    bench.connect("a")
    bench.publish(3)
    words = words_of_mask(full_mask(LARGE))
    with pytest.raises(ClientError, match=f"has {len(words)} words"):
        bench.subscription.acks.cumulative(bench.consumers["a"], P, words, None, 0)
    assert bench.subscription.backlog == 3


def test_the_bits_of_a_mask() -> None:
    assert bit_indexes(0b10110) == [1, 2, 4]
    assert bit_indexes(0) == []
    assert bit_indexes(1 << 100_000 | 1) == [0, 100_000]
