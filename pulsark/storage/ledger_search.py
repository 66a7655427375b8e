"""Finding an entry by its publish time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pulsark.errors import ProtocolError
from pulsark.storage.ledger_list import LedgerList
from pulsark.storage.position import Position
from pulsark.wire.entry import parse_entry

Read = Callable[[Position, int, int], Awaitable[list[tuple[Position, bytes]]]]
"""``read(position, max_entries, max_bytes)``: entries from the first at or after a position."""

DISORDER_WINDOW = 128
"""Entries before the found place that are looked at one by one."""

_WINDOW_BYTES = 1 << 20


async def find_by_publish_time(ledgers: LedgerList, read: Read, ms: int) -> Position:
    """The first entry published at ``ms`` (epoch) or later, or the place after the last entry.

    Publish times come from the clients' clocks, so they rise only roughly. The binary search
    then ends at one of several places; of the entries shortly before it, the earliest that is
    not older than ``ms`` is taken, so that a seek repeats a few messages rather than skips one.
    Entries that cannot be parsed count as not older, for the same reason.
    """
    low, high = 0, ledgers.entries
    while low < high:
        middle = (low + high) // 2
        if _is_older(await read(ledgers.at(middle), 1, 1), ms):
            low = middle + 1
        else:
            high = middle
    found = ledgers.at(low) if low < ledgers.entries else ledgers.after(ledgers.last())
    return await _earliest_in_window(ledgers, read, ms, low) or found


async def _earliest_in_window(
    ledgers: LedgerList, read: Read, ms: int, end: int
) -> Position | None:
    """The first entry that is not older among the last ones before rank ``end``."""
    rank = max(0, end - DISORDER_WINDOW)
    limit = ledgers.at(end - 1) if end else None
    while limit is not None and rank < end:
        entries = await read(ledgers.at(rank), end - rank, _WINDOW_BYTES)
        for position, entry in entries:
            if position > limit:
                return None
            if not _is_older([(position, entry)], ms):
                return position
        if not entries:
            return None
        rank = ledgers.rank(entries[-1][0]) + 1
    return None


def _is_older(entries: list[tuple[Position, bytes]], ms: int) -> bool:
    """Whether the first entry was published before ``ms``; one that is gone was."""
    if not entries:
        return True
    try:
        return parse_entry(entries[0][1]).publish_time < ms
    except ProtocolError:
        return False
