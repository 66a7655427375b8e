"""Whether bookies and a metadata store belong together, and to the same moment.

The store alone knows what a ledger is part of. With another store, or an earlier state of the
same one, ids of ledgers are used twice: messages of one topic appear in another and overwrite
each other.
So a bookie that has ever been in service is only opened with the store that knows it, and a store
is only used with bookies that have seen nothing later than it has:

* the identity of the store is in the bookie's ``BOOKIE`` files;
* the store has a record of the bookie. The name is stored before the directories are made, so a
  bookie without a record is never one whose first start was interrupted;
* the mark of the store, which goes with every group of the journal, is one that the store knows;
* the counter of ledger ids is above all ids that the bookie has seen.

To *adopt* bookies all the same loses nothing that the store knows if no id that anybody may have
seen is given again, and nothing that the store does not know is deleted. The latter holds anyway:
bookies delete what they are told to. For the former the counter is raised above everything that the
bookies and the tables have seen, and further, for those that are away.

Pure: the caller reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.errors import ConfigError
from pulsark.metadata.history import NONCE_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pulsark.storage.bookie.identity import Identity

WAYS_OUT = (
    "Put the right metadata.db back, or restore a backup into an empty directory (pulsark restore "
    "BACKUP --data-dir DIR). To go on without what this store does not know, start once with "
    "--adopt; nothing is deleted"
)


class OtherStoreError(ConfigError):
    """Bookies belong to another metadata store, or to a later state of this one."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What an open bookie has seen of the metadata."""

    bookie_id: str
    mark: int
    max_ledger_id: int


def foreign(
    place: str, record: Mapping[str, str | None] | None, identity: Identity | None, store_id: str
) -> str | None:
    """Why the bookie in service at a place is not the store's, if so.

    One that another bookie has replaced is not meant: the store knows a bookie there, and this is
    another one. That is a directory in the wrong place.
    """
    if identity is None:
        return None
    known = record["instanceId"] if record is not None else None
    if known is not None and known != identity.instance_id.hex():
        return None
    who = f"bookie {identity.bookie_id}"
    if identity.bookie_id != place:
        who += f" at {place}"
    if identity.store_id not in ("", store_id):
        return (
            f"{who} belongs to the metadata store {identity.store_id}, and this one is {store_id}"
        )
    if record is None:
        age = "an older state of it" if identity.store_id else "another one, or an older state"
        return f"{who} is in service, but the metadata store has no record of it: it is {age}"
    return None


def older(seen: Iterable[Seen], unknown: Iterable[Seen], next_ledger_id: int) -> str | None:
    """Why the store is older than its bookies, if so; ``unknown`` are those whose mark is."""
    for bookie in unknown:
        return (
            f"the metadata store went back: bookie {bookie.bookie_id} has seen its change "
            f"{bookie.mark >> NONCE_BITS}, which it does not know any more"
        )
    for bookie in seen:
        if bookie.max_ledger_id >= next_ledger_id:
            return (
                f"the metadata store went back: bookie {bookie.bookie_id} has seen ledger "
                f"{bookie.max_ledger_id}, and it would give {next_ledger_id} to the next one"
            )
    return None
