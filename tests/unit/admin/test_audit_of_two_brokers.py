"""One of several brokers has the topic of the audit, and publishes what the others note."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.dispatch.audit import writer
from pulsark.dispatch.audit.anywhere import TARGET
from pulsark.security.audit.chain import checked
from pulsark.security.audit.definition import TOPIC
from pulsark.wire.batch import read_messages
from pulsark.wire.position import Position
from tests.support.two_brokers import Node, TwoBrokers


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoBrokers]:
    monkeypatch.setattr(writer, "AUDIT_RETRY_SECONDS", 0.05)
    found = TwoBrokers(auditEnabled=True)
    yield found
    found.close()


def records(both: TwoBrokers) -> list[dict[str, Any]]:
    """What the topic has, at its owner."""

    async def read() -> list[dict[str, Any]]:
        node = await both.owner(str(TOPIC))
        assert node is not None
        topic = await node.broker.topics.load(TOPIC)
        found = await topic.entries.read(Position(0, 0), 10_000, 1 << 30)
        return [
            json.loads(payload)
            for each in found
            for _, payload in read_messages(each.data, 1 << 20)
        ]

    return both.run(read())


def written(both: TwoBrokers) -> None:
    """Nothing waits any more."""

    async def wait() -> None:
        for node in both.nodes:
            audit = node.broker.audit
            assert audit is not None
            while len(audit.waiting) or audit.given_at is not None or audit.failing:
                both.clock.ms += 5  # as time goes: what is tried again waits for both clocks
                await asyncio.sleep(0.005)

    both.run(wait())


def noted(node: Node, operation: str) -> None:
    assert node.broker.audit is not None
    node.broker.audit.broker(operation)


def test_each_broker_has_a_chain_in_the_topic_wherever_that_is(both: TwoBrokers) -> None:
    written(both)
    for number in range(300):
        noted(both.nodes[number % 2], f"o{number}")
    written(both)
    found = records(both)
    assert checked(found) == []
    by_broker = {
        node.peer.broker_id: [r["operation"] for r in found if r["broker"] == node.peer.broker_id]
        for node in both.nodes
    }
    assert [operations[0] for operations in by_broker.values()] == ["start", "start"]
    assert [len(operations) for operations in by_broker.values()] == [151, 151]
    owner = both.run(both.owner(str(TOPIC)))
    assert owner is not None
    other = both.b if owner is both.a else both.a
    (bundle,) = [b for b in owner.broker.ownership.owned() if b.startswith("pulsar/system/")]
    both.run(owner.broker.bundle_release.release(bundle, other.peer.broker_id))
    for node in both.nodes:
        noted(node, "after the move")
    written(both)
    assert both.run(both.owner(str(TOPIC))) is other
    found = records(both)
    assert checked(found) == []
    assert [each["operation"] for each in found[-2:]] == ["after the move"] * 2


def test_what_a_broker_notes_at_its_end_is_in_the_topic(both: TwoBrokers) -> None:
    written(both)
    owner = both.run(both.owner(str(TOPIC)))
    stopped = both.b if owner is both.a else both.a
    both.run(stopped.broker.close())
    last = records(both)[-1]
    assert (last["operation"], last["broker"]) == ("stop", stopped.peer.broker_id)
    both.nodes.remove(stopped)
    both.run(stopped.server.close())


def test_no_client_writes_records(both: TwoBrokers) -> None:
    written(both)
    answer = both.call(both.a, "POST", TARGET, {"broker": "x", "records": []})
    assert (answer.status, "brokers of a cluster" in answer.reason) == (403, True)
