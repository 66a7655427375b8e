"""What several copies of an entry say together. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.errors import (
    CorruptEntryError,
    EntrySealedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
    UnreadableTableError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.storage.ledger.sealed_through import Entries


def consecutive(found: Entries, first: int) -> Entries:
    """The entries without gaps from ``first`` on."""
    if not found or found[0][0] != first:
        return []
    if found[-1][0] - first == len(found) - 1:
        return found
    return [pair for index, pair in enumerate(found) if pair[0] - first == index]


def is_absent(error: StorageError) -> bool:
    """Whether an entry is certainly not where it was looked for; else that is unknown."""
    return isinstance(
        error, NoSuchEntryError | NoSuchLedgerError | EntrySealedError | UnreadableTableError
    )


def gravest(errors: Sequence[StorageError]) -> StorageError:
    """The error that says most: nothing is absent as long as one copy is unknown."""
    for kind in (EntrySealedError, CorruptEntryError):
        for error in errors:
            if isinstance(error, kind):
                return error
    for error in errors:
        if not isinstance(error, NoSuchEntryError | NoSuchLedgerError):
            return error
    for error in errors:
        if isinstance(error, NoSuchEntryError):
            return error
    return errors[0]
