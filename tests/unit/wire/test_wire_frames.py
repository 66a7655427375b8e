"""Frames: what is accepted, what is refused, and that the cuts of TCP make no difference."""

from __future__ import annotations

import random
import struct
from itertools import chain
from typing import Any

import pytest

from pulsark.errors import ProtocolError
from pulsark.limits import COMMAND_TEXTS_MAX, FIELDS_COUNTED_BYTES
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import (
    LARGE_FRAME_BYTES,
    LARGE_REST_BYTES,
    NO_REQUEST,
    RECEIVE_BYTES,
    FrameDecoder,
    encode_command,
    message_head,
    send_frame,
    send_receipt,
    split_broker_metadata,
    with_broker_metadata,
)
from tests.support.wire_frames import decode_all, entry_of, publish, received, send_command

Command = pb.BaseCommand
PING = bytes.fromhex("00000009 00000005 0812 920100")


def frame(body: bytes, entry: bytes = b"") -> bytes:
    return struct.pack(">II", len(body) + 4 + len(entry), len(body)) + body + entry


def flow(permits: int) -> bytes:
    command = Command(type=Command.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = 1, permits
    return encode_command(command)


def stream() -> tuple[bytes, list[tuple[int, bytes | None]]]:
    """Frames of several kinds, and what must come out."""
    first, second = entry_of(b"one"), entry_of(b"x" * 300, 1)
    frames = PING + send_frame(send_command(1, 0), first) + flow(5)
    frames += send_frame(send_command(1, 1), second) + PING
    return frames, [(18, None), (6, first), (11, None), (6, second), (18, None)]


def feed(decoder: FrameDecoder, data: bytes) -> list[tuple[pb.BaseCommand, bytes | None]]:
    """As a transport does it: through the buffer that the decoder offers."""
    found = []
    while data:
        buffer = decoder.get_buffer()
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        found += list(decoder.buffer_updated(size))
        data = data[size:]
    return found


def byte_by_byte(data: bytes) -> list[tuple[pb.BaseCommand, bytes | None]]:
    decoder = FrameDecoder(5 << 20)
    return [pair for i in range(len(data)) for pair in feed(decoder, data[i : i + 1])]


def test_ping_is_the_protocols_ping() -> None:
    command = Command(type=Command.PING)
    command.ping.SetInParent()
    assert encode_command(command) == PING


def test_a_stream_in_one_piece() -> None:
    data, expected = stream()
    assert [(c.type, e) for c, e in decode_all(data)] == expected


@pytest.mark.feature("F62")
def test_a_stream_split_at_every_byte() -> None:
    data, expected = stream()
    for cut in range(len(data) + 1):
        decoder = FrameDecoder(1 << 20)
        found = feed(decoder, data[:cut]) + feed(decoder, data[cut:])
        assert [(c.type, e) for c, e in found] == expected


def test_a_stream_byte_by_byte() -> None:
    data, expected = stream()
    assert [(c.type, e) for c, e in byte_by_byte(data)] == expected


@pytest.mark.parametrize("read", [1000, LARGE_REST_BYTES - 1, RECEIVE_BYTES, 1 << 30])
@pytest.mark.parametrize("size", [LARGE_REST_BYTES, RECEIVE_BYTES, 3 * RECEIVE_BYTES + 5])
def test_large_entries(size: int, read: int) -> None:
    large = entry_of(bytes(range(256)) * (size // 256))
    data = PING + send_frame(send_command(1, 0), large) * 2 + PING
    decoder = FrameDecoder(6 << 20)
    found = [p for i in range(0, len(data), read) for p in feed(decoder, data[i : i + read])]
    assert [(c.type, e) for c, e in found] == [(18, None), (6, large), (6, large), (18, None)]
    assert type(found[1][1]) is bytes
    assert decode_all(data) == found


@pytest.mark.parametrize("seed", range(20))
def test_large_and_small_frames_in_reads_of_any_size(seed: int) -> None:
    rng = random.Random(seed)
    data, expected = PING, list[tuple[int, bytes | None]]([(18, None)])
    for _ in range(30):
        size = rng.choice((10, LARGE_FRAME_BYTES - rng.randrange(90), 40_000, LARGE_REST_BYTES))
        entry = entry_of(rng.randbytes(size))
        data += send_frame(send_command(1, 0), entry) + PING * rng.randrange(2)
        expected.append((6, entry))
        if data.endswith(PING):
            expected.append((18, None))
    decoder, found = FrameDecoder(6 << 20), list[tuple[int, bytes | None]]()
    while data:
        size = rng.choice((1, 7, 100, 20_000, 100_000, RECEIVE_BYTES))
        found += [(c.type, e) for c, e in feed(decoder, data[:size])]
        data = data[size:]
    assert found == expected


def test_who_pauses_between_large_frames_loses_nothing_to_others() -> None:
    """All decoders share a buffer, and another connection may read meanwhile."""
    entries = [entry_of(bytes([n]) * 2 * LARGE_FRAME_BYTES) for n in range(4)]
    decoder, other = FrameDecoder(1 << 20), FrameDecoder(1 << 20)
    data = b"".join(send_frame(send_command(1, 0), entry) for entry in entries) + PING
    decoder.get_buffer()[: len(data)] = data
    events = decoder.buffer_updated(len(data))
    other.get_buffer()[: len(data)] = bytes(len(data))
    assert [entry for _, entry in events] == [*entries, None]


@pytest.mark.parametrize("first", [1, 3000, "all of the good one, and 6 bytes"])
def test_a_big_frame_that_is_wrong_comes_after_what_is_before_it(first: int | str) -> None:
    """Its command would be longer than the frame. It is read at once, or in two parts."""
    good = send_frame(send_command(1, 7), entry_of(bytes(20_000)))
    first = first if isinstance(first, int) else len(good) + 6
    data = good + struct.pack(">II", 20_000, 20_001) + bytes(20_000) + good
    decoder = FrameDecoder(1 << 20)
    found = iter(feed(decoder, data[:first]))
    decoder.get_buffer()[: len(data) - first] = data[first:]
    found = chain(found, decoder.buffer_updated(len(data) - first))
    assert next(found)[0].send.sequence_id == 7
    with pytest.raises(ProtocolError, match="command of 20001 bytes"):
        next(found)


def test_what_was_read_stays_when_others_read_before_it_is_used() -> None:
    one, other = FrameDecoder(1 << 20), FrameDecoder(1 << 20)
    data = b"".join(
        send_frame(send_command(1, n), entry_of(bytes([n]) * size))
        for n, size in enumerate((20_000, 10, 30_000))
    )
    one.get_buffer()[: len(data)] = data
    events = one.buffer_updated(len(data))
    buffer = other.get_buffer()
    buffer[:] = bytes(len(buffer))
    assert [entry_of(bytes([n]) * size) for n, size in enumerate((20_000, 10, 30_000))] == [
        entry for _, entry in events
    ]


@pytest.mark.parametrize("read", [9, 1000, RECEIVE_BYTES])
def test_large_commands(read: int) -> None:
    command = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    redeliver = command.redeliverUnacknowledgedMessages
    redeliver.consumer_id = 1
    for i in range(30_000):
        redeliver.message_ids.add(ledgerId=2**40, entryId=i)
    data = encode_command(command) + PING
    assert LARGE_REST_BYTES < len(data) < FIELDS_COUNTED_BYTES
    decoder = FrameDecoder(1 << 20)
    found = feed(decoder, data[:read]) + feed(decoder, data[read:])
    assert found[0] == (command, None)
    assert found[1][0].type == Command.PING


def test_a_large_frame_that_is_wrong() -> None:
    body = bytes(LARGE_REST_BYTES * 2)
    for data in (frame(body), frame(PING[8:], body)):
        with pytest.raises(ProtocolError):
            feed(FrameDecoder(1 << 20), data)
        decoder = FrameDecoder(1 << 20)
        assert feed(decoder, data[:100]) == []
        with pytest.raises(ProtocolError):
            feed(decoder, data[100:])


def test_a_large_frame_that_is_wrong_is_told_where_commands_are_carried_out() -> None:
    """A transport that gets an exception from ``buffer_updated`` ends with a trace in the log."""
    decoder, data = FrameDecoder(1 << 20), frame(bytes(LARGE_REST_BYTES * 2))
    assert feed(decoder, data[:100]) == []
    rest = memoryview(data)[100:]
    while rest:
        buffer = decoder.get_buffer()
        size = min(len(buffer), len(rest))
        buffer[:size], rest = rest[:size], rest[size:]
        events = decoder.buffer_updated(size)
    with pytest.raises(ProtocolError):
        next(events)


def test_decoders_share_the_buffer_and_nothing_else() -> None:
    data, expected = stream()
    decoders = [FrameDecoder(1 << 20) for _ in range(3)]
    found: list[list[tuple[int, bytes | None]]] = [[], [], []]
    for start in range(0, len(data), 7):
        for decoder, events in zip(decoders, found, strict=True):
            events += [(c.type, e) for c, e in feed(decoder, data[start : start + 7])]
    assert found == [expected] * 3


def test_frames_before_a_wrong_one_come_out() -> None:
    decoder = FrameDecoder(1 << 20)
    data = flow(1) + flow(2) + b"\0\0\0\0\0\0\0\0"
    buffer = decoder.get_buffer()
    buffer[: len(data)] = data
    events = decoder.buffer_updated(len(data))
    assert [next(events)[0].flow.messagePermits for _ in range(2)] == [1, 2]
    with pytest.raises(ProtocolError):
        next(events)


def test_the_limit_counts_from_the_next_frame_on() -> None:
    decoder = FrameDecoder(100)
    large = publish(1, 0, bytes(200))
    with pytest.raises(ProtocolError):
        FrameDecoder(100).receive(large)
    data = PING + large
    buffer = decoder.get_buffer()
    buffer[: len(data)] = data
    events = decoder.buffer_updated(len(data))
    next(events)
    decoder.max_frame_size = 1000
    assert next(events)[0].type == Command.SEND


def test_a_frame_of_exactly_the_limit() -> None:
    data = publish(1, 0, bytes(200))
    assert len(FrameDecoder(len(data)).receive(data)) == 1
    with pytest.raises(ProtocolError):
        FrameDecoder(len(data) - 1).receive(data[:4])


@pytest.mark.parametrize("total", [0, 1, 3, 6 << 20, 2**31 - 1, 2**31, 2**32 - 1])
def test_sizes_outside_the_limits_are_refused_by_the_first_four_bytes(total: int) -> None:
    with pytest.raises(ProtocolError):
        FrameDecoder(5 << 20).receive(struct.pack(">I", total))


def body_of(kind: int, **fields: Any) -> bytes:
    return Command(type=kind, **fields).SerializePartialToString()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">II", 8, 5) + bytes(4), id="command larger than the frame"),
        pytest.param(struct.pack(">II", 4, 2**32 - 1), id="command of 4 GiB"),
        pytest.param(frame(b""), id="no command"),
        pytest.param(frame(b"\xff\xff\xff"), id="no protobuf"),
        pytest.param(frame(b"\x08\x12\x92\x01\x7f"), id="sub-message beyond the end"),
        pytest.param(frame(b"\x08" + b"\xff" * 11), id="endless varint"),
        pytest.param(frame(b"\x08\x7f"), id="unknown type"),
        pytest.param(frame(b"\x08\x01"), id="unused type"),
        pytest.param(frame(b"\x92\x01\x00"), id="type missing"),
        pytest.param(frame(body_of(Command.PING)), id="PING without its message"),
        pytest.param(frame(body_of(Command.PING, pong=pb.CommandPong())), id="another's message"),
        pytest.param(frame(body_of(Command.FLOW, flow={"consumer_id": 1})), id="field missing"),
        pytest.param(encode_command(send_command(1, 1)), id="SEND without an entry"),
        pytest.param(frame(PING[8:], b"x"), id="entry after PING"),
        pytest.param(frame(b"\x08\x12\x92\x01\x00" + b"\x5b" * 200), id="deep groups"),
    ],
)
def test_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameDecoder(5 << 20).receive(data)
    with pytest.raises(ProtocolError):
        byte_by_byte(data)


