"""A topic ends: its producers are closed, and its subscriptions tell their consumers."""

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


def test_producers_are_closed_and_subscriptions_announce_the_end_once_it_has_come() -> None:
    client, ledger = FakeClient(), Ledger()
    told: list[tuple[str, bool]] = []

    def subscription(name: str) -> Any:
        def announce_end() -> None:
            told.append((name, ledger.is_terminated))

        return SimpleNamespace(members=SimpleNamespace(announce_end=announce_end))

    topic = SimpleNamespace(remove_producer=lambda producer: None)
    producer: Any = SimpleNamespace(connection=client, topic=topic)
    subscriptions = {name: subscription(name) for name in "ab"}
    termination = Termination(ledger, {"p": producer}, subscriptions)  # type: ignore[arg-type]
    assert asyncio.run(termination.terminate()) == LAST
    assert client.closed == [producer]
    assert told == [("a", True), ("b", True)]
