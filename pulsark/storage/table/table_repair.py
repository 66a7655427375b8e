"""Making a table whole again after another engine wrote to it, or files were lost.

The metadata store says what a table has; what only a log knows is taken up first (``taking_up``).
So, in an order in which each step may be the last one:

1. Files that some root has, and others lack, are copied.
2. The log of each root gets one commit after which it says what the metadata store says, of the
   files that are there (``TableOwner.repair``).
3. Files that no root has are made again from what consumers would still get: from bookies, or from
   memory. If that cannot be done they are *lost*, and consumers that come to them fail, until
   an operator gives them up: then markers replace entries of which no copy is left. They are never
   delivered, and all that is behind them is read again.
4. Entries that a bookie has released, and that are in no file, are lost likewise.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pulsark.errors import SealedApartError, StorageError
from pulsark.runtime import Worker, run_in_worker
from pulsark.storage.ledger.answers import is_absent
from pulsark.storage.managed_ledger.erasure import nothing
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.table.files.record import DataFile, RowChange, SealedLedger, TableRecord
from pulsark.storage.table.files.root_files import ensure_file
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.root_identity import storage_root_of

if TYPE_CHECKING:
    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.process.process import Entries
    from pulsark.storage.table.process.table_processes import EntriesOf
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

FILES_A_TURN: Final = 64
"""That are looked for before others have their turn."""

ENTRIES_A_PIECE: Final = 1000
"""Entries that are given up in one piece."""

LOST_SHOWN_MAX: Final = 1000
"""Lost files that an answer lists; it has the number of all."""


class LostFile(NamedTuple):
    """A file that no root has, and that could not be made again."""

    file: DataFile
    reason: str


class LostEntries(NamedTuple):
    """Entries that a topic lists, and that are neither on bookies nor in its table."""

    wanted: SealRange
    reason: str

    @property
    def entries(self) -> int:
        """How many."""
        return self.wanted.last - self.wanted.first + 1


Listed = Callable[[], AsyncIterator[tuple[int, LedgerInfo]]]
"""Gives the ledgers that a topic lists, with their partitions. ``StorageError``: not now."""


@dataclass
class Repair:
    """What was found and done so far."""

    step: str = "looking for files"
    files: int = 0
    """That the table should have."""
    copied: int = 0
    """Copies that were made on roots that lacked them."""
    made_again: int = 0
    """Files that no root had."""
    given_up: int = 0
    """Entries that are gone for good, and marked so."""
    lost: list[LostFile] = field(default_factory=list)
    taken_up: int = 0
    """Files that a log had, and the metadata store did not know."""
    lost_entries: list[LostEntries] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As the admin API answers."""
        return {
            "step": self.step,
            "files": self.files,
            "takenUp": self.taken_up,
            "copied": self.copied,
            "madeAgain": self.made_again,
            "entriesGivenUp": self.given_up,
            "filesLost": len(self.lost),
            "entriesLost": sum(lost.entries for lost in self.lost_entries),
            "lost": [
                {
                    "path": "",
                    "partition": wanted.partition,
                    "ledgerId": wanted.ledger_id,
                    "entries": [wanted.first, wanted.last],
                    "rows": None,
                    "reason": reason,
                }
                for wanted, reason in self.lost_entries[:LOST_SHOWN_MAX]
            ]
            + [
                {
                    "path": file.path,
                    "partition": file.partition,
                    "ledgerId": file.ledger_id,
                    "entries": [file.first_entry_id, file.last_entry_id],
                    "rows": file.rows,
                    "reason": reason,
                }
                for file, reason in self.lost[:LOST_SHOWN_MAX]
            ],
        }


