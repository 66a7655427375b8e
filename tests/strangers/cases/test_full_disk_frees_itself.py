"""A disk that filled up stayed full although everybody had consumed everything.

A user published to two topics on a small disk until publishes were refused, then consumed and
acknowledged all of the first topic. Publishes to the second one were still refused after minutes,
after unloading and after a restart, and health said ``ok`` all the time. Expected: health and the
log say that the disk is full, consumed messages are deleted at once, and publishing goes on. A full
disk also stops no deletion, no orderly end and no start.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

import pulsar
import pytest

from tests.support.small_disk import free_bytes, small_disk, take_all_room
from tests.support.standalone import Standalone

NAMESPACE = "public/short"
PAYLOAD = os.urandom(1 << 20)


def call(standalone: Standalone, method: str, path: str) -> tuple[int, bytes]:
    asked = urllib.request.Request(f"{standalone.web_url}/admin/v2/{path}", method=method)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def client_of(standalone: Standalone) -> pulsar.Client:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(standalone.service_url, operation_timeout_seconds=10, logger=logger)


def publish(standalone: Standalone, topic: str, most: int) -> int:
    """Publish until it is refused; returns how many messages were taken."""
    client, taken = client_of(standalone), 0
    try:
        producer = client.create_producer(topic, send_timeout_millis=3000, batching_enabled=False)
        while taken < most:
            producer.send(PAYLOAD)
            taken += 1
    except pulsar.PulsarException:
        pass
    finally:
        client.close()
    return taken


def consume(standalone: Standalone, topic: str, count: int) -> None:
    client = client_of(standalone)
    consumer = client.subscribe(topic, "s")
    for _ in range(count):
        consumer.acknowledge(consumer.receive(10_000))
    time.sleep(1.5)  # until acknowledgements are durable
    client.close()


def subscribe(standalone: Standalone, *topics: str) -> None:
    client = client_of(standalone)
    for topic in topics:
        client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    client.close()


def publishes_again(standalone: Standalone, topic: str, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if publish(standalone, topic, 1):
            return True
        time.sleep(0.3)
    return False


def test_consumed_messages_make_room_for_others(tmp_path: Path) -> None:
    consumed, other = (f"persistent://{NAMESPACE}/{name}" for name in ("consumed", "other"))
    with small_disk(tmp_path / "disk", 100) as disk, Standalone(disk / "data") as standalone:
        call(standalone, "PUT", f"namespaces/{NAMESPACE}")
        subscribe(standalone, consumed, other)
        assert publish(standalone, consumed, 40) == 40
        assert 30 < publish(standalone, other, 100) < 60
        time.sleep(2)
        status, why = call(standalone, "GET", "brokers/health")
        assert status == 503
        assert b"full" in why
        detail = json.loads(call(standalone, "GET", "brokers/health/detail")[1])
        assert (detail["status"], detail["refusesPublishes"]) == ("FULL", True)
        consume(standalone, consumed, 40)
        assert publishes_again(standalone, other)
        time.sleep(6)
        assert call(standalone, "GET", "brokers/health") == (200, b"ok")
        with urllib.request.urlopen(f"{standalone.web_url}/metrics/", timeout=60) as answer:
            assert "pulsark_disk_free_bytes" in answer.read().decode()
        assert "publishes are refused until there is room" in standalone.log_path.read_text()
        assert "enough again" in standalone.log_path.read_text()


@pytest.mark.strangers
def test_a_disk_without_a_free_byte_stops_no_deletion_no_end_and_no_start(tmp_path: Path) -> None:
    kept, dropped = "persistent://public/default/kept", "persistent://public/default/dropped"
    with small_disk(tmp_path / "disk", 100) as disk:
        standalone = Standalone(disk / "data").start()
        try:
            assert publish(standalone, dropped, 40) == 40
            publish(standalone, kept, 100)
            for _ in range(20):
                publish(standalone, kept, 1)
            take_all_room(disk / "filler")
            standalone.stop()
            assert "Traceback" not in standalone.log_path.read_text()
            assert free_bytes(disk) < 3 << 20
            standalone.start()
            path = "persistent/public/default"
            assert call(standalone, "DELETE", f"{path}/dropped/truncate")[0] == 204
            assert call(standalone, "DELETE", f"{path}/dropped?force=true")[0] == 204
            assert publishes_again(standalone, kept)
            assert "Traceback" not in standalone.log_path.read_text()
        finally:
            standalone.stop()
