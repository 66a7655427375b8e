"""The official Python client and non-persistent topics on a real standalone."""

from __future__ import annotations

import re
import time
from typing import Any

import _pulsar
import pulsar
import pytest

from pulsark.admin_client.client import AdminClient
from tests.support.python_client import connect
from tests.support.standalone import Standalone
from tests.support.wire_client import WireClient
from tests.support.wire_frames import publish

pytestmark = pytest.mark.client("python")

WAIT_MS = 10_000
NAMESPACE = "/non-persistent/public/default"
DROPPED = (2**64 - 1, 2**64 - 1)


@pytest.fixture
def topic(topic: str) -> str:
    return f"non-{topic}"


def local(topic: str) -> str:
    return topic.rsplit("/", 1)[1]


def publish_all(producer: pulsar.Producer, number: int) -> None:
    for index in range(number):
        producer.send_async(str(index).encode(), None)
    producer.flush()


def numbers(consumer: pulsar.Consumer, wanted: int) -> list[int]:
    found = []
    for _ in range(wanted):
        message = consumer.receive(WAIT_MS)
        found.append(int(message.data()))
        consumer.acknowledge(message)
    return found


def wait_for_permits(admin: AdminClient, topic: str, consumers: int) -> None:
    """Until all consumers can take messages: what is published before is dropped."""
    for _ in range(500):
        found = admin.get(f"{NAMESPACE}/{local(topic)}/stats")["subscriptions"].values()
        ready = [c for s in found for c in s["consumers"] if c["availablePermits"] > 0]
        if len(ready) == consumers:
            return
        time.sleep(0.01)
    pytest.fail("the consumers sent no permits")


@pytest.mark.feature("F44", "F45", "F48", "F49")
@pytest.mark.parametrize("batching", [False, True])
def test_fan_out(client: pulsar.Client, admin: AdminClient, topic: str, batching: bool) -> None:
    consumers = [client.subscribe(topic, name) for name in ("a", "b")]
    wait_for_permits(admin, topic, 2)
    producer = client.create_producer(topic, batching_enabled=batching)
    publish_all(producer, 200)
    for consumer in consumers:
        assert numbers(consumer, 200) == list(range(200))
    late = client.subscribe(topic, "late", initial_position=pulsar.InitialPosition.Earliest)
    with pytest.raises(pulsar.Timeout):
        late.receive(200)
    stats = admin.get(f"{NAMESPACE}/{local(topic)}/stats")
    assert (stats["msgInCounter"], stats["msgOutCounter"]) == (200, 400)


@pytest.mark.feature("F49")
def test_shared(client: pulsar.Client, admin: AdminClient, topic: str) -> None:
    kind = pulsar.ConsumerType.Shared
    consumers = [client.subscribe(topic, "s", kind) for _ in range(2)]
    wait_for_permits(admin, topic, 2)
    publish_all(client.create_producer(topic, batching_enabled=False), 100)
    found = [numbers(consumer, 50) for consumer in consumers]
    assert sorted(found[0] + found[1]) == list(range(100))


@pytest.mark.feature("F33", "F49")
def test_key_shared(client: pulsar.Client, admin: AdminClient, topic: str) -> None:
    kind = pulsar.ConsumerType.KeyShared
    consumers = [client.subscribe(topic, "s", kind, consumer_name=name) for name in ("a", "b")]
    wait_for_permits(admin, topic, 2)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(200):
        producer.send_async(str(number).encode(), None, partition_key=f"k{number % 20}")
    producer.flush()
    out = [
        consumer["msgOutCounter"]
        for consumer in admin.get(f"{NAMESPACE}/{local(topic)}/stats")["subscriptions"]["s"][
            "consumers"
        ]
    ]
    assert sum(out) == 200
    keys = []
    for consumer, number in zip(consumers, out, strict=True):
        keys.append({consumer.receive(WAIT_MS).partition_key() for _ in range(number)})
    assert len(keys[0]) + len(keys[1]) == 20


@pytest.mark.feature("F49")
def test_failover(client: pulsar.Client, admin: AdminClient, topic: str) -> None:
    kind = pulsar.ConsumerType.Failover
    consumers = [client.subscribe(topic, "s", kind, consumer_name=name) for name in ("a", "b")]
    wait_for_permits(admin, topic, 2)
    producer = client.create_producer(topic, batching_enabled=False)
    publish_all(producer, 10)
    stats = admin.get(f"{NAMESPACE}/{local(topic)}/stats")["subscriptions"]["s"]
    told = {each["consumerName"]: each["msgOutCounter"] for each in stats["consumers"]}
    assert sorted(told.values()) == [0, 10]
    active = 0 if told["a"] else 1
    assert numbers(consumers[active], 10) == list(range(10))
    consumers[active].close()
    publish_all(producer, 10)
    assert numbers(consumers[1 - active], 10) == list(range(10))


