"""The official Python client against a real standalone."""

from __future__ import annotations

import contextlib
import os
import re
import time

import _pulsar
import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String

from pulsark.admin_client.client import AdminClient
from tests.support.client_programs import create_partitioned_topic
from tests.support.standalone import Standalone

pytestmark = pytest.mark.client("python")

WAIT_MS = 10_000


def publish(producer: pulsar.Producer, number: int, first: int = 0) -> list[pulsar.MessageId]:
    """Publish numbers without waiting for each, then wait for all; their ids."""
    ids: dict[int, pulsar.MessageId] = {}
    results: list[pulsar.Result] = []

    def answered(result: pulsar.Result, id_: pulsar.MessageId, index: int) -> None:
        results.append(result)
        ids[index] = id_

    for index in range(first, first + number):
        producer.send_async(
            str(index).encode(), lambda result, id_, index=index: answered(result, id_, index)
        )
    producer.flush()
    assert results == [pulsar.Result.Ok] * number
    return [ids[index] for index in sorted(ids)]


def numbers(consumer: pulsar.Consumer, wanted: int, ack: bool = True) -> list[int]:
    found = []
    for _ in range(wanted):
        message = consumer.receive(WAIT_MS)
        found.append(int(message.data()))
        if ack:
            consumer.acknowledge(message)
    return found


COMPRESSIONS = ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"]


@pytest.mark.feature("F7", "F8")
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_batched_compressed(client: pulsar.Client, topic: str, compression: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        compression_type=getattr(pulsar.CompressionType, compression),
        batching_enabled=True,
        batching_max_messages=50,
    )
    ids = publish(producer, 200)
    assert len({(i.ledger_id(), i.entry_id(), i.batch_index()) for i in ids}) == 200
    assert numbers(consumer, 200) == list(range(200))


@pytest.mark.feature("F3", "F4")
def test_keys_and_properties(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(
        b"v",
        partition_key="k",
        ordering_key="o",
        event_timestamp=12345,
        properties={"a": "1", "b": ""},
    )
    message = consumer.receive(WAIT_MS)
    assert (message.data(), message.partition_key(), message.ordering_key()) == (b"v", "k", "o")
    assert message.event_timestamp() == 12345
    assert message.properties() == {"a": "1", "b": ""}
    assert message.producer_name() == producer.producer_name()


@pytest.mark.feature("F32")
def test_shared(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=10)
        for _ in range(2)
    ]
    publish(client.create_producer(topic, batching_enabled=False), 100)
    found: list[list[int]] = [[], []]
    idle = 0
    while sum(map(len, found)) < 100 and idle < 100:
        idle += 1
        for consumer, mine in zip(consumers, found, strict=True):
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            idle = 0
            mine.append(int(message.data()))
            consumer.acknowledge(message)
    assert sorted(found[0] + found[1]) == list(range(100))
    assert min(map(len, found)) > 10


@pytest.mark.feature("F32")
def test_shared_consumers_get_large_messages_whole(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.Shared) for _ in range(2)]
    producers = [
        client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
        for _ in range(2)
    ]
    wanted = [bytes([number]) * (6 << 20) for number in range(4)]
    for number, content in enumerate(wanted):  # the pieces of two messages mix
        producers[number % 2].send_async(content, None)
    for producer in producers:
        producer.flush()
    found: list[bytes] = []
    for _ in range(100):
        for consumer in consumers:
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(50)
                consumer.acknowledge(message)
                found.append(message.data())
        if len(found) == len(wanted):
            break
    assert sorted(found) == wanted


@pytest.mark.feature("F31")
def test_failover(client: pulsar.Client, topic: str) -> None:
    kind = pulsar.ConsumerType.Failover
    consumers = [client.subscribe(topic, "s", kind, consumer_name=name) for name in ("a", "b")]
    publish(client.create_producer(topic, batching_enabled=False), 20)
    try:
        first = consumers[0].receive(2000)
    except pulsar.Timeout:
        consumers.reverse()
        first = consumers[0].receive(WAIT_MS)
    active, standby = consumers
    assert first.data() == b"0"
    active.acknowledge(first)
    assert numbers(active, 9) == list(range(1, 10))
    with pytest.raises(pulsar.Timeout):
        standby.receive(200)
    active.close()
    assert numbers(standby, 10) == list(range(10, 20))


@pytest.mark.feature("F29")
def test_exclusive(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(_pulsar.ConsumerBusy):
        client.subscribe(topic, "s")


def test_reader(client: pulsar.Client, topic: str) -> None:
    ids = publish(client.create_producer(topic, batching_enabled=False), 10)
    for start, first in ((pulsar.MessageId.earliest, 0), (ids[4], 5)):
        reader = client.create_reader(topic, start)
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(WAIT_MS).data()))
        assert found == list(range(first, 10))