class TableRepair:
    """Repairs one table, which its caller has to itself meanwhile."""

    def __init__(
        self,
        tables: Tables,
        name: TopicName,
        disk: RootFiles,
        thread: Callable[[], Worker],
        entries_of: EntriesOf,
        target_bytes: int,
        repair: Repair,
        listed: Listed | None = None,
    ) -> None:
        """``repair`` says how far it is."""
        self._listed = listed
        self._tables = tables
        self._name = name
        self._disk = disk
        self._thread = thread
        self._entries_of = entries_of
        self._target_bytes = target_bytes
        self.repair = repair

    async def run(
        self, record: TableRecord, commit: Callable[[], Awaitable[None]], *, give_up: bool
    ) -> None:
        """``commit`` repairs the logs. ``StorageError``: call it again when the reason is gone."""
        for directory in record.roots:
            problem = await self._tables.roots.problem(storage_root_of(directory))
            if problem:
                raise StorageError(problem)
        gone: list[DataFile] = []
        some: list[DataFile] = []
        async for file in self._files(record):
            some.append(file)
            if len(some) == FILES_A_TURN:
                gone += await self._copied(record, some)
                some = []
        gone += await self._copied(record, some)
        self.repair.step = "writing the logs"
        await commit()
        self.repair.step = "making files again"
        for file in gone:
            await self._make_again(record, file, give_up=give_up)
        self.repair.step = "looking for entries"
        if self._listed is not None:
            async for partition, info in self._listed():
                await self._look_behind(record, partition, info, give_up=give_up)
        self.repair.step = "done"

    async def _files(self, record: TableRecord) -> AsyncIterator[DataFile]:
        """All that the table has, also by an attach that was decided and not done."""
        leaving: set[str] = set()
        if record.intent is not None and record.pending:
            leaving = {file.path for file in record.intent.removes}
            leaving |= {file.path for file in record.intent.adds}  # maybe they are there already
            for file in record.intent.adds:
                yield file
        async for sealed in self._tables.each_ledger(self._name):
            for file in sealed.files:
                if file.path not in leaving:
                    yield file

    async def _copied(self, record: TableRecord, files: list[DataFile]) -> list[DataFile]:
        """Have files on all roots; returns those that are nowhere."""
        self.repair.files += len(files)
        states = await self._tables.roots.copies(record.roots, files)
        gone = []
        for index, file in enumerate(files):
            having = [d for d in record.roots if states[d][index] == "ok"]
            if not having:
                gone.append(file)
                continue
            for directory in record.roots:
                if directory not in having:
                    copy = partial(ensure_file, self._disk, directory, having, file)
                    try:
                        await run_in_worker(self._thread(), copy)
                    except OSError as e:
                        raise StorageError(f"{directory}/{file.path}: {e}") from e
                    self.repair.copied += 1
        return gone

    async def _make_again(self, record: TableRecord, file: DataFile, *, give_up: bool) -> None:
        sealed = SealedLedger(file.ledger_id, file.partition)

        async def rewrite(entries_of: EntriesOf, change: RowChange) -> None:
            table = await self._tables.open(self._name, record.table_id)
            await table.rewrite(sealed, [file], entries_of, self._target_bytes, change)

        try:
            await rewrite(self._entries_of, RowChange.MERGE)
        except StorageError as e:
            if not give_up:
                self._lost(file, str(e))
                return
        else:
            self.repair.made_again += 1
            return
        wanted = SealRange(file.partition, file.ledger_id, file.first_entry_id, file.last_entry_id)
        try:
            first = await self._first_that_is_left(wanted)
            markers = partial(self._entries_with_markers, first, record.created_ms)
            await rewrite(markers, RowChange.ERASE)
        except StorageError as e:
            self._lost(file, f"it cannot be given up now: {e}")
            return
        log.error(
            "%s: the entries %d:%d to %d are given up, as it was asked for",
            self._name, file.ledger_id, wanted.first, first - 1,
        )  # fmt: skip
        self.repair.given_up += first - wanted.first

    def _lost(self, file: DataFile, reason: str) -> None:
        log.error("%s: %s is lost: %s", self._name, file.path, reason)
        self.repair.lost.append(LostFile(file, reason))

    async def _look_behind(
        self, record: TableRecord, partition: int, info: LedgerInfo, *, give_up: bool
    ) -> None:
        """What is behind the files of a ledger is on bookies, or lost."""
        sealed = await self._tables.sealed(self._name, info.ledger_id)
        first = sealed.through + 1 if sealed is not None else 0
        if first >= info.entries:
            return
        rest = SealRange(partition, info.ledger_id, first, info.entries - 1)
        reason = await self._why_gone(rest, first)
        if not reason:
            return
        lost = replace(rest, last=rest.first)
        try:
            lost = replace(rest, last=await self._first_that_is_left(rest) - 1)
            if not give_up:
                self.repair.lost_entries.append(LostEntries(lost, reason))
                return
            markers = partial(self._entries_with_markers, lost.last + 1, record.created_ms)
            table = await self._tables.open(self._name, record.table_id)
            try:
                await table.seal([lost], markers, self._target_bytes)
            except SealedApartError:  # apart from others, at once
                await table.seal([lost], markers, self._target_bytes)
        except StorageError as e:
            reason = f"it cannot be said or given up now how much is lost: {e}"
            self.repair.lost_entries.append(LostEntries(lost, reason))
            return
        log.error(
            "%s: the entries %d:%d to %d are given up, as it was asked for",
            self._name, lost.ledger_id, lost.first, lost.last,
        )  # fmt: skip
        self.repair.given_up += lost.last - lost.first + 1

    async def _why_gone(self, wanted: SealRange, entry_id: int) -> str:
        """Why no copy of an entry is left; empty if there is one, or that is not known."""
        one = replace(wanted, first=entry_id, last=entry_id)
        try:
            async for _ in self._entries_of(one):
                pass
        except StorageError as e:
            if is_absent(e):
                return str(e)
            log.warning(
                "%s: cannot read entry %d:%d now: %s", self._name, wanted.ledger_id, entry_id, e
            )
        return ""

    async def _first_that_is_left(self, wanted: SealRange) -> int:
        """Bookies still have the end of what is sealed, if anything: they release it in order.

        ``StorageError`` if one does not say whether it has an entry.
        """
        low, high = wanted.first, wanted.last + 1
        while low < high:
            middle = (low + high) // 2
            if await self._is_left(wanted, middle):
                high = middle
            else:
                low = middle + 1
        return low

    async def _is_left(self, wanted: SealRange, entry_id: int) -> bool:
        one = SealRange(wanted.partition, wanted.ledger_id, entry_id, entry_id)
        try:
            return bool([piece async for piece in self._entries_of(one)])
        except StorageError as e:
            if is_absent(e):
                return False
            raise

    async def _entries_with_markers(
        self, first_left: int, time_ms: int, wanted: SealRange
    ) -> AsyncIterator[Entries]:
        marker, end = nothing(time_ms), min(first_left, wanted.last + 1)
        for first in range(wanted.first, end, ENTRIES_A_PIECE):
            yield [(i, marker) for i in range(first, min(first + ENTRIES_A_PIECE, end))]
        if first_left <= wanted.last:
            rest = SealRange(
                wanted.partition, wanted.ledger_id, max(first_left, wanted.first), wanted.last
            )
            async for piece in self._entries_of(rest):
                yield piece
