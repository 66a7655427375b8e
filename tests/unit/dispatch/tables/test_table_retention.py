"""What is in a topic's table stays as long as its own policy says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pulsark.config.settings import Settings
from pulsark.dispatch.model.entry import stored_entry
from pulsark.dispatch.policies.policies import TABLE_RETENTION, applied, effective
from pulsark.dispatch.tables.sealing_due import CHECK_SECONDS, TIDY_SECONDS
from pulsark.dispatch.tables.table_retention import RetentionReport
from pulsark.dispatch.topic.topic import Topic
from pulsark.dispatch.topics.inactivity import is_due
from pulsark.wire.position import EARLIEST
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, scenario
from tests.support.tables import attached_files, entry

NAMESPACE = "public/short"
NAME = TopicName.parse(f"persistent://{NAMESPACE}/t")
SEALED = {
    "managedLedgerMaxEntriesPerLedger": 10,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "sealEnabled": True,
    "sealFreshnessSeconds": 0,
    "tableVacuumRetentionHours": 1,
    "brokerDeleteInactiveTopicsEnabled": False,
    "keepAliveIntervalSeconds": 1_000_000,
}


def kept(minutes: int, megabytes: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


async def at_once(broker: BrokerInMemory, topic: Topic, *, dry_run: bool) -> RetentionReport:
    retention = broker.broker.table_retention
    trimmed = await retention.trim([topic], dry_run=dry_run)
    return await retention.apply(topic.name, trimmed, dry_run=dry_run)


async def topic_with(broker: BrokerInMemory, count: int = 25, **policies: Any) -> Topic:
    if await broker.broker.resources.namespaces.get(NAMESPACE) is None:
        await broker.broker.resources.namespaces.create(NAMESPACE, policies=policies)
    topic = await broker.broker.topics.load(NAME, create=True)
    for i in range(count):
        data = entry(i)
        topic.ledger.append(data, stored_entry(EARLIEST, data))
        await asyncio.sleep(0.01)
    return topic


async def set_policies(broker: BrokerInMemory, **policies: Any) -> None:
    await broker.broker.resources.namespaces.update(
        NAMESPACE, lambda found: replace(found, policies={**found.policies, **policies})
    )
    await asyncio.sleep(1)


def sealed_rows(broker: BrokerInMemory) -> int:
    disk = broker.broker.runtime.disk
    (table,) = disk.list("/table/public/short")
    return sum(file.rows for file in attached_files(disk, f"/table/public/short/{table}")[1])


def files(broker: BrokerInMemory) -> int:
    disk: Any = broker.broker.runtime.disk
    return sum(path.endswith(".parquet") for path in disk.files())


def test_the_retention_of_messages_holds_where_that_of_the_table_is_not_set() -> None:
    settings = Settings(defaultRetentionTimeInMinutes=7, defaultRetentionSizeInMB=8)
    assert applied(TABLE_RETENTION, settings) == kept(7, 8)
    given = {"retention_policies": kept(1, 2)}
    found = effective(settings, given, {})
    assert (found.table_retention_minutes, found.table_retention_mb) == (1, 2)
    found = effective(settings, {TABLE_RETENTION: kept(-1, -1)}, given)
    assert (found.table_retention_minutes, found.retention_minutes) == (-1, 1)


@pytest.mark.feature("F51", "F53")
@scenario(**SEALED)
async def test_consumed_messages_stay_for_as_long_as_the_table_keeps_them(
    broker: BrokerInMemory,
) -> None:
    topic = await topic_with(broker, **{TABLE_RETENTION: kept(60, -1)})
    await asyncio.sleep(300)
    assert [info.entries for info in topic.ledger.ledgers()] == [10, 10, 5]
    assert sealed_rows(broker) == 20
    first = topic.ledger.first_position()
    await asyncio.sleep(3600 + TIDY_SECONDS)
    assert [info.entries for info in topic.ledger.ledgers()] == [5]
    assert sealed_rows(broker) == 0
    assert topic.ledger.first_position() > first
    client = Client(broker)
    await client.subscribe(str(NAME))
    assert len(await client.received(5)) == 5


@scenario(**SEALED)
async def test_what_is_not_sealed_yet_waits_for_the_table(broker: BrokerInMemory) -> None:
    topic = await topic_with(broker, **{TABLE_RETENTION: kept(-1, -1)})
    await topic.retention.trim()
    assert len(topic.ledger.ledgers()) == 3
    await asyncio.sleep(2 * CHECK_SECONDS)
    assert sealed_rows(broker) == 20


@scenario(**SEALED)
async def test_what_was_sealed_once_stays_though_sealing_is_off_now(
    broker: BrokerInMemory,
) -> None:
    topic = await topic_with(broker, **{TABLE_RETENTION: kept(-1, -1)})
    await asyncio.sleep(2 * CHECK_SECONDS)
    await set_policies(broker, sealing_policies={"enabled": False})
    assert not topic.policies.sealing.enabled
    await topic_with(broker, 25)
    await asyncio.sleep(300)
    sizes = [info.entries for info in topic.ledger.ledgers()]
    assert sizes[:2] == [10, 10], "they are in the table"
    await broker.broker.deletion.delete_topic(NAME)


@scenario(**SEALED)
async def test_applied_at_once(broker: BrokerInMemory) -> None:
    topic = await topic_with(broker, **{TABLE_RETENTION: kept(-1, -1)})
    await asyncio.sleep(2 * CHECK_SECONDS)
    assert await at_once(broker, topic, dry_run=False) == RetentionReport()
    await set_policies(broker, **{TABLE_RETENTION: kept(0, 0)})
    would = RetentionReport(ledgers=2, rows=20, kept_files=2)
    assert await at_once(broker, topic, dry_run=True) == would
    assert (sealed_rows(broker), files(broker)) == (20, 2)
    assert await at_once(broker, topic, dry_run=False) == would
    assert (sealed_rows(broker), files(broker)) == (0, 2)
    again = RetentionReport(kept_files=2)
    assert await at_once(broker, topic, dry_run=False) == again
    await asyncio.sleep(3600)
    gone = await at_once(broker, topic, dry_run=False)
    assert gone in (RetentionReport(deleted_files=2), RetentionReport())
    assert files(broker) == 0


def test_a_topic_is_not_deleted_for_being_unused_while_its_table_is_kept() -> None:
    settings = Settings(sealEnabled=True)
    day_ms = 86_400_000
    assert is_due(effective(settings, {}, {}), day_ms)
    assert not is_due(effective(settings, {TABLE_RETENTION: kept(-1, -1)}, {}), day_ms)
    two_days = effective(settings, {TABLE_RETENTION: kept(2880, -1)}, {})
    assert not is_due(two_days, day_ms)
    assert is_due(two_days, 2 * day_ms)
