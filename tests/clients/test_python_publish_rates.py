"""The official Python client under a publish rate: it gets the rate, and others do not notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pulsar
import pytest

from pulsark.admin_client.client import AdminClient
from pulsark.admin_client.paths import topic_path
from pulsark.wire.topic_name import TopicName
from tests.support.python_client import connected
from tests.support.standalone import Standalone

pytestmark = pytest.mark.client("python")

RATE = 300
PAYLOAD = bytes(1000)


class Receipts:
    """Counts what was confirmed, from the client's threads."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            self.count += 1


def path_of(topic: str, what: str) -> str:
    return f"{topic_path(TopicName.parse(topic))}/{what}"


def limited_times(admin: AdminClient, topic: str) -> int:
    return int(admin.get(path_of(topic, "stats"))["publishRateLimitedTimes"])


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


def test_a_client_gets_its_rate_and_nobody_else_waits(
    client: pulsar.Client, shared_standalone: Standalone, admin: AdminClient, topic: str
) -> None:
    """At half the rate nothing is held. As fast as it can, a client gets the rate."""
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=500, send_timeout_millis=0
    )
    policy = {"publishThrottlingRateInMsg": RATE, "publishThrottlingRateInByte": 0}
    admin.call("POST", path_of(topic, "publishRate"), policy)
    receipts = Receipts()
    for _ in range(50):
        for _ in range(RATE // 100):
            producer.send_async(PAYLOAD, receipts)
        time.sleep(0.02)
    until(lambda: receipts.count == RATE // 2)
    assert limited_times(admin, topic) == 0

    ends = threading.Event()

    def flood() -> None:
        while not ends.is_set():
            producer.send_async(PAYLOAD, receipts)

    flooding = threading.Thread(target=flood, daemon=True)
    flooding.start()
    try:
        until(lambda: limited_times(admin, topic) > 5)  # what it could save up is used up
        reached: list[float] = []
        with connected(shared_standalone) as neighbour:
            innocent = neighbour.create_producer(f"{topic}-of-another")
            # A busy machine may keep all waiting, and give what was missed afterwards.
            while len(reached) < 5 and not (reached and 0.9 * RATE <= reached[-1] <= 1.1 * RATE):
                began, before = time.monotonic(), receipts.count
                while time.monotonic() < began + 3:
                    innocent.send(b"not held")
                    time.sleep(0.05)
                reached.append((receipts.count - before) / (time.monotonic() - began))
        assert 0.9 * RATE <= reached[-1] <= 1.1 * RATE, reached
        admin.call("DELETE", path_of(topic, "publishRate"))
        before = receipts.count
        until(lambda: receipts.count > before + 3 * RATE)
    finally:
        ends.set()
        flooding.join()
    producer.flush()  # else receipts come for a producer that is closed