def test_deeply_nested_message_ids_are_refused() -> None:
    inner = b""
    for _ in range(500):
        inner = b"\x08\x01\x10\x01\x3a" + _varint(len(inner)) + inner
    message = b"\x08\x01\x10\x00\x1a" + _varint(len(inner)) + inner
    with pytest.raises(ProtocolError):
        decode_all(frame(b"\x08\x0a\x52" + _varint(len(message)) + message))


def _varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + _varint(value >> 7) if value > 127 else bytes([value])


@pytest.mark.parametrize("inside", ["topic", "metadata"])
def test_text_that_is_not_utf8_is_refused(inside: str) -> None:
    command = Command(type=Command.PRODUCER)
    command.producer.topic = "topic?" if inside == "topic" else "t"
    command.producer.producer_id = command.producer.request_id = 1
    pair = command.producer.metadata.add()
    pair.key, pair.value = "key", "value?"
    good = encode_command(command)
    assert len(decode_all(good)) == 1
    bad = good.replace(b"topic?" if inside == "topic" else b"value?", b"\xff" * 6)
    with pytest.raises(ProtocolError, match="UTF-8"):
        decode_all(bad)


@pytest.mark.parametrize("kind", ["subscribe.metadata", "producer.schema", "lookupTopic"])
def test_a_list_of_very_many_texts_is_refused(kind: str) -> None:
    """A frame has room for 170,000 empty ones, which would keep the event loop busy for long."""
    name = kind.partition(".")[0]
    number = Command.DESCRIPTOR.fields_by_name[name].number
    command = Command(type=number)  # type: ignore[arg-type]
    _fill(getattr(command, name))
    if kind == "producer.schema":
        _fill(command.producer.schema)
        pairs = command.producer.schema.properties
    else:
        message = getattr(command, name)
        pairs = message.metadata if name == "subscribe" else message.properties
    pairs.extend(pb.KeyValue(key="", value="") for _ in range(COMMAND_TEXTS_MAX))
    assert decode_all(encode_command(command)) == [(command, None)]
    pairs.add(key="", value="")
    ((refusal, _),) = decode_all(encode_command(command))
    assert refusal.type == Command.ERROR
    assert refusal.error.request_id == getattr(command, name).request_id
    assert f"{COMMAND_TEXTS_MAX + 1} " in refusal.error.message


