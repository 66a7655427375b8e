"""Acknowledgement and redelivery with the official Python client against a real standalone."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.python_client import connect, connected
from tests.support.several_brokers import wait_for
from tests.support.standalone import Standalone

pytestmark = pytest.mark.client("python")

WAIT_MS = 10_000
NOTHING_MS = 300
LONG_MS = 60_000
"""A batch ends when it is full or flushed, never by its delay."""

EARLIEST = pulsar.InitialPosition.Earliest
Type = pulsar.ConsumerType
TYPES = [Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared]
SHARING = [Type.Shared, Type.KeyShared]


def send_batch(client: pulsar.Client, topic: str, count: int) -> None:
    """One batch of messages "0", "1", ..., all of the same key."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=LONG_MS
    )
    for number in range(count):
        producer.send_async(b"%d" % number, None, partition_key="k")
    producer.flush()
    producer.close()


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def texts(messages: list[pulsar.Message]) -> list[str]:
    return [message.data().decode() for message in messages]


def backlog(standalone: Standalone, topic: str) -> int:
    """Of the subscription ``s``."""
    url = f"{standalone.web_url}/admin/v2/{topic.replace('://', '/')}/stats"
    with urllib.request.urlopen(url, timeout=10) as response:
        return int(json.load(response)["subscriptions"]["s"]["msgBacklog"])


def nothing_comes(consumer: pulsar.Consumer) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(NOTHING_MS)


