"""Tables stay tidy: in steps, while ledgers are open, and although something fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pulsark.dispatch.tables import tidy_tables
from pulsark.dispatch.tables.sealing_due import CHECK_SECONDS, TIDY_SECONDS
from pulsark.dispatch.tables.tidy_tables import WHOLE_SECONDS
from pulsark.dispatch.tables.tidying import Tidying
from pulsark.errors import CrowdedTableError, StorageError
from pulsark.metadata.paths import sealed_ledger_path, table_path
from pulsark.storage.table.files.table_limits import TableLimits
from pulsark.storage.table.table import Table
from pulsark.storage.table.table_repair import Repair
from pulsark.wire.position import Position
from tests.support.broker_clients import NAME, BrokerInMemory, scenario
from tests.support.client_view import client_view
from tests.support.tables import attached_files
from tests.unit.dispatch.tables.test_sealing import appended, everything

IN_STEPS = TableLimits(
    files_per_attach=7, files_per_step=5, files_merged=4, files_of_open_ledger=12, files_a_turn=2,
    bytes_a_turn=1,
)  # fmt: skip
SEALED_AT_ONCE: dict[str, Any] = {
    "sealEnabled": True,
    "sealFreshnessSeconds": 1,
    "tableVacuumRetentionHours": 0,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}


def files_of(broker: BrokerInMemory, ledger_id: int) -> list[tuple[int, int]]:
    disk = broker.broker.runtime.disk
    (table,) = disk.list("/table/public/default")
    files = attached_files(disk, f"/table/public/default/{table}")[1]
    return [(f.first_entry_id, f.last_entry_id) for f in files if f.ledger_id == ledger_id]


def data_files(broker: BrokerInMemory) -> int:
    disk: Any = broker.broker.runtime.disk
    return sum(path.endswith(".parquet") for path in disk.files())


async def one_by_one(broker: BrokerInMemory, count: int, first: int = 0) -> list[bytes]:
    """Each one is a file."""
    originals: list[bytes] = []
    for i in range(first, first + count):
        originals += await appended(broker, 1, first=i)
        await asyncio.sleep(2 * CHECK_SECONDS)
    return originals


@scenario(limits=IN_STEPS, managedLedgerMaxEntriesPerLedger=23, **SEALED_AT_ONCE)
async def test_a_ledger_of_more_files_than_an_attach_may_have_is_merged_and_removed(
    broker: BrokerInMemory,
) -> None:
    originals = await one_by_one(broker, 24)
    topic = await broker.broker.topics.load(NAME)
    first, second = topic.ledger.ledgers()
    assert len(files_of(broker, first.ledger_id)) == 23
    await asyncio.sleep(2 * TIDY_SECONDS)
    assert files_of(broker, first.ledger_id) == [(0, 22)]
    assert data_files(broker) == 2, "nothing is left behind"
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))
    await topic.ledger.trim(Position(second.ledger_id, 0))
    await asyncio.sleep(3 * TIDY_SECONDS)
    assert files_of(broker, first.ledger_id) == []
    assert data_files(broker) == 1


@scenario(limits=IN_STEPS, managedLedgerMaxEntriesPerLedger=23, **SEALED_AT_ONCE)
async def test_rows_of_many_files_leave_the_table_by_retention_from_the_end(
    broker: BrokerInMemory,
) -> None:
    await one_by_one(broker, 24)
    topic = await broker.broker.topics.load(NAME)
    first, second = topic.ledger.ledgers()
    table: Any = await broker.broker.tables.open(NAME, topic.ledger.topic_id)
    attach, left = table._attach, list[int]()

    async def noted(*given: Any) -> None:
        await attach(*given)
        left.append(len(files_of(broker, first.ledger_id)))

    table._attach = noted
    await topic.ledger.trim(Position(second.ledger_id, 0))
    retention = broker.broker.table_retention
    trimmed = await retention.trim([topic], dry_run=False)
    report = await retention.apply(topic.name, trimmed, dry_run=False)
    assert report.rows > 0
    assert left == [18, 13, 8, 3, 0]


@scenario(limits=IN_STEPS, **SEALED_AT_ONCE)
async def test_files_of_an_open_ledger_are_merged_while_it_grows(broker: BrokerInMemory) -> None:
    originals: list[bytes] = []
    for _ in range(4):
        originals += await one_by_one(broker, 10, first=len(originals))
        await asyncio.sleep(TIDY_SECONDS)
    topic = await broker.broker.topics.load(NAME)
    (info,) = topic.ledger.ledgers()
    assert info.open
    assert len(files_of(broker, info.ledger_id)) <= 9
    await asyncio.sleep(TIDY_SECONDS)
    assert data_files(broker) <= 9
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


@scenario(
    limits=TableLimits(files_merged=4, files_of_ledger=20),
    **{**SEALED_AT_ONCE, "tableVacuumRetentionHours": 24},
)
async def test_a_ledger_with_a_long_list_of_files_is_closed(broker: BrokerInMemory) -> None:
    """Files that left it are on its list for a day."""
    originals: list[bytes] = []
    for _ in range(8):
        originals += await one_by_one(broker, 8, first=len(originals))
        await asyncio.sleep(TIDY_SECONDS)
    topic = await broker.broker.topics.load(NAME)
    assert len(topic.ledger.ledgers()) > 2
    for info in topic.ledger.ledgers():
        found = await broker.broker.tables.sealed(NAME, info.ledger_id)
        assert found is not None
        assert len(found.files) + len(found.left) <= 20 + 2 * 10
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


@scenario(limits=IN_STEPS, managedLedgerMaxEntriesPerLedger=4, **SEALED_AT_ONCE)
async def test_a_ledger_that_cannot_be_tidied_keeps_no_other_one_from_it(
    broker: BrokerInMemory,
) -> None:
    await one_by_one(broker, 13)
    topic = await broker.broker.topics.load(NAME)
    first, second, third, _ = [info.ledger_id for info in topic.ledger.ledgers()]
    process: Any = broker.broker.tables.processes.normal
    seal = process.seal

    async def fails(entries: Any, partition: int, ledger_id: int, *rest: Any, **named: Any) -> Any:
        if ledger_id == first:
            raise StorageError("its entries cannot be read")
        return await seal(entries, partition, ledger_id, *rest, **named)

    process.seal = fails
    path = sealed_ledger_path(table_path(NAME), second)
    await broker.metadata.put(path, b"no document")
    await asyncio.sleep(2 * TIDY_SECONDS)
    assert len(files_of(broker, first)) == 4
    assert len(files_of(broker, third)) == 1


@scenario(limits=IN_STEPS, managedLedgerMaxEntriesPerLedger=4, **SEALED_AT_ONCE)
async def test_an_attach_that_is_refused_leaves_no_files(broker: BrokerInMemory) -> None:
    await one_by_one(broker, 5)
    topic = await broker.broker.topics.load(NAME)
    first = topic.ledger.ledgers()[0].ledger_id
    tables = broker.broker.tables
    sealed = await tables.sealed(NAME, first)
    assert sealed is not None
    table_id = (await tables.record(NAME)).table_id  # type: ignore[union-attr]
    sealing: Any = broker.broker.sealing
    # Another one has merged the last two meanwhile.
    await (await tables.open(NAME, table_id)).merge(
        sealed.files[2:], sealing.source.entries, 1 << 20
    )
    count = data_files(broker)
    with pytest.raises(StorageError, match="would not follow"):
        await (await tables.open(NAME, table_id)).merge(
            sealed.files[1:3], sealing.source.entries, 1 << 20
        )
    assert data_files(broker) == count


@scenario(
    limits=TableLimits(document_bytes=2000, files_merged=4),
    **{**SEALED_AT_ONCE, "sealFreshnessSeconds": 1},
)
async def test_what_no_document_could_list_waits_in_the_journal_until_files_are_merged(
    broker: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal, refused = Table.seal, list[CrowdedTableError]()

    async def noted(*given: Any, **named: Any) -> None:
        try:
            await seal(*given, **named)
        except CrowdedTableError as error:
            refused.append(error)
            raise

    monkeypatch.setattr(Table, "seal", noted)
    originals = await one_by_one(broker, 12)
    topic = await broker.broker.topics.load(NAME)
    (info,) = topic.ledger.ledgers()
    record = await broker.broker.tables.record(NAME)
    assert record is not None
    assert not record.pending, "what cannot be done is not decided"
    assert len(refused) == 1
    await asyncio.sleep(2 * CHECK_SECONDS)
    assert len(broker.bookie.entries(info.ledger_id)) == 0
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


@scenario(
    limits=TableLimits(document_bytes=2000, files_merged=1000),
    **{**SEALED_AT_ONCE, "sealFreshnessSeconds": 1},
)
async def test_a_table_that_stays_crowded_is_tried_less_and_less_often(
    broker: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal, tidy, refused, tidied = Table.seal, Tidying.tidy, 0, 0

    async def noted(*given: Any, **named: Any) -> None:
        nonlocal refused
        try:
            await seal(*given, **named)
        except CrowdedTableError:
            refused += 1
            raise

    async def counted(*given: Any) -> Any:
        nonlocal tidied
        tidied += 1
        return await tidy(*given)

    monkeypatch.setattr(Table, "seal", noted)
    monkeypatch.setattr(Tidying, "tidy", counted)
    originals = await one_by_one(broker, 12)
    await asyncio.sleep(3600)
    assert 10 <= refused <= 16
    assert tidied <= refused + 7, "with the times that are due in any case"
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


@scenario(limits=IN_STEPS, managedLedgerMaxEntriesPerLedger=1, **SEALED_AT_ONCE)
async def test_the_loop_does_other_work_while_many_ledgers_are_looked_at(
    broker: BrokerInMemory,
) -> None:
    await appended(broker, 30)
    await asyncio.sleep(3 * CHECK_SECONDS)
    tables = broker.broker.tables
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    assert len(await tables.ledgers(NAME)) == 30
    assert turns >= 29
    task.cancel()


SMALL_LEDGERS: dict[str, Any] = {**SEALED_AT_ONCE, "managedLedgerMaxEntriesPerLedger": 2}


class Reads:
    """How many lists of a ledger's files are read from the metadata store."""

    def __init__(self, broker: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
        get, self.ledgers = broker.metadata.get, list[int]()

        async def counted(path: str) -> Any:
            if path.startswith(f"{table_path(NAME)}/") and path.rpartition("/")[2].isdigit():
                self.ledgers.append(int(path.rpartition("/")[2]))
            return await get(path)

        monkeypatch.setattr(broker.metadata, "get", counted)

    async def of_tidying(self, broker: BrokerInMemory) -> set[int]:
        """By one time of it."""
        topic = await broker.broker.topics.load(NAME)
        self.ledgers.clear()
        await broker.broker.sealing.tidy(NAME, [topic])
        return set(self.ledgers)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy_tables, "LARGE_LEDGERS", 4)


