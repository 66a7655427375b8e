"""Reading entries back out of segment files. Runs in a worker thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import google_crc32c

from pulsark.storage.bookie.journal_format import (
    GROUP_HEAD_SIZE,
    GROUP_MAGIC,
    RECORD_OVERHEAD,
    BadRecordError,
    Kind,
    RecordHead,
    decode_group_head,
    decode_record_head,
    decode_table,
)
from pulsark.storage.bookie.segment_window import WINDOW_BYTES, SegmentFiles, Window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pulsark.storage.bookie.index import Extent

MAX_READ_AHEAD = 1 << 20
_PEEK = max(GROUP_HEAD_SIZE, RECORD_OVERHEAD)

_crc32c = google_crc32c.value


@dataclass(slots=True)
class EntryRead:
    """Entries found, ascending, up to ``max_bytes`` of payload (but at least one)."""

    max_bytes: int
    entries: list[tuple[int, bytes]] = field(default_factory=list)
    bytes_read: int = 0
    corrupt: int | None = None
    """The first entry whose bytes cannot be trusted; reading stopped there."""

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self.bytes_read >= self.max_bytes and bool(self.entries)

    def take(self, entry_id: int, payload: bytes, checksum: int) -> bool:
        """Add an entry if its checksum is right; false when reading has to stop."""
        if _crc32c(payload) != checksum:
            self.corrupt = entry_id
            return False
        self.entries.append((entry_id, payload))
        self.bytes_read += len(payload)
        return self.bytes_read < self.max_bytes


def read_entries(
    files: SegmentFiles,
    epochs: Mapping[int, int],
    ledger_id: int,
    extents: Sequence[Extent],
    max_bytes: int,
) -> EntryRead:
    """The entries of these extents. Adjacent extents share one ``pread``.

    ``epochs`` has the epoch of each segment: a payload cannot pass for a group.

    Raises ``FileNotFoundError`` when a segment has been removed since the look-up, ``OSError``
    when the disk fails.
    """
    result = EntryRead(max_bytes)
    window, its_segment = None, -1
    for i, extent in enumerate(extents):
        if window is None or extent.segment_id != its_segment:
            ahead = _ahead(extents, i, max_bytes)
            window = Window(files.file(extent.segment_id), ahead)
            its_segment = extent.segment_id
        epoch = epochs.get(extent.segment_id)
        wanted = _read_extent(window, epoch, ledger_id, extent, result)
        if result.corrupt is None and not result.full and wanted <= extent.last:
            result.corrupt = wanted
        if result.full or result.corrupt is not None:
            break
    return result


def _ahead(extents: Sequence[Extent], start: int, max_bytes: int) -> int:
    """How much to read at once: what is wanted from this segment, within bounds."""
    wanted = sum(s.size for s in extents[start : start + 64])
    return max(WINDOW_BYTES, min(wanted, max_bytes, MAX_READ_AHEAD))


def _read_extent(
    window: Window, epoch: int | None, ledger_id: int, extent: Extent, result: EntryRead
) -> int:
    """Read one extent; the first entry that was not found there or no longer wanted."""
    wanted = extent.first
    position, end = extent.offset, extent.offset + extent.length
    while position < end and wanted <= extent.last:
        data = window.read(position, _PEEK)
        if decode_group_head(data, 0, epoch, position) is not None:
            position += GROUP_HEAD_SIZE
            continue
        try:
            head = decode_record_head(data, 0)
            if position + head.size > end:
                raise BadRecordError("record leaves the extent")
            if head.ledger_id == ledger_id and head.kind == Kind.ENTRIES:
                last = head.first + head.entries - 1
                if head.first <= wanted <= last:
                    wanted = _read_record(window, position, head, wanted, extent.last, result)
                    if result.full or result.corrupt is not None:
                        break
            position += head.size
        except BadRecordError:
            position = _next_group(window, epoch, position + 1, end)
    return wanted


def _next_group(window: Window, epoch: int | None, position: int, end: int) -> int:
    """Place of the next group behind damaged bytes; ``end`` if there is none."""
    data = window.read(position, end - position + GROUP_HEAD_SIZE)
    found = data.find(GROUP_MAGIC)
    while 0 <= found < end - position:
        if decode_group_head(data, found, epoch, position + found) is not None:
            return position + found
        found = data.find(GROUP_MAGIC, found + 1)
    return end


def _read_record(
    window: Window, position: int, head: RecordHead, first: int, last: int, result: EntryRead
) -> int:
    """Take entries ``first .. last`` of one record; the first that was not taken."""
    lengths, checksums = decode_table(window.read(position, head.meta_size), 0, head)
    start = first - head.first
    stop = min(last - head.first + 1, head.entries)
    offset = position + head.meta_size + sum(lengths[:start])
    stop, size = _within(lengths, start, stop, result.max_bytes - result.bytes_read)
    body = window.read(offset, size)
    begin = 0
    for i in range(start, stop):
        end = begin + lengths[i]
        if not result.take(head.first + i, body[begin:end], checksums[i]):
            return head.first + i + 1
        begin = end
    return head.first + stop


def _within(lengths: Sequence[int], start: int, stop: int, budget: int) -> tuple[int, int]:
    """``(stop, bytes)``: as many payloads as reach the budget, at least one."""
    size = 0
    for i in range(start, stop):
        size += lengths[i]
        if size >= budget:
            return i + 1, size
    return stop, size
