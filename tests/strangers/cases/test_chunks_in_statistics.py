"""The statistics of a topic did not know that its messages are chunked.

A user published messages larger than ``maxMessageSize`` with chunking and looked at the topic's
statistics: ``msgChunkPublished`` was false and every ``chunkedMessageRate`` 0, whatever happened.
Expected: both say what was published and delivered.
"""

from __future__ import annotations

import os

import pulsar

from pulsark.admin_client.client import AdminClient


def test_chunks_are_counted(client: pulsar.Client, admin: AdminClient, topic: str) -> None:
    path = "/" + topic.replace("://", "/")
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(b"small")
    consumer.acknowledge(consumer.receive(10_000))
    before = admin.get(f"{path}/stats")
    assert before["msgChunkPublished"] is False
    assert before["publishers"][0]["chunkedMessageRate"] == 0
    producer.send(os.urandom(12 << 20))
    consumer.acknowledge(consumer.receive(10_000))
    found = admin.get(f"{path}/stats")
    assert found["msgChunkPublished"] is True
    assert found["publishers"][0]["chunkedMessageRate"] > 0
    subscription = found["subscriptions"]["s"]
    assert subscription["chunkedMessageRate"] > 0
    assert subscription["consumers"][0]["chunkedMessageRate"] > 0
