"""Attach: files become part of a topic's table, on all its storage roots, once.

1. The files are written, synced and verified (``seal``).
2. The intent: one compare-and-set of the table record. This is the moment of truth; from here
   on it is only rolled forward, by the table's owner.
3. On each root: look at the log; if its last attach is the one before this, commit at exactly
   the next version; if another engine was faster, look again. Read back what was written.
4. The sealed ledgers' documents name the files, so that consumers read them.
5. The intent is marked as done. Now the journal may release the entries.

Each step may be the last one of a process, and each may be done again. A root that is away stays
behind and catches up from another one: a root's log is a prefix of the attaches, never different.
A stale owner loses the compare-and-set of the record, or finds its version taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pulsark.errors import (
    ChangedTableError,
    CorruptEntryError,
    LedgerFencedError,
    MetadataError,
    NotAttachedError,
    OlderMetadataError,
    StorageError,
)
from pulsark.metadata.paths import TABLES, topic_at
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.runtime import Clock, Runtime, Worker, run_in_worker
from pulsark.storage.table.files.record import (
    DataFile,
    Published,
    RowChange,
    SealedLedger,
    TableRecord,
    ledgers_of,
)
from pulsark.storage.table.files.table_limits import DEFAULT_LIMITS, TableLimits
from pulsark.storage.table.log.log_repair import LogRepair
from pulsark.storage.table.log.root_log import OthersCommitError, RootLog
from pulsark.storage.table.owned_table_record import LEDGERS_A_TURN, OwnedTableRecord
from pulsark.storage.table.publishes import Publishes
from pulsark.storage.table.removed_files import remove_everywhere
from pulsark.storage.table.staging.staged_ledger import ledger_directory
from pulsark.storage.table.table_logs import TableLogs

if TYPE_CHECKING:
    from pulsark.metadata.changes import Check
    from pulsark.schemas.column_types import ColumnType
    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.log.log_check import NamedFile
    from pulsark.storage.table.log.log_content import LogContent

log = logging.getLogger(__name__)

OPEN_ATTEMPTS = 20
"""How often a table is taken over from an owner that is busy with it."""

Repairs = Callable[[str, TableRecord, Sequence[DataFile]], Awaitable[LogRepair]]
"""``log_repair`` of a directory, done in a process that has pyarrow."""


class TableOwner:
    """The only committer of a table, until another broker opens it. See ``open``."""

    def __init__(
        self,
        table: OwnedTableRecord,
        logs: TableLogs,
        metadata: MetadataStore,
        files: RootFiles,
        clock: Clock,
        worker: Worker,
        roots_needed: int,
        limits: TableLimits,
        repairs: Repairs | None,
        states: Callable[[], bool],
    ) -> None:
        self._states = states
        self._table = table
        self._logs = logs
        self._disk = files
        self._clock = clock
        self._worker = worker
        self._roots_needed = min(roots_needed, len(table.record.roots))
        self._limits = limits
        self._repairs = repairs
        self._publishes = Publishes(table.path, metadata, limits)
        self._changing = asyncio.Lock()
        self._behind: set[str] = set()
        """Directories that stay behind, as the log has said."""

    @classmethod
    async def open(
        cls,
        path: str,
        table_id: str,
        roots: Sequence[str],
        metadata: MetadataStore,
        runtime: Runtime,
        worker: Worker,
        *,
        files: RootFiles | None = None,
        roots_needed: int = 1,
        check_root: Callable[[str], None] = lambda directory: None,
        where: Callable[[str], str] = str,
        limits: TableLimits = DEFAULT_LIMITS,
        repairs: Repairs | None = None,
        roll_forward: bool = True,
        touched: Callable[[Iterable[int]], None] = lambda ledger_ids: None,
        states: Callable[[], bool] = lambda: True,
    ) -> TableOwner:
        """Own the table whose record is at ``path``, created on ``roots`` if there is none.

        Rolls an attach forward that was decided and not done. ``roots_needed`` of the roots must
        have an attach before it is done. A record of another ``table_id`` is one of a topic
        that was deleted; the new table takes its place. ``where`` says where a directory of the
        record is now. ``OlderMetadataError``: the log on some root has what the record does not
        know of; nothing was changed. ``repairs`` makes commits of repairs. Without ``roll_forward``
        the table is owned, and nothing else is done, not even asked: to be repaired. ``touched``
        hears of ledgers whose documents are about to change. ``files`` are those of the roots, if
        not all are on the runtime's disk. ``states`` says whether all brokers understand records
        that say what an attach changes.
        """
        files = files or runtime.disk
        for attempts_left in reversed(range(OPEN_ATTEMPTS)):
            found = await metadata.get(path)
            record = TableRecord.decode(path, found.value) if found is not None else None
            if record is None or record.table_id != table_id:
                record = TableRecord(table_id, runtime.clock.now_ms(), tuple(roots))
            version = found.version if found is not None else ABSENT
            table = OwnedTableRecord(
                path, record.relocated(where), version, metadata, where, limits, touched
            )
            logs = TableLogs(table.record, topic_at(TABLES, path), files, worker, check_root)
            if roll_forward:
                needed = min(roots_needed, len(table.record.roots))
                await _check_sound(table, logs, needed)
                await logs.check(table.record)
            try:
                # An earlier owner can decide nothing any more.
                await table.save(table.record)
                break
            except LedgerFencedError:  # the owner before has done something meanwhile
                if not attempts_left:
                    raise
        owner = cls(
            table, logs, metadata, files, runtime.clock, worker, roots_needed, limits, repairs,
            states,
        )  # fmt: skip
        if roll_forward:
            async with owner._changing:
                await owner._roll_forward(clean=True)
        return owner

    @property
    def record(self) -> TableRecord:
        """The table as it is now."""
        return self._table.record

    async def sealed(self, ledger_id: int) -> SealedLedger | None:
        """Which files hold a ledger's entries; ``None`` if none of them is sealed."""
        return await self._table.sealed(ledger_id)

    async def newer_logs(self) -> list[str]:
        """The directories whose logs have what the record does not know of."""
        return await self._logs.newer(self.record)

    async def attach(
        self,
        adds: Sequence[DataFile],
        removes: Sequence[DataFile] = (),
        value: ColumnType | None = None,
        decided: Callable[[bool | None], Awaitable[None]] | None = None,
        checks: Sequence[Check] = (),
        change: RowChange | None = None,
    ) -> int:
        """Files join and leave the table, all or none; returns the number of the attach.

        ``change`` is what that does to its rows; by default files that leave take theirs with them,
        and others bring new ones. ``value`` is the type that added files have in their column
        ``value``; without it they have the table's. ``decided`` hears whether they are part of the
        table now; ``None`` if that cannot be known. ``checks`` hold at that moment:
        ``NotAttachedError`` if one does not.
        ``StorageError`` before the intent: nothing happened. After it: it is decided, and a
        later call finishes it. ``LedgerFencedError``: the table has another owner.
        ``ChangedTableError``: nothing leaves a table to whose log another engine has written.
        """
        if not adds and not removes:
            raise ValueError("an attach of nothing")
        async with self._changing:
            happened: bool | None = False
            try:
                if len(adds) + len(removes) > self._limits.files_per_attach:
                    raise StorageError(
                        f"an attach has at most {self._limits.files_per_attach} files"
                    )
                await self._roll_forward()
                if removes:
                    await self._check_unchanged()
                if change is None:
                    change = RowChange.REMOVE if removes else RowChange.APPEND
                record = self._deciding(adds, removes, value, change)
                await self._table.check(record)
                happened = None
                try:
                    await self._table.save(record, checks)
                except NotAttachedError:
                    happened = False
                    raise
                happened = True
            finally:
                if decided is not None:
                    await decided(happened)
            await self._roll_forward()
            return record.attached

    def _deciding(
        self,
        adds: Sequence[DataFile],
        removes: Sequence[DataFile],
        value: ColumnType | None,
        change: RowChange,
    ) -> TableRecord:
        """Return the record with an attach decided, without statistics if it is too large else."""

        def decided(adds: Sequence[DataFile]) -> TableRecord:
            said = change if self._states() else None
            return self.record.intending(self._clock.now_ms(), adds, removes, value, said)

        record = decided(adds)
        if len(record.encode()) > self._limits.document_bytes:
            record = decided([file.without_statistics() for file in adds])
        return record

    async def state(
        self, files: Sequence[DataFile], attached: int, indexed: Sequence[str] | None
    ) -> None:
        """Put statistics of files of the table into its log.

        With ``indexed`` it has all that can be had then, and these columns are indexed.
        ``StorageError``: there was an attach since the one numbered ``attached``. Other errors as
        those of ``attach``.
        """
        async with self._changing:
            await self._roll_forward()
            await self._check_sound()
            await self._check_unchanged()
            if self.record.attached != attached:
                raise StorageError(f"table {self.record.table_id}: it has changed meanwhile")
            record = self.record.intending(
                self._clock.now_ms(), files, (), None, RowChange.STATE, indexed
            )
            await self._table.check(record)
            await self._table.save(record)
            await self._roll_forward()

    async def publish(
        self,
        ident: str,
        number: int,
        reserve: Callable[[], Awaitable[Sequence[DataFile]]],
        decided: Callable[[bool | None], Awaitable[None]],
        value: ColumnType,
    ) -> bool:
        """An attach of ledgers that exist from its intent on; once for ``ident`` and ``number``.

        ``False``: this publish, or a later one of ``ident``, was made before, and nothing is
        done. Otherwise ``reserve`` gives the files, and ``decided`` hears whether they are part of
        the table now; ``None`` if that cannot be known. Errors as those of ``attach``.
        """
        async with self._changing:
            await self._roll_forward()
            if await self._publishes.has(self.record, ident, number):
                return False
            await self._check_sound()
            before = self.record
            if self._publishes.is_due(before):
                await self._publishes.move(before, self._clock.now_ms(), self._table.check_owned)
                before = replace(before, published=())
            happened: bool | None = False
            try:
                adds = await reserve()
                if len(adds) > self._limits.files_per_publish:
                    raise StorageError(
                        f"a publish has at most {self._limits.files_per_publish} files"
                    )
                if len(adds) > self._limits.files_per_attach:
                    adds = [file.without_statistics() for file in adds]
                done = Published(ident, number, self._clock.now_ms())
                said = RowChange.APPEND if self._states() else None
                record = before.publishing(done, adds, value, said)
                if len(record.encode()) > self._limits.document_bytes:
                    adds = [file.without_statistics() for file in adds]
                    record = before.publishing(done, adds, value, said)
                await self._table.check(record)
                happened = None
                try:
                    happened = await self._table.decide(record)
                except NotAttachedError:
                    happened = False
                    raise
            finally:
                await decided(happened)
            if not happened:
                raise StorageError(f"table {self.record.table_id}: the attach was not stored")
            try:
                await self._roll_forward()
            except (StorageError, MetadataError) as e:
                log.warning(
                    "table %s: cannot finish an attach yet, trying again: %s",
                    self.record.table_id,
                    e,
                )
            return True

    async def has_published(self, ident: str, number: int) -> bool:
        """Whether a bulk publish was decided, or a later one of the same origin."""
        return await self._publishes.has(self.record, ident, number)

    async def existing(self, ledger_ids: Collection[int]) -> set[int]:
        """The reserved ledgers that an attach has made; the others never will exist."""
        async with self._changing:
            await self._table.settle()
            await self._table.save(self.record)  # a stale owner finds out that it is one
            intent = self.record.intent
            named = set(ledgers_of(intent)) if intent is not None else set()
            return {i for i in ledger_ids if i in named or await self.sealed(i) is not None}

    async def vacuum(self, ledger_id: int, before_ms: int) -> int:
        """Delete the files of a ledger that left the table before a time; returns their number.

        Only what was once in the log and left it is deleted, on all roots that can be reached;
        a root that is away keeps its copies. ``ChangedTableError`` as from ``attach``.
        """
        async with self._changing:
            await self._check_unchanged()
            found = await self._table.document(ledger_id)
            if found is None:
                return 0
            sealed, version = found
            old = [file.path for file in sealed.left if file.time_ms < before_ms]
            if not old:
                return 0
            # A former owner finds out before it deletes anything.
            await self._table.save(self.record)
            await self.remove_files(old)
            after = sealed.without_left(old)
            await self._table.put(after, version)
            if not after.files and not after.left:
                await self._remove_directory(sealed)
            return len(old)

    async def begin_log_at(self, version: int) -> None:
        """Commits before a version may be deleted from now on, where a checkpoint has them."""
        async with self._changing:
            await self._table.settle()
            if version > self.record.first_version:
                await self._table.save(replace(self.record, first_version=version))

    async def _remove_directory(self, sealed: SealedLedger) -> None:
        """A ledger has no files any more: each of its directories is an inode."""
        directory = ledger_directory(sealed.partition, sealed.ledger_id)
        for root in self.record.roots:
            remove = partial(self._disk.remove_dir, f"{root}/{directory}")
            await run_in_worker(self._worker, remove)

    async def remove_files(self, paths: Sequence[str]) -> None:
        """Delete files that are no part of the table; a root that is away keeps its copies."""
        await remove_everywhere(
            self._disk, self._worker, self.record.roots, paths, self._limits.files_a_turn
        )

    async def take_up(self, found: LogContent, ledgers: Iterable[SealedLedger]) -> None:
        """Know of these ledgers what a log says of the table, which knows more than the record.

        What the table has of others stays as it is known. Until it is done to its end the table
        cannot be opened, and it may be done again.
        """
        async with self._changing:
            now = self._clock.now_ms()
            left: dict[int, list[str]] = {}
            for file in found.left.values():
                left.setdefault(file.ledger_id, []).append(file.path)
            for number, ledger in enumerate(ledgers, 1):
                if number % LEDGERS_A_TURN == 0:
                    await asyncio.sleep(0)
                await self._table.take_up(ledger, left.get(ledger.ledger_id, ()), now)
            publishes = found.published.values()
            await self._publishes.take_up(publishes, now, self._table.check_owned)
            record = self.record.taking_up(found.attached, found.time_ms, found.value)
            first = max(record.first_version, found.first_version)
            created_ms = found.created_ms or record.created_ms
            await self._table.save(replace(record, first_version=first, created_ms=created_ms))

    async def repair(self, behind: int = 0) -> None:
        """Make the log on every root say what the metadata store says, whatever it says now.

        An attach that was decided and not done is part of that; those up to the number ``behind``
        that some log has, and the store does not know, are not. ``StorageError``: a root cannot
        be reached or repaired; what was decided is done by a later call, or by the next owner.
        """
        async with self._changing:
            await self._table.settle()
            before = self.record
            if before.intent is not None and before.pending:
                await self._table.show(before.intent)
            record = before.repairing(self._clock.now_ms(), behind, states=self._states())
            self._table.check_size(record.encode(), "the table record")
            await self._table.save(record)
            await self._roll_forward()

    async def _repair(self, table_log: RootLog) -> None:
        """Repair one root's log, as its intent says."""
        if self._repairs is None:
            raise StorageError("this process repairs no tables")
        while not await self._logs.run(table_log, partial(_is_at, self.record)):
            files = await self._table.files()
            found = await self._repairs(table_log.directory, self.record, files)
            if await self._logs.run(table_log, partial(_repaired, self.record, found)):
                log.warning(
                    "table %s: repaired the log in %s: added %d missing files, removed %d others",
                    self.record.table_id, table_log.directory, found.adds, found.removes,
                )  # fmt: skip
                return

    async def look(self) -> None:
        """``ChangedTableError`` if another engine has written to the table's log.

        ``DamagedLogError``: too few logs are whole.
        """
        async with self._changing:
            await self._check_sound()
            await self._check_unchanged()

    async def _check_sound(self) -> None:
        await _check_sound(self._table, self._logs, self._roots_needed)

    async def _check_unchanged(self) -> None:
        await self._table.settle()
        for table_log in self._logs if self.record.attached else ():
            try:
                await self._logs.run(table_log, lambda log: log.look(self.record))
            except OthersCommitError as e:
                await self._table.note(e.found)
            except OlderMetadataError:
                await self._table.check_owned()
                raise
            except (OSError, StorageError) as e:
                log.debug("%s: cannot be looked at now: %s", table_log.directory, e)
        if self.record.others:
            raise ChangedTableError(self._table.changed)

    async def _roll_forward(self, clean: bool = False) -> None:
        """Make a decided attach true on every root that can be reached."""
        await self._table.settle()
        if self.record.intent is None or not (self.record.pending or clean):
            return
        reached = 0
        for table_log in self._logs:
            if self._logs.is_damaged(table_log):
                continue
            try:
                await self._commit(table_log, clean)
            except OlderMetadataError:
                await self._table.check_owned()
                raise
            except (OSError, StorageError) as e:
                self._behind.add(table_log.directory)
                log.warning(
                    "table %s: storage root %s stays behind: %s",
                    self.record.table_id, table_log.directory, e,
                )  # fmt: skip
            else:
                if table_log.directory in self._behind:
                    self._behind.remove(table_log.directory)
                    log.warning(
                        "table %s: storage root %s has caught up",
                        self.record.table_id, table_log.directory,
                    )  # fmt: skip
                reached += 1
        record = self.record
        assert record.intent is not None
        # A root that was away when the others were repaired could not follow them.
        repairs = record.pending and record.intent.repairs
        needed = len(record.roots) if repairs else self._roots_needed
        if reached < needed:
            raise StorageError(
                f"table {record.table_id}: attach {record.attached} has reached {reached} roots "
                f"of {needed}; it will be tried again. If that does not help, the roots have lost "
                f"commits: pulsark tables repair {topic_at(TABLES, self._table.path)}"
            )
        if record.pending:
            await self._table.show(record.intent)
            await self._table.save(record.done())

    async def _commit(self, table_log: RootLog, clean: bool) -> None:
        if clean:
            await self._logs.run(table_log, RootLog.clean)
        done = False
        while not done:
            record = self.record
            try:
                if record.pending and record.intent is not None and record.intent.repairs:
                    await self._repair(table_log)
                    done = True
                else:
                    done = await self._logs.run(table_log, partial(_committed, record))
            except OthersCommitError as e:
                await self._table.note(e.found)


async def _check_sound(table: OwnedTableRecord, logs: TableLogs, needed: int) -> None:
    """``DamagedLogError`` if too few logs of a table are whole. A repair begins without it."""
    intent = table.record.intent
    if intent is not None and intent.repairs and table.record.pending:
        return

    async def knows(file: NamedFile) -> bool:
        sealed = await table.sealed(file.ledger_id)
        files = [*(sealed.files if sealed is not None else ()), *(intent.adds if intent else ())]
        wanted = (file.path, file.size, file.crc32c)
        return any((known.path, known.size, known.crc32c) == wanted for known in files)

    await logs.check_sound(table.record, needed, knows)


def _is_at(record: TableRecord, table_log: RootLog) -> bool:
    try:
        return table_log.is_at(record)
    except CorruptEntryError:  # which the repair mends
        return False


def _committed(record: TableRecord, table_log: RootLog) -> bool:
    return table_log.commit(record)


def _repaired(record: TableRecord, found: LogRepair, table_log: RootLog) -> bool:
    return table_log.repair(record, found.commit, found.seen)
