"""Hostile bytes: nothing but ``ProtocolError`` comes out, however the bytes are cut.

Each input is fed whole and in pieces, and both must give the same commands and the same end.
"""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsark.errors import ProtocolError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch, read_messages
from pulsark.wire.entry import build_entry, checksum_ok, key_bytes, parse_entry, sticky_key
from pulsark.wire.frames import FrameDecoder, encode_command, send_frame, split_broker_metadata
from tests.support.wire_frames import entry_of, send_command

LIMIT = 1 << 16
fuzz = settings(max_examples=5 * settings().max_examples)
Events = tuple[list[tuple[bytes, bytes | None]], bool]


def decoded(pieces: list[bytes]) -> Events:
    """What comes out, and whether it ended in an error."""
    decoder = FrameDecoder(LIMIT)
    events: list[tuple[bytes, bytes | None]] = []
    for piece in pieces:
        buffer = decoder.get_buffer()
        buffer[: len(piece)] = piece
        try:
            for command, entry in decoder.buffer_updated(len(piece)):
                assert_usable(command)
                events.append((command.SerializePartialToString(), entry))
        except ProtocolError:
            return events, True
    return events, False


def assert_usable(command: pb.BaseCommand) -> None:
    """A command that comes out has its content, and its strings are strings."""
    field = next(f for f in command.DESCRIPTOR.fields if f.number == command.type)
    assert command.HasField(field.name)
    assert_text(getattr(command, field.name))


def assert_text(message: Any) -> None:
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        for item in values:
            if field.message_type is not None:
                assert_text(item)
            elif field.type == field.TYPE_STRING:
                assert isinstance(item, str)


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def check_stream(data: bytes) -> None:
    whole = decoded([data])
    assert decoded(cut(data, 1)) == whole
    assert decoded(cut(data, 13)) == whole


def valid_stream() -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    subscribe = command.subscribe
    subscribe.topic, subscribe.subscription = "persistent://public/default/topic", "subscription"
    subscribe.subType, subscribe.consumer_id, subscribe.request_id = 1, 1, 1  # type: ignore[assignment]
    subscribe.metadata.add(key="key", value="value")
    ack = pb.BaseCommand(type=pb.BaseCommand.ACK)
    ack.ack.consumer_id, ack.ack.ack_type = 1, pb.CommandAck.Individual
    ack.ack.message_id.add(ledgerId=300, entryId=5, ack_set=[-1, 3])
    return (
        encode_command(command)
        + send_frame(send_command(1, 1), entry_of(b"payload", partition_key="key"))
        + encode_command(ack)
        + send_frame(send_command(1, 2), batch_entry(pb.ZLIB))
    )


def batch_entry(kind: pb.CompressionType) -> bytes:
    messages = [
        (pb.SingleMessageMetadata(payload_size=0, partition_key=f"key{i}"), bytes(i))
        for i in range(5)
    ]
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    return build_batch(metadata, messages, kind)


VALID = valid_stream()
edits = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete"]),
        st.integers(0, 2**16),
        st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x0A, 0x7F, 0x80, 0xFF])),
    ),
    max_size=8,
)


def edited(data: bytes, changes: list[tuple[str, int, int]]) -> bytes:
    result = bytearray(data)
    for kind, place, value in changes:
        place %= len(result) or 1
        if kind == "insert":
            result.insert(place, value)
        elif result and kind == "set":
            result[place] = value
        elif result:
            del result[place]
    return bytes(result)


def test_the_stream_that_is_damaged_is_valid() -> None:
    events, failed = decoded([VALID])
    assert (len(events), failed) == (4, False)


@fuzz
@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    check_stream(data)


@fuzz
@given(edits, st.integers(0, len(VALID)))
def test_damaged_streams(changes: list[tuple[str, int, int]], end: int) -> None:
    check_stream(edited(VALID, changes)[:end])
    check_stream(edited(VALID, changes))


@fuzz
@given(
    st.sampled_from(sorted(pb.BaseCommand.Type.values())),
    st.binary(max_size=60),
    st.sampled_from([b"", b"entry"]),
)
def test_garbage_as_content_of_every_command(kind: int, content: bytes, entry: bytes) -> None:
    field = kind << 3 | 2
    tag = bytes([field]) if field < 128 else bytes([field & 127 | 128, field >> 7])
    body = bytes([8, kind]) + tag + bytes([len(content)]) + content
    check_stream(struct.pack(">II", 4 + len(body) + len(entry), len(body)) + body + entry)


