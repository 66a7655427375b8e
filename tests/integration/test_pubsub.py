"""The official client against a real standalone: what an application relies on."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import chain

import pulsar
import pytest

from tests.support.python_client import connect, connected
from tests.support.standalone import Standalone


@pytest.fixture
def client(shared_standalone: Standalone) -> Iterator[pulsar.Client]:
    with connected(shared_standalone) as client:
        yield client


def admin(standalone: Standalone, method: str, path: str, body: object = None):
    request = urllib.request.Request(
        standalone.web_url + "/admin/v2" + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        text = response.read()
    return json.loads(text) if text else None


def texts(consumer, number: int, ack: bool = True) -> list[str]:
    found = []
    for _ in range(number):
        message = consumer.receive(60_000)
        found.append(message.data().decode())
        if ack:
            consumer.acknowledge(message)
    return found


def nothing_comes(consumer, wait_ms: int = 300) -> bool:
    try:
        consumer.receive(wait_ms)
    except pulsar.Timeout:
        return True
    return False


def first_to_receive(one, other):
    """The consumer of the two that gets a message, the one that gets none, and the message."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return one, other, one.receive(200)
        except pulsar.Timeout:
            assert time.monotonic() < deadline, "neither gets a message"
            one, other = other, one


def names(number: int) -> list[str]:
    return [f"m{i}" for i in range(number)]


@pytest.mark.feature("F3", "F8")
@pytest.mark.command("SEND", "SEND_RECEIPT", "MESSAGE", "ACK")
@pytest.mark.parametrize("batching", [False, True])
def test_messages_come_in_order_with_all_their_parts(client, topic, batching) -> None:
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(topic, batching_enabled=batching, producer_name="p-1")
    for i in range(20):
        producer.send_async(
            f"m{i}".encode(),
            None,
            properties={"n": str(i), "same": "x"},
            partition_key=f"k{i % 3}",
            event_timestamp=1000 + i,
        )
    producer.flush()
    for i in range(20):
        message = consumer.receive(60_000)
        assert message.data() == f"m{i}".encode()
        assert message.properties() == {"n": str(i), "same": "x"}
        assert message.partition_key() == f"k{i % 3}"
        assert message.event_timestamp() == 1000 + i
        assert message.producer_name() == "p-1"
        assert message.redelivery_count() == 0
        consumer.acknowledge(message)
    assert nothing_comes(consumer)


@pytest.mark.feature("F7")
@pytest.mark.parametrize(
    "compression",
    [
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ],
)
def test_compressed_messages_pass_through(client, topic, compression) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, compression_type=compression)
    producer.send(b"abc" * 1000)
    assert texts(consumer, 1) == ["abc" * 1000]


@pytest.mark.feature("F2", "F28")
def test_two_subscriptions_each_get_everything(client, topic) -> None:
    first, second = client.subscribe(topic, "a"), client.subscribe(topic, "b")
    producer = client.create_producer(topic)
    for name in names(5):
        producer.send(name.encode())
    assert texts(first, 5) == texts(second, 5) == names(5)


@pytest.mark.command("SUBSCRIBE")
def test_a_new_subscription_starts_where_it_is_told(client, topic) -> None:
    producer = client.create_producer(topic)
    producer.send(b"old")
    latest = client.subscribe(topic, "latest")
    earliest = client.subscribe(topic, "e", initial_position=pulsar.InitialPosition.Earliest)
    producer.send(b"new")
    assert texts(latest, 1) == ["new"]
    assert texts(earliest, 2) == ["old", "new"]


@pytest.mark.feature("F29")
@pytest.mark.command("ERROR")
def test_exclusive_refuses_a_second_consumer(client, topic) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared)


@pytest.mark.feature("F32")
def test_shared_spreads_and_redelivers_when_a_consumer_leaves(client, topic) -> None:
    first = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=10)
    second = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=10)
    producer = client.create_producer(topic)
    for name in names(10):
        producer.send(name.encode())
    kept = texts(first, 5)
    lost = texts(second, 5, ack=False)
    assert sorted(kept + lost) == names(10)
    second.close()
    assert sorted(texts(first, 5)) == sorted(lost)
    assert nothing_comes(first)


