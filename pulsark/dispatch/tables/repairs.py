"""Repairing the tables of topics, and taking up what they know after the store went back."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import in_turns
from pulsark.errors import OlderMetadataError, StorageError
from pulsark.limits import READS_PER_TURN_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pulsark.config.settings import Settings
    from pulsark.dispatch.tables.progress import SealingProgress
    from pulsark.dispatch.tables.rejoining import Rejoining
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.dispatch.topics.topic_tables import TopicTables
    from pulsark.metadata.resources import Resources
    from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
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
        resources: Resources,
        topics: Topics,
        catalog: TopicCatalog,
        tables: Tables,
        topic_tables: TopicTables,
        source: RangeReader,
        progress: SealingProgress,
        rejoining: Rejoining,
        repaired: Callable[[TopicName], None],
    ) -> None:
        self._settings = settings
        self._resources = resources
        self._topics = topics
        self._catalog = catalog
        self._tables = tables
        self._topic_tables = topic_tables
        self._source = source
        self._progress = progress
        self._rejoining = rejoining
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
            repair, give_up=give_up, join=partial(self._rejoining.rejoin, base),
            listed=partial(self._listed, base),
        )  # fmt: skip
        for topic in self._topics.loaded():
            if topic.name.base == base and not topic.closed:
                await self._progress.look_up(topic)
        self._repaired(base)

    async def _listed(self, base: TopicName) -> AsyncIterator[tuple[int, LedgerInfo]]:
        """The ledgers of a topic that are not settled, each as long as it is."""
        for name in await self._leaves(base):
            topic = await self._topics.load(name)
            async for info in in_turns(
                topic.ledger.each_ledger(topic.ledger.unsettled_from), READS_PER_TURN_MAX
            ):
                yield name.partition, info

    async def _leaves(self, base: TopicName) -> list[TopicName]:
        """The partitions of a topic that have been used, or the topic itself."""
        parent = await self._resources.partitioned_topics.get(base)
        parts = [base] if parent is None else map(base.with_partition, range(parent.partitions))
        return [name for name in parts if await self._catalog.exists(name)]

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
