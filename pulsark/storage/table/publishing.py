"""Bulk publishes into the tables of a process: where files are staged, and what becomes of them."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from pulsark.errors import CorruptEntryError, LedgerFencedError, RootsAwayError, StorageError
from pulsark.runtime import run_in_worker
from pulsark.schemas.column_types import BINARY, ColumnType
from pulsark.storage.roots.root_files import absolute
from pulsark.storage.table.bulk_publish import BulkPublish, remove_never_attached
from pulsark.storage.table.staging.staged_ledger import STAGING, StagedLedger

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pulsark.schemas.value_schemas import ValueSchemas
    from pulsark.storage.managed_ledger.reservations import Reserving
    from pulsark.storage.table.open_tables import OpenTables
    from pulsark.storage.table.table_parts import TableParts
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)


class TablePublishing:
    """What is the same for all of its tables comes from ``TableParts``."""

    def __init__(self, tables: OpenTables, parts: TableParts) -> None:
        self._tables = tables
        self._parts = parts
        self._disk = parts.files
        self._thread = parts.thread

    async def staging(self, name: TopicName, table_id: str) -> tuple[list[str], int, ValueSchemas]:
        """Directories for the files of a bulk publish, made now, one on each root in service.

        Also in how many of them each file has to be, and how values are written.
        """
        table = await self._tables.open(name, table_id)
        record = table.record
        directories = []
        for root in record.roots:
            try:
                await run_in_worker(self._thread(), partial(self._make_staging, root))
            except (OSError, StorageError) as e:
                log.warning("%s: left out of bulk publishes: %s", root, e)
            else:
                directories.append(f"{absolute(root)}/{STAGING}")
        needed = self._parts.roots.needed(record)
        if len(directories) < needed:
            raise RootsAwayError(f"{len(directories)} storage roots of {needed} can be reached")
        return directories, needed, await table.values()

    def _make_staging(self, root: str) -> None:
        self._parts.roots.check(root)
        self._disk.make_dirs(f"{root}/{STAGING}")

    async def has_published(self, name: TopicName, table_id: str, ident: str, number: int) -> bool:
        """Whether a bulk publish was made, or a later one of the same origin."""
        table = await self._tables.open(name, table_id)
        return await table.owner.has_published(ident, number)

    async def publish(
        self,
        name: TopicName,
        table_id: str,
        places: Mapping[int, Reserving],
        staged: Sequence[StagedLedger],
        ident: str,
        number: int,
        value: ColumnType = BINARY,
    ) -> bool:
        """Make staged files ledgers of a topic's partitions, all at once, and once.

        ``places`` has for each partition where its ledgers are reserved. ``value`` is the type
        that the files have in their column ``value``.

        ``False``: it was done before. ``StorageError`` or ``MetadataError``: it may be tried again.
        """
        table = await self._tables.open(name, table_id)
        owner = table.owner
        files = [file for ledger in staged for file in ledger.files]
        if not await owner.has_published(ident, number):
            if value != (await table.values()).kind:
                raise CorruptEntryError("the topic's schema is another one since it was written")
            staged_in = [f"{root}/{STAGING}" for root in table.record.roots]
            await self._parts.processes.normal.check(staged_in, files)
        needed = self._parts.roots.needed(table.record)
        publish = BulkPublish(owner, places, staged, self._disk, self._thread(), needed)
        try:
            return await publish.run(ident, number, value)
        except LedgerFencedError:
            table.lose()
            raise

    async def existing(
        self, name: TopicName, table_id: str, ledger_ids: Collection[int]
    ) -> set[int]:
        """The reserved ledgers of a partition that exist. Nothing remains of the others."""
        table = await self._tables.open(name, table_id)
        owner = table.owner
        try:
            found = await owner.existing(ledger_ids)
        except LedgerFencedError:
            table.lose()
            raise
        for root in owner.record.roots:
            for ledger_id in set(ledger_ids) - found:
                remove = partial(remove_never_attached, self._disk, root)
                try:
                    await run_in_worker(self._thread(), partial(remove, name.partition, ledger_id))
                except OSError as e:
                    log.warning("%s: cannot delete unneeded files yet: %s", root, e)
        return found
