"""Bytes on the binary port that are no frames, or frames that no client sends."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import encode_command, send_frame
from tests.hostile.conftest import ATTACKER, CANARY, Connect, logged
from tests.support.secured import Secured, token
from tests.support.wire_client import Closed, Refused, WireClient
from tests.support.wire_frames import entry_of, publish, send_command

Command = pb.BaseCommand
OVER_ALL_LIMITS = (5 << 20) + (1 << 20)
CLOSE_SECONDS = 60.0
KIBIBYTES_64 = 64 << 10
VERY_MANY = 170_000


def raw(body: bytes, entry: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(body) + len(entry), len(body)) + body + entry


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def body_of(kind: int, content: bytes) -> bytes:
    return b"\x08" + varint(kind) + field(kind, content)


def nested_message_ids(depth: int) -> bytes:
    """A SEEK whose message id has one in it, which has one in it, and so on."""
    inner = b""
    for _ in range(depth):
        inner = b"\x08\x01\x10\x01" + (field(7, inner) if inner else b"")
    return raw(body_of(Command.SEEK, b"\x08\x01\x10\x01" + field(3, inner)))


def text_command(text: bytes) -> bytes:
    return raw(body_of(Command.LOOKUP, field(1, text) + b"\x10\x01"))


def ping() -> bytes:
    command = Command(type=Command.PING)
    command.ping.SetInParent()
    return encode_command(command)


def hello(role: str = ATTACKER) -> pb.BaseCommand:
    command = Command(type=Command.CONNECT)
    command.connect.client_version, command.connect.protocol_version = "hostile", 21
    command.connect.auth_method_name, command.connect.auth_data = "token", token(role).encode()
    return command


ALWAYS = {
    "size 0": struct.pack(">II", 0, 0),
    "size -1": struct.pack(">iI", -1, 8) + bytes(8),
    "size 2^31": struct.pack(">II", 1 << 31, 8) + bytes(8),
    "size over the limit": struct.pack(">II", OVER_ALL_LIMITS, 8) + bytes(8),
    "command size -1": struct.pack(">Ii", 100, -1) + bytes(100),
    "command size over its frame's": struct.pack(">II", 20, 100) + bytes(100),
    "unknown type": raw(b"\x08\xac\x02"),
    "type 0": raw(b"\x08\x00"),
    "no type": raw(b"\x92\x01\x00"),
    "no protobuf": raw(b"\xff" * 30),
    "deep groups": raw(b"\x08\x12\x92\x01\x00" + b"\x5b" * 30_000),
    "deep message ids": nested_message_ids(300),
    "huge varint": raw(b"\x08" + b"\xff" * 30_000),
    "text that is not UTF-8": text_command(b"\xff" * 30),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(160),
}
"""These end the connection before a login and after it."""


@pytest.mark.parametrize("role", [None, ATTACKER], ids=["before", "after"])
@pytest.mark.parametrize("data", ALWAYS.values(), ids=ALWAYS.keys())
def test_what_is_no_frame_ends_the_connection(
    broker: Secured, connect: Connect, data: bytes, role: str | None
) -> None:
    client = connect(role)
    client.send_bytes(data)
    assert client.closed_within(CLOSE_SECONDS)
    assert logged(broker, client.address, "protocol error, closing")


def test_the_same_in_pieces(connect: Connect) -> None:
    for name, data in ALWAYS.items():
        client = connect(ATTACKER)
        for byte in data[:100]:
            client.send_bytes(bytes([byte]))
        client.send_bytes(data[100:])
        assert client.closed_within(CLOSE_SECONDS), name


# -- before the login --------------------------------------------------------------------------

EARLY = {
    "a frame of 64 KiB and a byte": struct.pack(">II", KIBIBYTES_64 - 3, 8) + bytes(64),
    "a publish": publish(1, 0, b"x"),
    "a PING": ping(),
    "an AUTH_RESPONSE": encode_command(
        Command(
            type=Command.AUTH_RESPONSE,
            authResponse=pb.CommandAuthResponse(
                response=pb.AuthData(auth_method_name="token", auth_data=CANARY.encode())
            ),
        )
    ),
}


@pytest.mark.parametrize("data", EARLY.values(), ids=EARLY.keys())
def test_only_a_connect_may_come_first(connect: Connect, data: bytes) -> None:
    client = connect()
    client.send_bytes(data)
    assert client.closed_within(CLOSE_SECONDS)


def test_a_connect_of_64_kib_is_read(connect: Connect) -> None:
    command = hello()
    command.connect.client_version = ""
    command.connect.client_version = "v" * (KIBIBYTES_64 - 4 - len(encode_command(command)))
    data = encode_command(command)
    assert KIBIBYTES_64 - 8 < len(data) <= KIBIBYTES_64
    client = connect()
    client.send_bytes(data)
    client.take(Command.CONNECTED)


def test_large_frames_are_not_for_those_who_cannot_log_in(connect: Connect) -> None:
    command = hello()
    command.connect.auth_data = (CANARY * 3000).encode()
    client = connect()
    client.send(command)
    client.send_bytes(struct.pack(">II", 1 << 20, 8) + bytes(1 << 20))
    assert client.closed_within(CLOSE_SECONDS)


# -- publishes ---------------------------------------------------------------------------------


def entry_with(head: bytes, payload: bytes = b"x", claimed: int | None = None) -> bytes:
    """An entry whose checksum is right, whatever its metadata are."""
    size = len(head) if claimed is None else claimed
    rest = struct.pack(">I", size) + head + payload
    return b"\x0e\x01" + struct.pack(">I", google_crc32c.value(rest)) + rest


def metadata(**fields: Any) -> bytes:
    given = {"producer_name": "p", "sequence_id": 1, "publish_time": 1, **fields}
    return pb.MessageMetadata(**given).SerializeToString()


PROPERTY = b"\x22\x04\x0a\x00\x12\x00"
ENTRIES: dict[str, Callable[[], bytes]] = {
    "magic 0x0e00": lambda: b"\x0e\x00" + entry_of(b"x")[2:],
    "magic 0x0e02": lambda: b"\x0e\x02" + entry_of(b"x")[2:],
    "only the magic": lambda: b"\x0e\x01",
    "one byte": lambda: b"\x0e",
    "metadata longer than the frame": lambda: entry_with(metadata(), claimed=10_000),
    "metadata of 4 GiB": lambda: entry_with(metadata(), claimed=2**32 - 1),
    "metadata over their limit": lambda: entry_with(
        metadata() + PROPERTY * (2 * VERY_MANY), claimed=None
    ),
    "metadata that are no protobuf": lambda: entry_with(b"\xff" * 100),
    "metadata that lack all fields": lambda: entry_with(b""),
    "metadata with deep groups": lambda: entry_with(metadata() + b"\x5b" * 30_000),
    "a varint without end": lambda: entry_with(metadata() + b"\x10" + b"\xff" * 30_000),
}


@pytest.mark.parametrize("make", ENTRIES.values(), ids=ENTRIES.keys())
def test_an_entry_that_nobody_could_read_is_never_stored(
    broker: Secured, connect: Connect, target: str, make: Callable[[], bytes]
) -> None:
    client = connect(ATTACKER)
    client.producer(target)
    client.send_bytes(send_frame(send_command(1, 0), make()))
    with pytest.raises((Closed, Refused)):
        client.receipt()
    assert broker.admin().get(f"/{target.replace('://', '/')}/stats")["msgInCounter"] == 0


def test_a_wrong_checksum_is_told_and_the_producer_goes_on(connect: Connect, target: str) -> None:
    client = connect(ATTACKER)
    client.producer(target)
    entry = bytearray(entry_of(b"x" * 100))
    entry[-1] ^= 1
    client.send_bytes(send_frame(send_command(1, 0), bytes(entry)))
    with pytest.raises(Refused) as refused:
        client.receipt()
    assert refused.value.code == pb.ChecksumError
    client.publish(b"good", sequence_id=1)


def test_very_many_properties_are_delivered_as_they_came(connect: Connect, target: str) -> None:
    client = connect(ATTACKER)
    client.producer(target)
    entry = entry_with(metadata() + PROPERTY * VERY_MANY)
    client.send_bytes(send_frame(send_command(1, 0), entry))
    client.receipt()
    client.subscribe(target, "s")
    assert client.message().entry == entry


def test_a_producer_with_very_many_properties(connect: Connect, target: str) -> None:
    pairs = b"\x32\x04\x0a\x00\x12\x00" * VERY_MANY
    body = body_of(Command.PRODUCER, field(1, target.encode()) + b"\x10\x01\x18\x01" + pairs)
    client = connect(ATTACKER)
    client.send_bytes(raw(body))
    refused = client.take(Command.ERROR).error
    assert (refused.request_id, str(VERY_MANY) in refused.message) == (1, True)
    client.producer(target)


def test_text_that_is_not_utf8_in_metadata_is_delivered_as_it_came(
    connect: Connect, target: str
) -> None:
    """Some clients allow any bytes as a key."""
    client = connect(ATTACKER)
    client.producer(target)
    entry = entry_with(metadata() + field(6, b"\xff\xfe"))
    client.send_bytes(send_frame(send_command(1, 0), entry))
    client.receipt()
    client.subscribe(target, "s")
    assert client.message().entry == entry


def test_a_client_may_be_slow_to_the_byte(connect: Connect, target: str) -> None:
    client = connect()
    for byte in encode_command(hello()):
        client.send_bytes(bytes([byte]))
    client.take(Command.CONNECTED)
    client.producer(target)
    for byte in publish(1, 5, b"slow"):
        client.send_bytes(bytes([byte]))
    client.receipt()


def test_a_frame_that_is_cut_is_never_stored(
    broker: Secured, connect: Connect, target: str
) -> None:
    client = connect(ATTACKER)
    client.producer(target)
    client.publish(b"whole")
    client.send_bytes(publish(1, 1, b"cut" * 10_000)[:-1])
    client.close()
    with WireClient(broker.broker_port, token=token(ATTACKER)) as reader:
        reader.subscribe(target, "s")
        assert reader.message().payload == b"whole"
        with pytest.raises(TimeoutError):
            reader.message(timeout=0.3)
