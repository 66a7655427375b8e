"""What a bookie knows of its ledgers, in memory: state, and where the entries are.

Entries are indexed in *extents*: consecutive entries of a ledger that lie in one piece of a
segment of at most ``EXTENT_BYTES`` (or in one record, if that is larger). An extent costs 32
bytes and is found by binary search; within it the records lead from one to the next, so the
index is small even where every entry came in a record of its own.

Nothing here touches files. What the journal says is applied after it is durable, in order;
applying the same part of a journal twice changes nothing, which is what a checkpoint taken
while the bookie works relies on.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pulsark.storage.bookie.journal_format import Kind, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXTENT_BYTES = 32 * 1024

MARK_LEDGER = -2
"""A ledger without entries whose release watermark is the mark of the metadata store
(``metadata.history``): a number that rises, is in the journal, in each snapshot and in the
checkpoint, and is never taken back."""

_WORDS = 4
_LOW = 0xFFFFFFFF


class Extent(NamedTuple):
    """Entries ``first .. last`` lie in ``length`` bytes at ``offset`` of a segment.

    Those bytes may hold records of other ledgers, and other entries of this one. ``size`` is
    what the entries themselves take, as an estimate for the collector of garbage.
    """

    first: int
    last: int
    segment_id: int
    offset: int
    length: int
    size: int


class IndexedLedger:
    """One ledger. ``words`` packs the extents, four 64-bit words each, ascending, disjoint:
    first entry; entries << 32 | size; segment; offset << 32 | length.
    """

    __slots__ = (
        "confirmed_bytes",
        "fenced",
        "last_confirmed",
        "last_entry",
        "ledger_id",
        "released",
        "words",
    )

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.fenced = False
        self.last_confirmed = -1
        self.confirmed_bytes = -1
        self.released = -1
        self.last_entry = -1
        self.words: array[int] | None = None

    def extents(self, start: int = 0) -> Iterator[Extent]:
        """Extents from the given index on."""
        words = self.words
        if words is None:
            return
        for i in range(start * _WORDS, len(words), _WORDS):
            yield _unpack(words, i)

    def find(self, entry_id: int) -> int:
        """Place of the first extent that ends at or after ``entry_id``."""
        words = self.words
        if words is None:
            return 0
        low, high = 0, len(words) // _WORDS
        while low < high:
            middle = (low + high) // 2
            i = middle * _WORDS
            if words[i] + (words[i + 1] >> 32) > entry_id:
                high = middle
            else:
                low = middle + 1
        return low


def _unpack(words: array[int], i: int) -> Extent:
    first, counts, segment_id, span = words[i : i + _WORDS]
    return Extent(
        first, first + (counts >> 32) - 1, segment_id, span >> 32, span & _LOW, counts & _LOW
    )


def _pack(extent: Extent) -> tuple[int, int, int, int]:
    return (
        extent.first,
        (extent.last - extent.first + 1) << 32 | extent.size,
        extent.segment_id,
        extent.offset << 32 | extent.length,
    )


@dataclass(slots=True)
class SegmentState:
    """One segment file and how much of it is still needed."""

    segment_id: int
    epoch: int
    size: int
    """Bytes of whole groups, from the start of the file."""
    extents: int = 0
    """Extents in the index that point here. Exact once the journal has been recovered: at 0
    nothing here is needed."""
    live: int = 0
    """Bytes that those take, as an estimate."""
    damaged: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of the file that may have held anything."""
    damage_bound: int = -1
    """Ledgers above this cannot have been in the damaged ranges."""


