"""The pump of a subscription, with a scripted topic, sockets that only note, and no clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pulsark.dispatch.model.subscription_stats import Reads
from pulsark.dispatch.model.subscription_type import SubType, TypeSpec
from pulsark.errors import ClientError, ServerError
from pulsark.wire.position import Position
from tests.support.subscription_bench import LEDGER, Bench


@pytest.fixture(autouse=True)
def loop():
    """Subscriptions need a loop to schedule on; nothing here lets it run."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    asyncio.events._set_running_loop(loop)
    yield loop
    asyncio.events._set_running_loop(None)
    loop.close()


@pytest.mark.feature("F13")
@pytest.mark.command("FLOW")
def test_nothing_goes_out_without_permits() -> None:
    bench = Bench(SubType.Exclusive)
    bench.connect("a")
    bench.publish(3)
    assert bench.taken() == []
    bench.flow("a", 2)
    assert bench.taken() == [("a", 0, 0), ("a", 1, 0)]
    bench.flow("a", 5)
    assert bench.taken() == [("a", 2, 0)]


@pytest.mark.feature("F13")
def test_a_batch_is_never_split_and_costs_its_messages() -> None:
    bench = Bench(SubType.Exclusive)
    consumer = bench.connect("a")
    bench.flow("a", 5)
    bench.publish(3, messages=4)
    assert [e for _, e, _ in bench.taken()] == [0, 1]
    assert consumer.permits == -3
    bench.flow("a", 3)
    assert bench.taken() == []
    bench.flow("a", 1)
    assert bench.taken() == [("a", 2, 0)]


def test_markers_are_skipped_and_acknowledged() -> None:
    bench = Bench(SubType.Exclusive)
    bench.connect("a")
    bench.flow("a", 9)
    bench.topic.publish(marker=True)
    bench.publish()
    assert bench.taken() == [("a", 1, 0)]
    bench.ack("a", 1)
    assert bench.subscription.cursor.backlog() == 0


def test_exclusive_redelivers_from_the_first_unacknowledged() -> None:
    bench = Bench(SubType.Exclusive)
    consumer = bench.connect("a")
    bench.flow("a", 9)
    bench.publish(4)
    bench.ack("a", 0, 2)
    bench.taken()
    bench.subscription.redeliver(consumer, [Position(LEDGER, 3)], None)
    assert [e for _, e, _ in bench.taken()] == [1, 3]


def test_a_new_exclusive_consumer_gets_what_the_old_one_left() -> None:
    bench = Bench(SubType.Exclusive)
    bench.connect("a")
    bench.flow("a", 9)
    bench.publish(3)
    bench.ack("a", 0)
    bench.leave("a")
    bench.taken()
    bench.connect("b")
    bench.flow("b", 9)
    assert bench.taken() == [("b", 1, 0), ("b", 2, 0)]


@pytest.mark.feature("F31")
@pytest.mark.command("ACTIVE_CONSUMER_CHANGE")
def test_failover_tells_who_is_active_and_hands_over() -> None:
    bench = Bench(SubType.Failover)
    for name in ("a", "b"):
        bench.connect(name)
        bench.flow(name, 9)
    active = bench.subscription.type.active
    assert active is not None
    standby = next(c for c in bench.consumers.values() if c is not active)
    bench.publish(2)
    assert bench.taken() == [(active.name, 0, 0), (active.name, 1, 0)]
    bench.connection.actives.clear()
    bench.leave(active.name)
    assert bench.connection.actives == [(standby.name, True)]
    assert bench.taken() == [(standby.name, 0, 0), (standby.name, 1, 0)]


@pytest.mark.feature("F32")
def test_shared_replays_lowest_first_before_new_entries() -> None:
    bench = Bench(SubType.Shared)
    bench.connect("a")
    bench.connect("b")
    bench.flow("a", 2)
    bench.flow("b", 2)
    bench.publish(6)
    assert len(bench.taken()) == 4
    bench.leave("b")
    bench.flow("a", 9)
    assert [e for _, e, _ in bench.taken()] == [2, 3, 4, 5]


