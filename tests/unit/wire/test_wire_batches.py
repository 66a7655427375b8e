"""Batches and compressed payloads, made and opened."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import ProtocolError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch, decode_batch, encode_batch, read_messages
from pulsark.wire.compression import compress, decompress
from pulsark.wire.entry import build_entry, parse_entry

LIMIT = 1 << 20
CODECS = [pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY]
ALL = [pb.NONE, *CODECS]


def single(**fields: Any) -> pb.SingleMessageMetadata:
    return pb.SingleMessageMetadata(payload_size=0, **fields)


def metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=3, publish_time=9, **fields)


@given(st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=50)), max_size=10))
def test_batches_come_back(messages: list[tuple[str, bytes]]) -> None:
    payload = encode_batch((single(partition_key=key), value) for key, value in messages)
    found = [(m.partition_key, v) for m, v in decode_batch(payload, len(messages))]
    assert found == messages
    assert list(decode_batch(payload + b"more", len(messages))) == list(
        decode_batch(payload, len(messages))
    )


def test_bytes_of_a_batch() -> None:
    payload = encode_batch([(single(), b"ab"), (single(null_value=True), b"")])
    assert payload == bytes.fromhex("00000002 1802 6162 00000004 1800 4801")


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0\0\0", id="half a size"),
        pytest.param(struct.pack(">I", 2**32 - 1) + b"\x18\x01a", id="metadata of 4 GiB"),
        pytest.param(b"\0\0\0\x03\x18\x01", id="metadata beyond the end"),
        pytest.param(b"\0\0\0\x02\x18\x05abcd", id="payload beyond the end"),
        pytest.param(b"\0\0\0\x02\xff\xffabcd", id="no protobuf"),
        pytest.param(b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01", id="negative size"),
    ],
)
def test_broken_batches(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(decode_batch(payload, 1))


def test_a_batch_with_fewer_messages_than_announced() -> None:
    found = decode_batch(encode_batch([(single(), b"ab")]), 2**31 - 1)
    assert next(found)[1] == b"ab"
    with pytest.raises(ProtocolError):
        next(found)


@pytest.mark.parametrize("kind", ALL)
@given(data=st.one_of(st.binary(max_size=200), st.binary(max_size=20).map(lambda b: b * 200)))
def test_compression_comes_back(kind: pb.CompressionType, data: bytes) -> None:
    assert decompress(kind, compress(kind, data), len(data), LIMIT) == data


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("size", [1, 10, 10_000])
def test_a_wrong_size_is_refused(kind: pb.CompressionType, wrong: int, size: int) -> None:
    with pytest.raises(ProtocolError):
        decompress(kind, compress(kind, bytes(range(200)) * size), 200 * size + wrong, LIMIT)


@pytest.mark.parametrize("kind", ALL)
def test_the_limit_comes_first(kind: pb.CompressionType) -> None:
    data = compress(kind, bytes(1000))
    assert decompress(kind, data, 1000, 1000) == bytes(1000)
    with pytest.raises(ProtocolError, match="limit"):
        decompress(kind, data, 1000, 999)
    if kind != pb.NONE:
        with pytest.raises(ProtocolError, match="limit"):
            decompress(kind, b"", 2**32 - 1, LIMIT)


@pytest.mark.parametrize("kind", CODECS)
def test_a_bomb_does_not_go_off(kind: pb.CompressionType) -> None:
    bomb = compress(kind, bytes(20 << 20))
    for claim in (0, 1, 1000):
        with pytest.raises(ProtocolError):
            decompress(kind, bomb, claim, LIMIT)


@pytest.mark.parametrize("kind", CODECS)
@given(data=st.binary(max_size=100), claim=st.integers(0, 1000))
def test_garbage_is_refused_or_has_the_claimed_size(
    kind: pb.CompressionType, data: bytes, claim: int
) -> None:
    try:
        found = decompress(kind, data, claim, LIMIT)
    except ProtocolError:
        return
    assert len(found) == claim


@pytest.mark.parametrize("kind", CODECS)
def test_truncated_data_is_refused(kind: pb.CompressionType) -> None:
    data = compress(kind, bytes(range(256)) * 4)
    for size in range(0, len(data), 7):
        with pytest.raises(ProtocolError):
            decompress(kind, data[:size], 1024, LIMIT)


def test_an_unknown_compression_type() -> None:
    with pytest.raises(ProtocolError):
        decompress(9, b"", 0, LIMIT)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ALL)
def test_an_entry_with_a_batch(kind: pb.CompressionType) -> None:
    messages = [(single(partition_key=f"k{i}"), bytes([i]) * i) for i in range(20)]
    entry = build_batch(metadata(), messages, kind)
    header = parse_entry(entry)
    assert (header.messages, header.batched) == (20, True)
    assert list(read_messages(entry, LIMIT)) == messages


@pytest.mark.parametrize("kind", ALL)
def test_an_entry_with_one_message(kind: pb.CompressionType) -> None:
    fields = metadata(compression=kind, uncompressed_size=7)
    entry = build_entry(fields, compress(kind, b"payload"))
    assert list(read_messages(entry, LIMIT)) == [(None, b"payload")]


def test_a_piece_of_a_chunked_message_comes_as_it_is() -> None:
    piece = build_entry(metadata(compression=pb.LZ4, num_chunks_from_msg=3, chunk_id=1), b"piece")
    assert list(read_messages(piece, LIMIT)) == [(None, b"piece")]


def test_an_encrypted_entry_is_not_opened() -> None:
    fields = metadata()
    fields.encryption_keys.add(key="k", value=b"wrapped")
    with pytest.raises(ProtocolError):
        list(read_messages(build_entry(fields, b"secret"), LIMIT))