class BookieIndex:
    """The ledgers, tombstones and segments of one bookie."""

    def __init__(self) -> None:
        self.ledgers: dict[int, IndexedLedger] = {}
        self.tombstones: dict[int, int] = {}
        """Deleted ledger -> newest segment that may still hold entries of it."""
        self.segments: dict[int, SegmentState] = {}
        self.max_ledger_id = -1
        """Highest ledger id seen in the whole life of the journal."""
        self._checkpointed = 0

    def state(self, ledger_id: int) -> IndexedLedger:
        """The ledger's state, new if it was not known. Not for one with a tombstone."""
        state = self.ledgers.get(ledger_id)
        if state is None:
            state = self.ledgers[ledger_id] = IndexedLedger(ledger_id)
            if ledger_id > self.max_ledger_id:
                self.max_ledger_id = ledger_id
        return state

    def add(
        self,
        ledger_id: int,
        first: int,
        count: int,
        last_confirmed: int,
        segment_id: int,
        offset: int,
        size: int,
        confirmed_bytes: int = -1,
    ) -> None:
        """A record of entries is durable at this offset."""
        state = self.ledgers.get(ledger_id)
        if state is None:
            if ledger_id in self.tombstones:
                return
            state = self.state(ledger_id)
        if last_confirmed > state.last_confirmed:
            state.last_confirmed = last_confirmed
            state.confirmed_bytes = confirmed_bytes
        if first <= state.last_entry:
            self._add_again(state, first, count, segment_id, offset, size)
            return
        if not count:
            return
        state.last_entry = first + count - 1
        self._push(state, first, count, segment_id, offset, size)

    def _push(
        self, state: IndexedLedger, first: int, count: int, segment_id: int, offset: int, size: int
    ) -> None:
        """Index entries above all that are indexed."""
        words = state.words
        segment = self.segments[segment_id]
        segment.live += size
        if words is None:
            words = state.words = array("Q")
        elif words and words[-2] == segment_id:
            counts, span = words[-3], words[-1]
            length = offset + size - (span >> 32)
            if words[-4] + (counts >> 32) == first and 0 < length <= EXTENT_BYTES:
                words[-3] = counts + (count << 32) + size
                words[-1] = span & ~_LOW | max(length, span & _LOW)
                return
        segment.extents += 1
        words.extend((first, count << 32 | size, segment_id, offset << 32 | size))

    def _add_again(
        self, state: IndexedLedger, first: int, count: int, segment_id: int, offset: int, size: int
    ) -> None:
        """Index entries of which some may be indexed or released: the newest copy counts."""
        last = first + count - 1
        first = max(first, state.released + 1)
        if first > last:
            return
        after = self._cut(state, first, last)
        self._push(state, first, last - first + 1, segment_id, offset, size)
        assert state.words is not None
        for extent in after:
            state.words.extend(_pack(extent))
        state.last_entry = max(state.last_entry, last)

    def _cut(self, state: IndexedLedger, first: int, last: int) -> list[Extent]:
        """Take ``[first, last]`` and all above it out of the index; return what was above."""
        index = state.find(first)
        touched = list(state.extents(index))
        if state.words is not None:
            del state.words[index * _WORDS :]
        above = []
        for extent in touched:
            self._account(extent, -1)
            if extent.first < first:
                below = _part(extent, extent.first, first - 1)
                self._account(below, 1)
                assert state.words is not None
                state.words.extend(_pack(below))
            if extent.last > last:
                rest = _part(extent, max(extent.first, last + 1), extent.last)
                self._account(rest, 1)
                above.append(rest)
        return above

    def _account(self, extent: Extent, sign: int) -> None:
        segment = self.segments.get(extent.segment_id)
        if segment is not None:
            segment.extents += sign
            segment.live += sign * extent.size

    def recount(self) -> None:
        """Count all extents in their segments anew.

        What the counts were while a checkpoint was loaded and the journal was applied again
        means nothing: the checkpoint's ledgers may be newer than its list of segments.
        """
        for segment in self.segments.values():
            segment.extents = segment.live = 0
        for state in self.ledgers.values():
            for extent in state.extents():
                self._account(extent, 1)

    def fence(self, ledger_id: int) -> None:
        """A fence is durable."""
        if ledger_id not in self.tombstones:
            self.state(ledger_id).fenced = True

    def release(self, ledger_id: int, through: int) -> None:
        """A release watermark is durable."""
        if ledger_id in self.tombstones:
            return
        state = self.state(ledger_id)
        if through <= state.released:
            return
        state.released = through
        state.last_entry = max(state.last_entry, through)
        above = self._cut(state, 0, through)
        state.words = array("Q", [w for s in above for w in _pack(s)]) if above else None

    def forget(self, ledger_id: int, entry_id: int, segment_id: int) -> None:
        """Take an entry out that cannot be read, unless it was written again elsewhere."""
        state = self.ledgers.get(ledger_id)
        here = next(iter(self.locate(ledger_id, entry_id, entry_id)), None)
        if state is None or here is None or here.segment_id != segment_id:
            return
        above = self._cut(state, entry_id, entry_id)
        assert state.words is not None
        for extent in above:
            state.words.extend(_pack(extent))
        last = max((extent.last for extent in state.extents()), default=-1)
        state.last_entry = max(last, state.released)

    def delete(self, ledger_id: int, segment_id: int) -> None:
        """A tombstone is durable, in the given segment."""
        state = self.ledgers.pop(ledger_id, None)
        if state is not None:
            for extent in state.extents():
                self._account(extent, -1)
        self.max_ledger_id = max(self.max_ledger_id, ledger_id)
        self.tombstones[ledger_id] = max(segment_id, self.tombstones.get(ledger_id, 0))

    def apply(self, kind: int, ledger_id: int, first: int, segment_id: int) -> None:
        """Apply a record of a segment that holds no entries and no snapshot."""
        if kind == Kind.FENCE:
            self.fence(ledger_id)
        elif kind == Kind.RELEASE:
            self.release(ledger_id, first)
        elif kind == Kind.DELETE:
            self.delete(ledger_id, segment_id)
        elif kind == Kind.SEGMENT_REMOVED:
            self.segment_removed(first)

    def merge(self, snapshot: Snapshot) -> None:
        """A segment's snapshot was read: what it knows of older segments holds."""
        self.max_ledger_id = max(self.max_ledger_id, snapshot.max_ledger_id)
        for ledger_id, segment_id in snapshot.tombstones:
            self.delete(ledger_id, segment_id)
        confirmed = zip(snapshot.last_confirmed, snapshot.confirmed_bytes, strict=True)
        columns = (snapshot.ledger_ids, confirmed, snapshot.released, snapshot.fenced)
        for ledger_id, (last_confirmed, size), released, fenced in zip(*columns, strict=True):
            if ledger_id in self.tombstones:
                continue
            state = self.state(ledger_id)
            if last_confirmed > state.last_confirmed:
                state.last_confirmed, state.confirmed_bytes = last_confirmed, size
            state.fenced = state.fenced or bool(fenced)
            self.release(ledger_id, released)

    def segment_removed(self, segment_id: int) -> None:
        """The segment is gone, or may go."""
        self.segments.pop(segment_id, None)
        self._forget_tombstones()

    def checkpoint_written(self, segment_id: int) -> None:
        """A checkpoint of an offset in this segment is durable: older ones are never loaded."""
        self._checkpointed = segment_id
        self._forget_tombstones()

    def _forget_tombstones(self) -> None:
        """Drop tombstones of which neither a segment nor a checkpoint holds an entry."""
        oldest = min(self._checkpointed, min(self.segments, default=0))
        for ledger_id in [k for k, newest in self.tombstones.items() if newest < oldest]:
            del self.tombstones[ledger_id]

    @property
    def mark(self) -> int:
        """The newest mark of the metadata store that is durable here."""
        state = self.ledgers.get(MARK_LEDGER)
        return state.released if state is not None else -1

    def snapshot(self) -> Snapshot:
        """The state that a new segment begins with."""
        states = self.ledgers.values()
        return Snapshot(
            self.max_ledger_id,
            [(s.segment_id, s.epoch, s.size) for s in self.segments.values()],
            list(self.tombstones.items()),
            array("q", self.ledgers),
            array("q", [s.last_confirmed for s in states]),
            array("q", [s.confirmed_bytes for s in states]),
            array("q", [s.released for s in states]),
            bytes([s.fenced for s in states]),
        )

    def locate(self, ledger_id: int, first: int, last: int) -> Iterable[Extent]:
        """Extents that hold entries of ``[first, last]``, ascending, cut to that range."""
        state = self.ledgers.get(ledger_id)
        if state is None:
            return
        for extent in state.extents(state.find(first)):
            if extent.first > last:
                return
            yield extent._replace(first=max(first, extent.first), last=min(last, extent.last))

    def epochs(self, extents: Iterable[Extent]) -> dict[int, int]:
        """Epochs of the segments that the extents lie in."""
        numbers = {extent.segment_id for extent in extents}
        return {n: self.segments[n].epoch for n in numbers if n in self.segments}

    @property
    def damaged(self) -> bool:
        """Whether some part of the journal could not be read: then absence is never sure."""
        return any(segment.damaged for segment in self.segments.values())

    def in_doubt(self, ledger_id: int) -> bool:
        """Whether a damaged range may have held a record of this ledger."""
        return any(
            segment.damaged and ledger_id <= segment.damage_bound
            for segment in self.segments.values()
        )


def _part(extent: Extent, first: int, last: int) -> Extent:
    """The extent cut to some of its entries, with its share of the size."""
    share = extent.size * (last - first + 1) // (extent.last - extent.first + 1)
    return extent._replace(first=first, last=last, size=share)
