"""Bulk publishes into the tables of a process: where files are staged, and what becomes of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from pulsark.errors import CorruptEntryError, LedgerFencedError, StorageError
from pulsark.runtime import Runtime, Worker, run_in_worker
from pulsark.schemas.columns import BINARY, ColumnType
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.managed_ledger import ManagedLedger
from pulsark.storage.table.bulk import BulkPublish, remove_never_attached
from pulsark.storage.table.process import TableProcess
from pulsark.storage.table.staging import STAGING, StagedLedger
from pulsark.storage.table.table_owners import TableOwners
from pulsark.storage.table.table_roots import TableRoots
from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)


class TablePublishing:
    """``process`` looks at the files before they are published."""

    def __init__(
        self,
        owners: TableOwners,
        roots: TableRoots,
        runtime: Runtime,
        thread: Callable[[], Worker],
        process: TableProcess,
    ) -> None:
        self._owners = owners
        self._roots = roots
        self._runtime = runtime
        self._thread = thread
        self._process = process

    async def staging(self, name: TopicName, table_id: str) -> tuple[list[str], int, ValueSchemas]:
        """Directories for the files of a bulk publish, made now, one on each root in service.

        Also in how many of them each file has to be, and how values are written.
        """
        record = (await self._owners.of(name, table_id)).record
        directories = []
        for root in record.roots:
            try:
                await run_in_worker(self._thread(), partial(self._make_staging, root))
            except (OSError, StorageError) as e:
                log.warning("%s: left out of bulk publishes: %s", root, e)
            else:
                directories.append(f"{os.path.abspath(root)}/{STAGING}")
        needed = self._roots.needed(record)
        if len(directories) < needed:
            raise StorageError(f"{len(directories)} storage roots of {needed} can be reached")
        return directories, needed, await self._owners.values(name, record)

    def _make_staging(self, root: str) -> None:
        self._roots.check(root)
        self._runtime.disk.make_dirs(f"{root}/{STAGING}")

    async def has_published(self, name: TopicName, table_id: str, ident: str, number: int) -> bool:
        """Whether a bulk publish was made, or a later one of the same origin."""
        return await (await self._owners.of(name, table_id)).has_published(ident, number)

    async def publish(
        self,
        name: TopicName,
        table_id: str,
        ledgers: Mapping[int, ManagedLedger],
        staged: Sequence[StagedLedger],
        ident: str,
        number: int,
        value: ColumnType = BINARY,
    ) -> bool:
        """Make staged files ledgers of a topic's partitions, all at once, and once.

        ``value`` is the type that the files have in their column ``value``.

        ``False``: it was done before. ``StorageError`` or ``MetadataError``: it may be tried again.
        """
        owner = await self._owners.of(name, table_id)
        files = [file for ledger in staged for file in ledger.files]
        if not await owner.has_published(ident, number):
            if value != (await self._owners.values(name, owner.record)).kind:
                raise CorruptEntryError("the topic's schema is another one since it was written")
            await self._process.check([f"{root}/{STAGING}" for root in owner.record.roots], files)
        needed = self._roots.needed(owner.record)
        publish = BulkPublish(owner, ledgers, staged, self._runtime.disk, self._thread(), needed)
        try:
            return await publish.run(ident, number, value)
        except LedgerFencedError:
            self._owners.drop(name)
            raise

    async def existing(
        self, name: TopicName, table_id: str, ledger_ids: Collection[int]
    ) -> set[int]:
        """Those of a partition's reserved ledgers that exist. Of the others nothing stays."""
        owner = await self._owners.of(name, table_id)
        try:
            found = await owner.existing(ledger_ids)
        except LedgerFencedError:
            self._owners.drop(name)
            raise
        for root in owner.record.roots:
            for ledger_id in set(ledger_ids) - found:
                remove = partial(remove_never_attached, self._runtime.disk, root)
                try:
                    await run_in_worker(self._thread(), partial(remove, name.partition, ledger_id))
                except OSError as e:
                    log.warning("%s: files that nobody needs stay for now: %s", root, e)
        return found
