"""From the files of a bookie to its index, at a start. Blocking: runs in a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pulsark.storage.bookie.accepted_loss import apply_losses, load_losses, lost_path
from pulsark.storage.bookie.index import BookieIndex, SegmentState
from pulsark.storage.bookie.index_checkpoint import CHECKPOINT_NAME, Checkpoint, load_checkpoint
from pulsark.storage.bookie.journal_format import (
    SEGMENT_HEAD_SIZE,
    Kind,
    Snapshot,
    decode_snapshot,
    segment_id_of,
    segment_name,
)
from pulsark.storage.bookie.reached_note import load_reached
from pulsark.storage.bookie.segment_scan import Damage, ScannedRecord, SegmentScan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsark.runtime import Disk
    from pulsark.storage.bookie.reached_note import Reached


@dataclass(slots=True)
class RecoveryReport:
    """What a start found. ``str`` of it is one line for the log."""

    checkpoint: str = "used"
    """``used``, or why it was not."""
    segments: int = 0
    records: int = 0
    bytes_read: int = 0
    torn: list[tuple[int, int]] = field(default_factory=list)
    """``(segment, bytes)`` cut off: the group that the crash interrupted."""
    damaged: list[tuple[int, int, int]] = field(default_factory=list)
    """``(segment, start, end)`` of ranges that were durable and cannot be read any more."""
    corrupt: list[tuple[int, int, int]] = field(default_factory=list)
    """``(segment, ledger, entry)`` of payloads that fail their checksum."""
    lost: list[int] = field(default_factory=list)
    """Segments of which an operator gave up what cannot be read."""
    unknown_files: list[str] = field(default_factory=list)
    """Segment files that the journal does not account for; left alone."""

    @property
    def corrupt_entries(self) -> int:
        """How many entries have a payload that fails its checksum."""
        return len(self.corrupt)

    def __str__(self) -> str:
        text = (
            f"{_counted(self.segments, 'segment')}, {_counted(self.records, 'record')} in "
            f"{_counted(self.bytes_read, 'byte')} read, checkpoint {self.checkpoint}"
        )
        for segment_id, size in self.torn:
            text += f"; torn tail of {size} bytes cut from {segment_name(segment_id)}"
        for segment_id, start, end in self.damaged:
            text += f"; DAMAGED {segment_name(segment_id)} [{start}, {end})"
        if self.corrupt_entries:
            text += f"; {self.corrupt_entries} CORRUPT entries"
        if self.lost:
            text += f"; with losses that were accepted: {', '.join(map(segment_name, self.lost))}"
        if self.unknown_files:
            text += f"; unknown files left alone: {', '.join(self.unknown_files)}"
        return text


@dataclass(slots=True)
class RecoveredJournal:
    """The state to go on from."""

    index: BookieIndex
    report: RecoveryReport
    next_segment_id: int
    instance_id: bytes | None
    """Written in the segment heads; ``None`` if there are no segments."""


class _Recovery:
    def __init__(
        self, disk: Disk, journal_dir: str, checkpoint: Checkpoint | str, reached: Reached | None
    ) -> None:
        self.reached = reached
        self.disk = disk
        self.directory = journal_dir
        self.report = RecoveryReport()
        self.removing: set[int] = set()
        self.removed_torn: set[int] = set()
        """Segments without one whole group, which are gone."""
        self.instance_id: bytes | None = None
        self.start = None
        self.index = BookieIndex()
        self.listed: dict[int, tuple[int, int]] = {}
        """Segments that must exist: id -> (epoch, least size)."""
        if isinstance(checkpoint, str):
            self.report.checkpoint = checkpoint
        else:
            self.start = checkpoint.reached
            self.index = checkpoint.index
            self.removing |= checkpoint.removing
            for s in self.index.segments.values():
                self.listed[s.segment_id] = (s.epoch, s.size)
        self.losses = load_losses(disk, journal_dir)
        names = disk.list(journal_dir)
        self.on_disk = sorted(n for n in map(segment_id_of, names) if n is not None)
        noted = reached.segment_id if reached is not None else 0
        self.highest = max([0, noted, *self.on_disk, *self.listed, *self.removing])

    def path(self, segment_id: int) -> str:
        return f"{self.directory}/{segment_name(segment_id)}"

    def run(self) -> RecoveredJournal:
        known_damage = {(s.segment_id, d) for s in self.segments() for d in s.damaged}
        for segment_id in self.on_disk:
            self.replay(segment_id)
        self.check_listed()
        for segment_id in sorted(self.removing):
            self.disk.remove(self.path(segment_id))
            self.index.segment_removed(segment_id)
        apply_losses(self.index, self.losses)
        self.report.lost = sorted(self.losses.keys() & self.index.segments.keys())
        for segment_id in self.losses.keys() - self.index.segments.keys():
            self.disk.remove(lost_path(self.directory, segment_id))
        self.index.recount()
        for segment in self.segments():
            segment.damaged = _joined(segment.damaged)
            for damage in segment.damaged:
                self.report.damaged.append((segment.segment_id, *damage))
                if (segment.segment_id, damage) not in known_damage:
                    segment.damage_bound = self.index.max_ledger_id
        return RecoveredJournal(self.index, self.report, self.highest + 1, self.instance_id)

    def segments(self) -> list[SegmentState]:
        return list(self.index.segments.values())

    def replay(self, segment_id: int) -> None:
        offset = 0
        if self.start is not None:
            if segment_id < self.start.segment_id:
                if segment_id not in self.index.segments and segment_id not in self.removing:
                    self.report.unknown_files.append(segment_name(segment_id))
                return
            if segment_id == self.start.segment_id:
                offset = self.start.offset
        self.report.segments += 1
        scan = SegmentScan(self.disk, self.path(segment_id))
        try:
            self.replay_scan(segment_id, scan, offset)
        finally:
            scan.close()

    def replay_scan(self, segment_id: int, scan: SegmentScan, offset: int) -> None:
        if scan.head is not None:
            self.instance_id = scan.head.instance_id
        state = self.index.segments.get(segment_id)
        if state is None:
            state = SegmentState(segment_id, scan.epoch or 0, SEGMENT_HEAD_SIZE)
            self.index.segments[segment_id] = state
        state.size = scan.size
        self.report.bytes_read += max(0, scan.size - offset)
        seen = offset > 0
        for event in scan.read_back(offset):
            if isinstance(event, ScannedRecord):
                seen = True
                self.apply(segment_id, event)
            elif not event.tail:
                seen = True
                state.damaged.append((event.start, event.end))
            elif segment_id == self.on_disk[-1]:
                self.cut(state, event, seen)
            else:
                self.salvage(state, scan, event)
        if segment_id == self.on_disk[-1] and scan.last_write is not None:
            self.settle(segment_id, scan.last_write)
        state.epoch = scan.epoch or state.epoch
        self.index.max_ledger_id = max(self.index.max_ledger_id, scan.max_ledger_id)
        given_up = self.losses[segment_id].entries if segment_id in self.losses else ()
        self.report.corrupt += [(segment_id, *e) for e in scan.corrupt if e not in given_up]

    def cut(self, state: SegmentState, damage: Damage, seen: bool) -> None:
        """The journal's very end was being written when the process died."""
        path = self.path(state.segment_id)
        self.report.torn.append((state.segment_id, damage.end - damage.start))
        if seen:
            self.disk.truncate(path, damage.start)
            state.size = damage.start
        else:
            self.disk.remove(path)
            self.removed_torn.add(state.segment_id)
            del self.index.segments[state.segment_id]

    def settle(self, segment_id: int, last_write: int) -> None:
        """Make durable what is believed from here on.

        Each group is written after the sync of the one before it. So one write can be unsynced,
        the journal's last one. As soon as the next segment lists it, its loss would be damage.
        """
        if segment_id in self.index.segments:
            self.disk.write_again(self.path(segment_id), last_write)

    def salvage(self, state: SegmentState, scan: SegmentScan, damage: Damage) -> None:
        """The end of a segment that has a successor: it was whole once."""
        for event in scan.salvage(damage.start):
            if isinstance(event, ScannedRecord):
                self.apply(state.segment_id, event)
            else:
                state.damaged.append((event.start, event.end))

    def apply(self, segment_id: int, record: ScannedRecord) -> None:
        head = record.head
        self.report.records += 1
        index = self.index
        if head.kind == Kind.ENTRIES:
            index.add(
                head.ledger_id,
                head.first,
                head.entries,
                head.value,
                segment_id,
                record.offset,
                head.size,
                head.total,
            )
        elif head.kind == Kind.SNAPSHOT:
            self.apply_snapshot(segment_id, decode_snapshot(record.body))
        elif head.kind == Kind.SEGMENT_REMOVED:
            self.removing.add(head.first)
            self.highest = max(self.highest, head.first)
            self.listed.pop(head.first, None)
        else:
            index.apply(head.kind, head.ledger_id, head.first, segment_id)

    def apply_snapshot(self, segment_id: int, snapshot: Snapshot) -> None:
        self.listed = {number: (epoch, size) for number, epoch, size in snapshot.segments}
        self.highest = max([self.highest, *self.listed])
        self.index.merge(snapshot)
        for older in self.segments():
            number = older.segment_id
            if number < segment_id and number not in self.listed and number not in self.on_disk:
                # Its removal was recorded in a segment that has been removed since.
                self.index.segment_removed(number)

    def check_listed(self) -> None:
        """Files that were lost or cut while the bookie was down are damage, not absence."""
        if self.reached is not None and self.reached.segment_id >= max(self.on_disk, default=0):
            # A segment behind it would list it, with its true size.
            segment_id, epoch, size = self.reached
            size = max(size, self.listed.get(segment_id, (epoch, 0))[1])
            self.listed[segment_id] = epoch, size
        for segment_id, (epoch, size) in self.listed.items():
            if segment_id in self.removing:
                continue
            state = self.index.segments.get(segment_id)
            if state is None:
                state = SegmentState(segment_id, epoch, size)
                self.index.segments[segment_id] = state
            is_there = segment_id in self.on_disk and segment_id not in self.removed_torn
            if not is_there or state.epoch != epoch:
                state.damaged = [(0, size)]
            elif (actual := self.disk.size(self.path(segment_id))) < size:
                state.damaged.append((actual, size))
            else:
                continue
            # Later segments list it as it was, so that later starts miss it, too.
            state.epoch, state.size = epoch, size


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges of bytes, so that they do not touch, in order."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def recover_journal(
    disk: Disk, journal_dir: str, ledger_dir: str, instance_id: bytes, *, all_of_it: bool = False
) -> RecoveredJournal:
    """Load the checkpoint, apply the journal after it, cut a torn tail, finish removals.

    What is in the files afterwards is on stable storage, whatever became of the last process.

    ``all_of_it``: look at every group, also at those before the checkpoint. Raises
    ``UnknownVersionError``, ``ConfigError`` and ``OSError``.
    """
    checkpoint: Checkpoint | str = "not asked for"
    if not all_of_it:
        checkpoint = load_checkpoint(disk, f"{ledger_dir}/{CHECKPOINT_NAME}", instance_id)
    reached = load_reached(disk, ledger_dir, instance_id)
    return _Recovery(disk, journal_dir, checkpoint, reached).run()


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