@scenario(**SMALL_LEDGERS)
async def test_of_a_large_table_only_that_is_looked_at_which_changed(
    broker: BrokerInMemory, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    originals = await appended(broker, 21)
    await asyncio.sleep(2 * CHECK_SECONDS)
    reads = Reads(broker, monkeypatch)
    ids = [info.ledger_id for info in (await broker.broker.topics.load(NAME)).ledger.ledgers()]
    assert await reads.of_tidying(broker) == set(ids)
    assert await reads.of_tidying(broker) == {ids[-1]}, "it is still open"
    originals += await appended(broker, 4, first=21)
    await asyncio.sleep(2 * CHECK_SECONDS)
    topic = await broker.broker.topics.load(NAME)
    ids = [info.ledger_id for info in topic.ledger.ledgers()]
    assert await reads.of_tidying(broker) == set(ids[-3:])
    await topic.ledger.trim(Position(ids[4], 0))
    for step in ("rows", "files", "lists"):
        assert await reads.of_tidying(broker) == {*ids[:4], ids[-1]}, step
    assert await reads.of_tidying(broker) == {ids[-1]}
    disk: Any = broker.broker.runtime.disk
    there = [path for path in disk.files() if path.endswith(".parquet")]
    assert {int(path.split("ledger_id=")[1].split("/")[0]) for path in there} == set(ids[4:])
    found = list(map(client_view, await everything(broker)))
    assert found == list(map(client_view, originals[8:]))


@scenario(**SMALL_LEDGERS)
async def test_a_large_table_is_looked_at_as_a_whole_when_anything_may_be_due(
    broker: BrokerInMemory, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    await appended(broker, 13)
    await asyncio.sleep(2 * CHECK_SECONDS)
    reads = Reads(broker, monkeypatch)
    topic = await broker.broker.topics.load(NAME)
    ids = {info.ledger_id for info in topic.ledger.ledgers()}
    assert await reads.of_tidying(broker) == ids
    await broker.broker.sealing.repairs.repair(NAME, Repair(), give_up=False)
    assert await reads.of_tidying(broker) == ids
    assert len(await reads.of_tidying(broker)) == 1
    await asyncio.sleep(WHOLE_SECONDS)
    assert await reads.of_tidying(broker) == ids
    assert await reads.of_tidying(broker) == set(), "by now all are closed"
    topic.policies = replace(
        topic.policies, sealing=replace(topic.policies.sealing, target_file_bytes=1)
    )
    assert await reads.of_tidying(broker) == ids


@scenario(**SMALL_LEDGERS)
async def test_what_failed_of_a_large_table_is_looked_at_again(
    broker: BrokerInMemory, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    await appended(broker, 13)
    await asyncio.sleep(2 * CHECK_SECONDS)
    reads = Reads(broker, monkeypatch)
    await reads.of_tidying(broker)
    topic = await broker.broker.topics.load(NAME)
    first, *_, last = topic.ledger.ledgers()
    await topic.ledger.trim(Position(first.ledger_id + 1, 0))
    remove = Table.remove

    async def fails(*_: Any) -> None:
        raise StorageError("not now")

    monkeypatch.setattr(Table, "remove", fails)
    for _ in range(2):
        with pytest.raises(StorageError, match="not now"):
            await reads.of_tidying(broker)
    monkeypatch.setattr(Table, "remove", remove)
    assert await reads.of_tidying(broker) == {first.ledger_id, last.ledger_id}
    for _ in ("files", "lists"):
        await reads.of_tidying(broker)
    assert files_of(broker, first.ledger_id) == []
    assert await reads.of_tidying(broker) == {last.ledger_id}