def test_shared_counts_only_redeliveries_that_were_asked_for() -> None:
    bench = Bench(SubType.Shared)
    consumer = bench.connect("a")
    bench.flow("a", 9)
    bench.publish(2)
    bench.taken()
    bench.subscription.redeliver(consumer, [Position(LEDGER, 1), Position(LEDGER, 99)], None)
    bench.subscription.dispatcher.pump()
    assert bench.taken() == [("a", 1, 1)]
    bench.subscription.redeliver(consumer, None, None)
    bench.subscription.dispatcher.pump()
    assert bench.taken() == [("a", 0, 1), ("a", 1, 2)]


@pytest.mark.feature("F16")
def test_an_ack_from_another_consumer_releases_the_owner() -> None:
    bench = Bench(SubType.Shared)
    owner = bench.connect("a")
    bench.connect("b")
    bench.flow("a", 1)
    bench.publish(1)
    assert owner.unacked == 1
    bench.ack("b", 0)
    assert owner.unacked == 0
    assert owner.pending == {}
    bench.leave("a")
    bench.flow("b", 5)
    assert bench.taken() == [("a", 0, 0)]


def test_one_ack_may_name_many_entries_of_another_consumer_and_twice() -> None:
    bench = Bench(SubType.Shared)
    owner = bench.connect("a")
    bench.connect("b")
    bench.flow("a", 300)
    bench.publish(300)
    bench.ack("b", *range(200), *range(200), 999)
    assert owner.unacked == bench.subscription.dispatcher.unacked.messages == 100
    assert min(owner.pending) == Position(LEDGER, 200)


def test_a_consumer_with_too_much_unacknowledged_waits_until_half() -> None:
    bench = Bench(SubType.Shared, durable=True, maxUnackedMessagesPerConsumer=4)
    bench.connect("a")
    bench.flow("a", 99)
    bench.publish(6)
    assert len(bench.taken()) == 4
    bench.ack("a", 0)
    assert bench.taken() == []
    bench.ack("a", 1)
    assert [e for _, e, _ in bench.taken()] == [4, 5]


@pytest.mark.feature("F19")
@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Shared])
def test_nothing_goes_out_while_dispatch_is_held(kind: SubType) -> None:
    bench = Bench(kind)
    bench.connect("a")
    bench.flow("a", 9)
    with bench.subscription.dispatcher.hold():
        bench.publish(2)
        bench.flow("a", 1)
        assert bench.taken() == []
    bench.subscription.dispatcher.pump()
    assert [e for _, e, _ in bench.taken()] == [0, 1]


def test_a_consumer_that_becomes_active_because_another_one_came_gets_its_messages() -> None:
    bench = Bench(SubType.Failover, name="persistent://public/default/t-partition-1")
    for name in ("b", "c"):
        bench.connect(name)
        bench.flow(name, 9)
    bench.publish(2)
    assert bench.taken() == [("c", 0, 0), ("c", 1, 0)]
    bench.connect("a")  # of a, b and c the second one is active
    bench.subscription.dispatcher.pump()
    assert bench.taken() == [("b", 0, 0), ("b", 1, 0)]


def test_limits_that_are_lifted_let_everybody_go_on() -> None:
    bench = Bench(
        SubType.Shared,
        durable=True,
        maxUnackedMessagesPerConsumer=2,
        maxUnackedMessagesPerSubscription=3,
    )
    for name in "ab":
        bench.connect(name)
        bench.flow(name, 9)
    bench.publish(9)
    assert [e for _, e, _ in bench.taken()] == [0, 1, 2]
    bench.topic.policies = replace(
        bench.topic.policies,
        max_unacked_messages_per_consumer=0,
        max_unacked_messages_per_subscription=0,
    )
    bench.subscription.policies_changed()
    bench.subscription.dispatcher.pump()
    assert [e for _, e, _ in bench.taken()] == [3, 4, 5, 6, 7, 8]


def test_cumulative_ack_is_refused_on_shared() -> None:
    bench = Bench(SubType.Shared)
    consumer = bench.connect("a")
    bench.publish(2)
    with pytest.raises(ClientError) as refused:
        bench.subscription.acks.cumulative(consumer, Position(LEDGER, 1), None, None, 0)
    assert refused.value.code == ServerError.NotAllowedError
    assert bench.subscription.cursor.backlog() == 2


