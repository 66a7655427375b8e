"""Delayed messages of the official Python client: on time, never early, none lost by a crash."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest

from tests.support.python_client import connected
from tests.support.standalone import Standalone

pytestmark = pytest.mark.client("python")

SETTINGS = ("--set", "isDelayedDeliveryDeliverAtTimeStrict=true")
LATE_SECONDS = 15
"""So long a message may take on a busy machine; the broker's tick is a second."""
MANY = 70_000
"""More than the index keeps in memory alone (``delayed_tracker.BUCKET_KEYS``)."""

TYPES = [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path / "data", *SETTINGS) as standalone:
        yield standalone


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def collect(consumer: pulsar.Consumer, due: dict[str, int]) -> list[str]:
    """Receive and acknowledge until nothing is due any more; checks the time of each."""
    found: list[str] = []
    end = max(due.values()) + 1000 * LATE_SECONDS
    while len(found) < len(due) and now_ms() < end:
        try:
            message = consumer.receive(500)
        except pulsar.Timeout:
            continue
        name = message.data().decode()
        assert now_ms() >= due[name], f"{name} is early"
        consumer.acknowledge(message)
        found.append(name)
    return found


@pytest.mark.feature("F57", "F58")
@pytest.mark.parametrize("kind", TYPES)
def test_deliver_after_and_deliver_at(broker: Standalone, kind: pulsar.ConsumerType) -> None:
    with connected(broker) as client:
        consumer = client.subscribe("t", "s", consumer_type=kind)
        producer = client.create_producer("t", batching_enabled=False)
        due = {}
        for number in range(10):
            after, at, live = (f"{what}-{number}" for what in ("after", "at", "live"))
            due[after] = now_ms() + 100 * number
            producer.send(
                after.encode(),
                deliver_after=timedelta(milliseconds=100 * number),
                partition_key=str(number),
            )
            due[at] = now_ms() + 2000
            producer.send(at.encode(), deliver_at=due[at], partition_key=str(number % 3))
            due[live] = 0
            producer.send(live.encode())
        assert sorted(collect(consumer, due)) == sorted(due)


@pytest.mark.feature("F57", "F58", "F72")
@pytest.mark.parametrize("kind", TYPES)
def test_after_a_crash_none_is_lost_and_none_is_early(
    broker: Standalone, kind: pulsar.ConsumerType
) -> None:
    """Some are due while the broker is down, some were delivered and not acknowledged."""
    with connected(broker) as client:
        consumer = client.subscribe("t", "s", consumer_type=kind)
        producer = client.create_producer("t", batching_enabled=False)
        due = {}
        for number in range(200):
            due[str(number)] = now_ms() + (0 if number % 20 == 0 else 500 + 40 * number)
            producer.send(
                str(number).encode(), deliver_at=due[str(number)], partition_key=str(number % 7)
            )
        acknowledged = set()
        for _ in range(5):
            message = consumer.receive(5000)
            assert now_ms() >= due[message.data().decode()]
            consumer.acknowledge(message)
            acknowledged.add(message.data().decode())
        time.sleep(1.2)  # acknowledgements reach the cursor log within a second
        broker.kill()
    broker.start()
    with connected(broker) as client:
        consumer = client.subscribe("t", "s", consumer_type=kind)
        left = {name: at for name, at in due.items() if name not in acknowledged}
        assert sorted(collect(consumer, left)) == sorted(left)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(1500)


@pytest.mark.slow
@pytest.mark.feature("F57", "F72")
def test_many_of_which_most_were_stored_when_the_broker_was_killed(broker: Standalone) -> None:
    with connected(broker) as client:
        client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(
            "t", block_if_queue_full=True, max_pending_messages=2000, batching_enabled=False
        )
        results: list[pulsar.Result] = []
        due_ms = now_ms() + 40_000
        for number in range(MANY):
            producer.send_async(
                str(number).encode(), lambda result, _: results.append(result), deliver_at=due_ms
            )
        producer.flush()
        assert results == [pulsar.Result.Ok] * MANY
        broker.kill()
    broker.start()
    with connected(broker) as client:
        consumer = client.subscribe(
            "t", "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=10_000
        )
        found = collect(consumer, {str(number): due_ms for number in range(MANY)})
        assert len(found) == MANY
        assert set(found) == {str(number) for number in range(MANY)}
