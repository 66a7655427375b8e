"""Finding an entry by its publish time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pulsark.errors import ProtocolError
from pulsark.wire.entry import parse_entry
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from pulsark.storage.managed_ledger.ledger_list import LedgerList

Read = Callable[[Position, int, int], Awaitable[list[tuple[Position, bytes]]]]
"""``read(position, max_entries, max_bytes)``: entries from the first at or after a position."""

WINDOW_ENTRIES = 128
"""Consecutive entries whose times tell in which direction to search."""

_WINDOW_BYTES = 1 << 20


async def find_by_publish_time(ledgers: LedgerList, read: Read, ms: int) -> Position:
    """The first entry published at ``ms`` (epoch) or later, or the position after the last entry.

    Publish times come from the clients' clocks, so they rise only roughly, and one client's may be
    wrong by days. The binary search goes on behind a position only if all of the next entries are
    older than ``ms``: clocks that are behind do not lead it past messages of others, and those
    that are ahead make a seek repeat messages rather than skip one. Entries that cannot be parsed
    count as not older, for the same reason.
    """
    low, high = 0, ledgers.entries
    while low < high:
        middle = (low + high) // 2
        if await _first_in_window(ledgers, read, ms, middle) is None:
            low = middle + 1
        else:
            high = middle
    if low < ledgers.entries:
        found = await _first_in_window(ledgers, read, ms, low)
        if found is not None:
            return found
    return ledgers.after(ledgers.last())


async def _first_in_window(ledgers: LedgerList, read: Read, ms: int, rank: int) -> Position | None:
    """The first entry that is not older, among those from a rank on; what is gone is older."""
    for position, entry in await read(ledgers.at(rank), WINDOW_ENTRIES, _WINDOW_BYTES):
        if not _is_older(entry, ms):
            return position
    return None


def _is_older(entry: bytes, ms: int) -> bool:
    """Whether an entry was published before ``ms``."""
    try:
        return parse_entry(entry).publish_time < ms
    except ProtocolError:
        return False
