"""A standalone is killed while an official client publishes and two consumers acknowledge."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from pathlib import Path

import pulsar
import pytest

from tests.support.acknowledger import Acknowledger
from tests.support.history import History, Id, Payload, violations
from tests.support.python_client import connected
from tests.support.standalone import Standalone

MESSAGES = 100_000
KILLS = 5
PARTITIONS = 4
TOPIC = "persistent://public/default/killed"
HOLES, PREFIX = 0, 1
"""The partitions that the two acknowledging consumers read."""

DRAIN_SECONDS = 60.0


class Publisher(threading.Thread):
    """One producer of the official client that sends its share as fast as it may."""

    def __init__(self, client: pulsar.Client, name: str, messages: int, batching: bool) -> None:
        super().__init__(name=name, daemon=True)
        self._messages = messages
        self.confirmed: dict[Payload, Id] = {}
        self.failed: list[Payload] = []
        self._producer = client.create_producer(
            TOPIC,
            producer_name=name,
            batching_enabled=batching,
            batching_max_publish_delay_ms=5,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
            max_pending_messages=1000,
            block_if_queue_full=True,
            send_timeout_millis=0,
        )

    def run(self) -> None:
        for sequence in range(self._messages):
            payload = (self.name, sequence)
            self._producer.send_async(
                json.dumps(payload).encode(),
                lambda result, id_, payload=payload: self._answered(payload, result, id_),
            )
        self._producer.flush()

    def _answered(self, payload: Payload, result: pulsar.Result, id_: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            self.confirmed[payload] = identify(id_, id_.partition())
        else:
            self.failed.append(payload)


def identify(id_: pulsar.MessageId, partition: int) -> Id:
    return Id(partition, id_.ledger_id(), id_.entry_id(), id_.batch_index())


def acknowledger(broker: Standalone, partition: int, *, cumulative: bool) -> Acknowledger:
    topic = f"{TOPIC}-partition-{partition}"
    return Acknowledger(lambda: broker.broker_port, topic, partition, cumulative=cumulative)


def create_topic(broker: Standalone) -> None:
    path = "/admin/v2/" + TOPIC.replace("://", "/") + "/partitions"
    request = urllib.request.Request(
        broker.web_url + path,
        method="PUT",
        data=str(PARTITIONS).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60):
        pass


def wait_for(condition, seconds: float, what: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.005)


def read_all(client: pulsar.Client, partition: int) -> list[tuple[Id, Payload]]:
    """Everything in a partition, by the official reader."""
    log: list[tuple[Id, Payload]] = []
    name = f"{TOPIC}-partition-{partition}"
    reader = client.create_reader(name, pulsar.MessageId.earliest)
    while reader.has_message_available():
        message = reader.read_next(60_000)
        producer, sequence = json.loads(message.data())
        log.append((identify(message.message_id(), partition), (producer, sequence)))
    reader.close()
    return log


def publish_and_kill(
    broker: Standalone, client: pulsar.Client, publishers: list[Publisher]
) -> None:
    """Let the publishers run; kill and restart the broker evenly over their messages."""
    for publisher in publishers:
        publisher.start()
    for kill in range(1, KILLS + 1):
        share = MESSAGES * kill // (KILLS + 1)
        wait_for(
            lambda share=share: sum(len(p.confirmed) for p in publishers) >= share,
            DRAIN_SECONDS,
            f"{share} of {MESSAGES} confirmed after {kill - 1} kills",
        )
        broker.kill()
        broker.start()
    for publisher in publishers:
        publisher.join(DRAIN_SECONDS)
        assert not publisher.is_alive(), "a publisher does not end"


@pytest.mark.slow
@pytest.mark.feature("F70", "F82", "F84")
@pytest.mark.parametrize("bookies", [pytest.param(1, marks=pytest.mark.chaos), 3])
def test_nothing_confirmed_is_lost_over_five_kills(tmp_path: Path, bookies: int) -> None:
    with Standalone(tmp_path / "data", "--bookies", str(bookies)) as standalone:
        kill_while_publishing(standalone)


def kill_while_publishing(standalone: Standalone) -> None:
    create_topic(standalone)
    history = History()
    holes = acknowledger(standalone, HOLES, cumulative=False)
    prefix = acknowledger(standalone, PREFIX, cumulative=True)
    for consumer in (holes, prefix):
        consumer.start()
    with connected(standalone) as client:
        half = MESSAGES // 2
        publishers = [
            Publisher(client, "batched", half, batching=True),
            Publisher(client, "single", half, batching=False),
        ]
        publish_and_kill(standalone, client, publishers)
        for publisher in publishers:
            assert not publisher.failed
            history.sent |= {(publisher.name, sequence) for sequence in range(half)}
            history.receipts |= publisher.confirmed
        assert len(history.receipts) == MESSAGES
        for partition in range(PARTITIONS):
            history.log += read_all(client, partition)
    for consumer in (holes, prefix):
        there = {
            (id_.ledger_id, id_.entry_id)
            for id_, _ in history.log
            if id_.partition == (PREFIX if consumer is prefix else HOLES)
        }
        wait_for(
            lambda consumer=consumer, there=there: consumer.has_all(there),
            DRAIN_SECONDS,
            f"{consumer.name} gets every entry",
        )
    last_session = holes.seen.deliveries[-1].session
    standalone.kill()
    standalone.start()
    wait_for(  # one more session, after which the acks of the last one are checked too
        lambda: holes.has_all(set()) and holes.seen.deliveries[-1].session > last_session,
        DRAIN_SECONDS,
        "one more session",
    )
    for consumer in (holes, prefix):
        consumer.finish()
        history.subscriptions.append(consumer.seen)
        assert not consumer.refusals
    assert holes.seen.confirmed
    assert prefix.seen.confirmed_up_to
    assert violations(history) == []
