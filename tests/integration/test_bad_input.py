"""Bytes, names and requests that are wrong, over real sockets.

Whatever one client does, the process lives, and another client can publish and consume.
"""

from __future__ import annotations

import http.client
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import encode_command, send_frame
from tests.support.standalone import Standalone
from tests.support.wire_client import Closed, Refused, WireClient
from tests.support.wire_frames import entry_of, publish, send_command

Command = pb.BaseCommand
CLOSE_SECONDS = 60.0


@pytest.fixture(autouse=True)
def others_are_served(shared_standalone: Standalone, topic: str) -> Iterator[None]:
    """After each test the same process serves another client."""
    pid = shared_standalone.pid
    yield
    with WireClient(shared_standalone.broker_port) as client:
        name = topic + "-other"
        client.producer(name)
        client.publish(b"still here")
        client.subscribe(name, "s")
        assert client.message().payload == b"still here"
    assert shared_standalone.pid == pid


@pytest.fixture
def wire(shared_standalone: Standalone) -> Iterator[WireClient]:
    with WireClient(shared_standalone.broker_port) as client:
        yield client


def open_another(standalone: Standalone) -> WireClient:
    return WireClient(standalone.broker_port)


def ping() -> pb.BaseCommand:
    command = Command(type=Command.PING)
    command.ping.SetInParent()
    return command


def connect() -> pb.BaseCommand:
    command = Command(type=Command.CONNECT)
    command.connect.client_version = "test"
    command.connect.protocol_version = 21
    return command


# -- frames ----------------------------------------------------------------------------------

GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls hello": bytes.fromhex("16030100a5010000a10303") + bytes(160),
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "size of 2 GiB": struct.pack(">II", 0x80000000, 100) + bytes(100),
    "command larger than its frame": struct.pack(">II", 20, 100) + bytes(100),
    "size below its command's": struct.pack(">II", 3, 8) + bytes(8),
    "a command that is no protobuf": struct.pack(">II", 12, 8) + b"\xff" * 8,
    "a frame over the limit before the handshake": struct.pack(">II", 1 << 20, 8) + bytes(64),
    "a command before the handshake": encode_command(ping()),
    "a publish before the handshake": publish(1, 0, b"x"),
    "random": os.urandom(4096),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_ends_the_connection(shared_standalone: Standalone, data: bytes) -> None:
    with WireClient(shared_standalone.broker_port, handshake=False) as client:
        client.send_bytes(data)
        assert client.closed_within(CLOSE_SECONDS)


AFTER_HANDSHAKE = {
    "second handshake": encode_command(connect()),
    "frame over the limit": struct.pack(">II", (5 << 20) + (1 << 20), 8) + bytes(64),
    "unknown command type": struct.pack(">II", 7, 3) + b"\x08\xac\x02",
    "type without its message": struct.pack(">II", 6, 2) + bytes([8, Command.SUBSCRIBE]),
    "publish without an entry": encode_command(send_command(1, 0)),
    "publish on a producer that was never opened": publish(77, 0, b"x"),
    "entry where none belongs": send_frame(ping(), entry_of(b"x")),
}


@pytest.mark.parametrize("data", AFTER_HANDSHAKE.values(), ids=AFTER_HANDSHAKE.keys())
def test_broken_frame_after_the_handshake(wire: WireClient, data: bytes) -> None:
    wire.send_bytes(data)
    assert wire.closed_within(CLOSE_SECONDS)


def test_a_truncated_frame_is_never_stored(
    shared_standalone: Standalone, wire: WireClient, topic: str
) -> None:
    wire.producer(topic)
    wire.publish(b"whole")
    wire.send_bytes(publish(1, 1, b"cut" * 1000)[:-1])
    wire.close()
    with open_another(shared_standalone) as reader:
        reader.subscribe(topic, "s")
        assert reader.message().payload == b"whole"
        with pytest.raises(TimeoutError):
            reader.message(timeout=0.3)


@pytest.mark.feature("F62")
def test_a_frame_may_come_byte_by_byte(shared_standalone: Standalone, topic: str) -> None:
    with WireClient(shared_standalone.broker_port, handshake=False) as client:
        for byte in encode_command(connect()):
            client.send_bytes(bytes([byte]))
        client.take(Command.CONNECTED)
        client.producer(topic)
        for byte in publish(1, 5, b"slow"):
            client.send_bytes(bytes([byte]))
        client.receipt()


