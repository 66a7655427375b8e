"""A standalone is killed while an official client publishes and two consumers acknowledge."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from contextlib import suppress
from itertools import count
from pathlib import Path

import pulsar
import pytest

from pulsark.wire import pulsar_pb2 as pb
from tests.support.history import Delivery, History, Id, Payload, Subscription, violations
from tests.support.python_client import connected
from tests.support.standalone import Standalone
from tests.support.wire_client import Closed, Refused, WireClient
from tests.support.wire_frames import Received

MESSAGES = 100_000
KILLS = 5
PARTITIONS = 4
TOPIC = "persistent://public/default/killed"
HOLES, PREFIX = 0, 1
"""The partitions that the two acknowledging consumers read."""

DRAIN_SECONDS = 60.0
ACKED_TOGETHER = 50


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


class Acknowledger(threading.Thread):
    """A consumer that speaks the protocol, so that it sees each ACK_RESPONSE."""

    def __init__(self, broker: Standalone, partition: int, *, cumulative: bool) -> None:
        kind = "prefix" if cumulative else "holes"
        super().__init__(name=kind, daemon=True)
        self._broker = broker
        self._partition = partition
        self._cumulative = cumulative
        self._ending = threading.Event()
        self._sessions = count(1)
        self.seen = Subscription(kind)
        self.entries: set[tuple[int, int]] = set()
        self.error: BaseException | None = None
        self._session()  # the subscription exists before the first message

    def has_all(self, entries: set[tuple[int, int]]) -> bool:
        """Whether every one of the entries was delivered. Raises what ended the thread."""
        if self.error is not None:
            raise self.error
        return self.entries >= entries

    def finish(self) -> None:
        self._ending.set()
        self.join(30)
        self.has_all(set())

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._session()
        except BaseException as error:  # handed to the test, which raises it
            self.error = error

    def _session(self) -> None:
        """One connection, until the broker is killed; the first only subscribes."""
        with suppress(Closed, Refused, ConnectionError, TimeoutError):
            with WireClient(self._broker.broker_port, timeout=10) as client:
                topic = f"{TOPIC}-partition-{self._partition}"
                shared, failover = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Failover
                kind = failover if self._cumulative else shared
                client.subscribe(topic, self.name, kind)
                if self.is_alive():
                    self._consume(client, next(self._sessions))
            return
        time.sleep(0.05)

    def _consume(self, client: WireClient, session: int) -> None:
        pending: dict[int, list[Id]] = {}
        while not self._ending.is_set():
            batch: list[Id] = []
            received: Received | None
            try:
                received = client.message(timeout=0.2)
            except TimeoutError:
                self._take_responses(client, pending, session)
                continue
            while received is not None:
                batch.append(self._record(received, session))
                client.flow(received.metadata.num_messages_in_batch)
                received = client.waiting_message() if len(batch) < ACKED_TOGETHER else None
            self._acknowledge(client, batch, pending)
            self._take_responses(client, pending, session)

    def _record(self, received: Received, session: int) -> Id:
        message_id = received.message.message_id
        id_ = Id(self._partition, message_id.ledgerId, message_id.entryId)
        self.seen.deliveries.append(Delivery(session, id_))
        self.entries.add((id_.ledger_id, id_.entry_id))
        return id_

    def _acknowledge(
        self, client: WireClient, batch: list[Id], pending: dict[int, list[Id]]
    ) -> None:
        chosen = batch[-1:] if self._cumulative else [id_ for id_ in batch if id_.entry_id % 2]
        if chosen:
            positions = [(id_.ledger_id, id_.entry_id) for id_ in chosen]
            request_id = client.begin_ack(*positions, cumulative=self._cumulative)
            pending[request_id] = chosen

    def _take_responses(
        self, client: WireClient, pending: dict[int, list[Id]], session: int
    ) -> None:
        while (answer := client.waiting(pb.BaseCommand.ACK_RESPONSE)) is not None:
            response = answer.ackResponse
            assert not response.HasField("error"), response
            for id_ in pending.pop(response.request_id):
                if self._cumulative:
                    self.seen.confirmed_up_to.append((id_, session))
                else:
                    self.seen.confirmed[id_] = session


def identify(id_: pulsar.MessageId, partition: int) -> Id:
    return Id(partition, id_.ledger_id(), id_.entry_id(), id_.batch_index())


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
    holes = Acknowledger(standalone, HOLES, cumulative=False)
    prefix = Acknowledger(standalone, PREFIX, cumulative=True)
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
    assert holes.seen.confirmed
    assert prefix.seen.confirmed_up_to
    assert violations(history) == []