def test_exclusive(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(_pulsar.ConsumerBusy):
        client.subscribe(topic, "s")


@pytest.mark.feature("F46")
def test_a_full_receiver_queue_drops(client: pulsar.Client, admin: AdminClient, topic: str) -> None:
    consumer = client.subscribe(topic, "s", receiver_queue_size=10)
    wait_for_permits(admin, topic, 1)
    publish_all(client.create_producer(topic, batching_enabled=False), 100)
    assert numbers(consumer, 10) == list(range(10))
    stats = admin.get(f"{NAMESPACE}/{local(topic)}/stats")["subscriptions"]["s"]
    assert stats["msgDropRate"] > 0


def test_a_reader_and_requests_that_have_nothing_to_work_on(
    client: pulsar.Client, admin: AdminClient, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"0")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    reader.seek(pulsar.MessageId.earliest)
    with pytest.raises(pulsar.PulsarException):
        reader.has_message_available()
    wait_for_permits(admin, topic, 1)
    producer.send(b"1")
    assert reader.read_next(WAIT_MS).data() == b"1"
    consumer = client.subscribe(topic, "s")
    consumer.seek(int(time.time() * 1000))
    consumer.unsubscribe()


@pytest.mark.feature("F37", "F44")
def test_partitions(client: pulsar.Client, admin: AdminClient, topic: str) -> None:
    admin.call("PUT", f"{NAMESPACE}/{local(topic)}/partitions", 3)
    assert len(client.get_topic_partitions(topic)) == 3
    consumer = client.subscribe(topic, "s")
    for index in range(3):
        wait_for_permits(admin, f"{topic}-partition-{index}", 1)
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(30):
        producer.send(str(index).encode())
    assert sorted(numbers(consumer, 30)) == list(range(30))
    stats = admin.get(f"{NAMESPACE}/{local(topic)}/partitioned-stats")
    assert stats["msgInCounter"] == 30


def test_a_pattern(client: pulsar.Client, admin: AdminClient, topic: str) -> None:
    producer = client.create_producer(topic)
    options: dict[str, Any] = {"regex_subscription_mode": _pulsar.RegexSubscriptionMode.AllTopics}
    pattern = re.compile("public/default/" + re.escape(local(topic)) + "$")
    consumer = client.subscribe(pattern, "s", **options)
    wait_for_permits(admin, topic, 1)
    producer.send(b"0")
    assert numbers(consumer, 1) == [0]


@pytest.mark.feature("F47")
def test_beyond_the_limit_of_a_connection(
    shared_standalone: Standalone, admin: AdminClient, topic: str
) -> None:
    with WireClient(shared_standalone.broker_port) as producer:
        producer.producer(topic)
        for number in (1000, 1500):
            producer.send_bytes(b"".join(publish(1, i, b"x") for i in range(number)))
            receipts = [producer.receipt() for _ in range(number)]
            assert set(receipts) <= {(0, 0), DROPPED}
            assert receipts[:1000] == [(0, 0)] * 1000
        # How much of it came in one read is not in our hands, but how much was counted is.
        stats = admin.get(f"{NAMESPACE}/{local(topic)}/stats")
        assert stats["msgInCounter"] == 1000 + receipts.count((0, 0))
        dropped = receipts.count(DROPPED)
        assert (stats["publishers"][0]["msgDropRate"] > 0) == (dropped > 0)


@pytest.mark.feature("F44")
def test_a_kill_loses_what_was_there_and_clients_go_on(standalone: Standalone) -> None:
    topic = "non-persistent://public/default/killed"
    client = connect(standalone)
    admin = AdminClient(standalone.web_url)
    producer = client.create_producer(topic, batching_enabled=False)
    consumer = client.subscribe(topic, "s")
    wait_for_permits(admin, topic, 1)
    producer.send(b"0")
    assert numbers(consumer, 1) == [0]
    standalone.kill()
    standalone.start()
    assert topic not in AdminClient(standalone.web_url).get("/persistent/public/default")
    for number in range(1, 1000):
        producer.send(str(number).encode())
        try:
            assert int(consumer.receive(50).data()) == number
        except pulsar.Timeout:
            continue  # the consumer is not connected again yet
        break
    else:
        pytest.fail("nothing came after the restart")
    client.close()
