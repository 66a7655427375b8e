"""Entries: checksum, metadata, and what a broker must refuse to store."""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import pytest

from pulsark.errors import ProtocolError
from pulsark.limits import FIELDS_COUNTED_BYTES, FIELDS_OF_LARGE_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import (
    build_entry,
    checked_counts,
    checksum_ok,
    chunk_of,
    entry_metadata,
    entry_payload,
    entry_without_checksum,
    key_bytes,
    message_counts,
    parse_entry,
    sticky_key,
)
from pulsark.wire.text_fields import as_bytes, as_text
from tests.support.wire_frames import entry_of


def metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=3, publish_time=9, **fields)


def test_the_checksum_is_crc32c() -> None:
    assert google_crc32c.value(b"123456789") == 0xE3069283


def test_bytes_of_an_entry() -> None:
    entry = build_entry(metadata(), b"payload")
    head = bytes.fromhex("0a0170 1003 1809")
    body = b"\0\0\0\x07" + head + b"payload"
    assert entry == b"\x0e\x01" + google_crc32c.value(body).to_bytes(4, "big") + body


def test_header_of_a_single_message() -> None:
    entry = build_entry(metadata(), b"payload")
    header = parse_entry(entry)
    assert header[:5] == (1, False, 9, 3, "p")
    assert entry[header.payload_offset :] == entry_payload(entry) == b"payload"
    assert not header.marker
    assert header.metadata == entry_metadata(entry) == metadata()


@pytest.mark.parametrize("messages", [1, 100])
def test_header_of_a_batch(messages: int) -> None:
    header = parse_entry(build_entry(metadata(num_messages_in_batch=messages), bytes(600)))
    assert (header.messages, header.batched) == (messages, True)


def test_header_of_a_marker() -> None:
    assert parse_entry(build_entry(metadata(marker_type=pb.TXN_COMMIT), b"")).marker
    assert parse_entry(build_entry(metadata(marker_type=0), b"")).marker


def test_an_entry_without_checksum() -> None:
    entry = build_entry(metadata(), b"payload")
    bare = entry_without_checksum(entry)
    assert bare == entry[6:] == entry_without_checksum(bare)
    assert checksum_ok(bare)
    assert parse_entry(bare)[:5] == parse_entry(entry)[:5]
    assert entry_payload(bare) == b"payload"


def test_any_flipped_bit_is_found() -> None:
    entry = build_entry(metadata(), b"payload")
    assert checksum_ok(entry)
    for bit in range(16, len(entry) * 8):
        changed = bytearray(entry)
        changed[bit // 8] ^= 1 << bit % 8
        assert not checksum_ok(bytes(changed))


def raw(head: bytes, payload: bytes = b"", size: int | None = None) -> bytes:
    return struct.pack(">I", len(head) if size is None else size) + head + payload


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0\0", id="half a size"),
        pytest.param(raw(b""), id="no metadata"),
        pytest.param(raw(b"\x0a\x01p\x10\x03"), id="publish time missing"),
        pytest.param(raw(b"\xff\xff"), id="no protobuf"),
        pytest.param(raw(b"\x0a\x01p\x10\x03\x18\x09", size=8), id="metadata beyond the end"),
        pytest.param(raw(b"\x0a\x01p\x10\x03\x18\x09", size=2**32 - 1), id="metadata of 4 GiB"),
        pytest.param(raw(b"\x0a\x01p\x10\x03\x18\x09\x22\x00"), id="property without a key"),
    ],
)
def test_refused(body: bytes) -> None:
    for entry in (body, b"\x0e\x01" + google_crc32c.value(body).to_bytes(4, "big") + body):
        assert checksum_ok(entry)
        with pytest.raises(ProtocolError):
            parse_entry(entry)


def test_a_magic_without_checksum() -> None:
    assert not checksum_ok(b"\x0e\x01\0\0\0")
    with pytest.raises(ProtocolError):
        parse_entry(b"\x0e\x01\0\0\0")


