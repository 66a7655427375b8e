"""What is to be sealed of a ledger. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class SealRange:
    """Entries of a ledger that are to be sealed, both ends included."""

    partition: int
    ledger_id: int
    first: int
    last: int
    size: int = 0
    """Bytes of the entries, about."""

    def within(self, size: int) -> SealRange:
        """Its beginning, about ``size`` bytes of it, one entry at least."""
        if self.size <= size:
            return self
        count = max(1, (self.last - self.first + 1) * size // self.size)
        return replace(self, last=self.first + count - 1, size=size)

    def cut(self, size: int) -> Iterator[SealRange]:
        """The range in pieces of about ``size`` bytes."""
        rest = self
        while rest.size > size and rest.last > rest.first:
            piece = rest.within(size)
            yield piece
            if piece.last == self.last:
                return
            rest = replace(rest, first=piece.last + 1, size=rest.size - piece.size)
        yield rest