@pytest.mark.feature("F20")
@pytest.mark.command("REDELIVER_UNACKNOWLEDGED_MESSAGES")
def test_negative_ack_counts_redeliveries(client, topic) -> None:
    consumer = client.subscribe(
        topic, "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    client.create_producer(topic).send(b"again")
    for expected in range(3):
        message = consumer.receive(60_000)
        assert message.redelivery_count() == expected
        if expected < 2:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    assert nothing_comes(consumer)


@pytest.mark.feature("F31")
def test_failover_hands_over_what_is_not_acknowledged(client, topic) -> None:
    first = client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name="a")
    second = client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name="b")
    producer = client.create_producer(topic)
    for name in names(4):
        producer.send(name.encode())
    active, standby, message = first_to_receive(first, second)
    active.acknowledge(message)
    assert texts(active, 1) == ["m1"]
    assert nothing_comes(standby)
    active.close()
    assert texts(standby, 2) == ["m2", "m3"]


@pytest.mark.feature("F18")
def test_cumulative_ack_and_reconnect(client, topic) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for name in names(6):
        producer.send(name.encode())
    messages = [consumer.receive(60_000) for _ in range(6)]
    consumer.acknowledge_cumulative(messages[3])
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert texts(consumer, 2) == ["m4", "m5"]


def test_reader_starts_at_an_id_and_knows_the_end(client, topic) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(name.encode()) for name in names(5)]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(60_000).data().decode())
    assert found == names(5)
    later = client.create_reader(topic, ids[2])
    assert later.read_next(60_000).data() == b"m3"
    end = client.create_reader(topic, pulsar.MessageId.latest)
    assert not end.has_message_available()


def test_reader_inside_a_batch(client, topic) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=200
    )
    ids = []
    for name in names(6):
        producer.send_async(name.encode(), lambda _, message_id: ids.append(message_id))
    producer.flush()
    assert len({(i.ledger_id(), i.entry_id()) for i in ids}) < 6
    reader = client.create_reader(topic, ids[3], start_message_id_inclusive=True)
    assert [reader.read_next(60_000).data() for _ in range(3)] == [b"m3", b"m4", b"m5"]


@pytest.mark.command("SEEK", "CLOSE_CONSUMER")
def test_seek_by_id_and_by_time(client, topic) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = [producer.send(name.encode()) for name in names(3)]
    time.sleep(0.05)
    middle = int(time.time() * 1000)
    time.sleep(0.05)
    for name in ("m3", "m4"):
        producer.send(name.encode())
    assert texts(consumer, 5) == names(5)
    consumer.seek(ids[1])
    assert texts(consumer, 3) == ["m2", "m3", "m4"]
    consumer.seek(middle)
    assert texts(consumer, 2) == ["m3", "m4"]
    consumer.seek(pulsar.MessageId.earliest)
    assert texts(consumer, 5) == names(5)
    consumer.seek(pulsar.MessageId.latest)
    producer.send(b"last")
    assert texts(consumer, 1) == ["last"]


@pytest.mark.command("UNSUBSCRIBE", "SUCCESS")
def test_unsubscribe_forgets_the_backlog(client, topic) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"before")
    consumer.unsubscribe()
    consumer = client.subscribe(topic, "s")
    producer.send(b"after")
    assert texts(consumer, 1) == ["after"]


@pytest.mark.command("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE")
def test_last_message_id(client, topic) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = [producer.send(name.encode()) for name in names(3)][-1]
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (sent.ledger_id(), sent.entry_id())


@pytest.mark.feature("F37", "F38")
@pytest.mark.command("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE")
def test_partitioned_topic(client, shared_standalone, topic) -> None:
    path = topic.replace("://", "/")
    admin(shared_standalone, "PUT", f"/{path}/partitions", 3)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{i}" for i in range(3)]
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for i in range(30):
        producer.send(f"{i}".encode(), partition_key=str(i))
    by_partition: dict[int, list[int]] = {}
    for _ in range(30):
        message = consumer.receive(60_000)
        consumer.acknowledge(message)
        partition = message.message_id().partition()
        by_partition.setdefault(partition, []).append(int(message.data()))
    assert sorted(chain.from_iterable(by_partition.values())) == list(range(30))
    assert len(by_partition) > 1
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())


