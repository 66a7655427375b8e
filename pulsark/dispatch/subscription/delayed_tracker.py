"""Which messages are delayed, and until when. Pure: asked with the time, it never waits.

One tracker serves all subscriptions of a topic. What a subscription has still to deliver is not
its business; that a message was acknowledged neither. It is an index of what messages say of
themselves: one that is lost can be made again by reading them.

New positions are in a heap; when that is large it becomes a *bucket*, which hands out its keys in
order of time (`storage.delayed.delayed_pages`: 20 bytes each). Buckets that only memory has
become one with ``pack``, and once that is stored only the page that is next remains in memory.
So memory is one page for each stored bucket, two bytes or less for each position (`positions`),
and a bounded rest.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from pulsark.storage.delayed.delayed_pages import (
    KEY,
    PAGE_KEYS,
    BucketHeader,
    PageInfo,
    info_of,
    pages_of,
)
from pulsark.storage.position_set import PositionSet
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HEAP_KEYS = 4096
"""Positions in the heap, which takes 60 bytes each; more become a bucket."""
BUCKET_KEYS = 16 * HEAP_KEYS
"""The number of positions in memory that is worth storing."""

NEVER_MS = 2**63


class Bucket:
    """Keys in order of time, in pages. Pages that are not in memory can be fetched."""

    __slots__ = ("_infos", "_next", "_offset", "_pages", "bucket_id", "first", "last", "next_ms")

    def __init__(
        self,
        infos: Sequence[PageInfo],
        pages: Sequence[bytes | None],
        first: Position,
        last: Position,
        bucket_id: int = -1,
    ) -> None:
        self._infos = infos
        self._pages = list(pages)
        self._next = 0
        """The page that is handed out from, and ``_offset`` how far."""
        self._offset = 0
        self.bucket_id = bucket_id
        """Where it is stored; -1: nowhere."""
        self.first = first
        """Not above the lowest position."""
        self.last = last
        """Not below the highest."""
        self.next_ms = infos[0].first_ms
        """The earliest time of what was not handed out."""

    @property
    def is_over(self) -> bool:
        """Whether everything was handed out."""
        return self._next == len(self._infos)

    @property
    def count(self) -> int:
        """Positions that were not handed out."""
        rest = sum(info.keys for info in self._infos[self._next :])
        return rest - self._offset // KEY.size

    @property
    def memory_bytes(self) -> int:
        """Memory of the pages that are here."""
        return sum(len(page) for page in self._pages if page is not None)

    def wanted(self) -> tuple[int, PageInfo] | None:
        """The page without which nothing more can be handed out: its index and outline."""
        if self.is_over or self._pages[self._next] is not None:
            return None
        return self._next, self._infos[self._next]

    def give(self, page: bytes) -> None:
        """The page that was wanted."""
        self._pages[self._next] = page

    def drop_pages(self) -> None:
        """Keep only the next one in memory: the others can be fetched."""
        for index in range(self._next + 1, len(self._pages)):
            self._pages[index] = None

    def drop(self) -> None:
        """Hand out nothing more."""
        self._next = len(self._infos)
        self._pages = []
        self.next_ms = NEVER_MS

    def take(self, cutoff_ms: int, limit: int) -> list[tuple[int, int]]:
        """Hand out positions that are due, as far as they are in memory."""
        taken: list[tuple[int, int]] = []
        while self.next_ms <= cutoff_ms and len(taken) < limit:
            page = self._pages[self._next]
            if page is None:
                break
            for key_ms, ledger_id, entry_id in KEY.iter_unpack(memoryview(page)[self._offset :]):
                if key_ms > cutoff_ms or len(taken) == limit:
                    self.next_ms = key_ms
                    break
                taken.append((ledger_id, entry_id))
                self._offset += KEY.size
            else:
                self._pages[self._next] = None
                self._next += 1
                self._offset = 0
                self.next_ms = NEVER_MS if self.is_over else self._infos[self._next].first_ms
        return taken

    def rest(self) -> Iterator[bytes]:
        """Keys that were not handed out. Their pages must be in memory."""
        offset = self._offset
        for page in self._pages[self._next :]:
            assert page is not None
            for start in range(offset, len(page), KEY.size):
                yield page[start : start + KEY.size]
            offset = 0


class DelayedDeliveryTracker:
    """Positions of delayed entries, by delivery time."""

    def __init__(
        self,
        heap_keys: int = HEAP_KEYS,
        bucket_keys: int = BUCKET_KEYS,
        page_keys: int = PAGE_KEYS,
    ) -> None:
        self._heap_keys = heap_keys
        self._bucket_keys = bucket_keys
        self._page_keys = page_keys
        self.positions = PositionSet()
        """Everything that was added and not handed out."""
        self._heap: list[bytes] = []
        self._fresh: list[Bucket] = []
        """Buckets that only memory has."""
        self._stored: list[Bucket] = []

    @property
    def unstored(self) -> int:
        """Positions that only memory has."""
        return len(self._heap) + sum(bucket.count for bucket in self._fresh)

    @property
    def memory_bytes(self) -> int:
        """Memory taken, about."""
        buckets = sum(bucket.memory_bytes for bucket in (*self._fresh, *self._stored))
        return 60 * len(self._heap) + buckets + self.positions.memory_bytes

    def add(self, deliver_at_ms: int, position: tuple[int, int]) -> bool:
        """Track a position, unless it is tracked; says whether there may be much to store."""
        if position in self.positions:
            return False
        self.positions.add(position)
        heappush(self._heap, KEY.pack(deliver_at_ms, *position))
        if len(self._heap) < self._heap_keys:
            return False
        self._fresh.append(self._heap_as_bucket())
        return self.unstored >= self._bucket_keys

    def next_ms(self, cutoff_ms: int) -> int:
        """When something is due next; ``NEVER_MS``: never.

        What is due by ``cutoff_ms`` and has to be fetched is left out: ``missing`` has it.
        """
        times = [bucket.next_ms for bucket in self._fresh]
        times += [b.next_ms for b in self._stored if b.next_ms > cutoff_ms or b.wanted() is None]
        if self._heap:
            times.append(KEY.unpack(self._heap[0])[0])
        return min(times, default=NEVER_MS)

    def due(self, cutoff_ms: int, limit: int) -> tuple[PositionSet, bool]:
        """Hand out positions whose time is not after ``cutoff_ms``.

        About ``limit`` of them at most; says whether that was all there is in memory.
        """
        found: list[tuple[int, int]] = []
        heap = self._heap
        while heap and len(found) < limit:
            key_ms, ledger_id, entry_id = KEY.unpack(heap[0])
            if key_ms > cutoff_ms:
                break
            heappop(heap)
            found.append((ledger_id, entry_id))
        for bucket in (*self._fresh, *self._stored):
            if bucket.next_ms <= cutoff_ms:
                found += bucket.take(cutoff_ms, limit - len(found))
        self._fresh = [bucket for bucket in self._fresh if not bucket.is_over]
        return self.positions.take(PositionSet(found)), len(found) < limit

    def missing(self, cutoff_ms: int) -> list[Bucket]:
        """Stored buckets with something due that has to be fetched."""
        return [b for b in self._stored if b.next_ms <= cutoff_ms and b.wanted() is not None]

    def pop_finished(self) -> list[int]:
        """Ids of stored buckets that are of no more use; they are forgotten here."""
        finished = [bucket.bucket_id for bucket in self._stored if bucket.is_over]
        if finished:
            self._stored = [bucket for bucket in self._stored if not bucket.is_over]
        return finished

    def _heap_as_bucket(self) -> Bucket:
        keys, self._heap = sorted(self._heap), []
        pages = pages_of(keys, self._page_keys)
        positions = [KEY.unpack(key)[1:] for key in keys]
        first, last = Position(*min(positions)), Position(*max(positions))
        return Bucket([info_of(page) for page in pages], pages, first, last)

    # -- what is stored ----------------------------------------------------------------------

    def pack(self) -> tuple[Bucket, list[bytes]] | None:
        """Make one bucket of what only memory has; returns it and its pages.

        It goes on handing out. Do not pack again until it is ``stored``, or could not be.
        """
        merged: list[Bucket] = []
        while self._fresh and sum(bucket.count for bucket in merged) < self._bucket_keys:
            merged.append(self._fresh.pop(0))
        if self._heap and not self._fresh:
            merged.append(self._heap_as_bucket())
        if not merged:
            return None
        keys = sorted(key for bucket in merged for key in bucket.rest())
        pages = pages_of(keys, self._page_keys)
        packed = Bucket(
            [info_of(page) for page in pages],
            pages,
            min(bucket.first for bucket in merged),
            max(bucket.last for bucket in merged),
        )
        self._fresh.insert(0, packed)
        return packed, pages

    def stored(self, bucket: Bucket, bucket_id: int) -> None:
        """A bucket that was packed can be fetched from now on."""
        bucket.bucket_id = bucket_id
        bucket.drop_pages()
        self._fresh = [other for other in self._fresh if other is not bucket]
        self._stored.append(bucket)

    def load(self, bucket_id: int, header: BucketHeader) -> None:
        """Track what a bucket holds that was stored before."""
        nothing: Sequence[bytes | None] = [None] * len(header.pages)
        first, last = header.positions.bounds()
        self._stored.append(Bucket(header.pages, nothing, first, last, bucket_id))
        self.positions.update(header.positions)

    def lost(self, bucket: Bucket) -> PositionSet:
        """A bucket cannot be read: hand out all that it may hold.

        That may be more than is due: who looks at the messages puts the others back.
        """
        bucket.drop()
        return self.positions.take_between(bucket.first, bucket.last)

    # -- less of it --------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget everything."""
        self.positions.clear()
        for bucket in (*self._fresh, *self._stored):
            bucket.drop()
        self._heap, self._fresh = [], []

    def drop_ledgers_below(self, ledger_id: int) -> None:
        """Forget positions of ledgers that are gone."""
        self.positions.drop_ledgers_below(ledger_id)
        for bucket in self._stored:
            if bucket.last.ledger_id < ledger_id:
                bucket.drop()
