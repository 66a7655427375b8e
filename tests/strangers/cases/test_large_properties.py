"""A message with large properties cut off its client, again and again.

A user published a message with a property of more than 1 MiB. The broker closed the connection, and
the client sent the message again: 192 connections in 20 seconds, and none of its other producers
worked. A schema of that size did the same. Expected, as in Pulsar: properties and schemas may be as
large as a message.
"""

from __future__ import annotations

import pulsar
import pytest


@pytest.mark.parametrize("size", [(1 << 20) + 1, 4 << 20])
def test_a_message_may_consist_of_its_properties(
    client: pulsar.Client, topic: str, size: int
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, send_timeout_millis=20_000)
    producer.send(b"v", properties={"p": "x" * size})
    received = consumer.receive(20_000)
    assert received.data() == b"v"
    assert len(received.properties()["p"]) == size
    producer.send(b"next")
    assert consumer.receive(20_000).data() == b"next"