@pytest.mark.command("SEND_ERROR")
def test_a_bad_checksum_is_refused_and_the_producer_lives(wire: WireClient, topic: str) -> None:
    wire.producer(topic)
    entry = bytearray(entry_of(b"x" * 100, 0))
    entry[-1] ^= 1
    wire.send_bytes(send_frame(send_command(1, 0), bytes(entry)))
    with pytest.raises(Refused) as refused:
        wire.receipt()
    assert refused.value.code == pb.ChecksumError
    wire.publish(b"good", sequence_id=1)
    wire.subscribe(topic, "s")
    assert wire.message().payload == b"good"


def test_metadata_that_cannot_be_read(wire: WireClient, topic: str) -> None:
    """An entry that no consumer could read is refused, or ends the connection: never stored."""
    wire.producer(topic)
    entry = entry_of(b"x")
    wire.send_bytes(send_frame(send_command(1, 0), entry[:6] + b"\xff\xff\xff\xff" + entry[10:]))
    with pytest.raises((Refused, Closed)):
        wire.receipt()


def test_a_message_over_the_maximum_ends_the_connection(wire: WireClient, topic: str) -> None:
    """The sizes stand in the handshake, and clients refuse such a message themselves."""
    wire.producer(topic)
    wire.send_bytes(publish(1, 0, bytes((5 << 20) - 1000)))
    wire.receipt()
    wire.send_bytes(publish(1, 1, bytes(16 << 20)))
    assert wire.closed_within(CLOSE_SECONDS)


# -- names -----------------------------------------------------------------------------------

BAD_NAMES = [
    "",
    "persistent://public/default/",
    "persistent://public/default/../../etc/passwd",
    "persistent://../default/t",
    "persistent://public/../t",
    "persistent://public/default/a\0b",
    "persistent://public//t",
    "persistent://public/t",
    "other://public/default/t",
    "persistent://public/default/" + "n" * 10_000,
    "persistent://pub lic/default/t",
]


def open_producer(client: WireClient, name: str) -> int | None:
    try:
        client.producer(name)
    except Refused as refused:
        return refused.code
    return None


def open_consumer(client: WireClient, name: str) -> int | None:
    try:
        client.subscribe(name, "s")
    except Refused as refused:
        return refused.code
    return None


def look_up(client: WireClient, name: str) -> int | None:
    command = Command(type=Command.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = name, 900
    answer = client.request(command, Command.LOOKUP_RESPONSE).lookupTopicResponse
    failed = answer.response == pb.CommandLookupTopicResponse.Failed
    return answer.error if failed else None


def ask_partitions(client: WireClient, name: str) -> int | None:
    command = Command(type=Command.PARTITIONED_METADATA)
    command.partitionMetadata.topic, command.partitionMetadata.request_id = name, 901
    answer = client.request(command, Command.PARTITIONED_METADATA_RESPONSE)
    response = answer.partitionMetadataResponse
    failed = response.response == pb.CommandPartitionedTopicMetadataResponse.Failed
    return response.error if failed else None


ASK = (open_producer, open_consumer, look_up, ask_partitions)


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: name[:40].replace("\0", "NUL"))
def test_invalid_topic_names(
    wire: WireClient, ask: Callable[[WireClient, str], int | None], name: str
) -> None:
    assert ask(wire, name) == pb.InvalidTopicName
    wire.send(ping())
    wire.take(Command.PONG)


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("name", ["persistent://nobody/default/t", "persistent://public/none/t"])
def test_unknown_tenant_or_namespace(
    wire: WireClient, ask: Callable[[WireClient, str], int | None], name: str
) -> None:
    assert ask(wire, name) in (pb.TopicNotFound, pb.MetadataError)


@pytest.mark.feature("F26")
def test_an_unknown_topic_that_may_not_be_created(wire: WireClient, topic: str) -> None:
    with pytest.raises(Refused) as refused:
        wire.subscribe(topic, "s", force_topic_creation=False)
    assert refused.value.code == pb.TopicNotFound


