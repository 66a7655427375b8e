"""The Arrow cache: the newest entries of each topic, in bounded blocks.

A topic's cache is a window without gaps that ends at its last confirmed entry. Consumers take
single entries out of it; Flight makes Arrow record batches of the same objects when asked
(`flight_server.entry_batch`), so nothing is held twice. Chunks leave oldest first when the
process-wide budget is exceeded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from operator import attrgetter
from typing import TYPE_CHECKING

from pulsark.wire.position import Position

if TYPE_CHECKING:
    from pulsark.dispatch.model.entry import Entry

CHUNK_BYTES = 1 << 20
CHUNK_ENTRIES = 4096
READ_BYTES_MIN = 64 << 10
"""What a subscription may read from storage however little is left for it."""
ENTRY_OVERHEAD_BYTES = 200
"""What the objects around an entry's bytes cost, so that the budget means memory."""


class CacheBlock:
    """Consecutive entries of one ledger."""

    __slots__ = ("entries", "first", "first_entry_id", "ledger_id", "size")

    def __init__(self, ledger_id: int, first_entry_id: int) -> None:
        self.first = Position(ledger_id, first_entry_id)
        """Place of the block's first entry."""
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.entries: list[Entry] = []
        self.size = 0

    @property
    def is_full(self) -> bool:
        """Whether the next entry starts a new block."""
        return self.size >= CHUNK_BYTES or len(self.entries) >= CHUNK_ENTRIES


class CacheBudget:
    """Bytes that all topic caches of a process may hold together."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.at_hand_bytes = 0
        """The part that subscriptions read from storage for consumers that are behind."""
        # Insertion order is age: the oldest block of all topics is at the front.
        self._blocks: OrderedDict[int, tuple[TopicCache, CacheBlock]] = OrderedDict()

    def added(self, size: int) -> None:
        """Account for bytes and make room for them."""
        self.used_bytes += size
        while self.used_bytes > self.max_bytes and self._blocks:
            cache, block = next(iter(self._blocks.values()))
            cache.evict_through(block)

    def at_hand(self, change: int) -> None:
        """Change the number of bytes that subscriptions hold for consumers that are behind."""
        self.at_hand_bytes += change
        if change > 0:
            self.added(change)
        else:
            self.used_bytes += change

    def has_room(self, size: int) -> bool:
        """Whether subscriptions may hold this many more bytes."""
        return self.at_hand_bytes + size <= self.max_bytes // 2

    def read_bytes(self, wanted: int) -> int:
        """How much of that a subscription may read at once: little, once half of all is taken."""
        left = self.max_bytes // 2 - self.at_hand_bytes
        return max(min(wanted, left), min(wanted, READ_BYTES_MIN))

    def block_created(self, cache: TopicCache, block: CacheBlock) -> None:
        """A block begins to fill."""
        self._blocks[id(block)] = (cache, block)

    def removed(self, block: CacheBlock) -> None:
        """A block left its cache."""
        self.used_bytes -= block.size
        self._blocks.pop(id(block), None)


class TopicCache:
    """The newest entries of one topic."""

    def __init__(self, budget: CacheBudget) -> None:
        self._budget = budget
        self._blocks: deque[CacheBlock] = deque()

    def append(self, ledger_id: int, first_entry_id: int, entries: list[Entry], size: int) -> None:
        """Add entries that were just confirmed, ``size`` bytes of them; they follow all others.

        They go into one block, which may become larger than its bound by one run of the journal.
        """
        blocks = self._blocks
        block = blocks[-1] if blocks else None
        if block is None or block.ledger_id != ledger_id or block.is_full:
            block = CacheBlock(ledger_id, first_entry_id)
            blocks.append(block)
            self._budget.block_created(self, block)
        block.entries += entries
        size += ENTRY_OVERHEAD_BYTES * len(entries)
        block.size += size
        self._budget.added(size)

    def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Entry] | None:
        """Entries from the first one at or after ``position``; ``None`` if it may be older
        than the cache. An empty list means that the position is beyond the last entry."""
        blocks = self._blocks
        if not blocks or position < blocks[0].first:
            return None
        index = len(blocks) - 1
        if position < blocks[index].first:  # mostly it is in the last one
            index = bisect_right(blocks, position, key=_first) - 1
        found: list[Entry] = []
        start = 0
        if position.ledger_id == blocks[index].ledger_id:
            start = position.entry_id - blocks[index].first_entry_id
        else:
            index += 1
        while index < len(blocks) and max_entries > 0 and max_bytes > 0:
            block = blocks[index]
            if block.size <= max_bytes:
                part = block.entries[start : start + max_entries]
                found += part
                max_entries -= len(part)
                max_bytes -= block.size
            else:
                for entry in block.entries[start : start + max_entries]:
                    found.append(entry)
                    max_entries -= 1
                    max_bytes -= len(entry.data)
                    if max_bytes <= 0:
                        break
            index += 1
            start = 0
        return found

    def evict_through(self, block: CacheBlock) -> None:
        """Drop a block and everything older: the window must not get gaps."""
        while self._blocks:
            oldest = self._blocks.popleft()
            self._budget.removed(oldest)
            if oldest is block:
                return

    def trim(self, ledger_id: int) -> None:
        """Drop the entries of a ledger and of all before it: they do not exist any more."""
        while self._blocks and self._blocks[0].ledger_id <= ledger_id:
            self._budget.removed(self._blocks.popleft())

    def clear(self) -> None:
        """Drop everything."""
        while self._blocks:
            self._budget.removed(self._blocks.popleft())


_first = attrgetter("first")
