"""What this broker does to its tables because owners of partitions ask it; see ``far_tables``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.tables.sealing_jobs import are_new, check_path
from pulsark.errors import CrowdedTableError, NotAttachedError, PulsarkError
from pulsark.metadata.changes import Check
from pulsark.metadata.paths import bundle_epoch_path, managed_ledger_path
from pulsark.storage.managed_ledger.record import read_record

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pulsark.dispatch.tables.far_tables import FarAttach
    from pulsark.dispatch.tables.table_waits import CrowdedTables, TidyQueue
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.dispatch.topics.topic_tables import TopicTables
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.table.table import Table
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.topic_name import TopicName


class AttachForOthers:
    """The other side of ``FarTables``."""

    def __init__(
        self,
        metadata: MetadataStore,
        resources: Resources,
        ownership: Ownership,
        tables: Tables,
        topic_tables: TopicTables,
        tidy_queue: TidyQueue,
        crowded: CrowdedTables,
    ) -> None:
        self._metadata = metadata
        self._resources = resources
        self._ownership = ownership
        self._tables = tables
        self._topic_tables = topic_tables
        self._tidy_queue = tidy_queue
        self._crowded = crowded
        self.was_asked = False
        """Whether another broker ever had files attached here."""

    async def attach(self, asked: FarAttach) -> None:
        """Attach files of partitions that the asking broker owns; those of before change nothing.

        ``NotAttachedError``, ``CrowdedTableError``: nothing of it happened, nor will.
        """
        base = asked.base
        self.was_asked = True
        if not asked.files:
            self._tidy_queue.soon(base)
            return
        async with self._topic_tables.exclusively(base):
            try:
                table, checks = await self._prepared(asked)
            except PulsarkError as error:
                raise NotAttachedError(str(error)) from error
            if table is not None:
                try:
                    await table.attach(asked.files, asked.value, checks)
                except CrowdedTableError:
                    self._crowded.add(base)
                    raise
        self._crowded.drop(base)
        self._tidy_queue.later(base)

    async def existing(
        self, name: TopicName, table_id: str, ledger_ids: Collection[int]
    ) -> set[int]:
        """The reserved ledgers of a partition that exist; the others never will."""
        await self._check_identity(name.base, table_id, {name.partition})
        return await self._tables.publishing.existing(name, table_id, ledger_ids)

    async def _prepared(self, asked: FarAttach) -> tuple[Table | None, Sequence[Check]]:
        """The table, and what has to hold at the attach; no table: it has the files."""
        partitions = {file.partition for file in asked.files}
        await self._check_identity(asked.base, asked.table_id, partitions)
        for file in asked.files:
            check_path(file)
        checks = await self._claims(asked, partitions)
        table = await self._tables.open(asked.base, asked.table_id)
        if not await are_new(self._tables, asked.base, asked.files):
            return None, ()
        return table, checks

    async def _check_identity(
        self, base: TopicName, table_id: str, partitions: Collection[int]
    ) -> None:
        """Files of a topic that is deleted, or was, would make a table that nobody deletes."""
        parent = await self._resources.partitioned_topics.record(base)
        if parent is not None:
            if parent.deleting or parent.topic_id != table_id:
                raise NotAttachedError(f"{base} was deleted")
            if not all(0 <= partition < parent.partitions for partition in partitions):
                raise NotAttachedError(f"{base} has {parent.partitions} partitions")
            return
        for partition in partitions:
            name = base if partition < 0 else base.with_partition(partition)
            record = await read_record(managed_ledger_path(name), self._metadata)
            if record is None or record.topic_id != table_id:
                raise NotAttachedError(f"{name} was deleted")

    async def _claims(self, asked: FarAttach, partitions: Collection[int]) -> list[Check]:
        own = await self._ownership.bundle_named(asked.base)
        versions: dict[str, int] = {}
        for partition in partitions:
            name = asked.base if partition < 0 else asked.base.with_partition(partition)
            bundle = await self._ownership.bundle_named(name)
            version = asked.claims.get(partition)
            if version is None or bundle == own or versions.get(bundle, version) != version:
                raise NotAttachedError(f"{name} is not that of the broker that asks")
            versions[bundle] = version
        return [Check(bundle_epoch_path(bundle), version) for bundle, version in versions.items()]
