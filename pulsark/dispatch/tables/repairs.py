"""Repairing the tables of topics, and taking up what they know after the store went back."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.tables.rejoining import TableLedger
from pulsark.errors import OlderMetadataError, PulsarkError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.config.settings import Settings
    from pulsark.dispatch.tables.everywhere import Everywhere
    from pulsark.dispatch.topics.topic_tables import TopicTables
    from pulsark.storage.table.files.record import SealedLedger
    from pulsark.storage.table.range_reader import RangeReader
    from pulsark.storage.table.table_repair import Repair
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)


class TableRepairs:
    """``repaired`` hears of each table that was."""

    def __init__(
        self,
        settings: Settings,
        tables: Tables,
        topic_tables: TopicTables,
        source: RangeReader,
        everywhere: Everywhere,
        repaired: Callable[[TopicName], None],
    ) -> None:
        self._settings = settings
        self._tables = tables
        self._topic_tables = topic_tables
        self._source = source
        self._everywhere = everywhere
        self._repaired = repaired
        self.adopts = False
        """Whether tables that know more than the metadata store are taken as they are."""
        self._adopted: set[TopicName] = set()

    async def repair(self, base: TopicName, repair: Repair, *, give_up: bool) -> None:
        """Make a table whole again; ``repair`` says how far it is."""
        async with self._topic_tables.exclusively(base):
            await self._repair(base, repair, give_up=give_up)

    async def _repair(self, base: TopicName, repair: Repair, *, give_up: bool) -> None:
        table_id = await self._topic_tables.id_of(base)
        if table_id is None:
            raise StorageError(f"there is no topic {base}")
        await self._tables.repair(
            base, table_id, self._source.entries, self._settings.sealTargetFileSizeMB << 20,
            repair, give_up=give_up, join=partial(self._rejoin, base),
            listed=partial(self._everywhere.listed, base),
        )  # fmt: skip
        partitions = await self._everywhere.partitions(base)
        try:
            await self._everywhere.all(base, partitions, {"do": "repaired"})
        except PulsarkError as error:  # they find out when they seal
            log.info("%s: not all owners of partitions know of its repair: %s", base, error)
        self._repaired(base)

    async def _rejoin(self, base: TopicName, ledgers: Sequence[SealedLedger]) -> set[int]:
        by_partition: dict[int, list[TableLedger]] = {}
        for ledger in ledgers:
            by_partition.setdefault(ledger.partition, []).append(TableLedger.of(ledger))
        return await self._everywhere.rejoin(base, by_partition)

    def may_adopt(self, base: TopicName) -> bool:
        """Whether a table may be taken as it is: once, if that was asked for."""
        return self.adopts and base not in self._adopted

    async def adopt_if_older(self, base: TopicName) -> None:
        """Take up what a table knows if the metadata store is older."""
        async with self._topic_tables.exclusively(base):
            table_id = await self._topic_tables.id_of(base)
            if table_id is None or base in self._adopted:
                return
            try:
                await self._tables.check(base, table_id)
            except OlderMetadataError as error:
                await self.adopt(base, error)

    async def adopt(self, base: TopicName, error: OlderMetadataError) -> None:
        """Take up what a table knows; its caller has it to itself."""
        self._adopted.add(base)
        log.error("the table of %s is adopted although %s", base, error)
        from pulsark.storage.table.table_repair import Repair  # few tables ever need it

        repair = Repair()
        await self._repair(base, repair, give_up=False)
        lost = len(repair.lost) + len(repair.lost_entries)
        if lost:
            log.error(
                "%s: %d ranges of entries are lost; bring back what has them, or go on without "
                "them: pulsark tables repair %s --give-up",
                base, lost, base,
            )  # fmt: skip