@pytest.mark.feature("F36")
@pytest.mark.command("GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE")
def test_topics_pattern(client, topic) -> None:
    import re

    for suffix in "ab":
        client.create_producer(f"{topic}-pattern-{suffix}").send(suffix.encode())
    consumer = client.subscribe(
        re.compile(f"{topic}-pattern-.*"),
        "s",
        initial_position=pulsar.InitialPosition.Earliest,
    )
    assert sorted(texts(consumer, 2)) == ["a", "b"]


@pytest.mark.feature("F91")
def test_json_schema(client, topic) -> None:
    class Point(pulsar.schema.Record):
        x = pulsar.schema.Integer()
        y = pulsar.schema.Integer()

    schema = pulsar.schema.JsonSchema(Point)
    consumer = client.subscribe(topic, "s", schema=schema)
    client.create_producer(topic, schema=schema).send(Point(x=1, y=2))
    value = consumer.receive(60_000).value()
    assert (value.x, value.y) == (1, 2)


def test_big_and_empty_messages(client, topic) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for size in (0, 1, 100_000, 5 * 1024 * 1024 - 1000):
        producer.send(b"x" * size)
        assert len(consumer.receive(60_000).data()) == size


@pytest.mark.command("PRODUCER")
def test_producer_name_is_taken(client, topic) -> None:
    client.create_producer(topic, producer_name="mine")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="mine")


@pytest.mark.feature("F25")
@pytest.mark.parametrize("bad", ["persistent://public", "persistent://a/b/../../c", "x://a/b/c"])
def test_invalid_topic_names_are_refused(shared_standalone, bad) -> None:
    with (
        connected(shared_standalone, operation_timeout_seconds=3) as client,
        pytest.raises(pulsar.PulsarException),
    ):
        client.create_producer(bad)


def test_unknown_namespace_is_refused(client) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/nowhere/t")


@pytest.mark.feature("F13")
@pytest.mark.command("FLOW")
def test_slow_consumer_does_not_stop_a_fast_one(client, topic) -> None:
    client.subscribe(topic, "slow", receiver_queue_size=1)
    fast = client.subscribe(topic, "fast")
    producer = client.create_producer(topic)
    for name in names(200):
        producer.send_async(name.encode(), None)
    producer.flush()
    assert texts(fast, 200) == names(200)


@pytest.mark.feature("F2", "F63", "F72", "F77", "F90")
def test_everything_survives_a_kill(standalone: Standalone) -> None:
    topic = "persistent://public/default/kept"

    client = connect(standalone)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    for name in names(10):
        producer.send(name.encode())
    texts(consumer, 4)
    consumer.close()  # which sends the acknowledgements
    client.subscribe(topic, "other")  # once it exists, what was acknowledged before is durable
    standalone.kill()
    client.shutdown()
    standalone.start()
    client = connect(standalone)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    assert sorted(texts(consumer, 6)) == names(10)[4:]
    client.create_producer(topic).send(b"more")
    assert texts(consumer, 1) == ["more"]
    client.close()


@pytest.mark.feature("F70")
def test_three_bookies_survive_the_loss_of_one(tmp_path) -> None:
    import shutil

    standalone = Standalone(tmp_path / "data", "--bookies", "3").start()
    client = connect(standalone)
    producer = client.create_producer("t")
    for name in names(50):
        producer.send(name.encode())
    client.close()
    standalone.stop()
    shutil.rmtree(tmp_path / "data" / "bookies" / "bookie-2")
    standalone.start()
    client = connect(standalone)
    consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
    assert texts(consumer, 50) == names(50)
    client.create_producer("t").send(b"more")
    assert texts(consumer, 1) == ["more"]
    client.close()
    standalone.stop()
