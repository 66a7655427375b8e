"""The consumers of a subscription: how they join and leave, what they hear and were sent."""

from __future__ import annotations

import pytest

from pulsark.config.settings import Settings
from pulsark.dispatch.loop.run_queue import RunQueue
from pulsark.dispatch.model.consumer import Consumer
from pulsark.dispatch.model.members import Members, Sent
from pulsark.dispatch.model.subscription_type import (
    PlaceTakenError,
    SubscriptionClosedError,
    SubType,
    TypeSpec,
)
from pulsark.dispatch.subscription.exclusive import Exclusive
from pulsark.dispatch.subscription.subscription_types import change_type
from pulsark.errors import ClientError
from pulsark.wire.topic_name import TopicName
from tests.support.fake_client import FakeClient
from tests.support.subscription_bench import Bench, FakeClock

TOPIC = TopicName.parse("persistent://public/default/t")


def some_members(sub_type: SubType = SubType.Exclusive) -> tuple[Members, list[bool]]:
    """Members, and a list that is not empty once they are at the end."""
    ended: list[bool] = []
    members = Members("s", Exclusive(), RunQueue(FakeClock()), lambda: bool(ended))
    change_type("s", members, TypeSpec(sub_type), TOPIC, Settings())
    return members, ended


def consumers(count: int, client: FakeClient | None = None) -> list[Consumer]:
    """Consumers that have joined nothing yet."""
    bench = Bench(SubType.Shared)
    found = [bench.connect(f"c{i}", connection=client or FakeClient()) for i in range(count)]
    for consumer in found:
        consumer.connection.holdings.drop_consumer(consumer)
    return found


def test_a_consumer_that_is_refused_is_not_held_by_its_connection() -> None:
    members, _ = some_members()
    first, second = consumers(2)
    members.join(first)
    with pytest.raises(PlaceTakenError):
        members.join(second)
    assert (len(first.connection.holdings), len(second.connection.holdings)) == (1, 0)


def test_a_consumer_that_has_left_does_not_leave_again() -> None:
    members, _ = some_members(SubType.Shared)
    first, second = consumers(2)
    members.join(first)
    members.join(second)
    assert members.leave([first]) == [first]
    assert members.leave([first, second]) == [second]
    members.check_unused()


def test_a_closed_subscription_admits_no_consumer() -> None:
    members, _ = some_members(SubType.Shared)
    (one,) = consumers(1)
    members.closed = True
    with pytest.raises(SubscriptionClosedError):
        members.join(one)
    assert members.type.consumers == []


def test_the_type_changes_only_while_there_are_no_consumers() -> None:
    members, _ = some_members(SubType.Shared)
    shared, failover = TypeSpec(SubType.Shared), TypeSpec(SubType.Failover)
    (one,) = consumers(1)
    members.join(one)
    assert not change_type("s", members, shared, TOPIC, Settings())
    with pytest.raises(ClientError, match="is of type Shared, not Failover"):
        change_type("s", members, failover, TOPIC, Settings())
    members.leave([one])
    assert change_type("s", members, failover, TOPIC, Settings())
    assert (members.spec, members.type.sub_type) == (failover, SubType.Failover)


def test_what_was_sent_to_consumers_that_left_still_counts() -> None:
    members, _ = some_members(SubType.Shared)
    first, second = consumers(2)
    for number, consumer in enumerate((first, second), 1):
        members.join(consumer)
        consumer.messages_out, consumer.entries_out = 10 * number, number
        consumer.bytes_out, consumer.last_consumed_ms = 100 * number, number
    assert members.sent() == Sent(messages=30, entries=3, bytes=300, last_ms=2)
    members.leave([second])
    assert members.sent() == members.sent() == Sent(messages=30, entries=3, bytes=300, last_ms=2)


def test_a_consumer_hears_of_the_end_once_it_was_greeted() -> None:
    members, ended = some_members(SubType.Shared)
    client = FakeClient()
    early, late = consumers(2, client)
    for consumer in (early, late):
        members.join(consumer)
        consumer.greeted = False
    members.greet(early)
    members.announce_end()
    assert client.ended == []
    ended.append(True)
    members.announce_end()
    assert client.ended == [early]
    members.greet(late)
    members.greet(late)
    assert client.ended == [early, late]
