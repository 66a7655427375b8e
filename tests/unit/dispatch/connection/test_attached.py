"""What a client can name in its commands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pulsark.dispatch.connection.attached import Attached
from pulsark.limits import RECENTLY_CLOSED_PRODUCERS_MAX


def producer(number: int) -> Any:
    return SimpleNamespace(producer_id=number)


def test_a_producer_that_the_broker_closed_is_remembered_until_its_id_is_used_again() -> None:
    attached, first, second = Attached(), producer(1), producer(1)
    attached.add_producer(first)
    assert not attached.was_closed(1)
    assert attached.drop_producer(first)
    assert attached.was_closed(1)
    attached.add_producer(second)
    assert not attached.was_closed(1)
    assert not attached.drop_producer(first), "the id is another producer's by now"
    assert attached.producers == {1: second}


def test_so_many_closed_producers_are_remembered_and_no_more() -> None:
    attached = Attached()
    for number in range(RECENTLY_CLOSED_PRODUCERS_MAX + 1):
        attached.add_producer(one := producer(number))
        attached.drop_producer(one)
    assert not attached.was_closed(0)
    assert attached.was_closed(1)


def test_a_consumer_is_dropped_only_while_its_id_is_its_own() -> None:
    attached = Attached()
    former: Any = SimpleNamespace(consumer_id=1)
    attached.consumers[1] = latter = former.__class__(consumer_id=1, name="latter")
    assert not attached.drop_consumer(former)
    assert attached.drop_consumer(latter)
    assert not attached.consumers


def test_watchers_end_with_the_client() -> None:
    attached, closed = Attached(), list[int]()
    for number in (1, 2, 3):
        watcher: Any = SimpleNamespace(close=lambda number=number: closed.append(number))
        attached.watchers[number] = watcher
    attached.drop_watcher(2)
    attached.drop_watcher(7)
    attached.clear()
    assert closed == [2, 1, 3]
