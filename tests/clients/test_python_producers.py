"""Producers of the official Python client against a real standalone: who may publish, and how."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pulsar
import pytest

from tests.support.standalone import Standalone

WAIT_MS = 10_000
Mode = pulsar.ProducerAccessMode
_numbers = count()


@pytest.fixture
def client(shared_standalone: Standalone) -> Iterator[pulsar.Client]:
    client = new_client(shared_standalone)
    yield client
    client.close()


def new_client(broker: Standalone) -> pulsar.Client:
    return pulsar.Client(
        broker.service_url,
        operation_timeout_seconds=10,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/producers-{next(_numbers)}"


# -- access modes --------------------------------------------------------------------------------


def test_exclusive(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, access_mode=Mode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Mode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    producer.send(b"alone")
    producer.close()
    client.create_producer(topic).send(b"beside others")


def test_wait_for_exclusive(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    created = threading.Event()
    found: list[pulsar.Producer] = []

    def create() -> None:
        found.append(client.create_producer(topic, access_mode=Mode.WaitForExclusive))
        created.set()

    waiting = threading.Thread(target=create, daemon=True)
    waiting.start()
    assert not created.wait(0.5)
    first.close()
    assert created.wait(10)
    found[0].send(b"next")
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Mode.Exclusive)


def test_exclusive_with_fencing(
    client: pulsar.Client, shared_standalone: Standalone, topic: str
) -> None:
    former = new_client(shared_standalone)
    fenced = former.create_producer(topic, access_mode=Mode.Exclusive)
    fenced.send(b"first")
    producer = client.create_producer(topic, access_mode=Mode.ExclusiveWithFencing)
    with pytest.raises((pulsar.ProducerFenced, pulsar.AlreadyClosed)):
        fenced.send(b"never stored")
    producer.send(b"second")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(2)] == [b"first", b"second"]
    assert not reader.has_message_available()
    former.close()
