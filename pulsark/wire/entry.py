"""The stored unit: one message or one batch, exactly as the producer sent it.

::

    +--------+---------+--------------+-----------------+-------------+
    | 0x0e01 | CRC-32C | metadataSize | MessageMetadata | payload     |
    | 2      | 4       | 4            | metadataSize    | to the end  |
    +--------+---------+--------------+-----------------+-------------+

The checksum covers all that follows it. Old clients leave magic and checksum out; such an entry
begins with ``metadataSize`` and counts as intact.
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import NamedTuple

import google_crc32c
from google.protobuf.message import DecodeError

from pulsark.errors import ProtocolError
from pulsark.limits import FIELDS_COUNTED_BYTES, FIELDS_OF_LARGE_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.crc import crc32c_from
from pulsark.wire.field_counts import has_more_fields
from pulsark.wire.text_fields import as_bytes, as_text

MAGIC = b"\x0e\x01"
CHECKSUM_END = 6
"""Length of magic and checksum."""

_SINGLE_MESSAGE_BYTES_MIN = 6  # its size, and metadata with nothing but the payload's size

_metadata_size = struct.Struct(">I")
_head = struct.Struct(">HII")  # magic, checksum, metadata size
_MAGIC_NUMBER = 0x0E01
_parse = pb.MessageMetadata.FromString


ERASED_MARKER = 1001
"""``marker_type`` of entries from which messages were erased. Pulsar's own are below 100."""


def is_erased(metadata: pb.MessageMetadata) -> bool:
    """Whether messages of an entry were erased, perhaps all of them."""
    return metadata.HasField("marker_type") and metadata.marker_type == ERASED_MARKER


class Chunk(NamedTuple):
    """One piece of a large message: the message's id, and whether this is its last piece."""

    uuid: str
    is_last: bool


class EntryHeader(NamedTuple):
    """What a broker needs to know of an entry.

    ``messages`` is at least 1; ``batched`` tells whether the payload is a batch, which may have
    one message only. ``publish_time`` is the producer's clock in milliseconds. A ``marker`` is
    for brokers and never delivered; a batch with erased messages is none. The payload
    begins at ``payload_offset`` and goes to the end. Strings inside ``metadata`` may be ``bytes``,
    see ``text_fields``.
    """

    messages: int
    batched: bool
    publish_time: int
    sequence_id: int
    producer_name: str
    payload_offset: int
    marker: bool
    metadata: pb.MessageMetadata


def parse_entry(entry: bytes) -> EntryHeader:
    """Read the head of an entry; ``ProtocolError`` if consumers could not read it."""
    start, payload_offset = _bounds(entry)
    metadata = _parse_metadata(entry[start:payload_offset])
    if not metadata.IsInitialized():
        raise ProtocolError("Message metadata that lack a required field")
    messages = metadata.num_messages_in_batch
    batched = metadata.HasField("num_messages_in_batch")
    if batched:
        _check_batch_size(metadata, messages, len(entry) - payload_offset)
    producer_name = metadata.producer_name
    return EntryHeader(
        messages,
        batched,
        metadata.publish_time,
        metadata.sequence_id,
        producer_name if isinstance(producer_name, str) else as_text(producer_name),
        payload_offset,
        metadata.HasField("marker_type") and not (batched and is_erased(metadata)),
        metadata,
    )


Counts = tuple[int, bool, bool, int, bool]
"""``messages`` and ``batched`` as in ``EntryHeader``; ``marker``, which of a batch says that
messages of it were erased; the time in milliseconds since the epoch before which the message should
not be delivered, 0: at once; whether the entry is a piece of a large message."""


def checked_counts(entry: bytes) -> Counts | None:
    """``message_counts`` of an entry that just arrived; ``None`` if its checksum is wrong.

    Each publish passes here, so all is done in one go.
    """
    if len(entry) < _head.size:
        return message_counts(entry)
    magic, checksum, size = _head.unpack_from(entry)
    if magic != _MAGIC_NUMBER:
        return message_counts(entry)
    if crc32c_from(entry, CHECKSUM_END) != checksum:
        return None
    payload_offset = 10 + size
    if payload_offset > len(entry):
        raise ProtocolError(f"Message metadata of {size} bytes in an entry of {len(entry)}")
    return _counts(entry[10:payload_offset], len(entry) - payload_offset)


def message_counts(entry: bytes) -> Counts:
    """What the dispatcher needs to know of an entry."""
    start, payload_offset = _bounds(entry)
    return _counts(entry[start:payload_offset], len(entry) - payload_offset)