# Fields and values that follow protobuf's grammar get deeper than plain garbage.
varints = st.integers(0, 2**64 - 1).map(
    lambda v: b"".join(bytes([v >> s & 127 | 128]) for s in range(0, 63, 7)) + bytes([v >> 63])
)
texts = st.one_of(st.binary(max_size=8), st.text(max_size=4).map(str.encode))


def field_bytes(number: int, value: bytes | tuple[bytes]) -> bytes:
    if isinstance(value, tuple):
        return bytes([number << 3]) + value[0]
    return bytes([number << 3 | 2, len(value)]) + value


grammar = st.recursive(
    texts,
    lambda inner: (
        st.lists(
            st.builds(field_bytes, st.integers(1, 15), st.one_of(inner, st.tuples(varints))),
            max_size=6,
        )
        .map(b"".join)
        .filter(lambda b: len(b) < 128)
    ),
    max_leaves=12,
)


@fuzz
@given(st.sampled_from(sorted(pb.BaseCommand.Type.values())), grammar)
def test_protobuf_of_another_schema_as_content(kind: int, content: bytes) -> None:
    test_garbage_as_content_of_every_command.hypothesis.inner_test(kind, content, b"")  # type: ignore[attr-defined]


def read_fully(entry: bytes) -> None:
    """Everything that broker and readers do with an entry."""
    checksum_ok(entry)
    try:
        header = parse_entry(entry)
    except ProtocolError:
        return
    assert header.messages >= 1
    assert isinstance(header.producer_name, str)
    assert 0 < header.payload_offset <= len(entry)
    sticky_key(header.metadata)
    try:
        for metadata, payload in read_messages(entry, LIMIT):
            assert len(payload) <= LIMIT
            key_bytes(metadata or header.metadata)
    except ProtocolError:
        return


@fuzz
@given(st.binary(max_size=200))
def test_garbage_as_an_entry(data: bytes) -> None:
    read_fully(data)
    read_fully(b"\x0e\x01" + data)
    read_fully(struct.pack(">I", len(data)) + data)
    try:
        split_broker_metadata(b"\x0e\x02" + data)
    except ProtocolError:
        return


@pytest.mark.parametrize("kind", [pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
@fuzz
@given(changes=edits)
def test_damaged_entries(kind: pb.CompressionType, changes: list[tuple[str, int, int]]) -> None:
    read_fully(edited(batch_entry(kind), changes))


@fuzz
@given(grammar, st.binary(max_size=30))
def test_protobuf_of_another_schema_as_metadata(head: bytes, payload: bytes) -> None:
    required = b"\x0a\x01p\x10\x01\x18\x01"
    read_fully(struct.pack(">I", len(head) + 7) + required + head + payload)


# -- memory ----------------------------------------------------------------------------------


def peak_of(action: Any) -> int:
    """Most bytes that Python had allocated during an action, above what it had before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        action()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def put(decoder: FrameDecoder, data: bytes) -> None:
    decoder.get_buffer()[: len(data)] = data
    assert list(decoder.buffer_updated(len(data))) == []


def test_a_claim_takes_no_memory() -> None:
    decoders = [FrameDecoder(5 << 20) for _ in range(100)]
    start = struct.pack(">II", (5 << 20) - 4, 20) + b"\x08\x06"

    def claim() -> None:
        for decoder in decoders:
            put(decoder, start)

    assert peak_of(claim) < 100 * 1024


def test_an_unfinished_frame_takes_about_what_has_arrived_of_it() -> None:
    decoder = FrameDecoder(5 << 20)
    start = struct.pack(">II", (5 << 20) - 4, 20)

    def trickle() -> None:
        put(decoder, start)
        for _ in range(100):
            put(decoder, bytes(1024))

    assert peak_of(trickle) < 300 * 1024


@pytest.mark.parametrize("kind", [pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_a_claimed_size_over_the_limit_takes_no_memory(kind: pb.CompressionType) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.compression, metadata.uncompressed_size = kind, 2**32 - 1
    entry = build_entry(metadata, b"x" * 50)

    def read() -> None:
        with pytest.raises(ProtocolError):
            list(read_messages(entry, LIMIT))

    read()  # imports the codec
    assert peak_of(read) < 64 * 1024
