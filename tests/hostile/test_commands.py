"""Commands on the binary port that are wrong for what came before them, or are far too many."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from pulsark.limits import HANDSHAKE_SECONDS
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import encode_command
from tests.hostile.conftest import ATTACKED, ATTACKER, OTHER, Connect, logged
from tests.hostile.test_frames import CLOSE_SECONDS, body_of, hello, ping, raw
from tests.support.secured import Secured, token
from tests.support.wire_client import Refused, WireClient
from tests.support.wire_frames import publish

Command = pb.BaseCommand
HALF_OPEN = 2000
FLOOD = 20_000

ALL_COMMANDS = [f for f in Command.DESCRIPTOR.fields if f.message_type is not None]


def any_command(name: str) -> bytes:
    """A command with its required fields."""
    field = Command.DESCRIPTOR.fields_by_name[name]
    command = Command(type=field.number)  # type: ignore[arg-type]
    _require(getattr(command, name))
    return encode_command(command)


def _require(message: object) -> None:
    message.SetInParent()  # type: ignore[attr-defined]
    for field in message.DESCRIPTOR.fields:  # type: ignore[attr-defined]
        if field.is_required and field.message_type is not None:
            _require(getattr(message, field.name))
        elif field.is_required and field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            setattr(message, field.name, "x" if field.type == field.TYPE_STRING else b"x")
        elif field.is_required and field.enum_type is not None:
            setattr(message, field.name, field.enum_type.values[0].number)
        elif field.is_required:
            setattr(message, field.name, 1)


def answers(client: WireClient) -> None:
    """Return once the broker has carried out what was sent before."""
    client.send_bytes(ping())
    client.take(Command.PONG)


def test_no_command_comes_before_connect(connect: Connect) -> None:
    for field in ALL_COMMANDS:
        if field.name != "connect":
            client = connect()
            client.send_bytes(any_command(field.name))
            assert client.closed_within(CLOSE_SECONDS), field.name


def test_a_second_connect_ends_the_connection(broker: Secured, connect: Connect) -> None:
    client = connect(ATTACKER)
    client.send(hello(OTHER))
    assert client.closed_within(CLOSE_SECONDS)
    assert logged(broker, client.address, "protocol error")


def test_two_connects_at_once_end_the_connection(connect: Connect) -> None:
    client = connect()
    client.send_bytes(encode_command(hello()) + encode_command(hello(OTHER)))
    assert client.closed_within(CLOSE_SECONDS)


def test_the_producer_of_another_connection_is_nobodys(connect: Connect, target: str) -> None:
    owner, thief = connect(ATTACKER), connect(ATTACKER)
    owner.producer(target, producer_id=7)
    thief.send_bytes(publish(7, 0, b"stolen"))
    assert thief.closed_within(CLOSE_SECONDS)
    owner.publish(b"mine", producer_id=7)
    owner.subscribe(target, "s")
    assert owner.message().payload == b"mine"


def test_the_name_of_another_producer_is_taken(connect: Connect, target: str) -> None:
    owner, thief = connect(ATTACKER), connect(ATTACKER)
    owner.producer(target, name="owner")
    command = Command(type=Command.PRODUCER)
    command.producer.topic, command.producer.producer_name = target, "owner"
    command.producer.producer_id = command.producer.request_id = 1
    command.producer.user_provided_producer_name = True
    taken = threading.Event()
    alive = threading.Thread(target=_answer_pings, args=(owner, taken))
    alive.start()
    try:
        with pytest.raises(Refused) as refused:
            thief.request(command, Command.PRODUCER_SUCCESS)
    finally:
        taken.set()
        alive.join()
    assert refused.value.code == pb.ProducerBusy
    owner.publish(b"mine")


def _answer_pings(client: WireClient, ended: threading.Event) -> None:
    while not ended.is_set():
        assert not client.closed_within(0.05)


@pytest.mark.parametrize("permits", [0, 2**31 - 1, 2**31, 2**32 - 1])
def test_strange_permits(connect: Connect, target: str, permits: int) -> None:
    client = connect(ATTACKER)
    client.producer(target)
    client.publish(b"x")
    client.subscribe(target, "s", permits=0)
    command = Command(type=Command.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = 1, permits
    for _ in range(3):
        client.send(command)
    answers(client)
    if permits == 0:
        assert client.waiting_message() is None
        client.flow(1)
    assert client.message().payload == b"x"


def test_a_flood_of_permits(connect: Connect, target: str) -> None:
    client = connect(ATTACKER)
    client.subscribe(target, "s", permits=0)
    command = Command(type=Command.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = 1, 2**32 - 1
    client.send_bytes(encode_command(command) * FLOOD)
    answers(client)


def test_a_flood_of_commands_for_nobody(connect: Connect) -> None:
    client = connect(ATTACKER)
    ack = Command(type=Command.ACK)
    ack.ack.consumer_id, ack.ack.ack_type = 9, pb.CommandAck.Individual
    ack.ack.message_id.add(ledgerId=1, entryId=1)
    redeliver = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    redeliver.redeliverUnacknowledgedMessages.consumer_id = 9
    client.send_bytes((encode_command(ack) + encode_command(redeliver)) * (FLOOD // 2))
    answers(client)


STRANGE_IDS = [(2**63 - 1, 2**63 - 1), (2**64 - 1, 2**64 - 1), (0, 2**40), (10**9, 0)]


@pytest.mark.parametrize("cumulative", [False, True])
def test_acks_of_what_was_never_sent(connect: Connect, target: str, cumulative: bool) -> None:
    """Neither of ids that do not exist, nor of ids in the ledger of another topic."""
    client, reader = connect(ATTACKER), connect(ATTACKER)
    client.producer(target)
    client.producer(f"{target}-other", producer_id=2)
    client.publish(b"kept")
    foreign = [client.publish(b"y", producer_id=2) for _ in range(3)]
    reader.subscribe(target, "s")
    reader.message()
    for position in (*STRANGE_IDS, *foreign):
        reader.begin_ack(position, cumulative=cumulative)
        reader.take(Command.ACK_RESPONSE)
    reader.close()
    again = connect(ATTACKER)
    again.subscribe(target, "s")
    assert again.message().payload == b"kept"


def test_very_many_ids_in_one_command(connect: Connect, target: str) -> None:
    client = connect(ATTACKER)
    client.subscribe(target, "s", pb.CommandSubscribe.Shared)
    for kind, number, head in (
        (Command.ACK, 3, b"\x08\x01\x10\x00"),
        (Command.REDELIVER_UNACKNOWLEDGED_MESSAGES, 2, b"\x08\x01"),
    ):
        ids = (bytes([number << 3 | 2]) + b"\x04\x08\x05\x10\x07") * 170_000
        client.send_bytes(raw(body_of(kind, head + ids)))
        answers(client)


def test_messages_that_a_client_calls_corrupt_do_not_fill_the_log(
    broker: Secured, connect: Connect, target: str
) -> None:
    client = connect(ATTACKER)
    client.subscribe(target, "s", pb.CommandSubscribe.Shared)
    ids = b"\x1a\x04\x08\x05\x10\x07" * 50_000
    corrupt = raw(body_of(Command.ACK, b"\x08\x01\x10\x00\x20\x02" + ids))
    before = broker.log_path.stat().st_size
    client.send_bytes(corrupt * 3)
    answers(client)
    assert logged(broker, target, "corrupt")
    assert broker.log_path.stat().st_size - before < 10_000


def test_a_consumer_of_everybody_else_cannot_be_closed(connect: Connect, target: str) -> None:
    owner, thief = connect(ATTACKER), connect(ATTACKER)
    owner.producer(target)
    owner.subscribe(target, "s")
    for name in ("close_consumer", "unsubscribe", "seek", "close_producer"):
        thief.send_bytes(any_command(name))
    answers(thief)
    owner.publish(b"x")
    assert owner.message().payload == b"x"


def test_more_requests_than_are_taken_at_once(connect: Connect, target: str) -> None:
    client = connect(ATTACKER)
    lookup = Command(type=Command.LOOKUP)
    lookup.lookupTopic.topic = target
    for request_id in range(3000):
        lookup.lookupTopic.request_id = request_id
        client.send(lookup)
    for _ in range(3000):
        client.take(Command.LOOKUP_RESPONSE)


def test_a_client_that_never_reads_is_not_read_either(
    broker: Secured, connect: Connect, target: str
) -> None:
    writer, deaf = connect(ATTACKER), connect(ATTACKER)
    writer.producer(target)
    for number in range(100):
        writer.publish(bytes(1 << 20), sequence_id=number)
    deaf.subscribe(target, "s", permits=2**31 - 1)
    lookup = Command(type=Command.GET_TOPICS_OF_NAMESPACE)
    request = lookup.getTopicsOfNamespace
    request.namespace, request.request_id = "public/attacked", 1
    deaf.timeout = 2.0
    deaf._socket.settimeout(2.0)
    with contextlib.suppress(TimeoutError, OSError):  # it is not read: there is no room left
        for _ in range(2000):
            deaf.send_bytes(encode_command(lookup) * 50)
    writer.publish(b"x", sequence_id=1000)


# -- connections -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_byte_a_second_is_too_slow_for_the_handshake(broker: Secured) -> None:
    """It comes before the thousands: after those, the log has no room for one more such line."""
    slow = WireClient(broker.broker_port, handshake=False)
    data = itertools.chain(encode_command(hello()), itertools.repeat(0))
    begun = time.monotonic()
    while time.monotonic() < begun + HANDSHAKE_SECONDS + 30:
        slow.send_bytes(bytes([next(data)]))
        if slow.closed_within(1.0):
            break
    took = time.monotonic() - begun
    assert HANDSHAKE_SECONDS - 1 <= took < HANDSHAKE_SECONDS + 20
    assert logged(broker, slow.address, "no handshake in time")
    slow.close()


@pytest.mark.slow
def test_thousands_of_half_open_connections(broker: Secured) -> None:
    """Others come in between; all are closed in time, whether they said nothing or a little."""
    opened = []
    begun = time.monotonic()
    try:
        for number in range(HALF_OPEN):
            one = socket.create_connection(("127.0.0.1", broker.broker_port), timeout=30)
            opened.append(one)
            if number % 2:
                one.sendall(struct.pack(">II", 60_000, 59_990) + b"\x08")
            if number % 500 == 0:
                with WireClient(broker.broker_port, token=token(OTHER)) as client:
                    answers(client)
        for one in opened:
            one.settimeout(max(1.0, begun + HANDSHAKE_SECONDS + 30 - time.monotonic()))
            assert one.recv(1) == b""
    finally:
        for one in opened:
            one.close()
    _all_are_closed(broker, 200)


def _all_are_closed(broker: Secured, most: int) -> None:
    deadline = time.monotonic() + 30
    while len(list(Path(f"/proc/{broker.pid}/fd").iterdir())) > most:
        assert time.monotonic() < deadline, "sockets are left"
        time.sleep(0.1)


# -- what only Pulsar 5's clients say ----------------------------------------------------------


def lookup(topic: str, session_id: int, **fields: object) -> pb.BaseCommand:
    command = Command(type=Command.SCALABLE_TOPIC_LOOKUP)
    command.scalableTopicLookup.session_id = session_id
    command.scalableTopicLookup.topic = topic
    for name, value in fields.items():
        setattr(command.scalableTopicLookup, name, value)
    return command


def test_layouts_of_names_that_have_none(connect: Connect, target: str) -> None:
    client = connect(ATTACKER)
    for number, (name, code) in enumerate(
        [
            (f"{target}-partition-0", pb.TopicNotFound),
            (f"non-persistent://{ATTACKED}/t", pb.NotAllowedError),
            (f"segment://{ATTACKED}/t/0000-ffff-0", pb.InvalidTopicName),
            (f"persistent://{ATTACKED}/", pb.InvalidTopicName),
            (f"persistent://{ATTACKED}/a\x00b", pb.InvalidTopicName),
            (f"persistent://{ATTACKED}/..", pb.InvalidTopicName),
            (f"topic://{ATTACKED}/" + "x" * 20_000, pb.InvalidTopicName),
            ("topic://public/default/x", pb.AuthorizationError),
            ("topic://none/none/x", pb.AuthorizationError),
            ("://", pb.InvalidTopicName),
            ("", pb.InvalidTopicName),
        ]
    ):
        client.send(lookup(name, number))
        update = client.take(Command.SCALABLE_TOPIC_UPDATE).scalableTopicUpdate
        assert (update.session_id, update.error) == (number, code), name
        assert update.message
        assert len(update.message) < 2000
        assert not update.HasField("dag")
    client.send(lookup(f"{target}-new", 99, create_if_missing=False))
    assert client.take(Command.SCALABLE_TOPIC_UPDATE).scalableTopicUpdate.error == pb.TopicNotFound
    client.send(lookup(f"{target}-new", 99))
    assert client.take(Command.SCALABLE_TOPIC_UPDATE).scalableTopicUpdate.HasField("dag")


def test_a_flood_of_lookups_and_watches(connect: Connect, target: str) -> None:
    client = connect(ATTACKER)
    watch = Command(type=Command.WATCH_SCALABLE_TOPICS)
    watch.watchScalableTopics.namespace = ATTACKED
    for number in range(FLOOD // 2):
        client.send(lookup(f"{target}-{number % 10}", number))
        watch.watchScalableTopics.watch_id = number
        client.send(watch)
    for _ in range(FLOOD):
        client.take(Command.SCALABLE_TOPIC_UPDATE, Command.WATCH_SCALABLE_TOPICS_UPDATE)
    answers(client)
