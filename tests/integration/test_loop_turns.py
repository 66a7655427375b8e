"""A broker whose event loop is measured step by step, and clients that ask for a lot at once.

What counts is processor time of the loop's thread: a busy machine makes nothing long. How long is
too long, ``PULSARK_TEST_STEP_SECONDS`` says.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pulsark.admin_client.client import AdminClient
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.frames import send_frame
from tests.support.loop_steps import LongStep
from tests.support.standalone import Standalone
from tests.support.wire_client import WireClient
from tests.support.wire_frames import send_command

Command = pb.BaseCommand
PREFIX = "persistent://public/default/"
Measured = tuple[Standalone, Callable[[], list[LongStep]]]


def subscribe(topic: str, consumer_id: int, kind: int) -> pb.BaseCommand:
    command = Command(type=Command.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription, request.subType = topic, "s", kind
    request.consumer_id = request.request_id = consumer_id
    request.consumer_name = f"consumer-{consumer_id}"
    return command


def watch(pattern: str, watcher_id: int) -> pb.BaseCommand:
    command = Command(type=Command.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.namespace, request.topics_pattern = "public/default", pattern
    request.watcher_id = request.request_id = watcher_id
    return command


def ping(client: WireClient) -> None:
    """Return once the broker has carried out what was sent before."""
    command = Command(type=Command.PING)
    command.ping.SetInParent()
    client.send(command)
    client.take(Command.PONG)


def test_the_first_requests_of_the_admin_api_cost_others_nothing(
    measured_standalone: Measured,
) -> None:
    """FastAPI is loaded in a thread, with all that it needs at its first requests."""
    broker, long_steps = measured_standalone
    admin = AdminClient(broker.web_url)
    admin.call("PUT", "/persistent/public/default/t/partitions", 3)
    assert len(admin.call("GET", "/namespaces/public/default/topics")) == 3
    assert "public" in admin.call("GET", "/tenants")
    assert [step for step in long_steps() if "run_asgi" in step.name] == []


def test_a_thousand_failover_consumers_come_and_go(measured_standalone: Measured) -> None:
    broker, long_steps = measured_standalone
    client = WireClient(broker.broker_port, timeout=60)
    for number in range(1000):
        client.send(subscribe(f"{PREFIX}failover", number, pb.CommandSubscribe.Failover))
    for _ in range(1000):
        client.take(Command.SUCCESS)
    client.close()
    other = WireClient(broker.broker_port)
    admin = AdminClient(broker.web_url)
    end = time.monotonic() + 60
    while True:
        stats = admin.call("GET", "/persistent/public/default/failover/stats")
        if not stats["subscriptions"]["s"]["consumers"] or time.monotonic() > end:
            break
        time.sleep(0.05)
    assert stats["subscriptions"]["s"]["consumers"] == []
    ping(other)
    assert [step for step in long_steps() if "failover" in step.name.lower()] == []
    assert [step for step in long_steps() if "_work_off" in step.name] == []


def test_batches_that_become_large_cost_others_nothing(measured_standalone: Measured) -> None:
    """With deduplication, from a client that does not say its last sequence id."""
    broker, long_steps = measured_standalone
    AdminClient(broker.web_url).call("POST", "/namespaces/public/default/deduplication", True)
    client = WireClient(broker.broker_port)
    client.producer(f"{PREFIX}bomb", name="p")
    before = len(long_steps())
    single = (pb.SingleMessageMetadata(payload_size=0), b"")
    for sequence_id in range(3):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
        entry = build_batch(metadata, [single] * 200_000, pb.ZSTD)
        assert len(entry) < 2000
        client.send_bytes(send_frame(send_command(1, sequence_id, 200_000), entry))
        client.take(Command.SEND_RECEIPT)
    client.close()
    again = WireClient(broker.broker_port)
    again.producer(f"{PREFIX}bomb", name="p")
    assert long_steps()[before:] == []


def test_very_many_topics_are_listed_and_followed(measured_standalone: Measured) -> None:
    broker, long_steps = measured_standalone
    admin = AdminClient(broker.web_url)
    for number in range(4):
        path = f"/persistent/public/default/part-{number}/partitions"
        admin.call("PUT", path, 5000)
    clients = [WireClient(broker.broker_port, timeout=60) for _ in range(5)]
    clients[0].send(watch("public/default/nothing", 7))  # the matcher is loaded
    clients[0].take(Command.WATCH_TOPIC_LIST_SUCCESS)
    before = len(long_steps())
    for client in clients:
        client.send(watch("public/default/part-.*", 8))
    for client in clients:
        found = client.take(Command.WATCH_TOPIC_LIST_SUCCESS).watchTopicListSuccess
        assert len(found.topic) == 20_000
    assert len(admin.call("GET", "/namespaces/public/default/topics")) == 20_000
    admin.call("PUT", "/persistent/public/default/part-new/partitions", 5000)
    for client in clients:
        change = client.take(Command.WATCH_TOPIC_UPDATE).watchTopicUpdate
        assert len(change.new_topics) == 5000
    admin.call("DELETE", "/persistent/public/default/part-new/partitions?force=true")
    for client in clients:
        change = client.take(Command.WATCH_TOPIC_UPDATE).watchTopicUpdate
        assert len(change.deleted_topics) == 5000
    assert long_steps()[before:] == []
