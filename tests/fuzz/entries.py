"""Entries that a client could publish: proper ones, and ones that only look like it."""

from __future__ import annotations

import struct
from random import Random

import google_crc32c

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.compression import compress
from tests.fuzz.values import fill, fill_field

KEYS = ("a", "b", "c", "", "k" * 80)
PAYLOAD_BYTES = (0, 1, 7, 100, 100, 100, 4000, 70_000)
NOW_MS = 1_790_000_000_000
COMPRESSIONS = (pb.NONE, pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY)


def make(rng: Random, producer_name: str, sequence_id: int, wildness: float) -> tuple[bytes, int]:
    """The bytes of an entry, and how many messages its SEND should claim. ``wildness`` is the
    share of entries that no client library would send."""
    metadata = pb.MessageMetadata(
        producer_name=producer_name, sequence_id=sequence_id, publish_time=NOW_MS
    )
    if rng.random() < 0.5:
        metadata.partition_key = rng.choice(KEYS)
    count, payload = 1, rng.randbytes(rng.choice(PAYLOAD_BYTES))
    if rng.random() < 0.4:
        count = rng.choice((1, 2, 3, 10, 100))
        metadata.num_messages_in_batch = count
        payload = _batch(rng, sequence_id, count, wildness)
    kind = rng.choice(COMPRESSIONS)
    if kind != pb.NONE:
        metadata.compression, metadata.uncompressed_size = kind, len(payload)
        payload = compress(kind, payload)
    if rng.random() < wildness:
        _bend(rng, metadata)
    data = _checked(metadata.SerializePartialToString(), payload)
    if rng.random() < wildness / 10:  # a checksum that is wrong, a payload that is cut
        data = data[: rng.randrange(6, len(data))] if rng.random() < 0.5 else data[:-1] + b"\0"
    return data, count


def _bend(rng: Random, metadata: pb.MessageMetadata) -> None:
    """Some fields get values that no client library would send."""
    if rng.random() < 0.1:
        metadata.Clear()
        fill(rng, metadata)
        return
    for _ in range(rng.choice((1, 1, 2, 4))):
        field = rng.choice(metadata.DESCRIPTOR.fields)
        if not field.is_required or field.name == "publish_time":
            fill_field(rng, metadata, field)


def _checked(head: bytes, payload: bytes) -> bytes:
    rest = struct.pack(">I", len(head)) + head + payload
    return b"\x0e\x01" + struct.pack(">I", google_crc32c.value(rest)) + rest


def _batch(rng: Random, sequence_id: int, count: int, wildness: float) -> bytes:
    pieces = []
    for index in range(count):
        payload = rng.randbytes(rng.choice((0, 3, 20, 20, 200)))
        single = pb.SingleMessageMetadata(
            sequence_id=(sequence_id + index) & (2**64 - 1), payload_size=len(payload)
        )
        if rng.random() < 0.3:
            single.partition_key = rng.choice(KEYS)
        if rng.random() < 0.1:
            single.null_value = True
        if rng.random() < wildness / 10:
            fill_field(rng, single, rng.choice(single.DESCRIPTOR.fields))
        if rng.random() < wildness / 100:
            single.ClearField("payload_size")
        head = single.SerializePartialToString()
        pieces += (struct.pack(">I", len(head)), head, payload)
    batch = b"".join(pieces)
    fault = rng.random() / wildness
    if fault < 0.1:  # a message whose head is empty
        return struct.pack(">I", 0) + batch
    if fault < 0.2:
        return batch[: rng.randrange(len(batch) + 1)]
    if fault < 0.3:
        return batch + rng.randbytes(9)
    if fault < 0.4:
        return rng.randbytes(len(batch))
    return batch
