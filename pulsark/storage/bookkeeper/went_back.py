"""Whether ZooKeeper is older than what bookies have, as after it was restored from a backup.

It would give ids of ledgers a second time: bookies would answer with entries of the former ledger,
refuse its writer as fenced, or mix both. Bookies keep no state of ZooKeeper, but they have the
ledgers that it has forgotten, until their next garbage collection finds that these are not listed.
So they are asked for the ledgers that come next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataError, StorageError
from pulsark.storage.bookie.bookie import LedgerTail

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsark.storage.bookie.bookie import Bookie
    from pulsark.storage.bookkeeper.ids import LedgerIds
    from pulsark.storage.ledger.store import LedgerStore

LEDGERS: Final = 32
"""So many next ones are asked for; those of the lost time may have been empty, or deleted."""
AWAY_SECONDS: Final = 1.0
"""How long a bookie is waited for: others have copies."""


async def check_not_older(ids: LedgerIds, ledgers: LedgerStore, bookies: Iterable[Bookie]) -> None:
    """Raise ``MetadataError`` if a bookie has a ledger whose id is still to be given."""
    first = await ids.upcoming()
    found = await asyncio.gather(*(_first_held(bookie, first) for bookie in bookies))
    for bookie_id, ledger_id in filter(None, found):
        # Another broker may have made it meanwhile, or somebody chooses ids.
        if await ids.upcoming() <= ledger_id and await ledgers.get(ledger_id) is None:
            raise MetadataError(
                f"ZooKeeper went back: bookie {bookie_id} has entries of ledger {ledger_id}, and "
                f"ZooKeeper would give that id to a new one. It is older than the bookies: put its "
                "newer data back. Bookies erase what it does not list, so stop them until then"
            )


async def _first_held(bookie: Bookie, first: int) -> tuple[str, int] | None:
    try:
        async with asyncio.timeout(AWAY_SECONDS):
            await bookie.ready()
            for ledger_id in range(first, first + LEDGERS):
                if await bookie.tail(ledger_id, fence=False) != LedgerTail(-1, -1):
                    return bookie.bookie_id, ledger_id
    except (StorageError, TimeoutError):
        return None
    return None
