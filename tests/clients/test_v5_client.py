"""Pulsar 5's Java client against a real standalone, which is killed under it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from benchmarks.load import LOCK, V5_LOCK, compile_java
from benchmarks.maven import CACHE, class_path, java
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.hashes import murmur3_32
from tests.support.python_client import connected
from tests.support.standalone import Standalone
from tests.support.wire_client import WireClient

FOLDER = Path(__file__).parent / "java"
KEYS = 40
WAIT_MS = 30_000
Command = pb.BaseCommand
pytestmark = pytest.mark.client("java-v5")


class V5Client:
    """The running program. It asks for what it cannot do itself."""

    def __init__(self, broker: Standalone, errors: Path) -> None:
        self.broker = broker
        self._errors = errors
        path = compile_java(FOLDER / "v5", class_path(V5_LOCK), CACHE / "classes" / "v5")
        addresses = (broker.service_url, broker.web_url)
        self._command = [java(), "-Xmx512m", "-cp", path, "V5Client", *addresses]
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        with self._errors.open("ab") as log:
            return subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def run(self, scenario: str, **asked: Callable[[str], None]) -> None:
        """Run a scenario, and do what it asks for; raises what went wrong."""
        said = self._errors.stat().st_size
        self._say(scenario)
        while True:
            verdict, _, rest = self._line().partition(" ")
            if verdict == "ASK":
                what, _, argument = rest.partition(" ")
                try:
                    asked[what](argument)
                except BaseException:
                    self.close()
                    self._process = self._started()
                    raise
                self._say("done")
            elif verdict in ("PASS", "FAIL"):
                assert verdict == "PASS", f"{rest}\n{self._errors.read_text()[said:][:6000]}"
                return

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.communicate()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the program ended:\n{self._errors.read_text()[-6000:]}"
        return line.rstrip("\n")


@pytest.fixture(scope="module")
def v5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[V5Client]:
    folder = tmp_path_factory.mktemp("v5")
    with Standalone(folder / "data") as broker:
        client = V5Client(broker, folder / "client.log")
        try:
            yield client
        finally:
            client.close()


@pytest.mark.command("SCALABLE_TOPIC_LOOKUP", "SCALABLE_TOPIC_UPDATE", "SCALABLE_TOPIC_CLOSE")
@pytest.mark.parametrize(
    "scenario",
    [
        "keyed",
        "keyless",
        "batches",
        "chunks",
        "metadata",
        "created_by_use",
        "schemas",
        "schema_evolution",
        "refused",
    ],
)
def test_producers(v5: V5Client, scenario: str) -> None:
    v5.run(scenario)


@pytest.mark.parametrize(
    "scenario", ["queue", "queue_redelivery", "queue_dead_letters", "queue_beside_stream"]
)
def test_queue_consumers(v5: V5Client, scenario: str) -> None:
    v5.run(scenario)


@pytest.mark.command("SCALABLE_TOPIC_SUBSCRIBE", "SCALABLE_TOPIC_SUBSCRIBE_RESPONSE")
@pytest.mark.parametrize(
    "scenario", ["stream", "stream_shares", "stream_many", "stream_come_and_go"]
)
def test_stream_consumers(v5: V5Client, scenario: str) -> None:
    v5.run(scenario)


@pytest.mark.chaos
def test_stream_consumers_that_come_and_go_for_a_minute(v5: V5Client) -> None:
    v5.run("stream_come_and_go_for_long")


@pytest.mark.parametrize("scenario", ["checkpoint", "checkpoint_group"])
def test_checkpoint_consumers(v5: V5Client, scenario: str) -> None:
    v5.run(scenario)


@pytest.mark.command("WATCH_SCALABLE_TOPICS", "WATCH_SCALABLE_TOPICS_UPDATE")
@pytest.mark.parametrize("scenario", ["namespace_queue", "namespace_stream"])
def test_consumers_of_a_namespace(v5: V5Client, scenario: str) -> None:
    v5.run(scenario)


@pytest.mark.command("SCALABLE_TOPIC_UPDATE", "SCALABLE_TOPIC_ASSIGNMENT_UPDATE")
def test_partitions_that_grow(v5: V5Client) -> None:
    v5.run("partitions_grow")


class StuckMember:
    """Another consumer of a group. It closes nothing that it is told to give up."""

    def __init__(self, broker: Standalone) -> None:
        self._client = WireClient(broker.broker_port)

    def attach(self, topic: str) -> None:
        """Get a share of the topic, and attach to it."""
        request = Command(type=Command.SCALABLE_TOPIC_SUBSCRIBE)
        subscribe = request.scalableTopicSubscribe
        subscribe.request_id, subscribe.consumer_id = 1000, 1000
        subscribe.topic, subscribe.subscription, subscribe.consumer_name = topic, "s", "a"
        subscribe.consumer_type = pb.ScalableConsumerType.STREAM
        self._client.send(request)
        answer = self._client.take(Command.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
        for segment in answer.scalableTopicSubscribeResponse.assignment.segments:
            self._client.subscribe(
                segment.segment_topic,
                "s",
                consumer_id=segment.segment_id,
                consumer_name=f"a-seg-{segment.segment_id}",
            )

    def hang_up(self, _: str) -> None:
        """Its connection ends."""
        self._client.close()


def test_a_member_of_the_group_that_never_closes_what_it_loses(v5: V5Client) -> None:
    stuck = StuckMember(v5.broker)
    v5.run("stream_never_closed", attach=stuck.attach, hang_up=stuck.hang_up)


def test_a_broker_that_is_killed_during_a_hand_over(v5: V5Client) -> None:
    stuck = StuckMember(v5.broker)

    def kill(_: str) -> None:
        v5.broker.kill()
        stuck.hang_up("")
        v5.broker.start()

    v5.run("stream_killed_in_hand_over", attach=stuck.attach, kill=kill)


def partitions_of_keys(client: pulsar.Client, topic: str, count: int) -> dict[str, set[int]]:
    """The partitions that have messages of each key; there are ``count`` messages."""
    found: dict[str, set[int]] = {}
    consumer = client.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest)
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        found.setdefault(message.partition_key(), set()).add(message.message_id().partition())
    consumer.close()
    return found


def by_murmur(message: pulsar.Message, partitions: int) -> int:
    """The Python client has no setting for it."""
    return murmur3_32(message.partition_key()) % partitions


def publish_with_java(broker: Standalone, topic: str, *scheme: str) -> None:
    path = compile_java(FOLDER / "Keys.java", class_path(LOCK), CACHE / "classes" / "keys")
    command = [java(), "-Xmx256m", "-cp", path, "Keys", broker.service_url, topic, str(KEYS)]
    subprocess.run([*command, *scheme], check=True, timeout=100)


@pytest.mark.feature("F43")
@pytest.mark.client("java-4.0", "python")
def test_old_clients_beside_the_new_one_on_one_topic(v5: V5Client) -> None:
    v5.run("for_old_clients")
    topic = "persistent://public/default/v5-for-old-clients-t"
    with connected(v5.broker) as client:
        rest = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        values = set()
        for _ in range(KEYS // 2):
            message = rest.receive(WAIT_MS)
            rest.acknowledge(message)
            values.add(message.data())
        assert len(values) == KEYS // 2
        # Routed like this, a key is where the new client puts it.
        producer = client.create_producer(topic, message_router=by_murmur)
        for number in range(KEYS):
            producer.send(b"python", partition_key=f"key-{number}")
        publish_with_java(v5.broker, topic, "Murmur3_32Hash")
        found = partitions_of_keys(client, topic, 3 * KEYS)
        assert found.keys() == {f"key-{number}" for number in range(KEYS)}
        assert all(len(partitions) == 1 for partitions in found.values()), found
        # Without it keys are in two partitions: docs/clients.md says so.
        publish_with_java(v5.broker, topic)
        found = partitions_of_keys(client, topic, 4 * KEYS)
        assert any(len(partitions) == 2 for partitions in found.values()), found


@pytest.mark.command("SCALABLE_TOPIC_LOOKUP", "SCALABLE_TOPIC_SUBSCRIBE")
def test_a_broker_that_is_killed(v5: V5Client) -> None:
    def kill(_: str) -> None:
        v5.broker.kill()
        v5.broker.start()

    v5.run("killed", kill=kill)
