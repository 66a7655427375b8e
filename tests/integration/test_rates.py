"""Rates of dispatch and of subscribing, against a real standalone and the official client."""

from __future__ import annotations

import time
from contextlib import suppress

import pulsar
import pytest

from pulsark.admin_client.client import AdminClient
from tests.support.python_client import connected
from tests.support.standalone import Standalone

NAMESPACE = "/persistent/public/default"


def receive(consumer: pulsar.Consumer, count: int) -> float:
    """Receive so many messages in order; how many seconds it took."""
    begun = time.monotonic()
    for number in range(count):
        message = consumer.receive(60_000)
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)
    return time.monotonic() - begun


@pytest.mark.feature("F79")
def test_a_subscription_keeps_to_its_rate_until_it_is_lifted(
    shared_standalone: Standalone, admin: AdminClient
) -> None:
    topic = "dispatch-rate"
    with connected(shared_standalone) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(120):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        path = f"{NAMESPACE}/{topic}/slow/dispatchRate"
        admin.call("POST", path, {"dispatchThrottlingRateInMsg": 40})
        others = [
            client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest)
            for name in ("slow", "free")
        ]
        receive(others[1], 120)
        assert receive(others[0], 80) >= 0.9
        stats = admin.get(f"{NAMESPACE}/{topic}/stats")["subscriptions"]
        assert stats["slow"]["dispatchThrottledMsgEventsBySubscriptionLimit"] > 0
        assert stats["free"]["dispatchThrottledMsgEventsBySubscriptionLimit"] == 0
        admin.call("DELETE", path)
        for number in range(80, 120):
            assert others[0].receive(60_000).data() == b"%d" % number


def test_a_consumer_that_subscribes_too_often_is_refused(
    shared_standalone: Standalone, admin: AdminClient
) -> None:
    topic = "subscribe-rate"
    admin.call("PUT", f"{NAMESPACE}/{topic}")
    rate = {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 600}
    admin.call("POST", f"{NAMESPACE}/{topic}/subscribeRate", rate)
    with connected(shared_standalone) as client:
        # The client numbers its consumers, so the same one is that of a connection of its own.
        client.subscribe(topic, "s", consumer_name="c").close()
    with (
        connected(shared_standalone, operation_timeout_seconds=2) as client,
        suppress(pulsar.AlreadyClosed),
        pytest.raises(pulsar.PulsarException),
    ):
        client.subscribe(topic, "s", consumer_name="c")
