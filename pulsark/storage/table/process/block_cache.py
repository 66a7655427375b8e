"""Runs of consecutive entries that are kept in memory, found by any entry of theirs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

ENTRY_OVERHEAD_BYTES: Final = 100

Entries = list[tuple[int, bytes]]
Source = TypeVar("Source", bound=Hashable)


class Blocks(Generic[Source]):
    """The blocks that were used last, up to a number of bytes, and the newest ``least`` anyway.

    A block is found by its source, which is where its entries' ids come from. For one thread.
    """

    def __init__(self, max_bytes: int, least: int, most: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._least = least
        self._most = most
        self._bytes = 0
        self._found: OrderedDict[tuple[Source, int], Entries] = OrderedDict()
        self._sizes: dict[tuple[Source, int], int] = {}
        self._used: set[tuple[Source, int]] = set()
        """Since the unused ones were dropped last."""

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[tuple[Source, int]]:
        """Source and first entry of each block."""
        return iter(self._found)

    def with_entry(self, source: Source, entry_id: int) -> Entries | None:
        """The block with an entry, if it is here."""
        for key, block in self._found.items():
            if key[0] == source and block[0][0] <= entry_id <= block[-1][0]:
                self._found.move_to_end(key)
                self._used.add(key)
                return block
        return None

    def keep(self, source: Source, block: Entries) -> None:
        """Keep a block, in place of older ones."""
        key = source, block[0][0]
        self.drop(*key)
        self._found[key] = block
        self._used.add(key)
        self._sizes[key] = sum(len(entry) + ENTRY_OVERHEAD_BYTES for _, entry in block)
        self._bytes += self._sizes[key]
        while len(self._found) > self._least and self._are_many():
            self.drop(*next(iter(self._found)))

    def _are_many(self) -> bool:
        if self._most is not None and len(self._found) > self._most:
            return True
        return self._bytes > self._max_bytes

    def drop(self, source: Source, first: int) -> None:
        """Forget the block of a source that begins with an entry, if it is here."""
        key = source, first
        if self._found.pop(key, None) is not None:
            self._bytes -= self._sizes.pop(key)
            self._used.discard(key)

    def drop_unused(self) -> None:
        """Forget the blocks that were not asked for since this was called last."""
        for key in [key for key in self._found if key not in self._used]:
            self.drop(*key)
        self._used.clear()

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()
        self._sizes.clear()
        self._used.clear()
        self._bytes = 0
