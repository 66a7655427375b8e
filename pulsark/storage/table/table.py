"""A table that this process owns: what is sealed into it, and what is done to its files later."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pulsark.errors import CorruptEntryError, StorageError, StorageFullError, UnsealableError
from pulsark.metadata.paths import table_path
from pulsark.runtime import Runtime, Worker, run_in_worker
from pulsark.schemas.columns import BINARY, ColumnType
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.table.bulk_publish import remove_old_staged
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.root_identity import storage_root_of
from pulsark.storage.table.seal_attempts import SealAttempts
from pulsark.storage.table.unnamed_files import UnnamedFiles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from pulsark.schemas.definition import SchemaData
    from pulsark.storage.table.attach import TableOwner
    from pulsark.storage.table.files.record import DataFile, SealedLedger, TableRecord
    from pulsark.storage.table.files.table_limits import TableLimits
    from pulsark.storage.table.known_ledgers import KnownLedgers
    from pulsark.storage.table.process.table_processes import (
        EntriesOf,
        PiecesOf,
        TableProcesses,
    )
    from pulsark.storage.table.read_ahead import ReadAhead
    from pulsark.storage.table.roots import TableRoots
    from pulsark.storage.table.touched_ledgers import TouchedLedgers
    from pulsark.wire.topic_name import TopicName

    SchemasOf = Callable[[TopicName], Awaitable[Sequence[tuple[bytes, SchemaData]]]]
    """Gives all versions of a topic's schema, the oldest first, by what messages carry of them."""

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableParts:
    """What the tables of a process share."""

    runtime: Runtime
    thread: Callable[[], Worker]
    roots: TableRoots
    processes: TableProcesses
    ledgers: KnownLedgers
    touched: TouchedLedgers
    ahead: ReadAhead
    limits: TableLimits
    schemas_of: SchemasOf | None

    def forget(self, path: str) -> None:
        """Anything of a table may have changed."""
        self.forget_content(path)
        self.touched.forget(path)

    def forget_content(self, path: str) -> None:
        """What was read of a table may be untrue."""
        self.ahead.forget(path)
        self.ledgers.forget(path)


