"""A bookie in memory that obeys the contract, with faults to order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pulsark.errors import (
    BookieAwayError,
    CorruptEntryError,
    EntrySealedError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
    StorageFullError,
)
from pulsark.runtime import Done
from pulsark.storage.bookie.bookie import EntryRun, LedgerTail


@dataclass
class _Ledger:
    entries: dict[int, bytes] = field(default_factory=dict)
    last_confirmed: int = -1
    confirmed_bytes: int = -1
    fenced: bool = False
    released: int = -1
    stored_last: int = -1
    corrupt: set[int] = field(default_factory=set)
    from_writer: set[int] = field(default_factory=set)
    """Entries that its writer sent, not a recovery."""

    @property
    def last_entry_id(self) -> int:
        return max(max(self.entries, default=-1), self.released)


class MemoryBookie:
    """Appends complete one turn of the loop later, in order.

    ``held``: they wait for ``release_held``. ``down``: every call fails. ``leave``: appends fail
    and all else waits, until it is back. ``read_only``: every append fails. ``full``: appends
    without ``reserve`` fail. ``keeps_length``: whether it stores ``confirmed_bytes``.
    ``tells_end``: whether its tails have the entry that it stored last, as those of BookKeeper: it
    need not be the highest one.
    """

    tells_end = False

    def __init__(self, bookie_id: str = "b1", *, keeps_length: bool = True) -> None:
        self._bookie_id = bookie_id
        self._keeps_length = keeps_length
        self._ledgers: dict[int, _Ledger] = {}
        self._deleted: set[int] = set()
        """Of these nothing is stored any more: a stale writer must not begin them anew."""
        self._queue: deque[tuple[EntryRun, Done, bool, bool]] = deque()
        self._scheduled = False
        self.held = False
        self.down = False
        self._is_there = asyncio.Event()
        self._is_there.set()
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self.full = False
        self.read_only = False
        self.before_store: Callable[[EntryRun], None] | None = None
        self.runs: list[EntryRun] = []
        """Every run that was stored."""
        self.reads = 0
        self.recycled = 0

    @property
    def bookie_id(self) -> str:
        return self._bookie_id

    def flush(self) -> None:
        """Appends complete a turn later in any case."""

    def append(
        self, run: EntryRun, done: Done, *, recovery: bool = False, reserve: bool = False
    ) -> None:
        assert run.payloads
        self._queue.append((run, done, recovery, reserve))
        self._schedule()

    @property
    def is_away(self) -> bool:
        return not self._is_there.is_set()

    async def ready(self) -> None:
        await self._is_there.wait()

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        await asyncio.sleep(0)
        await self._is_there.wait()
        await self._goes_on.wait()
        self._check_up()
        self.reads += 1
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedgerError(f"{self._bookie_id}: no ledger {ledger_id}")
        if first_entry_id <= ledger.released:
            raise EntrySealedError(f"{self._bookie_id}: {ledger_id}:{first_entry_id} is sealed")
        if first_entry_id in ledger.corrupt:
            raise CorruptEntryError(f"{self._bookie_id}: {ledger_id}:{first_entry_id} is corrupt")
        found: list[tuple[int, bytes]] = []
        size = 0
        end = min(last_entry_id, ledger.last_entry_id)
        for entry_id in range(first_entry_id, end + 1):
            if entry_id in ledger.corrupt:
                break
            payload = ledger.entries.get(entry_id)
            if payload is None:
                continue
            size += len(payload)
            if found and size > max_bytes:
                break
            found.append((entry_id, payload))
        if not found:
            raise NoSuchEntryError(f"{self._bookie_id}: no entry {ledger_id}:{first_entry_id}")
        return found

    async def excerpt(self, ledger_id: int, first: int, last: int) -> None:
        """Nothing of it is in files."""

    async def tail(self, ledger_id: int, *, fence: bool) -> LedgerTail:
        await asyncio.sleep(0)
        await self._is_there.wait()
        await self._goes_on.wait()
        self._check_up()
        if fence:
            self._ledgers.setdefault(ledger_id, _Ledger()).fenced = True
        ledger = self._ledgers.get(ledger_id, _Ledger())
        last = ledger.stored_last if self.tells_end else ledger.last_entry_id
        found = LedgerTail(ledger.last_confirmed, last, ledger.confirmed_bytes)
        if not self.tells_end or last in ledger.corrupt:
            return found
        return replace(found, last_payload=ledger.entries.get(last))

    async def recycle(self) -> int:
        await asyncio.sleep(0)
        self._check_up()
        self.recycled += 1
        return 0

    async def release(self, ledger_id: int, through_entry_id: int) -> None:
        await asyncio.sleep(0)
        self._check_up()
        ledger = self._ledgers.setdefault(ledger_id, _Ledger())
        ledger.released = max(ledger.released, through_entry_id)
        for entry_id in [e for e in ledger.entries if e <= ledger.released]:
            del ledger.entries[entry_id]

    async def delete(self, ledger_id: int) -> None:
        await asyncio.sleep(0)
        self._check_up()
        self._ledgers.pop(ledger_id, None)
        self._deleted.add(ledger_id)

    # For tests.

    def hang(self) -> None:
        """Answer nothing; connections stay."""
        self._goes_on.clear()
        self.held = True

    def go_on(self) -> None:
        """Answer all that was asked meanwhile."""
        self._goes_on.set()
        self.held = False
        self.release_held()

    def leave(self, stored: int = 0) -> None:
        """Its connection ends. Of the appends that are held so many were stored, unanswered."""
        for run, _, recovery, reserve in [self._queue[i] for i in range(stored)]:
            assert self._store(run, recovery, reserve) is None
        self._is_there.clear()
        self.held = False
        self.release_held()

    def come_back(self) -> None:
        """It has a connection again."""
        self._is_there.set()

    def release_held(self, count: int | None = None) -> None:
        """Let appends that are held complete, the first ``count`` or all, in this call."""
        for _ in range(len(self._queue) if count is None else count):
            self._complete(*self._queue.popleft())

    def entries(self, ledger_id: int) -> dict[int, bytes]:
        """What is stored of a ledger."""
        return self._ledgers.get(ledger_id, _Ledger()).entries

    def ledger_ids(self) -> list[int]:
        """Ledgers of which it knows anything."""
        return sorted(self._ledgers)

    def is_fenced(self, ledger_id: int) -> bool:
        return self._ledgers.get(ledger_id, _Ledger()).fenced

    def may_give(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a writer that is not a recovery has its receipt for an entry, or may get it."""
        ledger = self._ledgers.get(ledger_id, _Ledger())
        return entry_id in ledger.from_writer or not (ledger.fenced or ledger_id in self._deleted)

    def corrupt(self, ledger_id: int, entry_id: int) -> None:
        """The checksum of this entry fails from now on."""
        self._ledgers[ledger_id].corrupt.add(entry_id)

    def lose(self, ledger_id: int, entry_id: int) -> None:
        """Forget one entry."""
        del self._ledgers[ledger_id].entries[entry_id]

    def put(self, ledger_id: int, entry_id: int, payload: bytes) -> None:
        """Store an entry past all rules."""
        ledger = self._ledgers.setdefault(ledger_id, _Ledger())
        ledger.entries[entry_id], ledger.stored_last = payload, entry_id

    # Internals.

    def _schedule(self) -> None:
        if not self._scheduled and not self.held:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if not self.held:
            self.release_held()

    def _complete(self, run: EntryRun, done: Done, recovery: bool, reserve: bool) -> None:
        error = self._store(run, recovery, reserve)
        done(error)

    def _store(self, run: EntryRun, recovery: bool, reserve: bool) -> StorageError | None:
        if not self._is_there.is_set():
            return BookieAwayError(f"{self._bookie_id} is away")
        if self.down or self.read_only:
            return StorageError(f"{self._bookie_id} is down")
        if self.full and not reserve:
            return StorageFullError(f"{self._bookie_id} is full")
        if run.ledger_id in self._deleted:
            return NoSuchLedgerError(f"{self._bookie_id}: ledger {run.ledger_id} was deleted")
        ledger = self._ledgers.setdefault(run.ledger_id, _Ledger())
        if ledger.fenced and not recovery:
            return LedgerFencedError(f"{self._bookie_id}: ledger {run.ledger_id} is fenced")
        if self.before_store is not None:
            self.before_store(run)
        for entry_id, payload in enumerate(run.payloads, run.first_entry_id):
            if entry_id > ledger.released:
                assert ledger.entries.get(entry_id, payload) == payload, "two payloads of one id"
                ledger.entries[entry_id], ledger.stored_last = payload, entry_id
                ledger.corrupt.discard(entry_id)
            if not recovery:
                ledger.from_writer.add(entry_id)
        if run.last_confirmed > ledger.last_confirmed:
            ledger.last_confirmed = run.last_confirmed
            ledger.confirmed_bytes = run.confirmed_bytes if self._keeps_length else -1
        self.runs.append(run)
        return None

    def _check_up(self) -> None:
        if self.down:
            raise StorageError(f"{self._bookie_id} is down")
