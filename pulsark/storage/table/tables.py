"""The tables that a broker owns: sealing into them, and reading entries back from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Callable,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from urllib.parse import unquote

from pulsark.errors import (
    BadVersionError,
    CorruptEntryError,
    MetadataError,
    NoSuchEntryError,
    PulsarkError,
    StorageError,
    StorageFullError,
    UnsealableError,
)
from pulsark.metadata.store import MetadataStore
from pulsark.runtime import Runtime, Worker, run_in_worker
from pulsark.schemas.columns import ColumnType
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.table.attach import TableOwner, read_sealed
from pulsark.storage.table.bulk import remove_old_staged
from pulsark.storage.table.doomed_tables import DoomedTables
from pulsark.storage.table.known_ledgers import KnownLedgers
from pulsark.storage.table.process import Entries, TableProcess
from pulsark.storage.table.publishing import TablePublishing
from pulsark.storage.table.read_ahead import BLOCK_BYTES, ReadAhead
from pulsark.storage.table.record import (
    TABLES_PATH,
    DataFile,
    SealedLedger,
    TableRecord,
    table_path,
)
from pulsark.storage.table.roots import StorageRoots, storage_root_of
from pulsark.storage.table.seal_attempts import SealAttempts
from pulsark.storage.table.seal_processes import EntriesOf, PiecesOf, SealProcesses
from pulsark.storage.table.seal_range import SealRange
from pulsark.storage.table.table_limits import DEFAULT_LIMITS, TableLimits
from pulsark.storage.table.table_owners import SchemasOf, TableOwners
from pulsark.storage.table.table_repair import Repair, TableRepair
from pulsark.storage.table.table_roots import TableRoots
from pulsark.storage.table.unnamed_files import UnnamedFiles
from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

DOCUMENT_BYTES = 1024
"""Reading a document costs as much as so many bytes of it."""


class Tables:
    """One for a process, on its storage roots."""

    def __init__(
        self,
        roots: StorageRoots,
        metadata: MetadataStore,
        runtime: Runtime,
        *,
        copies: int = 1,
        copies_needed: int = 1,
        schemas_of: SchemasOf | None = None,
        new_process: Callable[[], TableProcess] = TableProcess,
        limits: TableLimits = DEFAULT_LIMITS,
    ) -> None:
        self._metadata = metadata
        self._runtime = runtime
        self.limits = self._limits = limits
        sealing, self._reading = new_process(), new_process()
        self._reading.priority = "urgent"
        self._sealing = SealProcesses(sealing, new_process(), runtime, self._thread)
        self._ahead = ReadAhead()
        self._worker: Worker | None = None
        self.roots = TableRoots(
            roots, runtime.disk, self._thread, copies=copies, copies_needed=copies_needed
        )
        self._ledgers = KnownLedgers()
        self.doomed = DoomedTables(metadata, self.roots, runtime.disk, self._thread)
        self._owners = TableOwners(
            self.roots, metadata, runtime, self._thread, self._forget, limits, schemas_of,
            sealing.repair, self.doomed,
        )  # fmt: skip
        self.publishing = TablePublishing(
            self._owners, self.roots, runtime, self._thread, self._sealing.normal
        )

    async def sealed(self, name: TopicName, ledger_id: int) -> SealedLedger | None:
        """What is sealed of a ledger of a topic or partition."""
        return await self._sealed(table_path(name), ledger_id)

    async def directories(self, name: TopicName) -> Sequence[str]:
        """Where the table of a topic or partition is, the primary first; none without a table."""
        path = table_path(name)
        try:
            return (await self._owners.record(path)).roots
        except StorageError:
            return ()

    async def open(self, name: TopicName, table_id: str) -> bool:
        """Own the table of a topic, made if there is none; whether that was not so already.

        What the owner before decided and did not do is done when this returns, so what was known
        of sealed ledgers may be out of date.
        """
        return await self._owners.open(name, table_id)

    async def values(self, name: TopicName, record: TableRecord) -> ValueSchemas:
        """With which schemas, and as which type, further files of a table have their values."""
        return await self._owners.values(name, record)

    async def opened(self, name: TopicName, table_id: str) -> TableRecord:
        """``open``, and the table as it is now."""
        return (await self._owners.of(name, table_id)).record

    def new_attempt(self) -> str:
        """What makes the names of the files of one attempt differ from all others."""
        return self._sealing.new_attempt()

    async def attach(
        self, name: TopicName, files: Sequence[DataFile], value: ColumnType | None = None
    ) -> None:
        """Attach files that others wrote, with ``values``, to a table that is open.

        ``StorageError`` if they are on fewer storage roots than are needed.
        """
        record = await self._owners.record(table_path(name))
        owner = await self._owners.of(name, record.table_id)
        needed = self.roots.needed(owner.record)
        for file in files:
            there = 0
            for root in owner.record.roots:
                try:
                    there += await run_in_worker(
                        self._thread(),
                        lambda root=root, file=file: (  # type: ignore[misc]
                            self._runtime.disk.size(f"{root}/{file.path}") == file.size
                        ),
                    )
                except OSError as e:
                    log.warning("%s: %s is not there: %s", root, file.path, e)
            if there < needed:
                raise StorageError(f"{file.path} is on {there} storage roots of {needed}")
        await self._attach(name, owner, list(files), value=value)

    async def seal(
        self,
        name: TopicName,
        table_id: str,
        ranges: Sequence[SealRange],
        entries_of: EntriesOf,
        target_bytes: int,
        *,
        located: PiecesOf | None = None,
        patient: bool = False,
    ) -> None:
        """Seal entries of a topic's partitions, and attach them all at once.

        ``located`` may give excerpts; where they cannot be read, ``entries_of`` gives entries.
        What is ``patient`` is done while nobody else wants the processor, unless that takes long.
        When this returns, they are in the table on as many roots as are needed, and the journal
        may release them; of a range for which there is no room, its beginning. ``StorageError``
        or ``MetadataError``: not yet; it may be tried again. A range that has an entry which cannot
        be sealed at all keeps no other out: its error comes when they are attached.
        """
        owner = await self._owners.of(name, table_id)
        values = await self._owners.values(name, owner.record)
        unsealable: UnsealableError | None = None
        async with self._files_of(owner) as adds:
            for wanted in ranges:
                try:
                    await self._seal(
                        adds, owner, wanted, entries_of, target_bytes, values, located, patient
                    )
                except UnsealableError as e:
                    unsealable = e
                if len(adds) > self._limits.files_per_attach // 2:
                    await self._attach_all(name, owner, adds, values.kind)
            await self._attach_all(name, owner, adds, values.kind)
        if unsealable is not None:
            raise unsealable

    async def merge(
        self,
        name: TopicName,
        table_id: str,
        files: Sequence[DataFile],
        entries_of: EntriesOf,
        target_bytes: int,
    ) -> None:
        """Write consecutive files of a ledger anew, as few as there can be, in their place."""
        owner = await self._owners.of(name, table_id)
        first, last = files[0], files[-1]
        wanted = SealRange(
            first.partition, first.ledger_id, first.first_entry_id, last.last_entry_id
        )
        values = await self._owners.values(name, owner.record)
        async with self._files_of(owner) as adds:
            await self._seal_whole(adds, owner, wanted, entries_of, target_bytes, values)
            await self._attach(name, owner, adds, files, values.kind)

    async def rewrite(
        self,
        name: TopicName,
        table_id: str,
        sealed: SealedLedger,
        files: Sequence[DataFile],
        entries_of: EntriesOf,
        target_bytes: int,
    ) -> None:
        """Write some files of a ledger anew, entry for entry, in the place of what they were."""
        owner = await self._owners.of(name, table_id)
        values = await self._owners.values(name, owner.record)
        async with self._files_of(owner) as adds:
            for file in files:
                wanted = SealRange(
                    sealed.partition,
                    sealed.ledger_id,
                    file.first_entry_id,
                    file.last_entry_id,
                    file.size,
                )
                await self._seal_whole(adds, owner, wanted, entries_of, target_bytes, values)
            await self._attach(name, owner, adds, files, values.kind)

    async def repair(
        self,
        name: TopicName,
        entries_of: EntriesOf,
        target_bytes: int,
        repair: Repair,
        *,
        give_up: bool,
    ) -> None:
        """``TableRepair`` of a table that there is; ``repair`` says how far it is."""
        found = await self._owners.record(table_path(name))
        owner = await self._owners.to_be_repaired(name, found.table_id)
        self._ledgers.forget(table_path(name))
        work = TableRepair(
            self, name, self._runtime.disk, self._thread, entries_of, target_bytes, repair
        )

        async def commit() -> None:
            await owner.repair()
            self._owners.drop(name)  # the next one opens it as ever

        await work.run(owner.record, commit, give_up=give_up)

    async def forget_content(self) -> None:
        """Keep nothing in memory of what was read."""
        await self._reading.forget()

    async def remove(self, name: TopicName, table_id: str, sealed: SealedLedger) -> None:
        """Take the rows of a ledger out of the table: commits, which touch no file.

        It goes from the end, so that what is left of a ledger of many files begins with entry 0.
        """
        step = self._limits.files_per_step
        for end in range(len(sealed.files), 0, -step):
            owner = await self._owners.of(name, table_id)
            await self._attach(name, owner, [], sealed.files[max(end - step, 0) : end])

    def changed(self) -> list[str]:
        """The topics to whose tables somebody else has written, as far as it was noticed."""
        return self._owners.changed()

    async def look(self, name: TopicName, table_id: str) -> None:
        """``ChangedTableError`` if somebody else has written to the log of a table."""
        await (await self._owners.of(name, table_id)).look()

    async def vacuum(self, name: TopicName, table_id: str, ledger_id: int, before_ms: int) -> int:
        """Delete files of a ledger that left the table before a time; returns their number."""
        return await (await self._owners.of(name, table_id)).vacuum(ledger_id, before_ms)

    async def remove_staged(self, name: TopicName, before_ms: int) -> int:
        """Delete files that were staged before a time, and that were never attached.

        Returns how many of those for bulk publishes are left.
        """
        path = table_path(name)
        record = await self._owners.record_if_any(path)
        if record is None:
            return 0
        # Refused if the metadata store is older than the table.
        owner = await self._owners.of(name, record.table_id)
        await owner.look()

        async def names_of(ledger_id: int) -> list[str]:
            intent = owner.record.intent
            sealed = await read_sealed(path, ledger_id, self._metadata)
            names = [file.path for file in intent.adds] if intent is not None else []
            if sealed is not None:
                names += [file.path for file in sealed.files]
                names += [file.path for file in sealed.left]
            return names

        left = 0
        for root in record.roots:
            unnamed = UnnamedFiles(self._runtime.disk, root, self._thread(), self._limits)
            try:
                await unnamed.remove(names_of, before_ms)
            except (OSError, CorruptEntryError) as e:
                log.warning("%s: files that nobody needs stay for now: %s", root, e)
                left += 1
            left += await self._blocking(
                root, partial(remove_old_staged, self._runtime.disk, root, before_ms)
            )
        return left

    async def _blocking(self, root: str, action: Callable[[], int]) -> int:
        try:
            return await run_in_worker(self._thread(), action)
        except OSError as e:
            log.warning("%s: files that nobody needs stay for now: %s", root, e)
            return 1

    async def record(self, name: TopicName) -> TableRecord | None:
        """The table of a topic, if it has one."""
        try:
            return await self._owners.record(table_path(name))
        except StorageError:
            return None

    async def catch_up(self, name: TopicName, directory: str) -> None:
        """Make the log of a table whole on a root that has all files again; ``StorageError``.

        It does nothing that the owner has not decided, so that it need not be one: a table whose
        other roots are still to be filled cannot be opened.
        """
        record = await self._owners.record(table_path(name))
        files = [file for ledger in await self.ledgers(name) for file in ledger.files]
        self._owners.drop(name)  # who knows where the log went on
        await self.roots.catch_up(record, directory, files)

    async def place(self, name: TopicName, directories: Sequence[str]) -> None:
        """From now on a table is in these directories, which have all of its files.

        ``StorageError``: they have not, or somebody was faster; nothing is changed then.
        """
        path = table_path(name)
        self._owners.drop(name)  # whoever owns it begins anew
        found = await self._metadata.get(path)
        if found is None:
            raise StorageError(f"there is no table at {path}")
        record = TableRecord.decode(path, found.value).relocated(self.roots.where)
        files = [file for ledger in await self.ledgers(name) for file in ledger.files]
        whole = 0
        for directory in directories:
            try:
                everywhere = replace(record, roots=(*record.roots, *directories))
                await run_in_worker(self._thread(), partial(self.roots.check, directory))
                await self.roots.catch_up(everywhere, directory, files)
                whole += 1
            except (OSError, StorageError) as e:
                if directory not in record.roots:
                    raise StorageError(str(e)) from e
        if whole < min(self.roots.copies_needed, len(directories)) or not whole:
            raise StorageError(f"{whole} storage roots have all of {name}")
        try:
            placed_there = replace(record, roots=tuple(directories))
            await self._metadata.put(path, placed_there.encode(), found.version)
        except BadVersionError:
            raise StorageError(f"the table of {name} has changed meanwhile") from None

    async def checkpoint(self, name: TopicName) -> None:
        """Give long logs a checkpoint, for the sake of other engines."""
        await self._sealing.normal.checkpoint((await self._owners.record(table_path(name))).roots)

    async def fold_log(self, name: TopicName, table_id: str, before_ms: int) -> bool:
        """Let the table's log begin with a checkpoint of a version decided before a time.

        Only if that is worth while. Returns whether there is more to be deleted.
        """
        owner = await self._owners.of(name, table_id)
        roots = [
            directory
            for directory in owner.record.roots
            if not await self.roots.problem(storage_root_of(directory))
        ]
        process = self._sealing.normal
        bases = await process.make_bases(roots, before_ms, self._limits.commits_folded)
        made = [version for version in bases if version is not None]
        if made and len(made) >= self.roots.needed(owner.record):
            await owner.begin_log_at(min(made))
        first = owner.record.first_version
        if not first:
            return False
        return not await process.forget_commits(roots, first, self._limits.commits_deleted)

    async def ledgers(self, name: TopicName) -> list[SealedLedger]:
        """Every ledger of which the table has files, or had some that are still there."""
        return [sealed async for sealed in self.each_ledger(name)]

    async def each_ledger(
        self, name: TopicName, failed: Callable[[PulsarkError], None] | None = None
    ) -> AsyncIterator[SealedLedger]:
        """Likewise, one after the other; the event loop does other work in between.

        One that cannot be read is an error, or is told to ``failed``.
        """
        path = table_path(name)
        room = self._limits.bytes_a_turn
        for child in await self._metadata.children(path):
            if not child.isdigit():
                continue
            try:
                found = await self._metadata.get(f"{path}/{child}")
                sealed = SealedLedger.decode(f"{path}/{child}", found.value) if found else None
            except MetadataError as error:
                if failed is None:
                    raise
                failed(error)
                continue
            room -= DOCUMENT_BYTES + (len(found.value) if found else 0)
            if room < 0:
                await asyncio.sleep(0)
                room = self._limits.bytes_a_turn
            if sealed is not None:
                yield sealed

    async def read(
        self, name: TopicName, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> Entries:
        """Sealed entries of a topic or partition; as ``TableReader.read``."""
        path = table_path(name)
        ledger = await self._sealed(path, ledger_id)
        if ledger is None or ledger.file_of(first) is None:
            raise NoSuchEntryError(f"entry {ledger_id}:{first} is not sealed")

        async def load(entry_id: int) -> Entries:
            roots = (await self._owners.record(path)).roots
            return await self._reading.read(roots, ledger, entry_id, ledger.through, BLOCK_BYTES)

        return await self._ahead.read(path, ledger_id, first, last, max_bytes, ledger.through, load)

    async def read_of(
        self, owner: str, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> Entries:
        """``storage.ledger.SealedEntries``."""
        name = _topic_at(owner)
        if name is None:
            raise NoSuchEntryError(f"the ledgers of {owner} have no table")
        return await self.read(name, ledger_id, first, last, max_bytes)

    async def sealed_through(self, owner: str, ledger_id: int) -> int:
        """``storage.ledger.SealedEntries``."""
        name = _topic_at(owner)
        found = None if name is None else await self.sealed(name, ledger_id)
        return -1 if found is None else found.through

    async def get_ready(self) -> None:
        """If there are tables, be quick to read them: consumers that come back may be behind."""
        if await self._metadata.children(TABLES_PATH):
            await self._reading.begin()

    async def delete(self, name: TopicName) -> None:
        """Delete the table of a topic that is deleted; on roots that are away later."""
        self.forget(name)
        doomed = await self.doomed.note(name)
        if doomed is not None:
            await self.doomed.delete(doomed)

    def forget(self, name: TopicName) -> None:
        """Nothing that is in memory of a table is true any more."""
        self._owners.drop(name)
        self._forget(table_path(name))

    async def close(self) -> None:
        """End the processes. What was decided and is not done, the next owner does."""
        self._ahead.close()
        await self._sealing.close()
        await self._reading.close()
        if self._worker is not None:
            self._worker.close()

    # Internals.

    def _forget(self, path: str) -> None:
        self._ahead.forget(path)
        self._ledgers.forget(path)

    async def _seal(
        self,
        adds: list[DataFile],
        owner: TableOwner,
        wanted: SealRange,
        entries_of: EntriesOf,
        target_bytes: int,
        values: ValueSchemas,
        located: PiecesOf | None = None,
        patient: bool = False,
    ) -> None:
        """Add files with the entries of a range to a list; of its beginning if that is all."""
        roots, size = await self.roots.with_room(owner.record, wanted.size)
        needed = self.roots.needed(owner.record)

        async def attempt(part: SealRange, as_sent: bool) -> list[DataFile]:
            return await self._sealing.seal(
                part, roots, needed, target_bytes, values, entries_of, located, patient, as_sent
            )

        await SealAttempts(attempt, adds).seal(wanted.within(size))

    async def _seal_whole(
        self,
        adds: list[DataFile],
        owner: TableOwner,
        wanted: SealRange,
        entries_of: EntriesOf,
        target_bytes: int,
        values: ValueSchemas,
    ) -> None:
        """The same for what takes the place of other files: all of it, or ``StorageError``."""
        await self._seal(adds, owner, wanted, entries_of, target_bytes, values)
        if not adds or adds[-1].last_entry_id != wanted.last:
            raise StorageFullError(
                f"there is no room to write ledger {wanted.ledger_id} anew up to {wanted.last}"
            )

    @asynccontextmanager
    async def _files_of(self, owner: TableOwner) -> AsyncIterator[list[DataFile]]:
        """A list of files to be attached; those that are left in it in the end are deleted."""
        files: list[DataFile] = []
        try:
            yield files
        finally:
            if files:
                await owner.remove_files([file.path for file in files])

    async def _attach_all(
        self, name: TopicName, owner: TableOwner, adds: list[DataFile], value: ColumnType
    ) -> None:
        while adds:
            await self._attach(name, owner, adds, (), value, self._limits.files_per_attach)

    async def _attach(
        self,
        name: TopicName,
        owner: TableOwner,
        adds: list[DataFile],
        removes: Sequence[DataFile] = (),
        value: ColumnType | None = None,
        most: int | None = None,
    ) -> None:
        """Attach files, at most so many, and take them from the list once they may be attached."""
        path = table_path(name)
        new = adds[:most]

        async def decided(happened: bool | None) -> None:
            if happened is not False:
                del adds[: len(new)]

        try:
            await owner.attach(new, removes, value, decided)
        except BaseException:
            # It may be decided. Who opens the table next does it, and forgets what was known.
            self._owners.drop(name)
            raise
        finally:
            self._ledgers.forget(path, {file.ledger_id for file in (*new, *removes)})
            if removes:
                self._ahead.forget(path, {file.ledger_id for file in removes})

    async def _sealed(self, path: str, ledger_id: int) -> SealedLedger | None:
        found = self._ledgers.get(path, ledger_id)
        if found is None:
            found = await read_sealed(path, ledger_id, self._metadata)
            if found is None:
                record = await self._owners.record_if_any(path)
                return None if record is None else record.decided(ledger_id)
            self._ledgers.add(path, found)
        return found

    def _thread(self) -> Worker:
        if self._worker is None:
            self._worker = self._runtime.new_worker("tables")
        return self._worker


def _topic_at(path: str) -> TopicName | None:
    """The topic whose managed ledger has its record at this path."""
    parts = path.split("/")
    if len(parts) != 6 or parts[1] != "managed-ledgers":
        return None
    _, _, tenant, namespace, domain, local = parts
    return TopicName.parse(f"{domain}://{tenant}/{namespace}/{unquote(local)}")
