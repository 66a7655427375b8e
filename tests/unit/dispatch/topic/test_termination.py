"""Who hears of the end of a topic."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from pulsark.dispatch.topic.termination import Termination
from pulsark.wire.position import Position
from tests.support.fake_client import FakeClient

LAST = Position(3, 4)


class Ledger:
    is_terminated = False

    async def terminate(self) -> Position:
        self.is_terminated = True
        return LAST


def subscription(backlog: int, *consumers: Any) -> Any:
    cursor = SimpleNamespace(backlog=lambda: backlog)
    return SimpleNamespace(cursor=cursor, consumers=list(consumers))


def consumer(client: FakeClient, *, greeted: bool = True) -> Any:
    return SimpleNamespace(connection=client, greeted=greeted)


def test_producers_are_closed_and_consumers_without_a_backlog_hear_of_the_end() -> None:
    client, ledger = FakeClient(), Ledger()
    done, behind, new = consumer(client), consumer(client), consumer(client, greeted=False)
    topic = SimpleNamespace(remove_producer=lambda producer: None)
    producer: Any = SimpleNamespace(connection=client, topic=topic)
    subscriptions = {"done": subscription(0, done, new), "behind": subscription(1, behind)}
    termination = Termination(ledger, {"p": producer}, subscriptions)  # type: ignore[arg-type]
    assert asyncio.run(termination.terminate()) == LAST
    assert client.closed == [producer]
    assert client.ended == [done]


def test_who_catches_up_later_hears_of_it_then_and_of_an_open_topic_never() -> None:
    client, ledger = FakeClient(), Ledger()
    termination = Termination(ledger, {}, {})  # type: ignore[arg-type]
    caught_up = subscription(0, one := consumer(client))
    termination.acknowledged(caught_up)
    assert not client.ended
    ledger.is_terminated = True
    termination.acknowledged(caught_up)
    assert client.ended == [one]