@pytest.mark.parametrize("path", ["..%2f..%2fetc", "a%00b", "..", "%2e%2e%2fx", "n" * 3000])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "GET"])
def test_invalid_names_over_http(shared_standalone: Standalone, method: str, path: str) -> None:
    address = urlsplit(shared_standalone.web_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    suffix = "/stats" if method == "GET" else ""
    connection.request(method, f"/admin/v2/persistent/public/default/{path}{suffix}")
    response = connection.getresponse()
    body = response.read()
    assert 400 <= response.status < 500, body
    if response.getheader("Content-Type", "").startswith("application/json"):
        assert "Traceback" not in json.dumps(json.loads(body))
    connection.close()


# -- consumers -------------------------------------------------------------------------------


def test_second_exclusive_consumer(
    shared_standalone: Standalone, wire: WireClient, topic: str
) -> None:
    wire.subscribe(topic, "s")
    answered = threading.Event()

    def answer_probes() -> None:
        while not answered.is_set():
            assert not wire.closed_within(0.05)

    alive = threading.Thread(target=answer_probes)
    alive.start()
    try:
        with open_another(shared_standalone) as other:
            assert open_consumer(other, topic) == pb.ConsumerBusy
    finally:
        answered.set()
        alive.join()
    with pytest.raises(Refused) as refused:
        wire.subscribe(topic, "s", consumer_id=2)
    assert refused.value.code == pb.ConsumerBusy


def test_another_type_than_the_connected_consumer(
    shared_standalone: Standalone, wire: WireClient, topic: str
) -> None:
    wire.subscribe(topic, "s", pb.CommandSubscribe.Shared)
    with open_another(shared_standalone) as other, pytest.raises(Refused) as refused:
        other.subscribe(topic, "s", pb.CommandSubscribe.Failover)
    assert refused.value.code == pb.ConsumerBusy


@pytest.mark.feature("F19")
@pytest.mark.command("ACK_RESPONSE")
def test_cumulative_ack_on_shared_acknowledges_nothing(
    shared_standalone: Standalone, wire: WireClient, topic: str
) -> None:
    wire.producer(topic)
    positions = [wire.publish(b"%d" % i, sequence_id=i) for i in range(5)]
    wire.subscribe(topic, "s", pb.CommandSubscribe.Shared)
    for _ in positions:
        wire.message()
    wire.begin_ack(positions[-1], cumulative=True)
    wire.take(Command.ACK_RESPONSE)
    wire.close()
    with open_another(shared_standalone) as again:
        again.subscribe(topic, "s", pb.CommandSubscribe.Shared)
        assert [again.message().payload for _ in positions] == [b"%d" % i for i in range(5)]


STRANGE_IDS = [(2**63 - 1, 2**63 - 1), (2**64 - 1, 2**64 - 1), (0, 2**40), (10**9, 0)]


@pytest.mark.command("ACK", "ACK_RESPONSE")
@pytest.mark.parametrize("position", STRANGE_IDS, ids=str)
def test_an_ack_of_what_does_not_exist_takes_nothing_away(
    shared_standalone: Standalone, wire: WireClient, topic: str, position: tuple[int, int]
) -> None:
    wire.producer(topic)
    wire.publish(b"kept")
    wire.subscribe(topic, "s")
    wire.message()
    wire.begin_ack(position)
    wire.take(Command.ACK_RESPONSE)
    wire.close()
    with open_another(shared_standalone) as again:
        again.subscribe(topic, "s")
        assert again.message().payload == b"kept"


def test_commands_for_consumers_that_do_not_exist(wire: WireClient) -> None:
    wire.flow(10, consumer_id=55)
    wire.begin_ack((1, 1), consumer_id=55)
    redeliver = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    redeliver.redeliverUnacknowledgedMessages.consumer_id = 55
    wire.send(redeliver)
    wire.send(ping())
    wire.take(Command.PONG)


def test_permits_that_overflow(wire: WireClient, topic: str) -> None:
    wire.producer(topic)
    wire.subscribe(topic, "s", permits=0)
    for _ in range(3):
        wire.flow(2**32 - 1)
    wire.publish(b"x")
    assert wire.message().payload == b"x"
