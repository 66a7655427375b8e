"""The entries of a managed ledger, in one sequence: positions and reads.

A position need not exist: it may be trimmed, or not written yet. A read begins with the first
entry at or after it, and never goes beyond the last confirmed one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.errors import NoSuchLedgerError, StorageError
from pulsark.storage.managed_ledger.time_search import find_by_publish_time
from pulsark.wire.position import EARLIEST, Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.managed_ledger.ledger_list import LedgerInfo, LedgerList


class LedgerView:
    """What a list of ledgers holds. The managed ledger's is live; another one stays as it was.

    A view of a topic that is not loaded is made from its record; of a ledger that the record
    shows as open it has no entries.
    """

    def __init__(self, ledgers: LedgerList, manager: LedgerManager) -> None:
        self._manager = manager
        self._ledgers = ledgers
        self.last_confirmed = ledgers.last()
        """The last entry; of an empty topic the last one trimmed, or (-1, -1)."""

    async def read(
        self, position: Position, max_entries: int, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        """Confirmed entries from ``position`` on, over the borders of ledgers.

        At least one if there is one, whatever ``max_bytes``. Raises ``StorageError`` if the
        first cannot be read now, ``EntrySealedError`` if it lives in the table.
        """
        result: list[tuple[Position, bytes]] = []
        size = 0
        while len(result) < max_entries and (size < max_bytes or not result):
            ledger_id, first = position = self._ledgers.at_or_after(position)
            if position > self.last_confirmed:
                break
            end = self._ledgers.count_of(ledger_id) - 1
            last = min(end, first + max_entries - len(result) - 1)
            try:
                found = await self._manager.read(
                    ledger_id, first, last, max_bytes - size, confirmed=end
                )
            except StorageError as e:
                if isinstance(e, NoSuchLedgerError) and ledger_id not in self._ledgers:
                    continue  # trimmed meanwhile
                if result:
                    break  # the next call meets the error as its first entry
                raise
            if not found:
                break
            result += [(Position(ledger_id, entry_id), entry) for entry_id, entry in found]
            size += sum([len(entry) for _, entry in found])
            position = Position(ledger_id, found[-1][0] + 1)
        return result

    async def is_attached(self, ledger_id: int) -> bool:
        """Whether a ledger came by a bulk publish, as a whole."""
        return (await self._manager.open(ledger_id)).is_attached

    async def sealed_through(self, ledger_id: int) -> int:
        """The last entry of one of its ledgers that lives in the topic's table, -1 without one."""
        return await self._manager.sealed_through(ledger_id)

    async def find_by_publish_time(self, ms: int) -> Position:
        """The first entry published at ``ms`` (epoch) or later, or the position after the last."""
        return await find_by_publish_time(self._ledgers, self.read, ms)

    def first_position(self) -> Position:
        """The first entry; in an empty topic, the position that it will have."""
        return self._ledgers.at_or_after(EARLIEST)

    def next_position(self, position: Position) -> Position:
        """The first entry after ``position``; or else the position after the last entry."""
        last_ledger, last_entry = self.last_confirmed
        ledger_id, entry_id = position
        if ledger_id == last_ledger and -1 <= entry_id < last_entry:
            return Position(ledger_id, entry_id + 1)
        return self._ledgers.after(position)

    def previous_position(self, position: Position) -> Position:
        """The last entry before ``position``; or else the last that was trimmed, or (-1, -1)."""
        return self._ledgers.before(position)

    def valid_position_at_or_after(self, position: Position) -> Position:
        """The first entry that is not before ``position``; or else the position after the last."""
        return self._ledgers.at_or_after(position)

    def position_at(self, index: int) -> Position:
        """The entry with ``index`` entries before it; there must be one."""
        return self._ledgers.at(index)

    def entries_between(self, after: Position, through: Position) -> int:
        """Entries after ``after`` and up to ``through``."""
        return self._ledgers.between(after, through)

    def ledgers(self, first: int = 0) -> list[LedgerInfo]:
        """The ledgers from an id on, oldest first. All at once: see ``each_ledger``."""
        return list(self.each_ledger(first))

    def each_ledger(self, first: int = 0) -> Iterator[LedgerInfo]:
        """The ledgers from an id on, oldest first, as they are at the first step.

        There may be a hundred thousand: walk them ``in_turns`` of the loop.
        """
        for info in self._ledgers.infos(first):
            yield info._replace(size=self.open_bytes) if info.open else info

    def ledger(self, ledger_id: int) -> LedgerInfo | None:
        """One of its ledgers; ``None`` if it is not there (any more)."""
        info = self._ledgers.info(ledger_id)
        return info._replace(size=self.open_bytes) if info is not None and info.open else info

    def newest_ledger(self) -> LedgerInfo | None:
        """The last ledger, if there is any."""
        info = self._ledgers.newest()
        return None if info is None else self.ledger(info.ledger_id)

    @property
    def ledger_count(self) -> int:
        """How many ledgers there are."""
        return len(self._ledgers)

    @property
    def entries(self) -> int:
        """Entries that can be read."""
        return self._ledgers.entries

    @property
    def open_bytes(self) -> int:
        """Bytes of the ledger that is open, as far as they are known here."""
        return 0

    @property
    def total_size(self) -> int:
        """Bytes of all entries, as far as they are known here."""
        return self._ledgers.closed_bytes + self.open_bytes

    def bytes_after(self, position: Position) -> int:
        """Bytes of the entries after a position, about."""
        return self._ledgers.bytes_after(position, self.open_bytes)

    def position_leaving(self, size: int) -> Position:
        """The first position after which are at most ``size`` bytes, about."""
        return self._ledgers.position_leaving(size, self.open_bytes)