def test_reader_in_the_middle_of_a_batch(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=100
    )
    ids = publish(producer, 10)
    assert len({i.entry_id() for i in ids}) == 1
    reader = client.create_reader(topic, ids[3])
    assert [int(reader.read_next(WAIT_MS).data()) for _ in range(6)] == list(range(4, 10))


def test_seek(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    ids = publish(producer, 10)
    assert numbers(consumer, 10) == list(range(10))
    consumer.seek(ids[3])
    assert numbers(consumer, 6) == list(range(4, 10))
    consumer.seek(pulsar.MessageId.earliest)
    message = consumer.receive(WAIT_MS)
    assert message.data() == b"0"
    consumer.seek(message.publish_timestamp())
    assert consumer.receive(WAIT_MS).publish_timestamp() >= message.publish_timestamp()


@pytest.mark.feature("F18")
def test_cumulative_ack(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client.create_producer(topic, batching_enabled=False), 10)
    for _ in range(5):
        message = consumer.receive(WAIT_MS)
    consumer.acknowledge_cumulative(message)
    consumer.close()
    assert numbers(client.subscribe(topic, "s"), 5) == list(range(5, 10))


@pytest.mark.feature("F20")
def test_negative_ack(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=50
    )
    client.create_producer(topic).send(b"again")
    message = consumer.receive(WAIT_MS)
    assert message.redelivery_count() == 0
    consumer.negative_acknowledge(message)
    message = consumer.receive(WAIT_MS)
    assert (message.data(), message.redelivery_count()) == (b"again", 1)


@pytest.mark.feature("F37", "F42")
def test_partitioned(client: pulsar.Client, shared_standalone: Standalone) -> None:
    topic = create_partitioned_topic(shared_standalone, "python-four", 4)
    assert len(client.get_topic_partitions(topic)) == 4
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for number in range(200):
        producer.send_async(str(number).encode(), None, partition_key=str(number % 20))
    producer.flush()
    last: dict[str, int] = {}
    partitions = set()
    for _ in range(200):
        message = consumer.receive(WAIT_MS)
        number = int(message.data())
        assert last.get(message.partition_key(), -1) < number
        last[message.partition_key()] = number
        partitions.add(message.topic_name())
        consumer.acknowledge(message)
    assert len(partitions) == 4


@pytest.mark.feature("F36")
def test_many_topics(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{letter}" for letter in "xyz"]
    for name in topics:
        client.create_producer(name).send(name.encode())
    earliest = pulsar.InitialPosition.Earliest
    by_list = client.subscribe(topics, "list", initial_position=earliest)
    assert {by_list.receive(WAIT_MS).data().decode() for _ in topics} == set(topics)
    pattern = re.compile(re.escape(topic) + "-.*")
    by_pattern = client.subscribe(pattern, "pattern", initial_position=earliest)
    assert {by_pattern.receive(WAIT_MS).data().decode() for _ in topics} == set(topics)


def test_chunked(client: pulsar.Client, topic: str) -> None:
    large = os.urandom(12 << 20)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(large)
    producer.send(b"small")
    assert consumer.receive(WAIT_MS).data() == large
    assert consumer.receive(WAIT_MS).data() == b"small"


class Flight(Record):
    carrier = String()
    delay = Integer()


@pytest.mark.feature("F91")
def test_schema(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=JsonSchema(Flight))
    producer = client.create_producer(topic, schema=JsonSchema(Flight))
    producer.send(Flight(carrier="UA", delay=-4))
    value = consumer.receive(WAIT_MS).value()
    assert (value.carrier, value.delay) == ("UA", -4)


@pytest.mark.command("REACHED_END_OF_TOPIC")
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
def test_consumers_of_a_terminated_topic_stay_and_leave_the_connection_to_others(
    client: pulsar.Client, admin: AdminClient, topic: str, kind: str
) -> None:
    """This client does not know of the end of a topic and gives its connection up when told."""
    other = client.create_producer(topic + "-other")
    consumer = client.subscribe(topic, "s", consumer_type=getattr(pulsar.ConsumerType, kind))
    publish(client.create_producer(topic), 3)
    assert numbers(consumer, 3) == [0, 1, 2]
    local = topic.removeprefix("persistent://public/default/")
    path = f"/persistent/public/default/{local}"
    admin.call("POST", f"{path}/terminate")
    late = client.subscribe(topic, "late", consumer_type=getattr(pulsar.ConsumerType, kind))
    connected_since = {
        name: one["consumers"][0]["connectedSince"]
        for name, one in admin.call("GET", f"{path}/stats")["subscriptions"].items()
    }
    assert set(connected_since) == {"s", "late"}
    for _ in range(20):
        other.send(b"x")
        time.sleep(0.05)
    for name, one in admin.call("GET", f"{path}/stats")["subscriptions"].items():
        assert [c["connectedSince"] for c in one["consumers"]] == [connected_since[name]]
    for one in (consumer, late):
        assert one.is_connected()
        assert one.get_last_message_id().entry_id() == 2
