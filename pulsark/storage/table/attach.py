"""Attach: files become part of a topic's table, on all its storage roots, once.

1. The files are written, synced and verified (``seal``).
2. The intent: one compare-and-set of the table record. This is the moment of truth; from here
   on it is only rolled forward, by whoever owns the table.
3. On each root: look at the log; if its last attach is the one before this, commit at exactly
   the next version; if somebody was faster, look again. Read back what was written.
4. The sealed ledgers' documents name the files, so that consumers read them.
5. The intent is marked as done. Now the journal may release the entries.

Each step may be the last one of a process, and each may be done again. A root that is away stays
behind and catches up from another one: a root's log is a prefix of the attaches, never different.
A stale owner loses the compare-and-set of the record, or finds its version taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from pulsark.errors import (
    BadVersionError,
    ChangedTableError,
    CrowdedTableError,
    LedgerFencedError,
    MetadataError,
    OlderMetadataError,
    StorageError,
)
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.runtime import Runtime, Worker, run_in_worker
from pulsark.schemas.columns import ColumnType
from pulsark.storage.table.log_repair import LogRepair
from pulsark.storage.table.publishes import Publishes
from pulsark.storage.table.record import (
    DataFile,
    Intent,
    OthersCommit,
    Published,
    SealedLedger,
    TableRecord,
    ledgers_of,
    sealed_ledger_path,
    topic_at,
)
from pulsark.storage.table.root_files import remove_files
from pulsark.storage.table.root_log import OthersCommitError, RootLog
from pulsark.storage.table.staging import ledger_directory
from pulsark.storage.table.table_limits import DEFAULT_LIMITS, TableLimits

log = logging.getLogger(__name__)

DOUBT_SECONDS = 1.0
DOUBT_ATTEMPTS = 10
"""How often the outcome of an intent is asked for before its ledgers are left in doubt."""


OPEN_ATTEMPTS = 20
"""How often a table is taken over from an owner that is busy with it."""


LEDGERS_A_TURN = 64
"""Documents that are read before the event loop does other work."""

Repairs = Callable[[str, TableRecord, Sequence[DataFile]], Awaitable[LogRepair]]
"""``log_repair`` of a directory, by somebody who has pyarrow."""


class TableOwner:
    """The only committer of a table, as long as nobody else opens it. See ``open``."""

    def __init__(
        self,
        path: str,
        record: TableRecord,
        version: int,
        metadata: MetadataStore,
        runtime: Runtime,
        worker: Worker,
        roots_needed: int,
        check_root: Callable[[str], None],
        where: Callable[[str], str],
        limits: TableLimits,
        repairs: Repairs | None,
    ) -> None:
        self._path = path
        self._record = record
        self._version = version
        self._metadata = metadata
        self._disk = runtime.disk
        self._clock = runtime.clock
        self._worker = worker
        self._roots_needed = min(roots_needed, len(record.roots))
        self._check_root = check_root
        self._where = where
        self._limits = limits
        self._repairs = repairs
        self._logs = {root: RootLog(runtime.disk, root) for root in record.roots}
        self._publishes = Publishes(path, metadata, limits)
        self._changing = asyncio.Lock()
        self._doubtful = False
        """Whether the outcome of a write of the record is unknown."""

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
        roots_needed: int = 1,
        check_root: Callable[[str], None] = lambda directory: None,
        where: Callable[[str], str] = str,
        limits: TableLimits = DEFAULT_LIMITS,
        repairs: Repairs | None = None,
        roll_forward: bool = True,
    ) -> TableOwner:
        """Own the table whose record is at ``path``, created on ``roots`` if there is none.

        Rolls an attach forward that was decided and not done. ``roots_needed`` of the roots must
        have an attach before it is done. A record of another ``table_id`` is one of a topic
        that was deleted; the new table takes its place. ``where`` says where a directory of the
        record is now. ``OlderMetadataError``: the log on some root has what the record does not
        know of; nothing was changed. ``repairs`` makes commits of repairs. Without ``roll_forward``
        the table is owned, and nothing else is done: to be repaired, if the rest fails.
        """
        for attempts_left in reversed(range(OPEN_ATTEMPTS)):
            found = await metadata.get(path)
            record = TableRecord.decode(path, found.value) if found is not None else None
            if record is None or record.table_id != table_id:
                record = TableRecord(table_id, runtime.clock.now_ms(), tuple(roots))
            version = found.version if found is not None else ABSENT
            owner = cls(
                path, record.relocated(where), version, metadata, runtime, worker, roots_needed,
                check_root, where, limits, repairs,
            )  # fmt: skip
            await owner._check_logs()
            try:
                # Whoever opened the table before can decide nothing any more.
                await owner._save(owner._record)
                break
            except LedgerFencedError:  # the owner before has done something meanwhile
                if not attempts_left:
                    raise
        if roll_forward:
            async with owner._changing:
                await owner._roll_forward(clean=True)
        return owner

    @property
    def record(self) -> TableRecord:
        """The table as it is now."""
        return self._record

    async def sealed(self, ledger_id: int) -> SealedLedger | None:
        """Which files hold a ledger's entries; ``None`` if none of them is sealed."""
        return await read_sealed(self._path, ledger_id, self._metadata)

    async def attach(
        self,
        adds: Sequence[DataFile],
        removes: Sequence[DataFile] = (),
        value: ColumnType | None = None,
        decided: Callable[[bool | None], Awaitable[None]] | None = None,
    ) -> int:
        """Files join and leave the table, all or none; returns the number of the attach.

        ``value`` is the type that added files have in their column ``value``; without it they
        have the table's. ``decided`` hears whether they are part of the table now; ``None`` if
        that cannot be known.
        ``StorageError`` before the intent: nothing happened. After it: it is decided, and a
        later call finishes it. ``LedgerFencedError``: the table has another owner.
        ``ChangedTableError``: nothing leaves a table to whose log somebody else has written.
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
                record = self._record.intending(self._clock.now_ms(), adds, removes, value)
                await self._check(record)
                happened = None
                await self._save(record)
                happened = True
            finally:
                if decided is not None:
                    await decided(happened)
            await self._roll_forward()
            return record.attached

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
            if await self._publishes.has(self._record, ident, number):
                return False
            before = self._record
            if self._publishes.is_due(before):
                await self._publishes.move(before, self._clock.now_ms(), self._check_owned)
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
                now = self._clock.now_ms()
                record = before.intending(now, adds, (), value)
                record = record.with_published(Published(ident, number, now))
                await self._check(record)
                happened = None
                happened = await self._decide(record)
            finally:
                await decided(happened)
            if not happened:
                raise StorageError(f"table {self._record.table_id}: the attach was not stored")
            try:
                await self._roll_forward()
            except (StorageError, MetadataError) as e:
                log.warning("table %s: to be rolled forward later: %s", self._record.table_id, e)
            return True

    async def has_published(self, ident: str, number: int) -> bool:
        """Whether a bulk publish was decided, or a later one of the same origin."""
        return await self._publishes.has(self._record, ident, number)

    async def existing(self, ledger_ids: Collection[int]) -> set[int]:
        """Those of some reserved ledgers that an attach has made; the others never will exist."""
        async with self._changing:
            if self._doubtful:
                await self._reload()
            await self._save(self._record)  # a stale owner finds out that it is one
            intent = self._record.intent
            named = set(ledgers_of(intent)) if intent is not None else set()
            return {i for i in ledger_ids if i in named or await self.sealed(i) is not None}

    async def vacuum(self, ledger_id: int, before_ms: int) -> int:
        """Delete the files of a ledger that left the table before a time; returns their number.

        Only what was once in the log and left it is deleted, on all roots that can be reached;
        a root that is away keeps its copies. ``ChangedTableError`` as from ``attach``.
        """
        async with self._changing:
            await self._check_unchanged()
            path = sealed_ledger_path(self._path, ledger_id)
            found = await self._metadata.get(path)
            if found is None:
                return 0
            sealed = SealedLedger.decode(path, found.value)
            old = [file.path for file in sealed.left if file.time_ms < before_ms]
            if not old:
                return 0
            # Whoever is not the owner any more finds out before anything is deleted.
            await self._save(self._record)
            await self.remove_files(old)
            after = sealed.without_left(old)
            try:
                if after.files or after.left:
                    await self._metadata.put(path, after.encode(), found.version)
                else:
                    await self._metadata.delete(path, found.version)
            except BadVersionError:
                raise LedgerFencedError(
                    f"table {self._record.table_id} has another owner"
                ) from None
            if not after.files and not after.left:
                await self._remove_directory(sealed)
            return len(old)

    async def begin_log_at(self, version: int) -> None:
        """Commits before a version may be deleted from now on, where a checkpoint has them."""
        async with self._changing:
            if self._doubtful:
                await self._reload()
            if version > self._record.first_version:
                await self._save(replace(self._record, first_version=version))

    async def _remove_directory(self, sealed: SealedLedger) -> None:
        """A ledger has no files any more: each of its directories is an inode."""
        directory = ledger_directory(sealed.partition, sealed.ledger_id)
        for root in self._record.roots:
            remove = partial(self._disk.remove_dir, f"{root}/{directory}")
            await run_in_worker(self._worker, remove)

    async def remove_files(self, paths: Sequence[str]) -> None:
        """Delete files that are no part of the table; a root that is away keeps its copies."""
        for root in self._record.roots:
            try:
                for start in range(0, len(paths), self._limits.files_a_turn):
                    some = paths[start : start + self._limits.files_a_turn]
                    await run_in_worker(self._worker, partial(remove_files, self._disk, root, some))
            except OSError as e:
                log.warning("%s: files that are not in the table stay: %s", root, e)

    async def repair(self) -> None:
        """Make the log on every root say what the metadata store says, whatever it says now.

        An attach that was decided and not done is part of that. ``StorageError``: a root cannot
        be reached or repaired; what was decided is done by a later call, or by the next owner.
        """
        async with self._changing:
            if self._doubtful:
                await self._reload()
            before = self._record
            if before.intent is not None and before.pending:
                for ledger_id, partition in ledgers_of(before.intent).items():
                    await self._show(SealedLedger(ledger_id, partition), before.intent)
            record = before.repairing(self._clock.now_ms())
            self._check_size(record.encode(), "the table record")
            await self._save(record)
            await self._roll_forward()

    async def _repair(self, table_log: RootLog) -> None:
        """Of one root, as its intent says."""
        if self._repairs is None:
            raise StorageError("this process repairs no tables")
        while not await run_in_worker(self._worker, partial(self._is_at, table_log)):
            found = await self._repairs(table_log.directory, self._record, await self._named())
            write = partial(self._write_repair, table_log, found)
            if await run_in_worker(self._worker, write):
                log.warning(
                    "table %s: %s has %d files that it lacked, and %d less that it had too many",
                    self._record.table_id, table_log.directory, found.adds, found.removes,
                )  # fmt: skip
                return

    def _is_at(self, table_log: RootLog) -> bool:
        self._check_root(table_log.directory)
        return table_log.is_at(self._record)

    def _write_repair(self, table_log: RootLog, found: LogRepair) -> bool:
        return table_log.repair(self._record, found.commit, found.seen)

    async def _named(self) -> list[DataFile]:
        """All files that the table has."""
        named: list[DataFile] = []
        for number, child in enumerate(await self._metadata.children(self._path), 1):
            if number % LEDGERS_A_TURN == 0:
                await asyncio.sleep(0)
            sealed = await self.sealed(int(child)) if child.isdigit() else None
            named += sealed.files if sealed is not None else ()
        return named

    async def look(self) -> None:
        """``ChangedTableError`` if somebody else has written to the table's log."""
        async with self._changing:
            await self._check_unchanged()

    async def _check_unchanged(self) -> None:
        if self._doubtful:
            await self._reload()
        for table_log in self._logs.values() if self._record.attached else ():
            try:
                await run_in_worker(self._worker, partial(self._look_at, table_log))
            except OthersCommitError as e:
                await self._note(e.found)
            except OlderMetadataError:
                await self._check_owned()
                raise
            except (OSError, StorageError) as e:
                log.debug("%s: cannot be looked at now: %s", table_log.directory, e)
        if self._record.others:
            raise ChangedTableError(_changed(self._path, self._record.others))

    def _look_at(self, table_log: RootLog) -> None:
        self._check_root(table_log.directory)
        table_log.look(self._record)

    async def _note(self, found: OthersCommit) -> None:
        """Remember that somebody else has written, before anything is written behind it."""
        await self._save(self._record.with_others(found))
        log.warning("%s", _changed(self._path, self._record.others))

    async def _decide(self, record: TableRecord) -> bool:
        """Write the intent; whether it is there, which may take a while to find out.

        An error that leaves this open is raised.
        """
        try:
            await self._save(record)
        except MetadataError:
            for _ in range(DOUBT_ATTEMPTS):
                await asyncio.sleep(DOUBT_SECONDS)
                try:
                    await self._reload()
                except MetadataError:
                    continue
                return self._record == record
            raise
        return True

    async def _check(self, record: TableRecord) -> None:
        """``StorageError`` for an intent that could not be rolled forward."""
        assert record.intent is not None
        self._check_size(record.encode(), "the table record")
        for ledger_id, partition in ledgers_of(record.intent).items():
            sealed = await self.sealed(ledger_id) or SealedLedger(ledger_id, partition)
            after = sealed.with_intent(record.intent)
            if not after.is_whole():
                raise StorageError(
                    f"the files of ledger {ledger_id} would not follow each other: "
                    f"sealed through {sealed.through}"
                )
            self._check_size(after.encode(), f"the list of {len(after.files)} files of {ledger_id}")

    def _check_size(self, document: bytes, what: str) -> None:
        if len(document) > self._limits.document_bytes:
            raise CrowdedTableError(
                f"table {self._record.table_id}: {what} would have {len(document)} bytes, and may "
                f"have {self._limits.document_bytes}; it goes on when files are merged and deleted"
            )

    async def _check_logs(self) -> None:
        """``OlderMetadataError`` if a root that can be reached knows more than the record."""
        for table_log in self._logs.values():
            try:
                await run_in_worker(self._worker, partial(self._check_log, table_log))
            except OlderMetadataError:
                raise
            except (OSError, StorageError) as e:
                log.debug("%s: cannot be looked at now: %s", table_log.directory, e)

    def _check_log(self, table_log: RootLog) -> None:
        self._check_root(table_log.directory)
        table_log.check(self._record)

    async def _roll_forward(self, clean: bool = False) -> None:
        """Make a decided attach true on every root that can be reached."""
        if self._doubtful:
            await self._reload()
        if self._record.intent is None or not (self._record.pending or clean):
            return
        reached = 0
        for table_log in self._logs.values():
            try:
                await self._commit(table_log, clean)
            except OlderMetadataError:
                await self._check_owned()
                raise
            except (OSError, StorageError) as e:
                log.warning(
                    "table %s: root %s stays behind: %s",
                    self._record.table_id, table_log.directory, e,
                )  # fmt: skip
            else:
                reached += 1
        record = self._record
        assert record.intent is not None
        # A root that was away when the others were repaired could not follow them.
        repairs = record.pending and record.intent.repairs
        needed = len(record.roots) if repairs else self._roots_needed
        if reached < needed:
            raise StorageError(
                f"table {record.table_id}: attach {record.attached} has reached {reached} roots "
                f"of {needed}; it will be tried again"
            )
        if record.pending:
            for ledger_id, partition in ledgers_of(record.intent).items():
                await self._show(SealedLedger(ledger_id, partition), record.intent)
            await self._save(record.done())

    async def _commit(self, table_log: RootLog, clean: bool) -> None:
        if clean:
            await run_in_worker(self._worker, partial(self._clean, table_log))
        done = False
        while not done:
            commit = partial(self._commit_on, table_log, self._record)
            intent = self._record.intent
            try:
                if self._record.pending and intent is not None and intent.repairs:
                    await self._repair(table_log)
                    done = True
                else:
                    done = await run_in_worker(self._worker, commit)
            except OthersCommitError as e:
                await self._note(e.found)

    def _clean(self, table_log: RootLog) -> None:
        self._check_root(table_log.directory)
        table_log.clean()

    def _commit_on(self, table_log: RootLog, record: TableRecord) -> bool:
        self._check_root(table_log.directory)
        return table_log.commit(record)

    async def _show(self, empty: SealedLedger, intent: Intent) -> None:
        """Bring a sealed ledger's document up to date.

        It is written in its version that was read while the table was certainly this owner's:
        what another owner does to it comes later, and is not overwritten.
        """
        path = sealed_ledger_path(self._path, empty.ledger_id)
        while True:
            found = await self._metadata.get(path)
            await self._check_owned()
            before = SealedLedger.decode(path, found.value) if found is not None else empty
            after = before.with_intent(intent)
            try:
                if after.files or after.left:
                    version = found.version if found is not None else ABSENT
                    await self._metadata.put(path, after.encode(), version)
                elif found is not None:
                    await self._metadata.delete(path, found.version)
                return
            except BadVersionError:
                continue  # a stale owner rolled the same intent forward, or this is one

    async def _check_owned(self) -> None:
        """``LedgerFencedError`` if the table has another owner by now."""
        found = await self._metadata.get(self._path)
        if found is None or found.version != self._version:
            raise self._fenced()

    def _fenced(self) -> LedgerFencedError:
        return LedgerFencedError(f"table {self._record.table_id} has another owner")

    async def _save(self, record: TableRecord) -> None:
        try:
            self._version = await self._metadata.put(self._path, record.encode(), self._version)
        except BadVersionError:
            raise self._fenced() from None
        except BaseException:  # a caller that is cancelled does not know either
            self._doubtful = True
            raise
        self._record = record

    async def _reload(self) -> None:
        """After a write of unknown outcome. Another owner's version is told by its next write."""
        found = await self._metadata.get(self._path)
        if found is None or found.version not in (self._version, self._version + 1):
            raise self._fenced()
        self._record = TableRecord.decode(self._path, found.value).relocated(self._where)
        self._version = found.version
        self._doubtful = False


def _changed(path: str, others: Sequence[OthersCommit]) -> str:
    topic, newest = topic_at(path), max(others, key=lambda found: found.version)
    return (
        f"the table of {topic} was changed by somebody else (commit {newest.version} in "
        f"{newest.directory} is {newest.what}): nothing of it is merged, removed or deleted until "
        f"somebody runs: pulsark tables repair {topic}"
    )


async def read_sealed(path: str, ledger_id: int, metadata: MetadataStore) -> SealedLedger | None:
    """Which files hold a ledger's entries, for readers; ``path`` is that of the table record."""
    where = sealed_ledger_path(path, ledger_id)
    found = await metadata.get(where)
    return None if found is None else SealedLedger.decode(where, found.value)
