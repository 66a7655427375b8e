"""Applying the retention of a topic's table now: what trimming and tidying do in their own time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.listed_ledgers import ListedLedgers
from pulsark.dispatch.turns import in_turns
from pulsark.limits import LEDGERS_PER_TURN_MAX

if TYPE_CHECKING:
    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.sealing import Sealing
    from pulsark.dispatch.topic import Topic


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What went, or would go. ``kept_files`` left the table and are deleted later."""

    ledgers: int = 0
    """Ledgers that were trimmed, sealed or not."""
    rows: int = 0
    deleted_files: int = 0
    kept_files: int = 0


async def apply_retention(broker: Broker, topics: list[Topic], *, dry_run: bool) -> RetentionReport:
    """Trim the partitions of one topic, take the rows out of their table, delete old files.

    Done again it does what is left. ``StorageError`` or ``MetadataError``: not all of it yet.
    """
    ledgers = 0
    trimmed: set[int] = set()
    for topic in topics:
        point = await topic.retention.point()
        through = -1 if point is None else point.ledger_id
        async for info in in_turns(topic.ledger.each_ledger(), LEDGERS_PER_TURN_MAX):
            if info.ledger_id > through:
                break
            ledgers += 1
            trimmed.add(info.ledger_id)
        if not dry_run:
            await topic.retention.trim()
    if broker.sealing is None:
        return RetentionReport(ledgers)
    async with broker.sealing.exclusively(topics[0].name.base):
        return await _apply_to_table(broker, broker.sealing, topics[0], ledgers, trimmed, dry_run)


async def _apply_to_table(
    broker: Broker,
    sealing: Sealing,
    topic: Topic,
    ledgers: int,
    trimmed: set[int],
    dry_run: bool,
) -> RetentionReport:
    base = topic.name.base
    tables = sealing.tables
    table_id = await sealing.table_id(topic)
    hours = broker.settings.tableVacuumRetentionHours
    rows = deleted = kept = 0
    listed = ListedLedgers(broker, base)
    async for sealed in tables.each_ledger(base):
        infos = await listed.of(sealed.partition)
        gone = infos is not None and infos(sealed.ledger_id) is None
        gone = gone or sealed.ledger_id in trimmed
        leaving = sealed.files if gone else ()
        rows += sum(file.rows for file in leaving)
        if leaving and not dry_run:
            await tables.remove(base, table_id, sealed)
        before_ms = broker.sure_clock.now_ms() - hours * 3_600_000 + 1
        if dry_run:
            old = sum(file.time_ms < before_ms for file in sealed.left)
            old += len(leaving) if hours == 0 else 0
        else:
            old = await tables.vacuum(base, table_id, sealed.ledger_id, before_ms)
        deleted += old
        kept += len(sealed.left) + len(leaving) - old
    return RetentionReport(ledgers, rows, deleted, kept)
