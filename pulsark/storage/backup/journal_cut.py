"""Where to cut a copied journal so that it matches the metadata of one moment.

After a change of the metadata, a bookie writes a record of the store's mark before anything else.
So all that precedes the first mark unknown to a snapshot of the store was written before any later
change: the snapshot knows each ledger in it, and nothing that the snapshot needs was released,
deleted or removed in it. Everything confirmed before the snapshot precedes that mark, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.storage.bookie.index import MARK_LEDGER
from pulsark.storage.bookie.journal_format import (
    GROUP_HEAD_SIZE,
    Kind,
    Snapshot,
    decode_group_head,
    decode_snapshot,
    segment_id_of,
    segment_name,
)
from pulsark.storage.bookie.segment_scan import ScannedRecord, SegmentScan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.runtime import Disk


@dataclass(frozen=True, slots=True)
class Cut:
    """The end of a journal, and the older segments that belong to it."""

    segment_id: int
    size: int
    """Bytes of the last segment."""
    older: dict[int, int]
    """Segments that must be there, and their least sizes."""


def segments_in(disk: Disk, directory: str) -> list[int]:
    """Numbers of the segments in a directory, ascending."""
    found = map(segment_id_of, disk.list(directory))
    return sorted(number for number in found if number is not None)


def newest_mark(disk: Disk, directory: str) -> int:
    """The last mark in a journal, which may be in use; -1 if there is none."""
    while True:
        try:
            return _newest_mark(disk, directory)
        except FileNotFoundError:
            if not segments_in(disk, directory):
                return -1
            # A segment was removed after it was listed: there is a newer one.


def _newest_mark(disk: Disk, directory: str) -> int:
    for segment_id in reversed(segments_in(disk, directory)):
        newest = -1
        for record in _records(disk, directory, segment_id):
            newest = max(newest, _mark(record))
            if record.head.kind == Kind.SNAPSHOT:
                newest = max(newest, _mark_of(decode_snapshot(record.body)))
        if newest >= 0:
            return newest
    return -1


def cut_at(disk: Disk, directory: str, mark: int) -> Cut | None:
    """The end that belongs to a snapshot of the metadata with this mark."""
    for segment_id in reversed(segments_in(disk, directory)):
        cut = _cut_in(disk, directory, segment_id, mark)
        if cut is not None:
            return cut
    return None


def _cut_in(disk: Disk, directory: str, segment_id: int, mark: int) -> Cut | None:
    """The end in a segment, unless the whole of it is later.

    So is one without a record: it was just being made, and only what a segment begins with tells
    which others there are. Where that is damaged, all older ones may be needed.
    """
    path = f"{directory}/{segment_name(segment_id)}"
    size = disk.size(path)
    older: dict[int, int] | None = None
    for record in _records(disk, directory, segment_id):
        if older is None:
            older = {n: 0 for n in segments_in(disk, directory) if n < segment_id}
        if record.head.kind == Kind.SNAPSHOT:
            snapshot = decode_snapshot(record.body)
            if _mark_of(snapshot) > mark:
                return None
            older = {number: least for number, _, least in snapshot.segments}
        elif record.head.kind == Kind.SEGMENT_REMOVED:
            older.pop(record.head.first, None)
        elif _mark(record) > mark:
            size = _group_of(disk, path, record.offset)
            break
    return None if older is None else Cut(segment_id, size, older)


def _records(disk: Disk, directory: str, segment_id: int) -> Iterator[ScannedRecord]:
    scan = SegmentScan(disk, f"{directory}/{segment_name(segment_id)}")
    try:
        for event in scan.read_back():
            if isinstance(event, ScannedRecord):
                yield event
    finally:
        scan.close()


def _mark(record: ScannedRecord) -> int:
    head = record.head
    return head.first if head.kind == Kind.RELEASE and head.ledger_id == MARK_LEDGER else -1


def _mark_of(snapshot: Snapshot) -> int:
    pairs = zip(snapshot.ledger_ids, snapshot.released, strict=True)
    return next((released for ledger_id, released in pairs if ledger_id == MARK_LEDGER), -1)


def _group_of(disk: Disk, path: str, record: int) -> int:
    """Where the group begins whose first record is at this place: a mark is always the first."""
    place = record - GROUP_HEAD_SIZE
    file = disk.open(path)
    try:
        head = decode_group_head(file.read(place, GROUP_HEAD_SIZE), 0, None, place)
    finally:
        file.close()
    assert head is not None, f"{path}: the mark at {record} does not begin a group"
    return place