def test_the_type_changes_only_without_consumers() -> None:
    bench = Bench(SubType.Shared)
    bench.connect("a")
    with pytest.raises(ClientError) as refused:
        bench.subscription.use_type(TypeSpec(SubType.Exclusive))
    assert refused.value.code == ServerError.ConsumerBusy
    bench.leave("a")
    bench.subscription.use_type(TypeSpec(SubType.Exclusive))


@pytest.mark.feature("F12")
def test_batch_index_acks_reach_the_consumer_again_in_part() -> None:
    bench = Bench(SubType.Shared, acknowledgmentAtBatchIndexLevelEnabled=True)
    consumer = bench.connect("a")
    bench.flow("a", 9)
    bench.publish(1, messages=3)
    bench.subscription.acks.individual(consumer, [(Position(LEDGER, 0), [0b101], 3)], None, 0)
    assert consumer.unacked == 2
    bench.leave("a")
    again = bench.connect("b")
    bench.flow("b", 9)
    assert again.permits == 7


@pytest.mark.parametrize("kind", list(SubType)[1:])
def test_a_subscription_that_closes_sends_nothing_to_consumers_it_closes_last(
    kind: SubType,
) -> None:
    bench = Bench(kind)
    for name in "abc":
        bench.connect(name)
        bench.flow(name, 100)
    bench.publish(10)
    bench.taken()
    bench.connection.actives.clear()
    bench.subscription.close()
    assert bench.taken() == []
    assert bench.connection.actives == []
    assert [consumer.name for consumer in bench.connection.closed] == ["a", "b", "c"]
    assert bench.subscription.type.consumer_count == 0


def test_consumers_hear_of_the_end_when_the_last_messages_are_erased() -> None:
    bench = Bench(SubType.Shared)
    consumer = bench.connect("a")
    bench.flow("a", 9)
    bench.publish(2)
    bench.topic.ledger.is_terminated = True
    bench.ack("a", 0)
    assert bench.connection.ended == []
    bench.subscription.acks.erased([(Position(LEDGER, 1), None, None)])
    assert bench.connection.ended == [consumer]
    assert (consumer.pending, consumer.unacked) == ({}, 0)


@pytest.mark.parametrize("kind", list(SubType))
def test_a_seek_that_is_cancelled_has_moved_the_cursor_and_dispatch_goes_on(
    loop: asyncio.AbstractEventLoop, kind: SubType
) -> None:
    bench = Bench(kind)
    bench.connect("a")
    bench.flow("a", 9)
    bench.publish(4)
    bench.ack("a", 0, 1, 2, 3)
    seek = bench.subscription.seeking.to(Position(LEDGER, 2))
    seek.send(None)  # up to where it waits for the cursor's log
    with pytest.raises(asyncio.CancelledError):
        seek.throw(asyncio.CancelledError)
    assert bench.subscription.type.consumer_count == 0
    bench.taken()
    bench.connect("b")
    bench.flow("b", 9)
    assert [e for _, e, _ in bench.taken()] == [2, 3]


def test_what_it_waits_for(loop: asyncio.AbstractEventLoop) -> None:
    bench = Bench(SubType.Shared)
    dispatcher = bench.subscription.dispatcher
    assert dispatcher.reads is Reads.NOTHING, "it has no consumer"
    bench.connect("a")
    bench.flow("a", 3)
    assert dispatcher.reads is Reads.FUTURE_ENTRIES
    bench.publish(2)
    assert dispatcher.reads is Reads.FUTURE_ENTRIES
    bench.topic.cache.clear()
    dispatcher.replay([Position(LEDGER, 0)])
    dispatcher.pump()
    assert dispatcher.reads is Reads.WAITING_ENTRIES
    dispatcher.rewind()
    dispatcher.pump()
    assert dispatcher.reads is Reads.NEW_ENTRIES
    dispatcher.close()
    assert dispatcher.reads is Reads.NOTHING
    asyncio.events._set_running_loop(None)
    loop.run_until_complete(asyncio.sleep(0))
