"""The tables that a broker owns: sealing into them, and reading entries back from them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pulsark.errors import (
    BadVersionError,
    MetadataError,
    NoSuchEntryError,
    PulsarkError,
    StorageError,
)
from pulsark.metadata.paths import MANAGED_LEDGERS, TABLES, table_path, topic_at
from pulsark.runtime import Runtime, Worker, run_in_worker
from pulsark.storage.table.files.record import SealedLedger, TableRecord
from pulsark.storage.table.files.table_limits import DEFAULT_LIMITS, TableLimits
from pulsark.storage.table.known_ledgers import KnownLedgers
from pulsark.storage.table.lost_values import LostValues
from pulsark.storage.table.open_tables import OpenTables
from pulsark.storage.table.owned_table_record import read_sealed
from pulsark.storage.table.process.apart import ApartTopics
from pulsark.storage.table.process.process import Entries, TableProcess
from pulsark.storage.table.process.table_processes import EntriesOf, TableProcesses
from pulsark.storage.table.publishing import TablePublishing
from pulsark.storage.table.read_ahead import BLOCK_BYTES, ReadAhead
from pulsark.storage.table.roots import TableRoots
from pulsark.storage.table.table_parts import TableParts
from pulsark.storage.table.tables_elsewhere import TablesElsewhere
from pulsark.storage.table.tables_to_delete import TablesToDelete
from pulsark.storage.table.taking_up import Join, all_listed, take_up
from pulsark.storage.table.touched_ledgers import TouchedLedgers
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Container,
        Iterable,
        Sequence,
    )

    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.root_identity import StorageRoots
    from pulsark.storage.table.table import Table
    from pulsark.storage.table.table_parts import SchemasOf
    from pulsark.storage.table.table_repair import Listed, Repair

log = logging.getLogger(__name__)

CATCH_UP_ATTEMPTS = 20
"""How often a root is looked at whose table goes on meanwhile."""

DOCUMENT_BYTES = 1024
"""Bytes whose reading costs as much as finding a document."""


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
        files: RootFiles | None = None,
        limits: TableLimits = DEFAULT_LIMITS,
    ) -> None:
        self._metadata = metadata
        self._runtime = runtime
        self._worker: Worker | None = None
        self.files: RootFiles = files or runtime.disk
        """Those of the storage roots."""
        self.limits = limits
        self.states: Callable[[], bool] = lambda: True
        """Whether all brokers understand records that say what an attach changes."""
        self.processes = TableProcesses(
            new_process, runtime, self._thread, ApartTopics(runtime.clock, metadata), self.files
        )
        self.roots = TableRoots(
            roots, self.files, self._thread, copies=copies, copies_needed=copies_needed
        )
        self.touched = TouchedLedgers()
        self.lost = LostValues()
        self.knows_format_3: Callable[[], bool] = lambda: True
        """Whether every broker of the cluster reads files of format 3. The broker sets it."""
        self._parts = TableParts(
            runtime, self.files, self._thread, self.roots, self.processes, KnownLedgers(),
            self.touched, ReadAhead(), limits, schemas_of, lambda: self.states(),
            lambda: self.knows_format_3(), self.lost,
        )  # fmt: skip
        self.to_delete = TablesToDelete(metadata, self.roots, self.files, self._thread)
        self._open = OpenTables(self._parts, metadata, self.to_delete)
        self.publishing = TablePublishing(self._open, self._parts)
        self.elsewhere = TablesElsewhere(self._open, metadata, self._parts)

    async def sealed(self, name: TopicName, ledger_id: int) -> SealedLedger | None:
        """What is sealed of a ledger of a topic or partition."""
        return await self._sealed(table_path(name), ledger_id)

    async def directories(self, name: TopicName) -> Sequence[str]:
        """Where the table of a topic or partition is, the primary first; none without a table."""
        path = table_path(name)
        try:
            return (await self._open.record(path)).roots
        except StorageError:
            return ()

    async def open(self, name: TopicName, table_id: str) -> Table:
        """Own the table of a topic, made if there is none.

        What the owner before decided and did not do is done when this returns. If it is not the
        table that ``get`` gave before, what was known of sealed ledgers may be out of date.
        """
        return await self._open.open(name, table_id)

    def get(self, name: TopicName) -> Table | None:
        """The table of a topic if it is open."""
        return self._open.get(name)

    async def repair(
        self,
        name: TopicName,
        table_id: str,
        entries_of: EntriesOf,
        target_bytes: int,
        repair: Repair,
        *,
        give_up: bool,
        join: Join = all_listed,
        listed: Listed | None = None,
    ) -> None:
        """``TableRepair`` of a table that there is; ``repair`` says how far it is."""
        from pulsark.storage.table.table_repair import TableRepair  # few tables ever need it

        owner = await self._open.to_be_repaired(name, table_id)
        repair.step = "reading the logs"
        normal = self.processes.normal
        repair.taken_up, passed_over = await take_up(owner, normal, join, give_up=give_up)
        self._parts.forget(table_path(name))
        repair.step = "looking for files"
        work = TableRepair(
            self, name, self.files, self._thread, entries_of, target_bytes, repair, listed
        )

        async def commit() -> None:
            await owner.repair(passed_over)
            self._open.drop(name)  # the next one opens it as ever

        await work.run(owner.record, commit, give_up=give_up)

    async def forget_content(self) -> None:
        """Keep nothing in memory of what was read."""
        await self.processes.reading.forget()

    def changed(self) -> list[str]:
        """The topics to whose tables another engine has written, as far as it was noticed."""
        return self._open.changed()

    async def remove_staged(self, name: TopicName, before_ms: int, *, whole: bool = True) -> int:
        """As ``Table.remove_staged``, of a topic that may have no table."""
        record = await self._open.record_if_any(table_path(name))
        if record is None:
            return 0
        return await (await self.open(name, record.table_id)).remove_staged(before_ms, whole=whole)

    async def has_log(self, name: TopicName, table_id: str) -> bool:
        """Whether some root has the log of a table, whatever the metadata store knows."""
        return bool(await self.roots.having(name, table_id))

    async def check(self, name: TopicName, table_id: str) -> None:
        """``OlderMetadataError`` if a log has what the store does not know. Changes nothing."""
        await self._open.check(name, table_id)

    async def record(self, name: TopicName) -> TableRecord | None:
        """The table of a topic, if it has one."""
        try:
            return await self._open.record(table_path(name))
        except StorageError:
            return None

    async def catch_up(self, name: TopicName, directory: str) -> None:
        """Make the log of a table whole on a root that has all files again; ``StorageError``.

        It does nothing that the owner has not decided, so that it need not be one: a table whose
        other roots are still to be filled cannot be opened.
        """
        for attempts_left in reversed(range(CATCH_UP_ATTEMPTS)):
            record = await self._open.record(table_path(name))
            files = [file for ledger in await self.ledgers(name) for file in ledger.files]
            self._open.drop(name)  # it is unknown where the log went on
            try:
                await self.roots.catch_up(record, directory, files)
                return
            except StorageError:
                # Its owner may be another broker, and may have gone on meanwhile.
                now = await self._open.record(table_path(name))
                if not attempts_left or now.attached == record.attached:
                    raise

    def guard_with(self, guarded: Callable[[TopicName], Awaitable[MetadataStore]]) -> None:
        """Tables that are opened from now on are changed through ``await guarded(base)``."""
        self._open.guarded = guarded

    async def place(self, name: TopicName, directories: Sequence[str]) -> None:
        """From now on a table is in these directories, which have all of its files.

        ``StorageError``: they have not, or another change was faster; nothing is changed then.
        """
        path = table_path(name)
        self._open.drop(name)  # its owner begins anew
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

    async def ledgers(self, name: TopicName) -> list[SealedLedger]:
        """Every ledger of which the table has files, or had some that are still there."""
        return [sealed async for sealed in self.each_ledger(name)]

    async def each_ledger(
        self,
        name: TopicName,
        failed: Callable[[PulsarkError], None] | None = None,
        some: Iterable[int] | None = None,
    ) -> AsyncIterator[SealedLedger]:
        """As ``ledgers``, one after the other; the event loop does other work in between.

        Or only ``some`` of them, as far as they are there. One that cannot be read is an error, or
        is told to ``failed``.
        """
        path = table_path(name)
        room = self.limits.bytes_a_turn
        if some is None:
            some = [int(child) for child in await self._metadata.children(path) if child.isdigit()]
        for child in some:
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
                room = self.limits.bytes_a_turn
            if sealed is not None:
                yield sealed

    async def read(
        self, name: TopicName, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> Entries:
        """Sealed entries of a topic or partition; as ``TableReader.read``."""
        path = table_path(name)
        ledger = await self._sealed(path, ledger_id)
        if ledger is None or ledger.file_of(first) is None:
            raise NoSuchEntryError(
                f"entry {ledger_id}:{first} is not known to be in the table of {name.base}; if it "
                f"should be: pulsark tables repair {name.base}"
            )

        async def load(entry_id: int) -> Entries:
            roots = (await self._open.record(path)).roots
            return await self.processes.reading.read(
                roots, ledger, entry_id, ledger.through, BLOCK_BYTES
            )

        return await self._parts.ahead.read(
            path, ledger_id, first, last, max_bytes, ledger.through, load
        )

    async def read_of(
        self, owner: str, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> Entries:
        """``storage.ledger.manager.SealedEntries``."""
        name = _topic_of(owner)
        if name is None:
            raise NoSuchEntryError(f"the ledgers of {owner} have no table")
        return await self.read(name, ledger_id, first, last, max_bytes)

    async def sealed_through(self, owner: str, ledger_id: int) -> int:
        """``storage.ledger.manager.SealedEntries``."""
        name = _topic_of(owner)
        found = None if name is None else await self.sealed(name, ledger_id)
        return -1 if found is None else found.through

    async def get_ready(self) -> None:
        """If there are tables, be quick to read them: consumers that come back may be behind."""
        if await self._metadata.children(TABLES):
            await self.processes.reading.begin()

    async def delete(self, name: TopicName) -> None:
        """Delete the table of a topic that is deleted; on roots that are away later."""
        self.forget(name)
        noted = await self.to_delete.note(name)
        if noted is not None:
            await self.to_delete.delete(noted)

    def forget(self, name: TopicName) -> None:
        """Nothing that is in memory of a table is true any more."""
        self._open.drop(name)
        self._parts.forget(table_path(name))

    def forget_those(self, covered: Container[TopicName]) -> None:
        """The same for all in ``covered`` that are open."""
        for name in [name for name in self._open.names() if name in covered]:
            self.forget(name)

    async def close(self) -> None:
        """End the processes. What was decided and is not done, the next owner does."""
        self.elsewhere.close()
        self._parts.ahead.close()
        await self.processes.close()
        if self._worker is not None:
            self._worker.close()

    async def _sealed(self, path: str, ledger_id: int) -> SealedLedger | None:
        found = self._parts.ledgers.get(path, ledger_id)
        if found is None:
            before = self._parts.ledgers.forgotten
            found = await read_sealed(path, ledger_id, self._metadata)
            if found is None:
                record = await self._open.record_if_any(path)
                return None if record is None else record.decided(ledger_id)
            if self._parts.ledgers.forgotten == before:
                self._parts.ledgers.add(path, found)
        return found

    def _thread(self) -> Worker:
        if self._worker is None:
            self._worker = self._runtime.new_worker("tables")
        return self._worker


def _topic_of(owner: str) -> TopicName | None:
    """The topic whose managed ledger is at this path; ``None`` if another thing is there."""
    if not owner.startswith(f"{MANAGED_LEDGERS}/"):
        return None
    return TopicName.parse(topic_at(MANAGED_LEDGERS, owner))
