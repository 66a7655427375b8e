"""Erasing messages from entries. Pure.

An entry keeps its place and its number. One of which nothing is left becomes a *marker*, which is
never delivered; it keeps producer, sequence ids and publish time, by which deduplication and
searches by time go, and nothing that its sender said. A batch of which something is left keeps
its members in their places: those that were erased are empty and marked as ``compacted_out``, and
the marker type on a batch tells dispatch to look for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pulsark.errors import ProtocolError
from pulsark.limits import DECOMPRESSED_BYTES_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch, read_messages
from pulsark.wire.entry import ERASED_MARKER, EntryHeader, build_entry, key_bytes, parse_entry

Indexes = Collection[int] | None
"""Batch indexes of messages; ``None`` is the whole entry."""

ErasedIds = Mapping[int, Mapping[int, Indexes]]
"""What is to be erased: ledger ids, entry ids, batch indexes."""


def without(entry: bytes, indexes: Indexes) -> bytes:
    """The entry without these messages; the same bytes if they are not in it (any more).

    What cannot be taken apart (encrypted, damaged) goes as a whole.
    """
    try:
        header = parse_entry(entry)
    except ProtocolError:
        return _marker(pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=1))
    if header.marker:
        return entry
    if not header.batched or header.metadata.encryption_keys:
        return _nothing_left(header, header.metadata.highest_sequence_id)
    try:
        members = _members(entry)
    except ProtocolError:
        return _nothing_left(header, header.metadata.highest_sequence_id)
    left = [
        i
        for i, (single, _) in enumerate(members)
        if not single.compacted_out and indexes is not None and i not in indexes
    ]
    if not left:
        highest = max((single.sequence_id for single, _ in members), default=0)
        return _nothing_left(header, max(highest, header.metadata.highest_sequence_id))
    if len(left) == sum(not single.compacted_out for single, _ in members):
        return entry
    return _with_holes(header.metadata, members, left)


def holes_of(entry: bytes) -> list[int]:
    """Batch indexes of an entry's members that are gone; none if it cannot be looked into."""
    try:
        return [i for i, (single, _) in enumerate(_members(entry)) if single.compacted_out]
    except ProtocolError:
        return []


def count(erased: ErasedIds) -> tuple[int, int]:
    """How many ids there are, and of how many entries."""
    entries = [indexes for ledger in erased.values() for indexes in ledger.values()]
    return sum(1 if indexes is None else len(indexes) for indexes in entries), len(entries)


def erased_ids(ids: Iterable[tuple[int, int, int]]) -> dict[int, dict[int, set[int] | None]]:
    """``ErasedIds`` of (ledger, entry, batch index), where -1 is the whole entry."""
    found: dict[int, dict[int, set[int] | None]] = {}
    for ledger_id, entry_id, index in ids:
        ledger = found.setdefault(ledger_id, {})
        if index < 0:
            ledger[entry_id] = None
        else:
            known = ledger.setdefault(entry_id, set())
            if known is not None:
                known.add(index)
    return found


def _members(entry: bytes) -> list[tuple[pb.SingleMessageMetadata, bytes]]:
    members = []
    for single, payload in read_messages(entry, DECOMPRESSED_BYTES_MAX):
        if single is None:
            raise ProtocolError("no batch")
        members.append((single, payload))
    return members


def _nothing_left(header: EntryHeader, highest: int) -> bytes:
    kept = pb.MessageMetadata(
        producer_name=header.producer_name,
        sequence_id=header.sequence_id,
        publish_time=header.publish_time,
    )
    if highest > header.sequence_id:
        kept.highest_sequence_id = highest
    return _marker(kept)


def nothing(time_ms: int) -> bytes:
    """A marker that replaces an entry of which no copy is left."""
    return _marker(pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=time_ms))


def _marker(kept: pb.MessageMetadata) -> bytes:
    kept.marker_type = ERASED_MARKER
    return build_entry(kept, b"")


def _with_holes(
    given: pb.MessageMetadata,
    members: list[tuple[pb.SingleMessageMetadata, bytes]],
    left: list[int],
) -> bytes:
    metadata = pb.MessageMetadata()
    metadata.CopyFrom(given)
    metadata.marker_type = ERASED_MARKER
    # A batch has those of its first message, if any: it may be gone.
    metadata.ClearField("properties")
    first = members[left[0]][0]
    if given.HasField("partition_key") and key_bytes(given) not in {
        key_bytes(members[i][0]) for i in left
    }:
        _copy(first, metadata, "partition_key", "partition_key_b64_encoded", "null_partition_key")
    if given.HasField("ordering_key") and given.ordering_key not in {
        members[i][0].ordering_key for i in left
    }:
        _copy(first, metadata, "ordering_key")
    kept = set(left)
    rest = [
        member if i in kept else (pb.SingleMessageMetadata(compacted_out=True), b"")
        for i, member in enumerate(members)
    ]
    return build_batch(metadata, rest, given.compression)


def _copy(source: pb.SingleMessageMetadata, target: pb.MessageMetadata, *fields: str) -> None:
    for field in fields:
        if source.HasField(field):
            setattr(target, field, getattr(source, field))
        else:
            target.ClearField(field)
