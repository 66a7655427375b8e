"""Recovery of a ledger whose writer is gone, or is to be stopped: finds the end, and closes.

Every step follows from two facts. An entry was confirmed only if an ack quorum Qa of its write
set Qw holds it; so it cannot have been confirmed if (Qw - Qa) + 1 of them are *sure* that they
do not. And a bookie that is fenced takes no more entries of the old writer; so what it is sure
of stays true, but only if it was fenced first.

1. The metadata goes to ``IN_RECOVERY``: the writer can change its ensemble no more.
2. The bookies of the last ensemble are fenced, enough of them that no ack quorum is without.
   The highest LAC that they know is confirmed, and so is all before the last ensemble.
3. From there it reads forward, unless the answers to the fence have told what is there. An entry
   that any bookie of its write set has is written to all of them, and counts. The first entry that
   enough bookies are sure not to have is the end. Anything else, such as a checksum that fails, is
   unknown: recovery stops with an error, to be tried again.
4. The metadata is closed at that end. If the ledger is closed already, another broker recovered it
   too, and its end holds.

An entry that was never confirmed may thus become part of the ledger, a confirmed one always.

A topic waits for its recovery. So all bookies of a step are asked at once, and those that do not
answer within ``PATIENCE_SECONDS`` are waited for only as long as the others do not suffice. The
same holds for copies of what is written: beyond an ack quorum they get ``COPY_SECONDS``.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
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
from pulsark.storage.ledger.answers import is_absent
from pulsark.storage.ledger.writer import LedgerWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from pulsark.runtime import Done
    from pulsark.storage.ledger.bookies import LedgerBookies
    from pulsark.storage.ledger.metadata import Ensemble, LedgerMetadata
    from pulsark.storage.ledger.store import LedgerStore, StoredLedger

T = TypeVar("T")

READ_BYTES = 1 << 20
MEASURED_BYTES = 64 << 20
PATIENCE_SECONDS = 0.25
COPY_SECONDS = 0.5
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
        self._tails: dict[str, LedgerTail] = {}
        """What bookies have said when they were fenced."""
        self._asked: dict[int, list[list[bytes] | StorageError]] = {}
        """What holders have said of an entry since they were fenced, until that is used."""
        self._slow: set[str] = set()
        """Bookies that were waited for in vain."""
        self._copy_seconds = COPY_SECONDS

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
            await self._copied(writer)
            if writer.error is not None:
                raise writer.error
        return await writer.close()

    async def _copied(self, writer: LedgerWriter) -> None:
        """Wait until an ack quorum has all, and for the other copies as long as may be."""
        await writer.drained()
        began = asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._copy_seconds):
                await writer.drained(everywhere=True)
        self._copy_seconds -= asyncio.get_running_loop().time() - began

    def _present(self, bookie_id: str) -> Bookie:
        """A bookie, or what answers for one that is not there."""
        try:
            return self._bookies.get(bookie_id)
        except StorageError as e:
            return cast("Bookie", _AbsentBookie(bookie_id, e))

    # Step 2.

    async def _fence(self) -> tuple[int, int]:
        """Fence; returns the highest LAC that is known, and the bytes of all up to it."""
        asked = {name: self._tail(name) for name in self._ensemble.bookies}
        answers = await self._enough(asked, lambda _: not self._unfenced())
        tails = [answer for answer in answers if isinstance(answer, LedgerTail)]
        if missing := self._unfenced():
            reasons = "; ".join(str(a) for a in answers if isinstance(a, StorageError))
            raise StorageError(
                f"ledger {self._ledger_id} cannot be recovered without {missing}: {reasons}"
            )
        confirmed, length = self._ensemble.first_entry_id - 1, self._ensemble.length
        for tail in tails:
            if tail.last_confirmed > confirmed:
                confirmed, length = tail.last_confirmed, tail.confirmed_bytes
        sealed = await self._sealed_through(confirmed, max(t.last_entry_id for t in tails))
        if length < 0:
            length = await self._measure(sealed)
        return sealed, length  # of what is sealed behind the LAC nobody here knows the bytes

    async def _tail(self, bookie_id: str) -> LedgerTail:
        tail = await self._bookies.get(bookie_id).tail(self._ledger_id, fence=True)
        self._tails[bookie_id] = tail
        return tail

    def _unfenced(self) -> list[str]:
        """Those of which one is needed: every ack quorum must have a fenced bookie."""
        config = self._metadata.config
        for residue in range(config.ensemble_size):
            holders = self._metadata.holders(self._ensemble, residue)
            missing = [name for name in holders if name not in self._tails]
            if len(missing) >= config.ack_quorum:
                return missing
        return []

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
        asked = {name: self._read(name, entry_id, entry_id) for name in holders}
        return await self._enough(asked, lambda found: any(map(_is_sealed_or_there, found)))

    async def _measure(self, last: int) -> int:
        """Bytes of the entries up to ``last``, read from any bookie that has them.

        Needed where bookies do not keep the length. It is a statistic: what can no longer
        be read here (sealed, damaged) is left out instead of stopping the recovery, and a long
        ledger is read in part and the rest reckoned from it. Bookies that have it with each entry
        are asked first: there it is part of what recovery writes.
        """
        away: set[str] = set()
        if last >= 0 and (kept := await self._kept_length(last, away)) >= 0:
            return kept
        length, entry_id = 0, 0
        while entry_id <= last and length < MEASURED_BYTES:
            ensemble, end = self._metadata.ensemble_at(entry_id)
            if away.issuperset(ensemble.bookies):
                entry_id = end + 1
                continue
            batch = await self._any_copy(entry_id, last, away)
            length += sum(map(len, batch))
            entry_id += len(batch) or 1
        return length if entry_id > last else length * (last + 1) // entry_id

    async def _kept_length(self, entry_id: int, away: set[str]) -> int:
        ensemble, _ = self._metadata.ensemble_at(entry_id)
        for name in self._quick_first(self._metadata.holders(ensemble, entry_id)):
            try:
                bookie = self._bookies.get(name)
                if isinstance(bookie, KeepsLengths):
                    return await bookie.length_through(self._ledger_id, entry_id)
            except StorageError as error:
                _note_away(away, name, error)  # another copy, or none
        return -1

    async def _any_copy(self, entry_id: int, last: int, away: set[str]) -> list[bytes]:
        """Consecutive confirmed entries from any bookie that has them; none if no bookie has.

        One that is ``away`` is not asked for each entry: that may take seconds.
        """
        ensemble, end = self._metadata.ensemble_at(entry_id)
        for name in self._quick_first(self._metadata.holders(ensemble, entry_id)):
            if name in away:
                continue
            try:
                found = await self._bookies.get(name).read(
                    self._ledger_id, entry_id, min(last, end), READ_BYTES
                )
            except StorageError as error:
                _note_away(away, name, error)  # another copy, or none: see above
                continue
            if run := _run_from(found, entry_id):
                return run
        return []

    # Step 3.

    async def _read_on(self, entry_id: int) -> list[bytes]:
        """Entries that exist from ``entry_id`` on; none if the ledger ends before it."""
        answers = self._asked.pop(entry_id, None) or await self._ask_holders(entry_id)
        if self._decide(answers):
            return max((answer for answer in answers if isinstance(answer, list)), key=len)
        errors = [answer for answer in answers if isinstance(answer, StorageError)]
        kind = CorruptEntryError if any(map(_is_corrupt, errors)) else StorageError
        reasons = "; ".join(map(str, errors))
        raise kind(f"whether entry {self._ledger_id}:{entry_id} exists is unknown: {reasons}")

    async def _ask_holders(self, entry_id: int) -> list[list[bytes] | StorageError]:
        holders = self._metadata.holders(self._ensemble, entry_id)
        told = [self._told(name, entry_id) for name in holders]
        if None not in told:
            return [each for each in told if each is not None]
        asked = {name: self._ask(name, entry_id) for name in holders}
        return await self._enough(
            asked, lambda found: self._decide(found) or any(map(_is_sealed_or_there, found))
        )

    def _decide(self, answers: Sequence[list[bytes] | StorageError]) -> bool:
        """Whether an entry exists: one has it, or enough bookies are sure that they have not."""
        config = self._metadata.config
        sure = config.write_quorum - config.ack_quorum + 1
        runs = [answer for answer in answers if isinstance(answer, list)]
        return any(runs) or len(runs) >= sure

    async def _ask(self, bookie_id: str, entry_id: int) -> list[bytes]:
        """Entries from this one on; empty if the bookie is sure not to have it.

        Raises a ``StorageError`` if it does not know.
        """
        if bookie_id not in self._tails:
            await self._tail(bookie_id)
        told = self._told(bookie_id, entry_id)
        if told is not None:
            return told
        tail = self._tails.get(bookie_id)
        try:
            if tail is None or entry_id <= tail.last_entry_id:
                found = await self._read(bookie_id, entry_id, entry_id + _READ_ENTRIES)
                run = _run_from(found, entry_id)
                if run:
                    return run
            # Only later ones, as striping has it: ask for this entry alone to be sure. Behind the
            # last that it told of there is most likely none, nor any to look for behind that.
            found = await self._read(bookie_id, entry_id, entry_id)
        except (NoSuchEntryError, NoSuchLedgerError):
            return []
        run = _run_from(found, entry_id)
        if not run:
            raise StorageError(f"bookie {bookie_id} gave no answer for entry {entry_id}")
        return run

    def _told(self, bookie_id: str, entry_id: int) -> list[bytes] | None:
        """The entry, if it came along with the bookie's answer to the fence.

        That an entry is *not* there must be asked. BookKeeper's bookie answers with the last entry
        of its newest cache (``DbLedgerStorage.getLastEntry``): an earlier recovery's copy of one
        that comes before entries which are on its disk by then.
        """
        tail = self._tails.get(bookie_id)
        if tail is None or entry_id != tail.last_entry_id or tail.last_payload is None:
            return None
        return [tail.last_payload]

    async def _read(self, bookie_id: str, first: int, last: int) -> list[tuple[int, bytes]]:
        return await self._bookies.get(bookie_id).read(self._ledger_id, first, last, READ_BYTES)

    def _quick_first(self, names: Sequence[str]) -> Sequence[str]:
        return sorted(names, key=lambda name: name in self._slow)

    async def _enough(
        self,
        asked: Mapping[str, Coroutine[Any, Any, T]],
        suffices: Callable[[Sequence[T | StorageError]], bool],
    ) -> list[T | StorageError]:
        """What bookies answer: all that do so soon, and of the others as many as are needed.

        A ``StorageError`` is the answer of its bookie, other errors are raised.
        """
        if len(asked) == 1:  # without a task
            return [await _answer(call) for call in asked.values()]
        tasks = {name: asyncio.ensure_future(_answer(call)) for name, call in asked.items()}
        quick = [task for name, task in tasks.items() if name not in self._slow]
        try:
            if quick:
                await asyncio.wait(quick, timeout=PATIENCE_SECONDS)
            while True:
                answers = [task.result() for task in tasks.values() if task.done()]
                pending = [task for task in tasks.values() if not task.done()]
                if not pending or suffices(answers):
                    break
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for name, task in tasks.items():
                if not task.done():
                    self._slow.add(name)
                    task.cancel()
        return answers


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

    def flush(self) -> None:
        """It was given nothing."""


def _run_from(found: Sequence[tuple[int, bytes]], first: int) -> list[bytes]:
    """The payloads of the consecutive entries that begin at ``first``."""
    run: list[bytes] = []
    for entry_id, payload in found:
        if entry_id != first + len(run):
            break
        run.append(payload)
    return run


def _note_away(away: set[str], bookie_id: str, error: StorageError) -> None:
    if not is_absent(error) and not _is_corrupt(error):
        away.add(bookie_id)


def _is_corrupt(error: BaseException) -> bool:
    return isinstance(error, CorruptEntryError)


async def _answer(call: Coroutine[Any, Any, T]) -> T | StorageError:
    try:
        return await call
    except StorageError as error:
        return error


def _is_sealed_or_there(answer: object) -> bool:
    # Of one entry that others can still read, a slow bookie would say that it is sealed at most.
    return isinstance(answer, EntrySealedError) or (isinstance(answer, list) and bool(answer))