@pytest.mark.parametrize(
    ("fields", "payload_size"),
    [
        ({"num_messages_in_batch": 0}, 100),
        ({"num_messages_in_batch": -1}, 100),
        ({"num_messages_in_batch": 2**31 - 1}, 100),
        ({"num_messages_in_batch": 3}, 17),
        ({"num_messages_in_batch": 3, "compression": 1, "uncompressed_size": 17}, 100),
    ],
)
def test_a_batch_cannot_claim_more_messages_than_it_has_room_for(
    fields: dict[str, int], payload_size: int
) -> None:
    with pytest.raises(ProtocolError):
        parse_entry(build_entry(metadata(**fields), bytes(payload_size)))


def test_a_compressed_batch_is_judged_by_its_uncompressed_size() -> None:
    fields = metadata(num_messages_in_batch=100, compression=pb.ZSTD, uncompressed_size=600)
    assert parse_entry(build_entry(fields, b"short")).messages == 100


def test_text_that_is_not_utf8_is_kept() -> None:
    head = b"\x0a\x01\xff\x10\x03\x18\x09\x32\x02\xfe\xff"
    header = parse_entry(raw(head))
    assert header.producer_name == "�"
    assert header.metadata.SerializeToString() == head
    assert key_bytes(header.metadata) == b"\xfe\xff"
    assert sticky_key(header.metadata) == b"\xfe\xff"
    assert as_text(header.metadata.partition_key) == "��"
    assert as_bytes(header.metadata.producer_name) == b"\xff"


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, None),
        ({"partition_key": ""}, b""),
        ({"partition_key": "é"}, "é".encode()),
        ({"partition_key": "/wA=", "partition_key_b64_encoded": True}, b"\xff\0"),
        ({"partition_key": "no base64!", "partition_key_b64_encoded": True}, b"no base64!"),
        ({"partition_key": "é", "partition_key_b64_encoded": True}, "é".encode()),
        ({"partition_key": "", "null_partition_key": True}, None),
    ],
)
def test_keys(fields: dict[str, Any], key: bytes | None) -> None:
    assert key_bytes(metadata(**fields)) == key


def test_sticky_keys() -> None:
    assert sticky_key(metadata(partition_key="key", ordering_key=b"order")) == b"order"
    assert sticky_key(metadata(partition_key="key")) == b"key"
    assert sticky_key(metadata()) == b"p-3"


def test_the_test_helper_makes_entries() -> None:
    assert parse_entry(entry_of(b"x", 5, partition_key="k")).sequence_id == 5


def test_what_a_broker_counts() -> None:
    batch = build_entry(metadata(num_messages_in_batch=2), bytes(12))
    chunk = metadata(uuid="p-3", chunk_id=1, num_chunks_from_msg=2, total_chunk_msg_size=9)
    piece = build_entry(chunk, b"x")
    marker = build_entry(metadata(marker_type=1, deliver_at_time=7), b"")
    for entry, counts in [
        (batch, (2, True, False, 0, False)),
        (piece, (1, False, False, 0, True)),
        (marker, (1, False, True, 7, False)),
    ]:
        assert message_counts(entry) == checked_counts(entry) == counts
    assert chunk_of(piece) == ("p-3", True)
    assert chunk_of(batch) is None
    assert chunk_of(build_entry(metadata(num_chunks_from_msg=2), b"x")) is None


def test_properties_may_be_as_large_as_the_message() -> None:
    given = metadata()
    given.properties.add(key="p", value="x" * (4 << 20))
    entry = build_entry(given, b"v")
    assert checked_counts(entry) is not None
    assert parse_entry(entry).metadata == given


@pytest.mark.parametrize("inside", [b"", b"\x6a"])
def test_large_metadata_with_very_many_fields_are_refused_before_they_are_parsed(
    inside: bytes,
) -> None:
    pairs = b"\x22\x04\x0a\x00\x12\x00" * (FIELDS_COUNTED_BYTES // 6 + 1)
    if inside:  # in the metadata of an encryption key
        pairs = pairs.replace(b"\x22", b"\x1a")
        size = bytearray()
        left = len(pairs)
        while left > 127:
            size.append(left & 127 | 128)
            left >>= 7
        pairs = inside + bytes(size) + bytes((left,)) + pairs
    head = metadata().SerializeToString() + pairs
    body = raw(head)
    entry = b"\x0e\x01" + google_crc32c.value(body).to_bytes(4, "big") + body
    with pytest.raises(ProtocolError, match=f"more than {FIELDS_OF_LARGE_MAX} fields"):
        checked_counts(entry)
