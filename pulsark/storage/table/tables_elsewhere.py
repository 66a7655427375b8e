"""Tables whose owner is in another process: what is known of them, and what is written for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pulsark.metadata.paths import TABLES, table_path
from pulsark.storage.table.far_committer import FarCommitter
from pulsark.storage.table.files.record import TableRecord
from pulsark.storage.table.table_writer import TableWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.table.far_committer import Ask
    from pulsark.storage.table.open_tables import OpenTables
    from pulsark.storage.table.table_parts import TableParts
    from pulsark.wire.topic_name import TopicName


class TablesElsewhere:
    """One for a process."""

    def __init__(self, tables: OpenTables, metadata: MetadataStore, parts: TableParts) -> None:
        self._open = tables
        self._metadata = metadata
        self._parts = parts
        self._end_watch: Callable[[], None] = lambda: None

    def follow(self) -> None:
        """Forget from now on what owners in other processes change."""
        self._end_watch = self._metadata.watch(TABLES, self._changed, self._missed)

    def close(self) -> None:
        """Hear of nothing any more."""
        self._end_watch()

    def _changed(self, path: str) -> None:
        table, _, ledger_id = path.rpartition("/")
        if ledger_id.isdigit():
            self._parts.ledgers.forget(table, [int(ledger_id)])
            if not self._open.has(table):  # its owner knows itself when rows change
                self._parts.ahead.forget(table, [int(ledger_id)])

    def _missed(self) -> None:
        self._parts.ledgers.clear()
        self._parts.ahead.close()

    async def writer(self, name: TopicName, table_id: str, files: int, ask: Ask) -> TableWriter:
        """Files of a table that the owner attaches on request, a bounded number at a time."""
        self._open.drop(name)
        parts = self._parts
        record = await self._open.record_if_any(table_path(name))
        if record is None or record.table_id != table_id:
            directories = await parts.roots.having(name, table_id)
            directories = directories or parts.roots.directories(name, table_id)
            record = TableRecord(table_id, parts.runtime.clock.now_ms(), tuple(directories))
        parts = replace(parts, limits=replace(parts.limits, files_per_attach=files))
        return TableWriter(name, FarCommitter(record, parts, ask), parts)
