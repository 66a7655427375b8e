"""Recovery of a ledger whose writer is gone, or is to be stopped: finds the end, and closes.

Every step follows from two facts. An entry was confirmed only if an ack quorum Qa of its write
set Qw holds it; so it cannot have been confirmed if (Qw - Qa) + 1 of them are *sure* that they
do not. And a bookie that is fenced takes no more entries of the old writer; so what it is sure
of stays true, but only if it was fenced first.

1. The metadata goes to ``IN_RECOVERY``: the writer can change its ensemble no more.
2. The bookies of the last ensemble are fenced, enough of them that no ack quorum is without.
   The highest LAC that they know is confirmed, and so is all before the last ensemble.
3. From there it reads forward. An entry that any bookie of its write set has is written to all
   of them, and counts. The first entry that enough bookies are sure not to have is the end.
   Anything else, such as a checksum that fails, is unknown: recovery stops with an error, to be
   tried again.
4. The metadata is closed at that end. If the ledger is closed already, another broker recovered it
   too, and its end holds.

An entry that was never confirmed may thus become part of the ledger, a confirmed one always.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pulsark.errors import (
    CorruptEntryError,
    EntrySealedError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
)
from pulsark.storage.bookie.bookie import Bookie, EntryRun, KeepsLengths, LedgerTail
from pulsark.storage.ledger import decisions
from pulsark.storage.ledger.writer import LedgerWriter

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from pulsark.runtime import Done
    from pulsark.storage.ledger.bookies import LedgerBookies
    from pulsark.storage.ledger.metadata import Ensemble, LedgerMetadata
    from pulsark.storage.ledger.store import LedgerStore, StoredLedger

T = TypeVar("T")

READ_BYTES = 1 << 20
MEASURED_BYTES = 64 << 20
_READ_ENTRIES = 1 << 20


async def recover_ledger(
    ledger_id: int, store: LedgerStore, bookies: LedgerBookies
) -> LedgerMetadata:
    """Close a ledger at its true end, and return its final metadata; see the module.

    ``NoSuchLedgerError`` if it has no metadata, ``CorruptEntryError`` or another
    ``StorageError`` if the end cannot be known now, ``OwnershipLostError`` if this broker may not
    change it any more.
    """
    while True:
        stored = await store.get(ledger_id)
        if stored is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        if not stored.metadata.is_closed:
            stored = await store.update(stored, decisions.start_recovery)
        if stored.metadata.is_closed:
            return stored.metadata
        try:
            return await _Recovery(stored, store, bookies).run()
        except LedgerFencedError:
            await store.check_owner()  # else this would go on for ever: it may write no more


class _Recovery:
    """One attempt, from metadata that must not change meanwhile."""

    def __init__(self, stored: StoredLedger, store: LedgerStore, bookies: LedgerBookies) -> None:
        self._stored = stored
        self._metadata = metadata = stored.metadata
        self._store = store
        self._bookies = bookies
        self._ledger_id = metadata.ledger_id
        self._ensemble: Ensemble = metadata.ensembles[-1]
        self._fenced: set[str] = set()
        self._asked: dict[int, list[list[bytes] | StorageError]] = {}
        """What holders have said of an entry since they were fenced, until that is used."""

    async def run(self) -> LedgerMetadata:
        last_confirmed, length = await self._fence()
        writer = LedgerWriter(
            self._stored,
            [self._present(bookie_id) for bookie_id in self._ensemble.bookies],
            self._store,
            _Nobody(),
            self._bookies,
            recovery=True,
            last_confirmed=last_confirmed,
            length=length,
        )
        while entries := await self._read_on(writer.last_confirmed + 1):
            writer.append(entries)
            await writer.drained(everywhere=True)
            if writer.error is not None:
                raise writer.error
        return await writer.close()

    def _present(self, bookie_id: str) -> Bookie:
        """A bookie, or what answers for one that is not there."""
        try:
            return self._bookies.get(bookie_id)
        except StorageError as e:
            return cast("Bookie", _AbsentBookie(bookie_id, e))

    # Step 2.

    async def _fence(self) -> tuple[int, int]:
        """Fence; returns the highest LAC that is known, and the bytes of all up to it."""
        names = list(dict.fromkeys(self._ensemble.bookies))
        answers = await _gather([self._tail(name) for name in names])
        tails = [answer for answer in answers if isinstance(answer, LedgerTail)]
        self._check_covered([a for a in answers if isinstance(a, StorageError)])
        confirmed, length = self._ensemble.first_entry_id - 1, self._ensemble.length
        for tail in tails:
            if tail.last_confirmed > confirmed:
                confirmed, length = tail.last_confirmed, tail.confirmed_bytes
        sealed = await self._sealed_through(confirmed, max(t.last_entry_id for t in tails))
        if sealed > confirmed:
            confirmed, length = sealed, -1
        if length < 0:
            length = await self._measure(confirmed)
        return confirmed, length

    async def _tail(self, bookie_id: str) -> LedgerTail:
        tail = await self._bookies.get(bookie_id).tail(self._ledger_id, fence=True)
        self._fenced.add(bookie_id)
        return tail

    def _check_covered(self, errors: Sequence[StorageError]) -> None:
        """Every ack quorum must have a fenced bookie."""
        config = self._metadata.config
        for residue in range(config.ensemble_size):
            holders = self._metadata.holders(self._ensemble, residue)
            missing = [name for name in holders if name not in self._fenced]
            if len(missing) >= config.ack_quorum:
                reasons = "; ".join(map(str, errors))
                raise StorageError(
                    f"ledger {self._ledger_id} cannot be recovered without {missing}: {reasons}"
                )

    async def _sealed_through(self, confirmed: int, last: int) -> int:
        """The last entry above ``confirmed`` that lives in the table; ``confirmed`` if none.

        Sealed entries are a prefix of the ledger, and only confirmed ones are sealed.
        """
        low, high = confirmed, last
        while low < high:
            # The first probe is the next entry: there is usually none that is sealed.
            # It is the first that is read on, too, if it is not.
            middle = low + 1 if low == confirmed else (low + high + 1) // 2
            answers: Sequence[object]
            if low == confirmed:
                answers = self._asked[middle] = await self._ask_holders(middle)
            else:
                answers = await self._read_only(middle)
            if any(isinstance(answer, EntrySealedError) for answer in answers):
                low = middle
            elif low == confirmed:
                return confirmed
            else:
                high = middle - 1
        return low

    async def _read_only(self, entry_id: int) -> Sequence[object]:
        holders = self._metadata.holders(self._ensemble, entry_id)
        return await _gather([self._read(name, entry_id, entry_id) for name in holders])

    async def _measure(self, last: int) -> int:
        """Bytes of the entries up to ``last``, read from any bookie that has them.

        Needed where bookies do not keep the length. It is a statistic: what can no longer
        be read here (sealed, damaged) is left out instead of stopping the recovery, and a long
        ledger is read in part and the rest reckoned from it. Bookies that have it with each entry
        are asked first: there it is part of what recovery writes.
        """
        if last >= 0 and (kept := await self._kept_length(last)) >= 0:
            return kept
        length, entry_id = 0, 0
        while entry_id <= last and length < MEASURED_BYTES:
            batch = await self._any_copy(entry_id, last)
            length += sum(map(len, batch))
            entry_id += len(batch) or 1
        return length if entry_id > last else length * (last + 1) // entry_id

    async def _kept_length(self, entry_id: int) -> int:
        ensemble, _ = self._metadata.ensemble_at(entry_id)
        for name in self._metadata.holders(ensemble, entry_id):
            try:
                bookie = self._bookies.get(name)
                if isinstance(bookie, KeepsLengths):
                    return await bookie.length_through(self._ledger_id, entry_id)
            except StorageError:
                continue  # another copy, or none
        return -1

    async def _any_copy(self, entry_id: int, last: int) -> list[bytes]:
        """Consecutive confirmed entries from any bookie that has them; none if no bookie has."""
        ensemble, end = self._metadata.ensemble_at(entry_id)
        for name in self._metadata.holders(ensemble, entry_id):
            try:
                found = await self._bookies.get(name).read(
                    self._ledger_id, entry_id, min(last, end), READ_BYTES
                )
            except StorageError:
                continue  # another copy, or none: see above
            if run := _run_from(found, entry_id):
                return run
        return []

    # Step 3.

    async def _read_on(self, entry_id: int) -> list[bytes]:
        """Entries that exist from ``entry_id`` on; none if the ledger ends before it."""
        config = self._metadata.config
        answers = self._asked.pop(entry_id, None) or await self._ask_holders(entry_id)
        runs = [answer for answer in answers if isinstance(answer, list)]
        longest = max(runs, key=len, default=[])
        if longest:
            return longest
        if len(runs) >= config.write_quorum - config.ack_quorum + 1:
            return []
        errors = [answer for answer in answers if isinstance(answer, StorageError)]
        kind = CorruptEntryError if any(map(_is_corrupt, errors)) else StorageError
        reasons = "; ".join(map(str, errors))
        raise kind(f"whether entry {self._ledger_id}:{entry_id} exists is unknown: {reasons}")

    async def _ask_holders(self, entry_id: int) -> list[list[bytes] | StorageError]:
        holders = self._metadata.holders(self._ensemble, entry_id)
        return await _gather([self._ask(name, entry_id) for name in holders])

    async def _ask(self, bookie_id: str, entry_id: int) -> list[bytes]:
        """Entries from this one on; empty if the bookie is sure not to have it.

        Raises a ``StorageError`` if it does not know.
        """
        if bookie_id not in self._fenced:
            await self._tail(bookie_id)
        try:
            found = await self._read(bookie_id, entry_id, entry_id + _READ_ENTRIES)
            run = _run_from(found, entry_id)
            if run:
                return run
            # Only later ones, as striping has it: ask for this entry alone to be sure.
            found = await self._read(bookie_id, entry_id, entry_id)
        except (NoSuchEntryError, NoSuchLedgerError):
            return []
        run = _run_from(found, entry_id)
        if not run:
            raise StorageError(f"bookie {bookie_id} gave no answer for entry {entry_id}")
        return run

    async def _read(self, bookie_id: str, first: int, last: int) -> list[tuple[int, bytes]]:
        return await self._bookies.get(bookie_id).read(self._ledger_id, first, last, READ_BYTES)


class _Nobody:
    """The listener of recovery's own writer: recovery waits for it instead."""

    def ledger_confirmed(self, ledger_id: int, last_confirmed: int) -> None:
        """Nothing to do."""

    def ledger_failed(self, ledger_id: int, error: StorageError) -> None:
        """Nothing to do."""


class _AbsentBookie:
    """Stands in a writer's ensemble for a bookie that is not there: every append fails."""

    def __init__(self, bookie_id: str, error: StorageError) -> None:
        self.bookie_id = bookie_id
        self._error = error

    def append(
        self, run: EntryRun, done: Done, *, recovery: bool = False, reserve: bool = False
    ) -> None:
        asyncio.get_running_loop().call_soon(done, self._error)


def _run_from(found: Sequence[tuple[int, bytes]], first: int) -> list[bytes]:
    """The payloads of the consecutive entries that begin at ``first``."""
    run: list[bytes] = []
    for entry_id, payload in found:
        if entry_id != first + len(run):
            break
        run.append(payload)
    return run


def _is_corrupt(error: BaseException) -> bool:
    return isinstance(error, CorruptEntryError)


async def _gather(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T | StorageError]:
    """All results; a ``StorageError`` is the result of its call, other errors are raised."""
    results: list[T | StorageError] = []
    if len(calls) == 1:  # without a task
        try:
            return [await calls[0]]
        except StorageError as error:
            return [error]
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, StorageError):
            raise result
        results.append(result)
    return results
