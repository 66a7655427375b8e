"""Compacted topics as the official client reads them."""

from __future__ import annotations

import subprocess
import sys

import pulsar
import pytest

from tests.support.python_client import connect, table_view
from tests.support.standalone import Standalone

WAIT_MS = 10_000


def compact(standalone: Standalone, topic: str) -> None:
    command = [sys.executable, "-m", "pulsark", "topics", "compact", topic]
    subprocess.run([*command, "--admin-url", standalone.web_url], check=True, timeout=60)


def publish(client: pulsar.Client, topic: str, *messages: tuple[str, bytes], batch: bool) -> None:
    producer = client.create_producer(topic, batching_enabled=batch)
    for key, payload in messages:
        producer.send_async(payload, None, partition_key=key)
    producer.flush()
    producer.close()


def read_all(client: pulsar.Client, topic: str, *, compacted: bool) -> list[tuple[str, bytes]]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted)
    found = []
    while reader.has_message_available():
        message = reader.read_next(WAIT_MS)
        # This client shows members of a batch that were removed as messages without anything.
        if message.partition_key():
            found.append((message.partition_key(), message.data()))
    reader.close()
    return found


@pytest.mark.feature("F91")
@pytest.mark.parametrize("batch", [False, True])
def test_readers_choose_between_all_messages_and_the_latest(
    standalone: Standalone, batch: bool
) -> None:
    topic = "persistent://public/default/prices"
    sent = [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", b"")]
    client = connect(standalone)
    publish(client, topic, *sent, batch=batch)
    compact(standalone, topic)
    assert read_all(client, topic, compacted=True) == [("a", b"2"), ("c", b"1")]
    assert read_all(client, topic, compacted=False) == sent
    publish(client, topic, ("c", b"2"), ("d", b"1"), batch=batch)
    latest = [("a", b"2"), ("c", b"1"), ("c", b"2"), ("d", b"1")]
    assert read_all(client, topic, compacted=True) == latest
    client.close()

    standalone.kill()
    standalone.start()
    client = connect(standalone)
    assert read_all(client, topic, compacted=True) == latest
    compact(standalone, topic)
    assert read_all(client, topic, compacted=True) == [("a", b"2"), ("c", b"2"), ("d", b"1")]
    publish(client, topic, *((key, b"") for key in "acd"), batch=batch)
    compact(standalone, topic)
    assert read_all(client, topic, compacted=True) == []
    client.close()


@pytest.mark.feature("F91")
def test_a_table_view_follows_a_compacted_topic(standalone: Standalone) -> None:
    topic = "persistent://public/default/table"
    client = connect(standalone)
    publish(client, topic, ("a", b"1"), ("b", b"1"), ("a", b"2"), batch=False)
    compact(standalone, topic)
    publish(client, topic, ("c", b"3"), batch=False)
    client.close()
    assert table_view(standalone, topic) == {"a": "2", "b": "1", "c": "3"}
