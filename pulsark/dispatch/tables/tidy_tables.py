"""What tidying knows of large tables, so that it looks only at what changed. Pure.

Nothing becomes due by itself of a ledger that is *settled*: complete, merged, and without files
that are still to be deleted. It changes when its documents do, or when its topic is trimmed, which
takes ledgers from the beginning.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.wire.topic_name import TopicName

LARGE_LEDGERS: Final = 64
"""A table of fewer ledgers is looked at as a whole each time."""

WHOLE_SECONDS: Final = 86_400.0
"""After this time a table is looked at as a whole again: jobs that died may have left files."""

TABLES_KNOWN_MAX: Final = 1024


class TidyTable:
    """One table; it was looked at as a whole at a time (monotonic)."""

    def __init__(self, now: float, target_bytes: int) -> None:
        self._until = now + WHOLE_SECONDS
        self._target_bytes = target_bytes
        self._settled: dict[int, array[int]] = {}
        """By partition, ascending."""
        self.unsettled: set[int] = set()
        """Ledgers of which something may be due by itself."""

    def is_current(self, now: float, target_bytes: int) -> bool:
        """Whether it needs no look at the whole."""
        return now < self._until and target_bytes == self._target_bytes

    def is_large(self) -> bool:
        """Whether it is worth while to remember it."""
        settled = sum(len(ids) for ids in self._settled.values())
        return settled + len(self.unsettled) > LARGE_LEDGERS

    def add(self, partition: int, ledger_id: int) -> None:
        """A ledger is settled."""
        self.unsettled.discard(ledger_id)
        ids = self._settled.setdefault(partition, array("q"))
        place = bisect_left(ids, ledger_id)
        if place == len(ids) or ids[place] != ledger_id:
            ids.insert(place, ledger_id)

    def partitions(self) -> list[int]:
        """Partitions with settled ledgers."""
        return list(self._settled)

    def trim(self, partition: int, is_gone: Callable[[int], bool]) -> None:
        """Ledgers at the beginning that their topic no longer has become unsettled."""
        ids = self._settled[partition]
        gone = 0
        while gone < len(ids) and is_gone(ids[gone]):
            gone += 1
        self.unsettled.update(ids[:gone])
        del ids[:gone]


class TidyTables:
    """The tables of a broker that were tidied last."""

    def __init__(self) -> None:
        self._tables: OrderedDict[TopicName, TidyTable] = OrderedDict()

    def __contains__(self, base: TopicName) -> bool:
        return base in self._tables

    def pop(self, base: TopicName) -> TidyTable | None:
        """What is known of a table; it is forgotten unless it is put back."""
        return self._tables.pop(base, None)

    def put(self, base: TopicName, table: TidyTable) -> None:
        """Remember a table that was tidied, if it is large."""
        if table.is_large():
            self._tables[base] = table
            while len(self._tables) > TABLES_KNOWN_MAX:
                self._tables.popitem(last=False)