def test_an_unknown_field_is_no_error() -> None:
    assert decode_all(frame(PING[8:] + b"\xca\x3e\x03abc"))[0][0].type == Command.PING


def test_every_known_command_passes() -> None:
    for field in Command.DESCRIPTOR.fields:
        if field.message_type is None or field.number in (Command.SEND, Command.MESSAGE):
            continue
        command = Command(type=field.number)  # type: ignore[arg-type]
        _fill(getattr(command, field.name))
        (found,) = decode_all(encode_command(command))
        assert found == (command, None)


def _fill(message: Any) -> None:
    """Set the required fields, and text fields."""
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated or not (field.is_required or field.type == field.TYPE_STRING):
            continue
        if field.message_type is not None:
            _fill(getattr(message, field.name))
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, "text é")
        elif field.type == field.TYPE_BYTES:
            setattr(message, field.name, b"\xff")
        elif field.enum_type is not None:
            setattr(message, field.name, field.enum_type.values[0].number)
        else:
            setattr(message, field.name, 1)


@pytest.mark.parametrize("highest", [None, 0, 7])
def test_receipts(highest: int | None) -> None:
    ((command, entry),) = decode_all(send_receipt(1, 5, highest, 300, 2**40))
    receipt = command.send_receipt
    assert entry is None
    assert (receipt.producer_id, receipt.sequence_id) == (1, 5)
    assert (receipt.message_id.ledgerId, receipt.message_id.entryId) == (300, 2**40)
    assert receipt.HasField("highest_sequence_id") == (highest is not None)
    assert receipt.highest_sequence_id == (highest or 0)


