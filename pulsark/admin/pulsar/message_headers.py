"""One stored entry as an HTTP response: its payload as the body, its metadata as headers. Pure.

Names and forms are those that Pulsar's admin clients read. The payload is decompressed but not
taken apart: a batch is a sequence of messages, each with its own metadata. What cannot be
decompressed here comes as it is stored: encrypted messages, pieces of chunked ones, damaged ones.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from pulsark.errors import ProtocolError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.compression import decompress
from pulsark.wire.entry import EntryHeader, parse_entry
from pulsark.wire.position import Position
from pulsark.wire.text_fields import as_text

_UNSAFE = re.compile(r"[^\x20-\x7e\xa0-\xff]")
_TEXTS = {
    "producer_name": "producer-name",
    "partition_key": "partition-key",
    "replicated_from": "replicated-from",
    "uuid": "uuid",
    "encryption_algo": "encryption-algo",
}
_NUMBERS = {
    "sequence_id": "sequence-id",
    "highest_sequence_id": "highest-sequence-id",
    "uncompressed_size": "uncompressed-size",
    "num_chunks_from_msg": "num-chunks-from-msg",
    "total_chunk_msg_size": "total-chunk-msg-size",
    "chunk_id": "chunk-id",
    "marker_type": "marker-type",
    "txnid_most_bits": "txnid-most-bits",
    "txnid_least_bits": "txnid-least-bits",
}
_PIECES = {
    "num_chunks_from_msg": "PROPERTY-TOTAL-CHUNKS",
    "chunk_id": "PROPERTY-CHUNK-ID",
}
"""A piece of a large message has these as well, because clients look for them."""

_FLAGS = {
    "partition_key_b64_encoded": "partition-key-b64-encoded",
    "null_partition_key": "null-partition-key",
}
_BYTES = {
    "ordering_key": "Base64-ordering-key",
    "schema_version": "Base64-schema-version-b64encoded",
    "encryption_param": "Base64-encryption-param",
}
_TIMES = {
    "publish_time": "publish-time",
    "event_time": "event-time",
    "deliver_at_time": "deliver-at-time",
}


def message_response(
    position: Position, entry: bytes, iso_time: Callable[[int], str], limit: int
) -> tuple[dict[str, str], bytes]:
    """Headers and body; a payload of more than ``limit`` bytes is not decompressed.

    ``ProtocolError`` if the entry itself is damaged.
    """
    header = parse_entry(entry)
    metadata = header.metadata
    payload = entry[header.payload_offset :]
    headers = {"Message-ID": f"{position.ledger_id}:{position.entry_id}"}
    headers.update(_headers(header, iso_time))
    if header.batched:
        headers["num-batch-message"] = str(header.messages)
        headers["batch-size"] = str(len(payload))
    if not metadata.encryption_keys and metadata.num_chunks_from_msg <= 1:
        with suppress(ProtocolError):  # who looks at it may be looking for what is wrong with it
            payload = decompress(metadata.compression, payload, metadata.uncompressed_size, limit)
    return {f"X-Pulsar-{name}": value for name, value in headers.items()}, payload


def shown_bytes(entry: bytes, limit: int) -> int:
    """Return how many bytes the headers and the body of ``message_response`` have at most."""
    said = parse_entry(entry).metadata.uncompressed_size
    return len(entry) + (said if said <= limit else 0)


def _headers(header: EntryHeader, iso_time: Callable[[int], str]) -> Iterator[tuple[str, str]]:
    metadata = header.metadata
    properties = {as_text(p.key): as_text(p.value) for p in metadata.properties}
    yield "PROPERTY", json.dumps(properties)
    yield "Is-Encrypted", str(bool(metadata.encryption_keys)).lower()
    yield "txn-uncommitted", "false"
    if metadata.compression != pb.NONE:
        yield "compression", pb.CompressionType.Name(metadata.compression)
    if metadata.replicate_to:
        yield "replicated-to", ",".join(_safe(as_text(one)) for one in metadata.replicate_to)
    for names, form in (
        (_TEXTS, lambda value: _safe(as_text(value))),
        (_NUMBERS, str),
        (_FLAGS, lambda value: str(value).lower()),
        (_BYTES, lambda value: base64.b64encode(value).decode()),
    ):
        for field, name in names.items():
            if metadata.HasField(field):
                yield name, form(getattr(metadata, field))
    for field, name in _PIECES.items():
        if metadata.num_chunks_from_msg > 1 and metadata.HasField(field):
            yield name, str(getattr(metadata, field))
    for field, name in _TIMES.items():
        if metadata.HasField(field):
            with suppress(ValueError, OverflowError, OSError):  # a client may send any number
                yield name, iso_time(getattr(metadata, field))


def _safe(text: str) -> str:
    """Text that a header can hold: what it cannot, line ends above all, becomes a ``?``."""
    return _UNSAFE.sub("?", text).strip(" ")
