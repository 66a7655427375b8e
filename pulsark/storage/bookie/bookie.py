"""The seam between a ledger and the bookies that hold its copies.

``embedded.EmbeddedBookie`` implements it in this process, ``storage/remote_bookie`` over a socket,
and ``storage/bookkeeper`` with bookies of Apache BookKeeper, which cannot free parts of ledgers.
All methods are called on the event loop and none blocks it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.runtime import Done
    from pulsark.storage.bookie.journal_excerpt import JournalExcerpt


class EntryRun(NamedTuple):
    """Consecutive entries of one ledger, appended together.

    ``payloads[i]`` is entry ``first_entry_id + i``. ``last_confirmed`` is the writer's
    last-add-confirmed (LAC) when the run was sent, -1 at the start; ``confirmed_bytes`` is
    the length of all entries up to it, which recovery needs to know a ledger's length without
    reading it (-1: not known). ``preceding_bytes`` is the length of all entries before the first.

    A writer gives the same object to all its bookies, one after the other.
    """

    ledger_id: int
    first_entry_id: int
    last_confirmed: int
    payloads: Sequence[bytes]
    confirmed_bytes: int = -1
    preceding_bytes: int = 0

    def part(self, start: int, end: int, skipped: int) -> EntryRun:
        """Some of the entries, behind ``skipped`` bytes of earlier ones."""
        return EntryRun(
            self.ledger_id,
            self.first_entry_id + start,
            self.last_confirmed,
            self.payloads[start:end],
            self.confirmed_bytes,
            self.preceding_bytes + skipped,
        )


def last_of(count: int, done: Done) -> Done:
    """Calls ``done`` with the first error of ``count`` parts once all are answered."""
    left, first = count, None

    def answered(error: BaseException | None) -> None:
        nonlocal left, first
        left -= 1
        first = first or error
        if left == 0:
            done(first)

    return answered


@dataclass(frozen=True, slots=True)
class LedgerTail:
    """What one bookie knows of a ledger's end.

    ``last_confirmed`` is the highest LAC that was stored with an entry, or that of the last entry
    (or -1); ``last_entry_id`` the highest entry this bookie holds or has released (or -1). Of
    BookKeeper's bookies it is one that they stored late, perhaps a recovery's copy of an earlier
    one: that there is no later one follows from it only for ours.
    ``confirmed_bytes`` is what the run with that LAC said, -1 if that is not kept.
    """

    last_confirmed: int
    last_entry_id: int
    confirmed_bytes: int = -1
    last_payload: bytes | None = field(default=None, compare=False)
    """The last entry, if it came along."""


class Bookie(Protocol):
    """A store of ledger entries."""

    @property
    def bookie_id(self) -> str:
        """Stable name of this bookie, unique in the cluster."""

    def append(
        self, run: EntryRun, done: Done, *, recovery: bool = False, reserve: bool = False
    ) -> None:
        """Store a run; ``done(None)`` once it is on stable storage.

        Calls for one ledger complete in the order in which they were made. ``done`` is always
        called on the event loop, never from inside ``append``. Errors: ``LedgerFencedError``
        (unless ``recovery``), ``StorageFullError`` (``reserve`` lets a run use the space kept back
        for cursors and fences), ``BookieAwayError`` (it may be stored or not, which ``tail`` tells
        once it is back), ``StorageError``. Entries that are already stored are stored again
        without harm: the payloads are equal. The payloads are kept, not copied.
        """

    def flush(self) -> None:
        """What was appended so far need not wait for more of this turn of the loop."""

    @property
    def is_away(self) -> bool:
        """Whether there is no way to it now: appends would fail."""

    async def ready(self) -> None:
        """Return once it is not away; ``StorageError`` if that takes too long."""

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        """Entries held in ``[first, last]``, ascending, with gaps where striping left some out.

        Ends early after ``max_bytes``, or fewer that it sees fit, but returns at least one entry if
        any is held. Errors:
        ``NoSuchLedgerError``, ``NoSuchEntryError`` (none held), ``EntrySealedError`` (the first
        is below the release watermark), ``CorruptEntryError`` (the first cannot be trusted).
        """

    async def excerpt(self, ledger_id: int, first: int, last: int) -> JournalExcerpt | None:
        """Where some entries from ``first`` on lie in files of this machine.

        ``None``: ``read`` them, or hear from it why that cannot be.
        """

    async def tail(self, ledger_id: int, *, fence: bool) -> LedgerTail:
        """The ledger's end; with ``fence``, only after the fence is on stable storage.

        A ledger never seen is fenced too and answers ``LedgerTail(-1, -1)``.
        """

    async def release(self, ledger_id: int, through_entry_id: int) -> None:
        """Raise the release watermark durably: entries up to it live in the table.

        A bookie that frees only whole ledgers may ignore it.
        """

    async def recycle(self) -> int:
        """Remove every trace of what was released or deleted until now: what is still needed is
        written anew, and the files that had it go. Returns the number of those that had to stay."""

    async def delete(self, ledger_id: int) -> None:
        """Forget the ledger, durably. Not an error if it is not known."""


@runtime_checkable
class KeepsLengths(Protocol):
    """A bookie that has with each entry the length of its ledger, which metadata then need not."""

    async def length_through(self, ledger_id: int, entry_id: int) -> int:
        """Bytes of all entries up to this one; ``StorageError`` if it is not held."""