@pytest.fixture(scope="module")
def by_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A standalone that keeps acknowledgements of single messages of a batch."""
    data = tmp_path_factory.mktemp("acks") / "data"
    with Standalone(data, "--set", "acknowledgmentAtBatchIndexLevelEnabled=true") as standalone:
        yield standalone


@pytest.mark.feature("F12")
@pytest.mark.parametrize("kind", TYPES)
def test_what_is_left_of_a_batch_survives_a_restart(
    by_index: Standalone, topic: str, kind: pulsar.ConsumerType
) -> None:
    with connected(by_index) as client:
        consumer = client.subscribe(topic, "s", kind, batch_index_ack_enabled=True)
        send_batch(client, topic, 6)
        messages = receive(consumer, 6)
        consumer.acknowledge(messages[1])
        consumer.close()
        consumer = client.subscribe(topic, "s", kind, batch_index_ack_enabled=True)
        again = receive(consumer, 5)
        assert texts(again) == ["0", "2", "3", "4", "5"]
        consumer.acknowledge(again[3])
        consumer.close()
    by_index.stop()  # this client asks for no receipts: before a kill it could not know
    by_index.start()
    with connected(by_index) as client:
        consumer = client.subscribe(topic, "s", kind, batch_index_ack_enabled=True)
        rest = receive(consumer, 4)
        assert texts(rest) == ["0", "2", "3", "5"]
        for message in rest:
            consumer.acknowledge(message)
        nothing_comes(consumer)
        consumer.close()
        nothing_comes(client.subscribe(topic, "s", kind))


@pytest.mark.feature("F12", "F18")
@pytest.mark.parametrize("kind", TYPES[:2])
def test_a_cumulative_ack_in_the_middle_of_a_batch(
    by_index: Standalone, topic: str, kind: pulsar.ConsumerType
) -> None:
    with connected(by_index) as client:
        consumer = client.subscribe(topic, "s", kind, batch_index_ack_enabled=True)
        for _ in range(2):
            send_batch(client, topic, 4)
        messages = receive(consumer, 8)
        consumer.acknowledge_cumulative(messages[5])
        consumer.close()
        consumer = client.subscribe(topic, "s", kind, batch_index_ack_enabled=True)
        assert texts(receive(consumer, 2)) == ["2", "3"]
        nothing_comes(consumer)


@pytest.mark.feature("F20", "F21")
@pytest.mark.command("REDELIVER_UNACKNOWLEDGED_MESSAGES")
@pytest.mark.parametrize("kind", TYPES)
def test_all_that_is_unacknowledged_comes_again(
    client: pulsar.Client,
    shared_standalone: Standalone,
    topic: str,
    kind: pulsar.ConsumerType,
) -> None:
    consumer = client.subscribe(topic, "s", kind, receiver_queue_size=7)
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number, partition_key="k")
    messages = receive(consumer, 20)
    for message in messages[::2]:
        consumer.acknowledge(message)
    wait_for(lambda: backlog(shared_standalone, topic) == 10)  # the client sends acks together
    left = [str(n) for n in range(1, 20, 2)]
    for turn in (1, 2):
        consumer.redeliver_unacknowledged_messages()
        again = receive(consumer, len(left))
        assert sorted(texts(again), key=int) == left
        if kind in SHARING:
            assert {m.redelivery_count() for m in again} == {turn}
        else:
            assert texts(again) == left
            assert {m.redelivery_count() for m in again} == {0}
    for message in again:
        consumer.acknowledge(message)
    consumer.redeliver_unacknowledged_messages()
    nothing_comes(consumer)


@pytest.mark.feature("F20")
@pytest.mark.parametrize("kind", SHARING)
def test_refused_messages_come_again_alone(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", kind, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number, partition_key="k")
    for message in receive(consumer, 10):
        if int(message.data()) % 3 == 0:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    again = receive(consumer, 4)
    assert texts(again) == ["0", "3", "6", "9"]
    assert [m.redelivery_count() for m in again] == [1] * 4
    for message in again:
        consumer.acknowledge(message)
    nothing_comes(consumer)


@pytest.mark.feature("F16", "F32")
@pytest.mark.parametrize("kind", SHARING)
def test_one_consumer_acknowledges_what_another_one_received(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    receiver = client.subscribe(topic, "s", kind)
    client.create_producer(topic).send(b"x", partition_key="k")
    message = receiver.receive(WAIT_MS)
    other = client.subscribe(topic, "s", kind)
    other.acknowledge(message)
    other.close()
    receiver.close()
    nothing_comes(client.subscribe(topic, "s", kind))


@pytest.mark.feature("F22")
@pytest.mark.parametrize("kind", SHARING)
def test_poison_goes_to_a_named_dead_letter_topic(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    """The subscription that the policy names gets all of them, though nobody listened yet."""
    dead_topic = f"{topic}-dead"
    consumer = client.subscribe(
        topic,
        "s",
        kind,
        negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, dead_topic, "morgue"),
    )
    producer = client.create_producer(topic)
    for text in (b"0", b"1", b"2", b"good"):
        producer.send(text, partition_key="k")
    seen: list[tuple[str, int]] = []
    while len(seen) < 7:
        message = consumer.receive(WAIT_MS)
        seen.append((message.data().decode(), message.redelivery_count()))
        if message.data() == b"good":
            consumer.acknowledge(message)
        else:
            consumer.negative_acknowledge(message)
    assert sorted(seen) == sorted(
        [("good", 0), *((str(n), count) for n in range(3) for count in (0, 1))]
    )
    nothing_comes(consumer)
    dead = client.subscribe(dead_topic, "morgue", initial_position=EARLIEST)
    assert sorted(texts(receive(dead, 3))) == ["0", "1", "2"]
    nothing_comes(dead)
    consumer.close()
    nothing_comes(client.subscribe(topic, "s", kind))


@pytest.mark.feature("F13")
@pytest.mark.parametrize("kind", SHARING)
def test_a_consumer_with_too_much_unacknowledged_gets_no_more(
    tmp_path: Path, kind: pulsar.ConsumerType
) -> None:
    with Standalone(tmp_path / "data", "--set", "maxUnackedMessagesPerConsumer=10") as standalone:
        client = connect(standalone)
        consumer = client.subscribe("t", "s", kind, negative_ack_redelivery_delay_ms=50)
        producer = client.create_producer("t")
        for number in range(25):
            producer.send(b"%d" % number, partition_key="k")
        first = receive(consumer, 10)
        nothing_comes(consumer)
        consumer.negative_acknowledge(first[4])
        assert texts(receive(consumer, 1)) == ["4"]
        for message in first:
            consumer.acknowledge(message)
        rest = receive(consumer, 10)
        nothing_comes(consumer)
        for message in rest:
            consumer.acknowledge(message)
        assert texts(receive(consumer, 5)) == [str(n) for n in range(20, 25)]
        client.close()