def test_receipt_of_a_duplicate_has_ids_of_minus_one() -> None:
    receipt = decode_all(send_receipt(1, 5, None, -1, -1))[0][0].send_receipt
    assert receipt.message_id.ledgerId == receipt.message_id.entryId == 2**64 - 1


@pytest.mark.parametrize("partition", [-1, 0, 3])
@pytest.mark.parametrize("rare", [(0, None, None), (3, [-1, 5], 0), (0, [], None), (0, None, 9)])
def test_messages(partition: int, rare: tuple[int, list[int] | None, int | None]) -> None:
    redeliveries, ack_set, epoch = rare
    entry = entry_of(b"payload")
    head = message_head(7, 300, 4, partition, redeliveries, ack_set, epoch, len(entry))
    after = message_head(8, 301, 5, -1, 0, None, None, len(entry))
    (first, section), (second, _) = decode_all(head + entry + after + entry)
    assert section is not None
    found = received(first, section)
    message = found.message
    assert found.entry == entry
    assert found.payload == b"payload"
    assert (message.consumer_id, message.message_id.ledgerId) == (7, 300)
    assert (message.message_id.entryId, message.message_id.partition) == (4, partition)
    assert message.redelivery_count == redeliveries
    assert list(message.ack_set) == (ack_set or [])
    assert message.HasField("consumer_epoch") == (epoch is not None)
    # Nothing of one frame is left in the next one.
    expected = pb.CommandMessage(consumer_id=8, message_id={"ledgerId": 301, "entryId": 5})
    assert second.message == expected


