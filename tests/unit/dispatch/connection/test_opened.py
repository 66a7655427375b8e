"""What a client can name in its commands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pulsark.dispatch.connection.opened import Opened
from pulsark.limits import RECENTLY_CLOSED_PRODUCERS_MAX


def producer(number: int) -> Any:
    return SimpleNamespace(producer_id=number)


def test_a_producer_that_the_broker_closed_is_remembered_until_its_id_is_used_again() -> None:
    opened, first, second = Opened(), producer(1), producer(1)
    opened.add_producer(first)
    assert not opened.was_closed(1)
    assert opened.drop_producer(first)
    assert opened.was_closed(1)
    opened.add_producer(second)
    assert not opened.was_closed(1)
    assert not opened.drop_producer(first), "the id is another producer's by now"
    assert opened.producers == {1: second}


def test_so_many_closed_producers_are_remembered_and_no_more() -> None:
    opened = Opened()
    for number in range(RECENTLY_CLOSED_PRODUCERS_MAX + 1):
        opened.add_producer(one := producer(number))
        opened.drop_producer(one)
    assert not opened.was_closed(0)
    assert opened.was_closed(1)


def test_a_consumer_is_dropped_only_while_its_id_is_its_own() -> None:
    opened = Opened()
    former: Any = SimpleNamespace(consumer_id=1)
    opened.consumers[1] = latter = former.__class__(consumer_id=1, name="latter")
    assert not opened.drop_consumer(former)
    assert opened.drop_consumer(latter)
    assert not opened.consumers


def test_a_producer_or_consumer_that_comes_back_does_not_move_any_more() -> None:
    opened, called = Opened(), list[str]()
    one: Any = SimpleNamespace(consumer_id=1)
    opened.moving_producers[1] = lambda: called.append("producer")
    opened.moving_consumers[1] = lambda: called.append("consumer")
    assert opened.consumer(1) is None
    assert opened.consumer(2) is None
    assert called == ["consumer"]
    opened.add_producer(producer(1))
    opened.add_consumer(one)
    assert opened.consumer(1) is one
    assert opened.moving_producers == opened.moving_consumers == {}
    assert called == ["consumer"]


def test_watchers_end_with_the_client() -> None:
    opened, closed = Opened(), list[int]()
    for number in (1, 2, 3):
        watcher: Any = SimpleNamespace(close=lambda number=number: closed.append(number))
        opened.watchers[number] = watcher
    opened.drop_watcher(2)
    opened.drop_watcher(7)
    opened.clear()
    assert closed == [2, 1, 3]
