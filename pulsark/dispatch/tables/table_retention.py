"""Applying the retention of a topic's table now: what trimming and tidying do in their own time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import in_turns
from pulsark.limits import LEDGERS_PER_TURN_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pulsark.config.settings import Settings
    from pulsark.dispatch.tables.sealing import Sealing
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.runtime import SureClock
    from pulsark.wire.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What went, or would go. ``kept_files`` left the table and are deleted later."""

    ledgers: int = 0
    """Ledgers that were trimmed, sealed or not."""
    rows: int = 0
    deleted_files: int = 0
    kept_files: int = 0


class TableRetention:
    """Lets go of what the retention of topics lets go, in their tables, too."""

    def __init__(self, settings: Settings, sure_clock: SureClock, sealing: Sealing) -> None:
        self._settings = settings
        self._sure_clock = sure_clock
        self._sealing = sealing

    async def trim(self, topics: Iterable[Topic], *, dry_run: bool) -> set[int]:
        """Trim partitions of this broker; returns the ledgers that went, or would go."""
        trimmed: set[int] = set()
        for topic in topics:
            point = await topic.retention.point()
            through = -1 if point is None else point.ledger_id
            async for info in in_turns(topic.ledger.each_ledger(), LEDGERS_PER_TURN_MAX):
                if info.ledger_id > through:
                    break
                trimmed.add(info.ledger_id)
            if not dry_run:
                await topic.retention.trim()
        return trimmed

    async def apply(
        self, base: TopicName, trimmed: Collection[int], *, dry_run: bool
    ) -> RetentionReport:
        """Take out of a topic's table what its partitions have trimmed; delete old files.

        ``trimmed`` is what ``trim`` said of all partitions. Done again it does what is left.
        ``StorageError`` or ``MetadataError``: not all of it yet.
        """
        async with self._sealing.topic_tables.exclusively(base):
            return await self._apply_to_table(base, trimmed, dry_run)

    async def _apply_to_table(
        self, base: TopicName, trimmed: Collection[int], dry_run: bool
    ) -> RetentionReport:
        tables = self._sealing.tables
        table_id = await self._sealing.topic_tables.id_of(base)
        if table_id is None:
            return RetentionReport(len(trimmed))
        hours = self._settings.tableVacuumRetentionHours
        rows = deleted = kept = 0
        listed = self._sealing.listed_ledgers(base)
        async for sealed in tables.each_ledger(base):
            infos = await listed.of(sealed.partition)
            gone = infos is not None and infos(sealed.ledger_id) is None
            # Who says so may have lost the partition, and not know it: only the list is certain.
            gone = gone or (dry_run and sealed.ledger_id in trimmed)
            leaving = sealed.files if gone else ()
            rows += sum(file.rows for file in leaving)
            if leaving and not dry_run:
                await (await tables.open(base, table_id)).remove(sealed)
            before_ms = self._sure_clock.now_ms() - hours * 3_600_000 + 1
            if dry_run:
                old = sum(file.time_ms < before_ms for file in sealed.left)
                old += len(leaving) if hours == 0 else 0
            else:
                table = await tables.open(base, table_id)
                old = await table.vacuum(sealed.ledger_id, before_ms)
            deleted += old
            kept += len(sealed.left) + len(leaving) - old
        return RetentionReport(len(trimmed), rows, deleted, kept)