def test_broker_metadata_in_front_of_an_entry() -> None:
    entry = entry_of(b"payload")
    metadata = pb.BrokerEntryMetadata(broker_timestamp=5, index=9)
    assert split_broker_metadata(with_broker_metadata(metadata, entry)) == (metadata, entry)
    assert split_broker_metadata(entry) == (None, entry)


@pytest.mark.parametrize(
    "section", [b"\x0e\x02", b"\x0e\x02\0\0\0\x05ab", b"\x0e\x02\0\0\0\x01\xff", b"\x0e\x02" * 3]
)
def test_broken_broker_metadata(section: bytes) -> None:
    with pytest.raises(ProtocolError):
        split_broker_metadata(section)


def test_a_schema_may_be_as_large_as_a_message() -> None:
    command = Command(type=Command.GET_OR_CREATE_SCHEMA)
    request = command.getOrCreateSchema
    request.request_id, request.topic = 7, "t"
    request.schema.name, request.schema.schema_data = "s", bytes(4 << 20)
    request.schema.type = pb.Schema.ProtobufNative
    assert FrameDecoder(5 << 20).receive(encode_command(command)) == [(command, None)]


def test_a_large_request_with_very_many_fields_becomes_the_error_that_answers_it() -> None:
    command = Command(type=Command.ACK)
    command.ack.consumer_id, command.ack.ack_type, command.ack.request_id = 1, 0, 7
    for i in range(120_000):
        command.ack.message_id.add(ledgerId=2**40, entryId=i)
    data = encode_command(command)
    assert len(data) > FIELDS_COUNTED_BYTES
    found = FrameDecoder(5 << 20).receive(data + PING)
    assert [each.type for each, _ in found] == [Command.ERROR, Command.PING]
    assert found[0][0].error.request_id == 7
    assert "fields" in found[0][0].error.message
    command.ack.ClearField("request_id")
    found = FrameDecoder(5 << 20).receive(encode_command(command) + PING)
    assert [each.type for each, _ in found] == [Command.ERROR, Command.PING]
    assert found[0][0].error.request_id == NO_REQUEST


def test_deeply_nested_large_commands_are_refused() -> None:
    inner = bytes(FIELDS_COUNTED_BYTES)
    for _ in range(500):
        inner = b"\x3a" + _varint(len(inner)) + inner
    message = b"\x08\x01\x10\x00\x1a" + _varint(len(inner)) + inner
    with pytest.raises(ProtocolError):
        decode_all(frame(b"\x08\x0a\x52" + _varint(len(message)) + message))
