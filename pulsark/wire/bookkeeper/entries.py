"""The stored form of an entry: four numbers, a digest, the payload."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from pulsark.errors import CorruptEntryError

if TYPE_CHECKING:
    from pulsark.wire.bookkeeper.digests import LedgerKey

ENTRY_HEAD: Final = struct.Struct(">qqqq")
"""Ledger, entry, the writer's last-add-confirmed (LAC) when it sent the entry, and the bytes of all
payloads up to and with this one."""


class StoredEntry(NamedTuple):
    """An entry as a bookie holds it, checked."""

    entry_id: int
    last_confirmed: int
    length: int
    payload: bytes


def decode_entry(stored: bytes, ledger_id: int, entry_id: int, key: LedgerKey) -> StoredEntry:
    """Check and take apart; ``CorruptEntryError`` if it is not this ledger's entry.

    ``entry_id`` -1 stands for any.
    """
    start = ENTRY_HEAD.size + key.digest_size
    if len(stored) < start:
        raise CorruptEntryError(f"entry {ledger_id}:{entry_id} is stored in {len(stored)} bytes")
    head = stored[: ENTRY_HEAD.size]
    ledger, entry, last_confirmed, length = ENTRY_HEAD.unpack(head)
    if ledger != ledger_id or (entry != entry_id and entry_id >= 0) or entry < 0:
        raise CorruptEntryError(f"for entry {ledger_id}:{entry_id} there is {ledger}:{entry}")
    payload = stored[start:]
    if key.check(head, payload) != stored[ENTRY_HEAD.size : start]:
        raise CorruptEntryError(f"the digest of entry {ledger}:{entry} is wrong")
    return StoredEntry(entry, last_confirmed, length, payload)
