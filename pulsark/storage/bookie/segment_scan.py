"""Reading a segment file from front to back at a start, and telling a torn tail from damage.

Every group was on stable storage before the next one was written. So a group that is not
whole, and has nothing after it, is the one that the crash interrupted: a *torn tail*, never
acknowledged. (A last group that is whole need not have been synced either: a process that was
killed leaves it in the page cache.) A group that is not whole although something was written
after it is *damage*: it had been acknowledged. Something was written after it when the file goes
on behind the end that its head tells, when the head of a later group is found (its magic,
checksum, random epoch and own offset cannot be there by chance), or when a later segment exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from pulsark.storage.bookie.journal_format import (
    CRC_SIZE,
    FORMAT_VERSION,
    GROUP_HEAD_SIZE,
    GROUP_MAGIC,
    SEGMENT_HEAD_SIZE,
    BadRecordError,
    GroupHead,
    RecordHead,
    SegmentHead,
    decode_group_head,
    decode_record_head,
    decode_segment_head,
    decode_table,
    records_checksum,
)
from pulsark.storage.bookie.segment_window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pulsark.runtime import Disk

_SCAN_AHEAD = 1 << 20
_crc32c = google_crc32c.value


class UnknownVersionError(Exception):
    """The file was written by a later version of this program."""


class ScannedRecord(NamedTuple):
    """A record whose head and table are right."""

    head: RecordHead
    offset: int
    """Place of the record in its file."""
    body: bytes
    """The payload of records that have one beside entries; empty for entries."""


@dataclass(frozen=True, slots=True)
class Damage:
    """``[start, end)`` of the file cannot be read; ``tail``: and nothing whole follows."""

    start: int
    end: int
    tail: bool


@dataclass(slots=True)
class _Group:
    records: list[ScannedRecord]
    broken_at: int | None
    """Where in the file the first record is whose head or table is bad."""
    whole: bool
    """Whether every byte of the group is right."""
    corrupt: Sequence[tuple[int, int]] = ()
    """Entries ``(ledger, entry)`` in ``records`` whose payload fails its checksum."""


class SegmentScan:
    """One segment file. ``head`` is ``None`` when its first bytes are bad."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.size = disk.size(path)
        self._file = disk.open(path)
        self._window = Window(self._file, _SCAN_AHEAD)
        decoded = decode_segment_head(self._window.read(0, SEGMENT_HEAD_SIZE))
        if decoded is not None and decoded[0] > FORMAT_VERSION:
            self.close()
            raise UnknownVersionError(f"{path} has version {decoded[0]}")
        self.head: SegmentHead | None = decoded[1] if decoded else None
        self.epoch: int | None = self.head.epoch if self.head else None
        self.max_ledger_id = -1
        """Highest that the group heads mention."""
        self.corrupt: list[tuple[int, int]] = []
        """Entries met, ``(ledger, entry)``, whose payload fails its checksum."""
        self.last_write: int | None = None
        """Where the last group begins that was read, with what was written together with it."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read_back(self, start: int = 0) -> Iterator[ScannedRecord | Damage]:
        """Records from ``start`` (0, or the offset of a group) on, and damaged ranges."""
        position = start
        if start == 0:
            if self.head is None:
                position = self._next_head(0)
                yield Damage(0, position, tail=position >= self.size)
            else:
                position = SEGMENT_HEAD_SIZE
                if self.size <= position:
                    yield Damage(position, self.size, tail=True)  # its snapshot is missing
        while position < self.size:
            head = self._head_at(position)
            if head is None:
                end = self._next_head(position + 1)
                yield Damage(position, end, tail=end >= self.size)
                position = end
                continue
            self.epoch = head.epoch
            end = position + GROUP_HEAD_SIZE + head.body_size
            group = self._group(position, head)
            if not group.whole and end >= self.size:
                yield Damage(position, self.size, tail=True)
                return
            # A segment's head and its first group are one write.
            self.last_write = position if position > SEGMENT_HEAD_SIZE else 0
            yield from self._usable(group, end)
            position = end

    def salvage(self, position: int) -> Iterator[ScannedRecord | Damage]:
        """What is left of the group at ``position``, the last of a segment that is not."""
        head = self._head_at(position)
        if head is None:
            yield Damage(position, self.size, tail=False)
            return
        group = self._group(position, head)
        yield from self._usable(group, self.size)

    def _usable(self, group: _Group, end: int) -> Iterator[ScannedRecord | Damage]:
        self.corrupt += group.corrupt
        yield from group.records
        if group.broken_at is not None:
            # A file that was cut ends before a record whose head is still there.
            yield Damage(min(group.broken_at, end), end, tail=False)

    def _head_at(self, position: int) -> GroupHead | None:
        data = self._window.read(position, GROUP_HEAD_SIZE)
        head = decode_group_head(data, 0, self.epoch, position)
        if head is not None and head.version > FORMAT_VERSION:
            raise UnknownVersionError(f"a group has version {head.version}")
        if head is not None:
            self.max_ledger_id = max(self.max_ledger_id, head.max_ledger_id)
        return head

    def _next_head(self, position: int) -> int:
        """Place of the next group head from ``position`` on; the end of the file if none."""
        while position < self.size:
            data = self._file.read(position, _SCAN_AHEAD)
            found = data.find(GROUP_MAGIC)
            while found >= 0:
                if self._head_at(position + found) is not None:
                    return position + found
                found = data.find(GROUP_MAGIC, found + 1)
            if position + len(data) >= self.size or not data:
                break
            position += max(1, len(data) - len(GROUP_MAGIC) + 1)
        return self.size

    def _group(self, position: int, head: GroupHead) -> _Group:
        start = position + GROUP_HEAD_SIZE
        body = self._window.read(start, head.body_size)
        records: list[ScannedRecord] = []
        record_crcs: list[bytes] = []
        corrupt: list[tuple[int, int]] = []
        at = 0
        try:
            while at < len(body):
                record = decode_record_head(body, at)
                lengths, checksums = decode_table(body, at, record)
                meta_end = at + record.meta_size
                record_crcs.append(body[meta_end - CRC_SIZE : meta_end])
                bad = _bad_payloads(body, meta_end, lengths, checksums)
                corrupt += [(record.ledger_id, record.first + i) for i in bad]
                payload = b"" if record.ledger_id >= 0 or bad else _body(body, at, record)
                if record.ledger_id < 0 and bad:
                    raise BadRecordError("payload checksum differs")
                records.append(ScannedRecord(record, start + at, payload))
                at += record.size
        except BadRecordError:
            return _Group(records, start + at, False, corrupt)
        complete = (
            at == head.body_size
            and len(records) == head.records
            and records_checksum(record_crcs) == head.records_crc
        )
        if at < head.body_size:
            return _Group(records, start + at, False, corrupt)
        if not complete:
            # Whole records of another group in this one's place: none of them can be believed.
            return _Group([], start, False)
        return _Group(records, None, not corrupt, corrupt)


def _body(data: bytes, position: int, head: RecordHead) -> bytes:
    start = position + head.meta_size
    return data[start : start + head.body_size]


def _bad_payloads(
    data: bytes, position: int, lengths: Sequence[int], checksums: Sequence[int]
) -> list[int]:
    """Which of the payloads at ``data[position:]`` fail their checksum."""
    bad = []
    for i, (length, checksum) in enumerate(zip(lengths, checksums, strict=True)):
        end = position + length
        if _crc32c(data[position:end]) != checksum:
            bad.append(i)
        position = end
    return bad