class Table:
    """An open table, to be used at once: ``Tables.open`` gives another one when this was lost.

    ``lost`` is called with it when another broker may know more of the table than its owner.
    """

    def __init__(
        self,
        name: TopicName,
        owner: TableOwner,
        parts: TableParts,
        lost: Callable[[Table], None],
    ) -> None:
        self.name = name
        self.owner = owner
        self._parts = parts
        self._lost = lost
        self._disk = parts.runtime.disk
        self._limits = parts.limits
        self._path = table_path(name)

    @property
    def record(self) -> TableRecord:
        """The table as it is now."""
        return self.owner.record

    def lose(self) -> None:
        """The present owner knows more: the next caller that needs the table opens it anew."""
        self._lost(self)

    async def values(self) -> ValueSchemas:
        """With which schemas, and as which type, further files have their values."""
        schemas_of, record = self._parts.schemas_of, self.record
        if schemas_of is None or (record.attached and record.value == BINARY):
            return ValueSchemas()
        versions = await schemas_of(self.name)
        kind = record.value if record.attached else None
        return await self._run(lambda: ValueSchemas.next(kind, versions))

    # -- entries become files, files part of the table ---

    async def seal(
        self,
        ranges: Sequence[SealRange],
        entries_of: EntriesOf,
        target_bytes: int,
        *,
        located: PiecesOf | None = None,
        patient: bool = False,
    ) -> None:
        """Seal entries of the topic's partitions, and attach them all at once.

        ``located`` may give excerpts; where they cannot be read, ``entries_of`` gives entries.
        What is ``patient`` is done while no other process wants the processor, unless that takes
        long.
        When this returns, they are in the table on as many roots as are needed, and the journal
        may release them; of a range for which there is no room, its beginning. ``StorageError``
        or ``MetadataError``: not yet; it may be tried again. A range that has an entry which cannot
        be sealed at all keeps no other out: its error comes when they are attached.
        """
        values = await self.values()
        unsealable: UnsealableError | None = None
        async with self._files() as adds:
            for wanted in ranges:
                try:
                    await self._seal(
                        adds, wanted, entries_of, target_bytes, values, located, patient
                    )
                except UnsealableError as e:
                    unsealable = e
                if len(adds) > self._limits.files_per_attach // 2:
                    await self._attach_all(adds, values.kind)
            await self._attach_all(adds, values.kind)
        if unsealable is not None:
            raise unsealable

    async def merge(
        self, files: Sequence[DataFile], entries_of: EntriesOf, target_bytes: int
    ) -> None:
        """Write consecutive files of a ledger anew, as few as there can be, in their place."""
        first, last = files[0], files[-1]
        wanted = SealRange(
            first.partition, first.ledger_id, first.first_entry_id, last.last_entry_id
        )
        values = await self.values()
        async with self._files() as adds:
            await self._seal_whole(adds, wanted, entries_of, target_bytes, values)
            await self._attach(adds, files, values.kind)

    async def rewrite(
        self,
        sealed: SealedLedger,
        files: Sequence[DataFile],
        entries_of: EntriesOf,
        target_bytes: int,
    ) -> None:
        """Write some files of a ledger anew, entry for entry, in the place of what they were."""
        values = await self.values()
        async with self._files() as adds:
            for file in files:
                wanted = SealRange(
                    sealed.partition,
                    sealed.ledger_id,
                    file.first_entry_id,
                    file.last_entry_id,
                    file.size,
                )
                await self._seal_whole(adds, wanted, entries_of, target_bytes, values)
            await self._attach(adds, files, values.kind)

    async def attach(self, files: Sequence[DataFile], value: ColumnType | None = None) -> None:
        """Attach files that others wrote, with ``values``.

        ``StorageError`` if they are on fewer storage roots than are needed.
        """
        needed = self._parts.roots.needed(self.record)
        for file in files:
            there = 0
            for root in self.record.roots:
                size = partial(self._disk.size, f"{root}/{file.path}")
                try:
                    there += await self._run(size) == file.size
                except OSError as e:
                    log.warning("%s: %s is not there: %s", root, file.path, e)
            if there < needed:
                raise StorageError(f"{file.path} is on {there} storage roots of {needed}")
        await self._attach(list(files), value=value)

    async def remove(self, sealed: SealedLedger) -> None:
        """Take the rows of a ledger out of the table: commits, which touch no file.

        It goes from the end, so that what is left of a ledger of many files begins with entry 0.
        """
        step = self._limits.files_per_step
        for end in range(len(sealed.files), 0, -step):
            await self._attach([], sealed.files[max(end - step, 0) : end])

    # -- what is old goes ---

    async def look(self) -> None:
        """``ChangedTableError`` if another engine has written to the table's log."""
        await self.owner.look()

    async def vacuum(self, ledger_id: int, before_ms: int) -> int:
        """Delete files of a ledger that left the table before a time; returns their number."""
        return await self.owner.vacuum(ledger_id, before_ms)

    async def checkpoint(self) -> None:
        """Give long logs a checkpoint, for the sake of other engines."""
        await self._parts.processes.normal.checkpoint(self.record.roots)

    async def fold_log(self, before_ms: int) -> bool:
        """Let the table's log begin with a checkpoint of a version decided before a time.

        Only if that is worth while. Returns whether there is more to be deleted.
        """
        roots = [
            directory
            for directory in self.record.roots
            if not await self._parts.roots.problem(storage_root_of(directory))
        ]
        process = self._parts.processes.normal
        now_ms = self._parts.runtime.sure_clock.now_ms()
        bases = await process.make_bases(roots, before_ms, now_ms, self._limits.commits_folded)
        made = [version for version in bases if version is not None]
        if made and len(made) >= self._parts.roots.needed(self.record):
            await self.owner.begin_log_at(min(made))
        first = self.record.first_version
        if not first:
            return False
        return not await process.forget_commits(roots, first, self._limits.commits_deleted)

    async def remove_staged(self, before_ms: int, *, whole: bool) -> int:
        """Delete files that were staged before a time, and that were never attached.

        Unless ``whole`` only those for bulk publishes, which are all in one place. Returns how
        many of these are left. Refused if the metadata store is older than the table.
        """
        await self.look()
        left = 0
        for root in self.record.roots if whole else ():
            unnamed = UnnamedFiles(self._disk, root, self._parts.thread(), self._limits)
            try:
                await unnamed.remove(self._names, before_ms)
            except (OSError, CorruptEntryError) as e:
                log.warning("%s: unneeded files cannot be deleted yet: %s", root, e)
                left += 1
        for root in self.record.roots:
            try:
                left += await self._run(partial(remove_old_staged, self._disk, root, before_ms))
            except OSError as e:
                log.warning("%s: unneeded files cannot be deleted yet: %s", root, e)
                left += 1
        return left

    async def _names(self, ledger_id: int) -> list[str]:
        """Files of a ledger that the table has, had, or is about to have."""
        intent = self.record.intent
        sealed = await self.owner.sealed(ledger_id)
        names = [file.path for file in intent.adds] if intent is not None else []
        if sealed is not None:
            names += [file.path for file in sealed.files]
            names += [file.path for file in sealed.left]
        return names

    # Internals.

    async def _run(self, action: Callable[[], T]) -> T:
        return await run_in_worker(self._parts.thread(), action)

    async def _seal(
        self,
        adds: list[DataFile],
        wanted: SealRange,
        entries_of: EntriesOf,
        target_bytes: int,
        values: ValueSchemas,
        located: PiecesOf | None = None,
        patient: bool = False,
    ) -> None:
        """Add files with the entries of a range to a list; of its beginning if that is all."""
        roots, size = await self._parts.roots.with_room(self.record, wanted.size)
        needed = self._parts.roots.needed(self.record)

        async def attempt(part: SealRange, as_sent: bool) -> list[DataFile]:
            return await self._parts.processes.seal(
                part, roots, needed, target_bytes, values, entries_of, located, patient, as_sent
            )

        await SealAttempts(attempt, adds).seal(wanted.within(size))

    async def _seal_whole(
        self,
        adds: list[DataFile],
        wanted: SealRange,
        entries_of: EntriesOf,
        target_bytes: int,
        values: ValueSchemas,
    ) -> None:
        """Seal what replaces other files: all of it, or ``StorageError``."""
        await self._seal(adds, wanted, entries_of, target_bytes, values)
        if not adds or adds[-1].last_entry_id != wanted.last:
            raise StorageFullError(
                f"there is no room to write ledger {wanted.ledger_id} anew up to {wanted.last}"
            )

    @asynccontextmanager
    async def _files(self) -> AsyncIterator[list[DataFile]]:
        """A list of files to be attached; those that are left in it in the end are deleted."""
        files: list[DataFile] = []
        try:
            yield files
        finally:
            if files:
                await self.owner.remove_files([file.path for file in files])

    async def _attach_all(self, adds: list[DataFile], value: ColumnType) -> None:
        while adds:
            await self._attach(adds, (), value, self._limits.files_per_attach)

    async def _attach(
        self,
        adds: list[DataFile],
        removes: Sequence[DataFile] = (),
        value: ColumnType | None = None,
        most: int | None = None,
    ) -> None:
        """Attach some of the files, and take them from the list once they may be attached."""
        new = adds[:most]

        async def decided(happened: bool | None) -> None:
            if happened is not False:
                del adds[: len(new)]

        try:
            await self.owner.attach(new, removes, value, decided)
        except BaseException:
            # It may be decided. The table's next owner does it, and forgets what was known.
            self.lose()
            raise
        finally:
            changed = {file.ledger_id for file in (*new, *removes)}
            self._parts.ledgers.forget(self._path, changed)
            if removes:
                self._parts.ahead.forget(self._path, {file.ledger_id for file in removes})
