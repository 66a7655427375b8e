"""Cursors as records of the cursor log (``proto/cursor.proto``), in pieces of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

from pulsark.errors import StorageError
from pulsark.storage.cursor.bitmap import decode_entries, encode_entries, pieces
from pulsark.storage.cursor.state import AckedSet
from pulsark.storage.proto import cursor_pb2 as pb
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyroaring import BitMap

VERSION = 1
RECORD_BYTES = 32 << 10
"""A cursor that needs more than this is written as several records."""
BATCH_BYTES = 32 << 10
"""An entry of the cursor ledger ends once it is this long; one record may exceed it.

Sparse holes take ten milliseconds a hundred KiB, and a snapshot holds the event loop an entry long.
"""

_OVERHEAD = 16
_MASKS_AT_ONCE = 1024


class CursorIdentity(NamedTuple):
    """What never changes about a cursor."""

    cursor_id: int
    topic_id: str
    subscription: str
    created_ms: int


def snapshot_records(
    identity: CursorIdentity, properties: Mapping[str, str], acked: AckedSet
) -> Iterator[pb.Record]:
    """A whole cursor. Merged into nothing, or into an earlier state of it, it is this state."""
    records = ack_records(identity.cursor_id, acked)
    first = next(records)
    first.identity.topic_id = identity.topic_id
    first.identity.subscription = identity.subscription
    first.identity.created_ms = identity.created_ms
    first.properties.values.update(properties)
    yield first
    yield from records


def ack_records(cursor_id: int, acked: AckedSet) -> Iterator[pb.Record]:
    """Acknowledgements, in at least one record; any of them may be merged before any other."""
    record = _ack_record(cursor_id, acked)
    size = 0
    for part in _ledger_parts(acked):
        if size > RECORD_BYTES:
            yield record
            record, size = _ack_record(cursor_id, acked), 0
        record.acks.ledgers.append(part)
        size += part.ByteSize() + _OVERHEAD
    yield record


def property_record(cursor_id: int, properties: Mapping[str, str]) -> pb.Record:
    """All properties of a cursor."""
    record = pb.Record(cursor_id=cursor_id)
    record.properties.SetInParent()
    record.properties.values.update(properties)
    return record


def identity_of(record: pb.Record) -> CursorIdentity:
    """Whom a record with an identity introduces."""
    who = record.identity
    return CursorIdentity(record.cursor_id, who.topic_id, who.subscription, who.created_ms)


def acked_of(acks: pb.Acks) -> AckedSet:
    """The value of one record, to be merged."""
    acked = AckedSet(Position(acks.ledger_id, acks.entry_id), acks.era)
    for part in acks.ledgers:
        ledger_id = part.ledger_id
        if part.acked:
            acked.add_entries(ledger_id, decode_entries(part.acked))
        for entry_id, mask in zip(part.partial, part.masks, strict=True):
            acked.narrow(Position(ledger_id, entry_id), int.from_bytes(mask, "little"))
    return acked


def pack(records: Iterable[pb.Record], time_ms: int) -> Iterator[bytes]:
    """Records as entries of the cursor ledger, written at a time."""
    batch, size = pb.Batch(version=VERSION, time_ms=time_ms), 0
    for record in records:
        batch.records.append(record)
        size += record.ByteSize()
        if size >= BATCH_BYTES:
            yield batch.SerializeToString()
            batch, size = pb.Batch(version=VERSION, time_ms=time_ms), 0
    if size:
        yield batch.SerializeToString()


def pack_snapshot_end(next_cursor_id: int, time_ms: int) -> bytes:
    """The entry that closes a snapshot."""
    end = pb.SnapshotEnd(next_cursor_id=next_cursor_id)
    return pb.Batch(version=VERSION, snapshot_end=end, time_ms=time_ms).SerializeToString()


def unpack(entry: bytes) -> pb.Batch:
    """An entry of the cursor ledger; ``StorageError`` if it cannot be understood."""
    batch = pb.Batch()
    try:
        batch.ParseFromString(entry)
    except DecodeError as error:
        raise StorageError(f"Cursor log: an entry cannot be parsed: {error}") from error
    if batch.version != VERSION:
        raise StorageError(
            f"Cursor log: an entry has format version {batch.version}, this program knows {VERSION}"
        )
    return batch


def _ack_record(cursor_id: int, acked: AckedSet) -> pb.Record:
    record = pb.Record(cursor_id=cursor_id)
    record.acks.era = acked.era
    record.acks.ledger_id, record.acks.entry_id = acked.mark_delete
    return record


def _ledger_parts(acked: AckedSet) -> Iterator[pb.LedgerAcks]:
    for ledger_id in sorted(acked.acked):
        entries: BitMap = acked.acked[ledger_id]
        for piece in pieces(entries):
            yield pb.LedgerAcks(ledger_id=ledger_id, acked=encode_entries(piece))
    for ledger_id in sorted(acked.masks.ledgers):
        yield from _mask_parts(ledger_id, acked.masks.ledgers[ledger_id])


def _mask_parts(ledger_id: int, masks: dict[int, int]) -> Iterator[pb.LedgerAcks]:
    part, size = pb.LedgerAcks(ledger_id=ledger_id), 0
    for entry_id in sorted(masks):
        if size > RECORD_BYTES or len(part.masks) >= _MASKS_AT_ONCE:
            yield part
            part, size = pb.LedgerAcks(ledger_id=ledger_id), 0
        mask = masks[entry_id]
        part.partial.append(entry_id)
        part.masks.append(mask.to_bytes((mask.bit_length() + 7) // 8, "little"))
        size += len(part.masks[-1])
    yield part
