"""A table is deleted with its topic, whenever the deletion is broken off, and wherever it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pulsark.dispatch.tables.sealing_due import CHECK_SECONDS
from pulsark.dispatch.upkeep.unloaded_sealing import FIRST_SWEEP_SECONDS, SWEEP_SECONDS
from pulsark.errors import MetadataError, StorageError
from pulsark.metadata.paths import DOOMED_TABLES, table_path
from pulsark.storage.table.files.record import TableRecord
from pulsark.storage.table.staging.staged_ledger import STAGING
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import NAME, BrokerInMemory, scenario
from tests.unit.dispatch.tables.test_sealing import appended, everything

SEALED: dict[str, Any] = {"sealEnabled": True, "sealFreshnessSeconds": 1}


def table_files(broker: BrokerInMemory) -> list[str]:
    disk: Any = broker.broker.runtime.disk
    return [path for path in disk.files() if path.startswith("/table/public")]


async def notes(broker: BrokerInMemory) -> list[str]:
    return list(await broker.broker.metadata.children(DOOMED_TABLES))


async def sealed_topic(broker: BrokerInMemory) -> None:
    await appended(broker, 5)
    await asyncio.sleep(3 * CHECK_SECONDS)
    assert table_files(broker)


@scenario(**SEALED)
async def test_a_deleted_topic_leaves_nothing(broker: BrokerInMemory) -> None:
    await sealed_topic(broker)
    await broker.broker.deletion.delete_topic(NAME)
    assert table_files(broker) == []
    assert await notes(broker) == []
    assert await broker.broker.metadata.get(table_path(NAME)) is None


@scenario(**SEALED)
async def test_what_was_staged_for_a_topic_goes_with_it(broker: BrokerInMemory) -> None:
    await sealed_topic(broker)
    (log, *_) = [path for path in table_files(broker) if "/_delta_log/" in path]
    staged = f"{log.partition('/_delta_log/')[0]}/{STAGING}"
    disk = broker.broker.runtime.disk
    disk.make_dirs(staged)
    disk.write_new(f"{staged}/1-a-0.parquet", b"of a writer that died")
    await broker.broker.deletion.delete_topic(NAME)
    assert table_files(broker) == []


@scenario(**SEALED)
async def test_a_deletion_that_is_broken_off_before_the_table_is_finished_later(
    broker: BrokerInMemory,
) -> None:
    await sealed_topic(broker)
    remains: Any = broker.broker.deletion._remains

    async def broken(*_: Any) -> None:
        raise MetadataError("not now")

    shared, remains.delete_shared = remains.delete_shared, broken
    try:
        await broker.broker.deletion.delete_topic(NAME)
    except MetadataError:
        remains.delete_shared = shared
    assert table_files(broker)
    assert len(await notes(broker)) == 1
    await asyncio.sleep(FIRST_SWEEP_SECONDS + SWEEP_SECONDS)
    assert table_files(broker) == []
    assert await notes(broker) == []
    assert await broker.broker.metadata.get(table_path(NAME)) is None


@scenario(**SEALED)
async def test_the_next_topic_of_the_name_begins_with_nothing_and_the_old_table_goes(
    broker: BrokerInMemory,
) -> None:
    await sealed_topic(broker)
    sealing: Any = broker.broker.sealing
    (old,) = broker.broker.runtime.disk.list("/table/public/default")
    tables = broker.broker.topic_tables
    forget, doom = tables.forget, tables.doom

    async def nothing(*_: Any) -> None:
        return None

    tables.forget = tables.doom = nothing  # as an older release, that crashed in between
    await broker.broker.deletion.delete_topic(NAME)
    tables.forget, tables.doom = forget, doom
    assert table_files(broker)
    sealing.tables.forget(NAME)
    originals = await appended(broker, 3)
    await asyncio.sleep(3 * CHECK_SECONDS)
    state = await sealing.table(NAME)
    assert (state.files, state.rows) == (1, 4)
    assert await notes(broker) == [old]
    await asyncio.sleep(FIRST_SWEEP_SECONDS + SWEEP_SECONDS)
    assert await notes(broker) == []
    assert not [path for path in table_files(broker) if old in path]
    assert len(await everything(broker)) == len(originals)
    assert (await sealing.table(NAME)).files == 1


@scenario(**SEALED)
async def test_a_root_that_is_away_is_told_later(broker: BrokerInMemory) -> None:
    await sealed_topic(broker)
    tables = broker.broker.tables
    away = True
    check = tables.roots.check

    def checked(directory: str) -> None:
        if away:
            raise StorageError("it is not mounted")
        check(directory)

    tables.roots.check = checked  # type: ignore[method-assign]
    await broker.broker.deletion.delete_topic(NAME)
    assert table_files(broker)
    assert len(await notes(broker)) == 1
    await asyncio.sleep(FIRST_SWEEP_SECONDS + SWEEP_SECONDS)
    assert len(await notes(broker)) == 1
    away = False
    await asyncio.sleep(SWEEP_SECONDS)
    assert table_files(broker) == []
    assert await notes(broker) == []


@scenario(**SEALED)
async def test_a_topic_whose_deletion_did_not_come_far_keeps_its_table(
    broker: BrokerInMemory,
) -> None:
    await sealed_topic(broker)
    sealing = broker.broker.sealing
    await sealing.topic_tables.doom(NAME)
    await asyncio.sleep(FIRST_SWEEP_SECONDS + SWEEP_SECONDS)
    assert table_files(broker)
    assert len(await everything(broker)) == 5
    await broker.broker.deletion.delete_topic(NAME)
    assert table_files(broker) == []
    assert await notes(broker) == []


@scenario(**SEALED)
async def test_the_table_of_an_existing_topic_stays_when_another_one_claims_its_path(
    broker: BrokerInMemory,
) -> None:
    await sealed_topic(broker)
    before = table_files(broker)
    with pytest.raises(StorageError, match="that of another topic"):
        await broker.broker.tables.open(NAME, "0" * 32)
    assert table_files(broker) == before
    assert await notes(broker) == []


@scenario(**SEALED)
async def test_a_topic_that_is_made_while_the_one_before_goes_keeps_its_table(
    broker: BrokerInMemory,
) -> None:
    base = TopicName.parse("persistent://public/default/parts")
    sealing = broker.broker.sealing

    async def made() -> str:
        await broker.broker.creation.create_partitioned_topic(base, 2, {})
        found = await broker.broker.resources.partitioned_topics.get(base)
        assert found is not None
        await sealing.staging(base, found.topic_id)
        return found.topic_id

    old = await made()
    async with sealing.topic_tables.exclusively(base):  # somebody is busy with the table
        deleting = asyncio.create_task(broker.broker.deletion.delete_partitioned_topic(base))
        await asyncio.sleep(1)
        new = await made()
    await deleting
    assert await notes(broker) == [old]
    await asyncio.sleep(FIRST_SWEEP_SECONDS + SWEEP_SECONDS)
    assert await notes(broker) == []
    record = await sealing.tables.record(base)
    assert record is not None
    assert record.table_id == new


@scenario(**SEALED)
async def test_a_table_that_got_another_root_after_a_first_attempt_goes_from_there_too(
    broker: BrokerInMemory,
) -> None:
    await sealed_topic(broker)
    tables, sealing = broker.broker.tables, broker.broker.sealing
    await sealing.topic_tables.doom(NAME)  # and no more: the topic stays
    found = await broker.metadata.get(table_path(NAME))
    assert found is not None
    record = TableRecord.decode(table_path(NAME), found.value)
    record = replace(record, roots=("/other/public/default/t", *record.roots))
    await broker.metadata.put(table_path(NAME), record.encode(), found.version)
    await sealing.topic_tables.doom(NAME)
    (noted,) = await tables.to_delete.all()
    assert noted.directories == record.roots
