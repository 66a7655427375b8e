"""The payload of a batch: messages one after the other, each with its own metadata.

::

    +--------------+-----------------------+--------------+
    | metadataSize | SingleMessageMetadata | payload      |   as often as the entry's
    | 4            | metadataSize          | payload_size |   num_messages_in_batch says
    +--------------+-----------------------+--------------+

The whole is compressed and encrypted as one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from pulsark.errors import ProtocolError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.compression import compress, decompress
from pulsark.wire.entry import build_entry, entry_payload, parse_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_size = struct.Struct(">I")

Message = tuple[pb.SingleMessageMetadata, bytes]


def encode_batch(messages: Iterable[Message]) -> bytes:
    """The payload of a batch, neither compressed nor encrypted; sets ``payload_size``."""
    pieces: list[bytes] = []
    for metadata, payload in messages:
        metadata.payload_size = len(payload)
        head = metadata.SerializeToString()
        pieces += (_size.pack(len(head)), head, payload)
    return b"".join(pieces)


def decode_batch(payload: bytes, messages: int) -> Iterator[Message]:
    """The given number of messages of a batch, one by one.

    Raises ``ProtocolError`` where the payload holds fewer of them. What follows the last one is
    ignored, as clients do.
    """
    position = 0
    end = len(payload)
    for index in range(messages):
        head = position + 4
        if head > end:
            raise ProtocolError(f"A batch ends before its message {index} of {messages}")
        (size,) = _size.unpack_from(payload, position)
        start = head + size
        if start > end:
            raise ProtocolError(f"Message {index} of a batch has metadata of {size} bytes")
        try:
            metadata = pb.SingleMessageMetadata.FromString(payload[head:start])
        except DecodeError:
            raise ProtocolError(f"Message {index} of a batch has broken metadata") from None
        position = start + metadata.payload_size
        if not start <= position <= end:
            raise ProtocolError(f"Message {index} of a batch has {metadata.payload_size} bytes")
        yield metadata, payload[start:position]


def build_batch(
    metadata: pb.MessageMetadata,
    messages: list[Message],
    compression: pb.CompressionType = pb.NONE,
) -> bytes:
    """An entry with all messages; completes ``metadata`` as a producer does."""
    payload = encode_batch(messages)
    metadata.num_messages_in_batch = len(messages)
    if compression != pb.NONE:
        metadata.compression = compression
        metadata.uncompressed_size = len(payload)
    return build_entry(metadata, compress(compression, payload))


def read_messages(
    entry: bytes, limit: int
) -> Iterator[tuple[pb.SingleMessageMetadata | None, bytes]]:
    """Messages of an entry that is not encrypted; no metadata of its own if it is no batch.

    ``limit`` bounds the payload after decompression, in bytes. A piece of a chunked message
    comes as it is, because only all pieces together can be decompressed.
    """
    header = parse_entry(entry)
    metadata = header.metadata
    payload = entry_payload(entry)
    if metadata.encryption_keys:
        raise ProtocolError("An encrypted payload cannot be read without its key")
    if metadata.num_chunks_from_msg > 1:
        yield None, payload
        return
    payload = decompress(metadata.compression, payload, metadata.uncompressed_size, limit)
    if header.batched:
        yield from decode_batch(payload, header.messages)
    else:
        yield None, payload
