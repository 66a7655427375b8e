"""A table that this process owns: what is sealed into it, and what is done to its files later."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from pulsark.errors import (
    CorruptEntryError,
    CrowdedTableError,
    NotAttachedError,
    PulsarkError,
    SealedApartError,
    StorageFullError,
)
from pulsark.storage.table.bulk_publish import remove_old_staged
from pulsark.storage.table.files.record import RowChange
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.root_identity import storage_root_of
from pulsark.storage.table.table_writer import TableWriter
from pulsark.storage.table.unnamed_files import UnnamedFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.metadata.changes import Check
    from pulsark.schemas.column_types import ColumnType
    from pulsark.schemas.value_schemas import ValueSchemas
    from pulsark.storage.table.attach import TableOwner
    from pulsark.storage.table.files.record import DataFile, SealedLedger
    from pulsark.storage.table.process.table_processes import EntriesOf
    from pulsark.storage.table.table_parts import TableParts
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)


class Table(TableWriter):
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
        super().__init__(name, owner, parts)
        self.owner = owner
        self._lost = lost

    def lose(self) -> None:
        """The present owner knows more: the next caller that needs the table opens it anew."""
        self._lost(self)

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
            await self._attach(adds, files, values.kind, change=RowChange.MERGE)

    async def rewrite(
        self,
        sealed: SealedLedger,
        files: Sequence[DataFile],
        entries_of: EntriesOf,
        target_bytes: int,
        change: RowChange,
    ) -> None:
        """Write some files of a ledger anew, entry for entry, in the place of what they were.

        ``change`` says whether messages go with that.
        """
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
                try:
                    await self._seal_whole(adds, wanted, entries_of, target_bytes, values)
                except SealedApartError:  # a caller waits for it: apart from others, at once
                    await self._seal_whole(adds, wanted, entries_of, target_bytes, values)
            await self._attach(adds, files, values.kind, change=change)

    async def attach(
        self,
        files: Sequence[DataFile],
        value: ColumnType | None = None,
        checks: Sequence[Check] = (),
    ) -> None:
        """Attach files that others wrote, with ``values``; only while ``checks`` hold.

        ``NotAttachedError``, ``CrowdedTableError``: nothing of it happened, nor will.
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
                raise NotAttachedError(f"{file.path} is on {there} storage roots of {needed}")
        adds = list(files)
        try:
            await self._attach(adds, value=value, checks=checks)
        except CrowdedTableError:
            raise
        except PulsarkError as error:
            if adds:
                raise NotAttachedError(str(error)) from error
            raise

    async def remove(self, sealed: SealedLedger) -> None:
        """Take the rows of a ledger out of the table: commits, which touch no file.

        It goes from the end, so that what is left of a ledger of many files begins with entry 0.
        """
        step = self._limits.files_per_step
        for end in range(len(sealed.files), 0, -step):
            await self._attach([], sealed.files[max(end - step, 0) : end])

    async def state(self) -> bool:
        """Put statistics that the log lacks into it, of a few files; return whether there is more.

        Tables of older releases lack those of most columns, and a large publish, which has no room
        for them, leaves them to this. Errors as those of ``merge``.
        """
        record = self.record
        if record.stated or not record.attached or not self._parts.states():
            return False
        room = self._limits.document_bytes // 2
        found = await self._parts.processes.normal.missing_statistics(record, room)
        try:
            await self.owner.state(found.files, record.attached, found.indexed)
        except BaseException:
            self.lose()
            raise
        return found.indexed is None

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

    async def _seal_whole(
        self,
        adds: list[DataFile],
        wanted: SealRange,
        entries_of: EntriesOf,
        target_bytes: int,
        values: ValueSchemas,
    ) -> None:
        """Seal what replaces other files: all of it, or ``StorageError``."""
        await self._seal(adds, wanted, entries_of, target_bytes, values, again=True)
        if not adds or adds[-1].last_entry_id != wanted.last:
            raise StorageFullError(
                f"there is no room to write ledger {wanted.ledger_id} anew up to {wanted.last}"
            )
