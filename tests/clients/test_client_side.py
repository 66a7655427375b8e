"""What official clients do on their side, and what it needs of the broker."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import queue
import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pulsar.asyncio
import pytest

from tests.support.client_programs import create_partitioned_topic
from tests.support.python_client import connect
from tests.support.standalone import Standalone

pytestmark = pytest.mark.client("python")

WAIT_MS = 10_000
LONG_MS = 60_000
"""A batch ends when it is full or flushed, never by its delay."""

EARLIEST = pulsar.InitialPosition.Earliest


@contextmanager
def standing_still(standalone: Standalone) -> Iterator[None]:
    """The broker answers nothing for a while."""
    os.kill(standalone.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(standalone.pid, signal.SIGCONT)


def texts(consumer: pulsar.Consumer, number: int) -> list[str]:
    return [consumer.receive(WAIT_MS).data().decode() for _ in range(number)]


def send_batch(producer: pulsar.Producer, number: int, **options: object) -> None:
    """Send without waiting for each, so that all of it is one batch."""
    for i in range(number):
        producer.send_async(str(i).encode(), None, **options)
    producer.flush()


# -- names ---------------------------------------------------------------------------------------


@pytest.mark.feature("F24", "F25")
def test_both_generations_of_names_and_short_ones_are_one_topic(
    client: pulsar.Client, topic: str
) -> None:
    short = topic.rpartition("/")[2]
    old = f"persistent://public/standalone/default/{short}"
    consumers = [client.subscribe(name, f"s{n}") for n, name in enumerate((old, topic, short))]
    for name in (old, topic, short):
        client.create_producer(name).send(name.encode())
    for consumer in consumers:
        assert texts(consumer, 3) == [old, topic, short]


# -- sending -------------------------------------------------------------------------------------


@pytest.mark.feature("F5")
def test_a_synchronous_send_waits_for_the_broker_and_times_out(standalone: Standalone) -> None:
    client = connect(standalone)
    producer = client.create_producer("sync", send_timeout_millis=1000)
    first = producer.send(b"stored")
    with standing_still(standalone), pytest.raises(pulsar.Timeout):
        producer.send(b"unknown")
    assert producer.send(b"again").ledger_id() == first.ledger_id()
    client.close()


@pytest.mark.feature("F6")
def test_a_full_queue_fails_or_blocks(standalone: Standalone) -> None:
    client = connect(standalone)
    results: queue.Queue[pulsar.Result] = queue.Queue()

    def answered(result: pulsar.Result, _: pulsar.MessageId) -> None:
        results.put(result)

    failing = client.create_producer("queue", max_pending_messages=3)
    blocking = client.create_producer("queue", max_pending_messages=3, block_if_queue_full=True)

    def send_four() -> None:
        for _ in range(4):
            blocking.send_async(b"x", answered)

    sender = threading.Thread(target=send_four)
    with standing_still(standalone):
        for _ in range(4):
            failing.send_async(b"x", answered)
        assert results.get(timeout=5) == pulsar.Result.ProducerQueueIsFull
        sender.start()
        sender.join(0.3)
        assert sender.is_alive()
        assert results.empty()
    sender.join(10)
    assert [results.get(timeout=10) for _ in range(7)] == [pulsar.Result.Ok] * 7
    client.close()


@pytest.mark.feature("F8", "F9")
def test_a_batch_is_one_entry_and_counts_as_one(
    client: pulsar.Client, shared_standalone: Standalone, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=10,
        batching_max_publish_delay_ms=LONG_MS,
    )
    send_batch(producer, 20)
    messages = [consumer.receive(WAIT_MS) for _ in range(20)]
    entries = Counter(m.message_id().entry_id() for m in messages)
    assert list(entries.values()) == [10, 10]
    url = f"{shared_standalone.web_url}/admin/v2/{topic.replace('://', '/')}/stats"
    with urllib.request.urlopen(url, timeout=10) as response:
        stats = json.load(response)
    assert stats["subscriptions"]["s"]["msgBacklog"] == 2
    assert stats["msgInCounter"] == 20


@pytest.mark.feature("F10")
def test_a_message_with_a_delivery_time_is_not_batched(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=LONG_MS
    )
    producer.send_async(b"a", None)
    producer.send_async(b"b", None)
    producer.send_async(b"later", None, deliver_after=datetime.timedelta(seconds=30))
    producer.flush()
    # An exclusive subscription does not wait for the time.
    found = {m.data(): m.message_id() for m in (consumer.receive(WAIT_MS) for _ in range(3))}
    assert found[b"a"].entry_id() == found[b"b"].entry_id() != found[b"later"].entry_id()
    assert (found[b"a"].batch_index(), found[b"b"].batch_index()) == (0, 1)
    assert found[b"later"].batch_index() == -1


@pytest.mark.feature("F34")
def test_batches_by_key_have_one_key_each(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=LONG_MS,
    )
    for i in range(12):
        producer.send_async(b"x", None, partition_key=f"key-{i % 3}")
    producer.flush()
    keys: dict[int, set[str]] = {}
    for _ in range(12):
        message = consumer.receive(WAIT_MS)
        keys.setdefault(message.message_id().entry_id(), set()).add(message.partition_key())
    assert sorted(map(sorted, keys.values())) == [["key-0"], ["key-1"], ["key-2"]]


# -- routing -------------------------------------------------------------------------------------


@pytest.fixture
def partitioned(shared_standalone: Standalone, topic: str) -> str:
    return create_partitioned_topic(shared_standalone, topic.rsplit("/", 1)[1], 3)


def partitions(consumer: pulsar.Consumer, number: int) -> dict[str, int]:
    """The partition of each message, by its payload."""
    messages = [consumer.receive(WAIT_MS) for _ in range(number)]
    return {m.data().decode(): m.message_id().partition() for m in messages}


@pytest.mark.feature("F39")
def test_round_robin_spreads_what_has_no_key(client: pulsar.Client, partitioned: str) -> None:
    consumer = client.subscribe(partitioned, "s")
    producer = client.create_producer(partitioned)
    for i in range(30):
        producer.send(str(i).encode())
    assert Counter(partitions(consumer, 30).values()) == {0: 10, 1: 10, 2: 10}
    for i in range(30):
        producer.send(str(i).encode(), partition_key=str(i % 5))
    by_number = partitions(consumer, 30)
    assert all(by_number[str(i)] == by_number[str(i % 5)] for i in range(30))
    assert len(set(by_number.values())) > 1


@pytest.mark.feature("F39")
def test_round_robin_keeps_a_batch_together(client: pulsar.Client, partitioned: str) -> None:
    consumer = client.subscribe(partitioned, "s")
    producer = client.create_producer(
        partitioned,
        batching_enabled=True,
        batching_max_messages=4,
        batching_max_publish_delay_ms=LONG_MS,
    )
    send_batch(producer, 12)
    by_number = partitions(consumer, 12)
    first = [by_number[str(i)] for i in (0, 4, 8)]
    assert sorted(first) == [0, 1, 2]
    assert all(by_number[str(i)] == first[i // 4] for i in range(12))


@pytest.mark.feature("F40", "F42")
def test_a_single_partition_keeps_the_order_of_a_producer(
    client: pulsar.Client, partitioned: str
) -> None:
    consumer = client.subscribe(partitioned, "s")
    single = pulsar.PartitionsRoutingMode.UseSinglePartition
    producer = client.create_producer(partitioned, message_routing_mode=single)
    send_batch(producer, 50)
    found = partitions(consumer, 50)
    assert len(set(found.values())) == 1
    assert list(found) == [str(i) for i in range(50)]


@pytest.mark.feature("F41")
def test_the_applications_own_router(client: pulsar.Client, partitioned: str) -> None:
    consumer = client.subscribe(partitioned, "s")
    producer = client.create_producer(
        partitioned,
        message_routing_mode=pulsar.PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, number: (int(message.data()) // 7) % number,
    )
    send_batch(producer, 42)
    assert partitions(consumer, 42) == {str(i): (i // 7) % 3 for i in range(42)}


# -- receiving -----------------------------------------------------------------------------------


@pytest.mark.feature("F14")
def test_receive_waits_and_an_asynchronous_one_ends_later(
    client: pulsar.Client, shared_standalone: Standalone, topic: str
) -> None:
    waiting = client.subscribe(topic, "waiting")
    with pytest.raises(pulsar.Timeout):
        waiting.receive(100)

    async def receive() -> bytes:
        there = pulsar.asyncio.Client(
            shared_standalone.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        consumer = await there.subscribe(topic, "later")
        coming = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0.1)
        assert not coming.done()
        producer = await there.create_producer(topic)
        await producer.send(b"here")
        message = await asyncio.wait_for(coming, 10)
        await consumer.acknowledge(message)
        await there.close()
        data: bytes = message.data()
        return data

    assert asyncio.run(receive()) == b"here"
    assert waiting.receive(WAIT_MS).data() == b"here"


@pytest.mark.feature("F15")
def test_a_listener_is_called_for_each_message(client: pulsar.Client, topic: str) -> None:
    heard: queue.Queue[bytes] = queue.Queue()

    def received(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)
        heard.put(message.data())

    client.subscribe(topic, "s", message_listener=received)
    producer = client.create_producer(topic)
    for i in range(20):
        producer.send(str(i).encode())
    assert [heard.get(timeout=10) for _ in range(20)] == [str(i).encode() for i in range(20)]


@pytest.mark.feature("F13")
def test_the_receiver_queue_bounds_what_is_pushed(client: pulsar.Client, topic: str) -> None:
    shared = pulsar.ConsumerType.Shared
    slow = client.subscribe(topic, "s", shared, receiver_queue_size=5)
    producer = client.create_producer(topic)
    for i in range(30):
        producer.send(str(i).encode())
    # The others were not pushed to the slow one: another consumer gets them.
    fast = client.subscribe(topic, "s", shared)
    assert len(texts(fast, 25)) == 25
    assert len(texts(slow, 5)) == 5


# -- acknowledging -------------------------------------------------------------------------------


@pytest.mark.feature("F16", "F28")
def test_an_acknowledgement_is_for_one_subscription(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, name) for name in ("a", "b")]
    client.create_producer(topic).send(b"x")
    messages = [consumer.receive(WAIT_MS) for consumer in consumers]
    consumers[0].acknowledge(messages[0])
    for consumer in consumers:
        consumer.close()
    again = [client.subscribe(topic, name) for name in ("a", "b")]
    with pytest.raises(pulsar.Timeout):
        again[0].receive(300)
    assert again[1].receive(WAIT_MS).data() == b"x"


@pytest.mark.feature("F11", "F20")
def test_a_batch_comes_again_as_a_whole(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=LONG_MS
    )
    send_batch(producer, 4)
    messages = [consumer.receive(WAIT_MS) for _ in range(4)]
    for message in messages[:3]:
        consumer.acknowledge(message)
    consumer.negative_acknowledge(messages[3])
    again = [consumer.receive(WAIT_MS) for _ in range(4)]
    assert [m.data() for m in again] == [b"0", b"1", b"2", b"3"]
    for message in again:
        consumer.acknowledge(message)
    consumer.close()
    with pytest.raises(pulsar.Timeout):
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared).receive(300)


@pytest.mark.feature("F12")
def test_single_messages_of_a_batch_are_acknowledged_if_it_is_enabled(tmp_path: Path) -> None:
    setting = ("--set", "acknowledgmentAtBatchIndexLevelEnabled=true")
    with Standalone(tmp_path / "data", *setting) as standalone:
        client = connect(standalone)
        consumer = client.subscribe("t", "s", batch_index_ack_enabled=True)
        producer = client.create_producer(
            "t", batching_enabled=True, batching_max_publish_delay_ms=LONG_MS
        )
        send_batch(producer, 4)
        messages = [consumer.receive(WAIT_MS) for _ in range(4)]
        consumer.acknowledge(messages[0])
        consumer.acknowledge(messages[2])
        consumer.close()
        consumer = client.subscribe("t", "s", batch_index_ack_enabled=True)
        assert texts(consumer, 2) == ["1", "3"]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)
        client.close()


@pytest.mark.feature("F22")
def test_a_message_refused_too_often_goes_to_the_dead_letter_topic(
    client: pulsar.Client, topic: str
) -> None:
    dead = client.subscribe(f"{topic}-s-DLQ", "watch", initial_position=EARLIEST)
    consumer = client.subscribe(
        topic,
        "s",
        pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2),
    )
    client.create_producer(topic).send(b"poison", properties={"a": "1"})
    for redelivered in range(3):
        message = consumer.receive(WAIT_MS)
        assert message.redelivery_count() == redelivered
        consumer.negative_acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    found = dead.receive(WAIT_MS)
    assert (found.data(), found.properties()["a"]) == (b"poison", "1")
