"""Quotas, expiry and limits as the official Python client meets them, set over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pulsar
import pytest

from pulsark.admin_client.client import AdminClient
from tests.support.python_client import connected
from tests.support.standalone import Standalone

pytestmark = pytest.mark.client("python")

WAIT_MS = 10_000
SETTINGS = ("--set", "backlogQuotaCheckIntervalInSeconds=1")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("backlog") / "data", *SETTINGS) as standalone:
        yield standalone


@pytest.fixture
def admin(broker: Standalone) -> AdminClient:
    return AdminClient(broker.web_url)


@pytest.fixture
def client(broker: Standalone) -> Iterator[pulsar.Client]:
    with connected(broker, operation_timeout_seconds=3) as client:
        yield client


def fill(client: pulsar.Client, topic: str) -> pulsar.Producer:
    producer = client.create_producer(topic)
    for _ in range(30):
        producer.send(b"x" * 100)
    return producer


@pytest.mark.feature("F79", "F91")
@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("producer_request_hold", pulsar.ProducerBlockedQuotaExceededError),
        ("producer_exception", pulsar.ProducerBlockedQuotaExceededException),
    ],
)
def test_a_producer_is_refused_until_the_backlog_has_drained(
    client: pulsar.Client,
    admin: AdminClient,
    namespace: str,
    policy: str,
    error: type[pulsar.PulsarException],
) -> None:
    topic = f"persistent://{namespace}/t"
    consumer = client.subscribe(topic, "s")
    producer = fill(client, topic)
    # After that: it is looked at each second, and would end the filling in the middle.
    quota = {"limitSize": 2000, "limitTime": -1, "policy": policy}
    admin.call("POST", f"/namespaces/{namespace}/backlogQuota", quota)
    time.sleep(2.5)  # so that it was looked at
    with pytest.raises(error):
        client.create_producer(topic)
    for _ in range(30):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    time.sleep(0.5)
    client.create_producer(topic).send(b"after")
    producer.send(b"the one that was sent away is back")
    found = {consumer.receive(WAIT_MS).data() for _ in range(2)}
    assert found == {b"after", b"the one that was sent away is back"}


@pytest.mark.feature("F53")
def test_messages_expire(client: pulsar.Client, admin: AdminClient, namespace: str) -> None:
    topic = f"persistent://{namespace}/t"
    client.subscribe(topic, "s").close()
    producer = fill(client, topic)
    time.sleep(2.1)
    producer.send(b"new")
    admin.call("POST", f"/persistent/{namespace}/t/subscription/s/expireMessages/2")
    # What was sent shortly before the limit may stay: clocks of producers are not exact.
    stats = admin.get(f"/persistent/{namespace}/t/stats")["subscriptions"]["s"]
    assert stats["totalMsgExpired"] == 30
    assert client.subscribe(topic, "s").receive(WAIT_MS).data() == b"new"


@pytest.mark.feature("F79")
def test_limits_of_a_topic(client: pulsar.Client, admin: AdminClient, namespace: str) -> None:
    topic = f"persistent://{namespace}/t"
    client.create_producer(topic)
    admin.call("POST", f"/persistent/{namespace}/t/maxProducers", 1)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    admin.call("POST", f"/persistent/{namespace}/t/maxConsumers", 1)
    client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
