"""What a client can see of an entry: two entries with equal views are one message to it."""

from __future__ import annotations

from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from pulsark.errors import ProtocolError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import read_messages
from pulsark.wire.entry import checksum_ok, entry_payload, parse_entry
from pulsark.wire.text_fields import as_bytes

LIMIT = 256 << 20
COMPRESSION = pb.MessageMetadata.COMPRESSION_FIELD_NUMBER


def client_view(entry: bytes) -> Any:
    """Comparable by ``==``. What clients cannot read is compared byte by byte."""
    try:
        head = parse_entry(entry) if checksum_ok(entry) else None
    except ProtocolError:
        head = None
    if head is None:
        return entry
    metadata = pb.MessageMetadata()
    metadata.CopyFrom(head.metadata)
    try:
        if head.marker:
            raise ProtocolError("a marker is for brokers, byte by byte")
        messages = list(read_messages(entry, LIMIT))
    except ProtocolError:
        return metadata.SerializeToString(), entry_payload(entry)
    if head.metadata.num_chunks_from_msg > 1:
        return metadata.SerializeToString(), messages
    if not any(field.field_number == COMPRESSION for field in UnknownFieldSet(metadata)):
        metadata.ClearField("uncompressed_size")
    metadata.ClearField("compression")
    views = [message_view(head.metadata, single, payload) for single, payload in messages]
    return metadata.SerializeToString(), views


def message_view(
    entry: pb.MessageMetadata, single: pb.SingleMessageMetadata | None, payload: bytes
) -> Any:
    """One message of an entry."""
    if single is None:
        return None if entry.null_value else payload
    if single.compacted_out:
        return "removed"
    rest = pb.SingleMessageMetadata()
    rest.CopyFrom(single)
    for name in (
        "properties", "partition_key", "payload_size", "event_time", "sequence_id",
        "ordering_key",
    ):  # fmt: skip
        rest.ClearField(name)
    flags = [
        (field.name, getattr(rest, field.name))
        for field in rest.DESCRIPTOR.fields
        if field.type == field.TYPE_BOOL
    ]
    return (
        [(as_bytes(item.key), as_bytes(item.value)) for item in single.properties],
        as_bytes(single.partition_key) if single.HasField("partition_key") else None,
        single.ordering_key if single.HasField("ordering_key") else None,
        single.sequence_id if single.HasField("sequence_id") else entry.sequence_id,
        single.event_time,
        flags,
        None if single.null_value else payload,
    )
