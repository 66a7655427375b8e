"""What CHANGELOG.md says of today's limits is so. Who lifts a limit changes both."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pulsar
import pytest

from pulsark.config.settings import Settings
from tests.support.python_client import connected
from tests.support.standalone import Standalone

WAIT_MILLIS = 5000


@pytest.fixture(scope="module")
def client(broker: Standalone) -> Iterator[pulsar.Client]:
    with connected(broker, operation_timeout_seconds=5) as client:
        yield client


def subscribe(client: pulsar.Client, topic: str, **options: object) -> pulsar.Consumer:
    return client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest, **options)


# -- errors --------------------------------------------------------------------------------------


def test_some_policies_of_namespaces_are_not_there(broker: Standalone) -> None:
    url = f"{broker.web_url}/admin/v2/namespaces/public/default/entryFilters"
    request = urllib.request.Request(url, b"{}", {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 501
    refused.value.close()


# -- accepted, without effect --------------------------------------------------------------------


def test_permissions_bind_nobody(broker: Standalone, client: pulsar.Client) -> None:
    url = f"{broker.web_url}/admin/v2/namespaces/public/default/permissions/somebody-else"
    head = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url, b'["produce"]', head), timeout=10).close()
    client.create_producer("log-permissions").send(b"all the same")


def test_the_compacted_topic_is_the_whole_one(client: pulsar.Client) -> None:
    producer = client.create_producer("log-compacted")
    for value in (b"old", b"new"):
        producer.send(value, partition_key="k")
    consumer = subscribe(client, "log-compacted", is_read_compacted=True)
    assert [consumer.receive(WAIT_MILLIS).data() for _ in range(2)] == [b"old", b"new"]


# -- the work of clients alone -------------------------------------------------------------------


def test_dead_letters(client: pulsar.Client) -> None:
    consumer = subscribe(
        client,
        "log-dead",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, initial_subscription_name="s"),
    )
    client.create_producer("log-dead").send(b"poison")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(WAIT_MILLIS))
    # The client looks whether a message is dead when it comes for the third time.
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    assert subscribe(client, "log-dead-s-DLQ").receive(WAIT_MILLIS).data() == b"poison"


def test_large_messages_in_chunks(client: pulsar.Client) -> None:
    consumer = subscribe(client, "log-chunks")
    large = bytes(range(256)) * 50_000
    client.create_producer("log-chunks", chunking_enabled=True).send(large)
    assert consumer.receive(WAIT_MILLIS).data() == large


def test_a_table_view(client: pulsar.Client) -> None:
    producer = client.create_producer("log-view")
    for value in (b"old", b"new"):
        producer.send(value, partition_key="k")
    assert client.create_table_view("log-view").get("k") == b"new"


def test_topics_are_sealed() -> None:
    assert Settings().sealEnabled