def _counts(head: bytes, payload_size: int) -> Counts:
    if len(head) > FIELDS_COUNTED_BYTES and has_more_fields(
        head, pb.MessageMetadata.DESCRIPTOR, FIELDS_OF_LARGE_MAX
    ):
        raise ProtocolError(
            f"Message metadata of {len(head)} bytes with more than {FIELDS_OF_LARGE_MAX} fields"
        )
    try:
        metadata = _parse(head)
    except DecodeError:
        raise ProtocolError("Message metadata that cannot be parsed") from None
    # A value that is not the default is set: three field reads cost less than ``HasField``.
    if not (metadata.sequence_id and metadata.publish_time and metadata.producer_name) and (
        not metadata.IsInitialized()
    ):
        raise ProtocolError("Message metadata that lack a required field")
    has = metadata.HasField
    if has("num_messages_in_batch"):
        messages = metadata.num_messages_in_batch
        _check_batch_size(metadata, messages, payload_size)
        return messages, True, has("marker_type"), metadata.deliver_at_time, False
    is_chunk = metadata.num_chunks_from_msg > 0
    return 1, False, has("marker_type"), metadata.deliver_at_time, is_chunk


def _check_batch_size(metadata: pb.MessageMetadata, messages: int, payload_size: int) -> None:
    """Raise unless a batch can have that many messages: permits are counted with the number."""
    room = metadata.uncompressed_size if metadata.compression else payload_size
    if messages < 1 or (messages > 1 and messages * _SINGLE_MESSAGE_BYTES_MIN > room):
        raise ProtocolError(f"A batch of {messages} messages in {room} bytes")


def entry_metadata(entry: bytes) -> pb.MessageMetadata:
    """The metadata of an entry."""
    start, payload_offset = _bounds(entry)
    return _parse_metadata(entry[start:payload_offset])


def entry_payload(entry: bytes) -> bytes:
    """The payload of an entry: maybe a batch, compressed, encrypted."""
    return entry[_bounds(entry)[1] :]


def chunk_of(entry: bytes) -> Chunk | None:
    """What an entry says of itself if it is a piece of a large message, else ``None``."""
    metadata = entry_metadata(entry)
    if not all(map(metadata.HasField, ("uuid", "chunk_id", "num_chunks_from_msg"))):
        return None
    is_last = metadata.chunk_id >= metadata.num_chunks_from_msg - 1
    return Chunk(as_text(metadata.uuid), is_last)


def _bounds(entry: bytes) -> tuple[int, int]:
    """Where the metadata begin, and where they end and the payload begins."""
    start = CHECKSUM_END + 4 if entry[:2] == MAGIC else 4
    if len(entry) < start:
        raise ProtocolError(f"An entry of {len(entry)} bytes")
    size: int = _metadata_size.unpack_from(entry, start - 4)[0]
    if start + size > len(entry):
        raise ProtocolError(f"Message metadata of {size} bytes in an entry of {len(entry)}")
    return start, start + size


def _parse_metadata(data: bytes) -> pb.MessageMetadata:
    try:
        return pb.MessageMetadata.FromString(data)
    except DecodeError:
        raise ProtocolError("Message metadata that cannot be parsed") from None


def checksum_ok(entry: bytes) -> bool:
    """Whether an entry has the bytes that the producer sent; true if it has no checksum."""
    if entry[:2] != MAGIC:
        return True
    if len(entry) < CHECKSUM_END:
        return False
    return crc32c_from(entry, CHECKSUM_END) == int.from_bytes(entry[2:CHECKSUM_END], "big")


def build_entry(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """An entry with its checksum, from metadata and the payload in its final form."""
    head = metadata.SerializeToString()
    body = b"".join((_metadata_size.pack(len(head)), head, payload))
    checksum: int = google_crc32c.value(body)
    return b"".join((MAGIC, checksum.to_bytes(4, "big"), body))


def entry_without_checksum(entry: bytes) -> bytes:
    """The entry for clients older than the checksum."""
    return entry[CHECKSUM_END:] if entry[:2] == MAGIC else entry


def key_bytes(metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> bytes | None:
    """The key of a message as its producer gave it; ``None`` without one.

    A key that claims to be base64 and is not stays as it is.
    """
    if not metadata.HasField("partition_key") or metadata.null_partition_key:
        return None
    key = as_bytes(metadata.partition_key)
    if metadata.partition_key_b64_encoded:
        try:
            return base64.b64decode(key, validate=True)
        except binascii.Error:
            return key
    return key


def sticky_key(metadata: pb.MessageMetadata) -> bytes:
    """What Key_Shared hashes: ordering key, else key, else producer and sequence id."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    key = key_bytes(metadata)
    if key is not None:
        return key
    return as_bytes(metadata.producer_name) + f"-{metadata.sequence_id}".encode()
