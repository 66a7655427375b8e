"""What a broker seals, and what its clients see of that: nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from pulsark.dispatch.model.entry import stored_entry
from pulsark.dispatch.tables.rounds import LOOK_SHARE
from pulsark.dispatch.tables.sealing_due import (
    CHECK_SECONDS,
    DEFERRED_SECONDS_MAX,
    SMALL_TABLES_A_ROUND,
    TIDY_SECONDS,
)
from pulsark.dispatch.tables.table_waits import READ_SECONDS
from pulsark.dispatch.tables.tidying import STAGED_MS
from pulsark.dispatch.upkeep.unloaded_sealing import FIRST_SWEEP_SECONDS, SWEEP_SECONDS
from pulsark.errors import (
    ProcessEndedError,
    SealedApartError,
    StorageError,
    UnsealableError,
)
from pulsark.metadata.paths import table_path
from pulsark.metadata.records import InUseError, InvalidResourceError
from pulsark.storage.bookie.index import Extent
from pulsark.storage.bookie.journal_excerpt import JournalExcerpt
from pulsark.storage.managed_ledger import ledger_runs
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.files.seal import seal
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.process.table_processes import HURRY_SECONDS, PATIENCE_SECONDS
from pulsark.wire.position import EARLIEST, Position
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, scenario
from tests.support.client_view import client_view
from tests.support.tables import attached_files, entry

NAME = TopicName.parse("persistent://public/default/t")
ROLL_EARLY = {
    "managedLedgerMaxEntriesPerLedger": 10,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}


async def appended(broker: BrokerInMemory, count: int, first: int = 0) -> list[bytes]:
    """Publish straight into the ledger, as a topic does."""
    topic = await broker.broker.topics.load(NAME, create=True)
    originals = [entry(i, i % 3) for i in range(first, first + count)]
    for data in originals:
        topic.ledger.append(data, stored_entry(EARLIEST, data))
        # One by one, so that ledgers are closed where they are full.
        await asyncio.sleep(0.01)
    return originals


async def everything(broker: BrokerInMemory) -> list[bytes]:
    topic = await broker.broker.topics.load(NAME)
    found: list[bytes] = []
    position = EARLIEST
    while read := await topic.ledger.read(position, 1000, 1 << 20):
        found += [data for _, data in read]
        position = topic.ledger.next_position(read[-1][0])
    return found


def in_journal(broker: BrokerInMemory, ledger_id: int) -> int:
    return len(broker.bookie.entries(ledger_id))


def rows_in(broker: BrokerInMemory) -> int:
    disk = broker.broker.runtime.disk
    (table,) = disk.list("/table/public/default")
    return sum(file.rows for file in attached_files(disk, f"/table/public/default/{table}")[1])


@scenario(sealEnabled=True, sealFreshnessSeconds=0, **ROLL_EARLY)
async def test_closed_ledgers_leave_the_journal_and_are_read_as_before(
    broker: BrokerInMemory,
) -> None:
    originals = await appended(broker, 35)
    topic = await broker.broker.topics.load(NAME)
    await asyncio.sleep(2 * CHECK_SECONDS)
    infos = topic.ledger.ledgers()
    assert [info.open for info in infos] == [False, False, False, True]
    assert [in_journal(broker, info.ledger_id) for info in infos] == [0, 0, 0, 5]
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))
    assert rows_in(broker) == sum(max(i % 3, 1) for i in range(30))
    await broker.broker.topics.unload(NAME)
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


@scenario(sealEnabled=True, sealFreshnessSeconds=10)
async def test_an_open_ledger_is_followed_as_often_as_freshness_asks(
    broker: BrokerInMemory,
) -> None:
    originals = await appended(broker, 5)
    topic = await broker.broker.topics.load(NAME)
    (info,) = topic.ledger.ledgers()
    await asyncio.sleep(6)
    assert in_journal(broker, info.ledger_id) == 5
    await asyncio.sleep(6)
    assert in_journal(broker, info.ledger_id) == 0
    originals += await appended(broker, 3, first=5)
    assert in_journal(broker, info.ledger_id) == 3
    await asyncio.sleep(12)
    assert in_journal(broker, info.ledger_id) == 0
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


@scenario(sealEnabled=True, sealFreshnessSeconds=60, sealFreshnessWhenReadSeconds=4)
async def test_a_table_that_a_reader_asked_for_is_fresher_for_an_hour(
    broker: BrokerInMemory,
) -> None:
    sealing = broker.broker.sealing

    async def seconds_until_sealed(first: int) -> int:
        await appended(broker, 1, first=first)
        (info,) = (await broker.broker.topics.load(NAME)).ledger.ledgers()
        for seconds in range(100):
            if not in_journal(broker, info.ledger_id):
                return seconds
            await asyncio.sleep(1)
        return 100

    assert 50 < await seconds_until_sealed(0) < 70
    sealing.reads.is_read(NAME)
    assert await seconds_until_sealed(1) < 10
    await asyncio.sleep(READ_SECONDS - 30)
    assert await seconds_until_sealed(2) < 10
    await asyncio.sleep(60)
    assert 50 < await seconds_until_sealed(3) < 70


class Pressure:
    """Clients that keep the broker busy, or not."""

    def __init__(self) -> None:
        self.busy = True

    def is_busy(self) -> bool:
        return self.busy


@scenario(sealEnabled=True, sealFreshnessSeconds=0, **ROLL_EARLY)
async def test_sealing_waits_while_clients_keep_the_broker_busy(broker: BrokerInMemory) -> None:
    pressure: Any = Pressure()
    broker.broker.sealing.rounds.load = pressure
    await appended(broker, 25)
    topic = await broker.broker.topics.load(NAME)
    first = topic.ledger.ledgers()[0].ledger_id
    await asyncio.sleep(DEFERRED_SECONDS_MAX - 3 * CHECK_SECONDS)
    assert in_journal(broker, first) == 10
    await asyncio.sleep(5 * CHECK_SECONDS)
    assert in_journal(broker, first) == 0
    await appended(broker, 10, first=25)
    second = topic.ledger.ledgers()[2].ledger_id
    await asyncio.sleep(3 * CHECK_SECONDS)
    assert in_journal(broker, second) == 10
    pressure.busy = False
    await asyncio.sleep(2 * CHECK_SECONDS)
    assert in_journal(broker, second) == 0


@scenario(sealEnabled=True, **ROLL_EARLY)
async def test_a_busy_broker_looks_as_often_as_it_has_time(broker: BrokerInMemory) -> None:
    pressure: Any = Pressure()
    rounds: Any = broker.broker.sealing.rounds
    rounds.load, look, looks = pressure, rounds.look, 0

    async def slow(now: float) -> Any:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.5)
        return await look(now)

    rounds.look = slow
    await asyncio.sleep(60)
    assert 2 <= looks <= 60 / (0.5 * LOOK_SHARE) + 1
    pressure.busy, before = False, looks
    await asyncio.sleep(20)
    assert looks - before >= 20 / (CHECK_SECONDS + 0.5) - 2


@scenario(**ROLL_EARLY)
async def test_nothing_is_sealed_unless_it_is_asked_for(broker: BrokerInMemory) -> None:
    await appended(broker, 25)
    await asyncio.sleep(3 * CHECK_SECONDS)
    assert await broker.metadata.children("/tables") == []


@scenario(sealEnabled=True, sealFreshnessSeconds=0, **ROLL_EARLY)
async def test_a_namespace_can_be_left_out(broker: BrokerInMemory) -> None:
    topic = await broker.broker.topics.load(NAME, create=True)
    policies = topic.policies
    topic.set_policies(replace(policies, sealing=replace(policies.sealing, enabled=False)))
    await appended(broker, 25)
    await asyncio.sleep(3 * CHECK_SECONDS)
    assert in_journal(broker, topic.ledger.ledgers()[0].ledger_id) == 10


@scenario(sealEnabled=True, sealFreshnessSeconds=0, **ROLL_EARLY)
async def test_what_fails_stays_in_the_journal_and_is_tried_again(broker: BrokerInMemory) -> None:
    originals = await appended(broker, 15)
    topic = await broker.broker.topics.load(NAME)
    process: Any = broker.broker.tables.processes.patient
    process.failure = StorageError("the process died")
    first = topic.ledger.ledgers()[0].ledger_id
    await asyncio.sleep(1.5 * CHECK_SECONDS)
    assert in_journal(broker, first) == 10
    broker.bookie.down = True
    await asyncio.sleep(CHECK_SECONDS)
    broker.bookie.down = False
    await asyncio.sleep(CHECK_SECONDS)
    assert in_journal(broker, first) == 0
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


@scenario(sealEnabled=True, sealFreshnessSeconds=0, **ROLL_EARLY)
async def test_an_entry_that_cannot_be_sealed_holds_back_its_ledger_and_no_other(
    broker: BrokerInMemory,
) -> None:
    originals = await appended(broker, 35)
    topic = await broker.broker.topics.load(NAME)
    first = topic.ledger.ledgers()[0].ledger_id
    processes = broker.broker.tables.processes
    once, healed = processes.seal, False

    async def fails_at_entry_4(wanted: SealRange, *rest: Any, **named: Any) -> list[DataFile]:
        if wanted.ledger_id == first and wanted.first <= 4 <= wanted.last and not healed:
            raise UnsealableError("a defect")
        return await once(wanted, *rest, **named)

    processes.seal = fails_at_entry_4  # type: ignore[assignment]
    await asyncio.sleep(4 * CHECK_SECONDS)
    infos = topic.ledger.ledgers()
    assert [in_journal(broker, info.ledger_id) for info in infos] == [6, 0, 0, 5]
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))
    healed = True
    await asyncio.sleep(2 * CHECK_SECONDS)
    assert [in_journal(broker, info.ledger_id) for info in infos] == [0, 0, 0, 5]
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


@scenario(sealEnabled=True, sealFreshnessSeconds=1)
async def test_without_a_processor_to_spare_sealing_takes_its_share(
    broker: BrokerInMemory,
) -> None:
    originals = await appended(broker, 5)
    patient: Any = broker.broker.tables.processes.patient
    asked = 0

    async def starves(*_: Any, **__: Any) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()

    patient.seal = starves
    await asyncio.sleep(3 * CHECK_SECONDS)
    assert rows_in(broker) == 0
    await asyncio.sleep(PATIENCE_SECONDS)
    assert rows_in(broker) > 0
    originals += await appended(broker, 5, first=5)
    await asyncio.sleep(3 * CHECK_SECONDS)
    assert asked == 1, "it is not asked again so soon"
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))
    topic = await broker.broker.topics.load(NAME)
    assert in_journal(broker, topic.ledger.ledgers()[0].ledger_id) == 0
    await appended(broker, 5, first=10)
    await asyncio.sleep(HURRY_SECONDS)
    await appended(broker, 5, first=15)
    await asyncio.sleep(3 * CHECK_SECONDS)
    assert asked == 2


@scenario(sealEnabled=True, sealFreshnessSeconds=1)
async def test_what_cannot_be_read_where_the_journal_has_it_comes_from_the_bookie(
    broker: BrokerInMemory,
) -> None:
    bookie: Any = broker.bookie
    asked = list[int]()

    async def nowhere(ledger_id: int, first: int, last: int) -> JournalExcerpt | None:
        asked.append(first)
        extent = Extent(first, first + 1, 1, 64, 500, 500)
        return JournalExcerpt("/gone", ledger_id, {1: 2}, [extent]) if first < 4 else None

    bookie.excerpt = nowhere
    originals = await appended(broker, 9)
    await asyncio.sleep(3 * CHECK_SECONDS)
    assert asked == [0, 2, 4]
    assert rows_in(broker) == sum(max(i % 3, 1) for i in range(9))
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


@scenario(sealEnabled=True, sealFreshnessSeconds=0, **ROLL_EARLY)
async def test_a_bookie_that_is_away_does_not_stop_sealing_and_is_told_later(
    broker: BrokerInMemory,
) -> None:
    bookie: Any = broker.bookie
    told, release = list[int](), bookie.release

    async def away(ledger_id: int, through: int) -> None:
        told.append(ledger_id)
        raise StorageError("bookie b1 is not available")

    bookie.release = away
    originals = await appended(broker, 15)
    await asyncio.sleep(2 * CHECK_SECONDS)
    assert rows_in(broker) == sum(max(i % 3, 1) for i in range(10))
    await broker.restart()  # now what the table has is looked up, which the bookie does not hear
    originals += await appended(broker, 10, first=15)
    await asyncio.sleep(2 * CHECK_SECONDS)
    assert rows_in(broker) == sum(max(i % 3, 1) for i in range(25))
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))
    tried = len(told)
    await asyncio.sleep(TIDY_SECONDS)
    assert len(told) < tried + 40, "a bookie that stays away is asked less and less often"
    bookie.release = release
    await asyncio.sleep(2 * TIDY_SECONDS)
    topic = await broker.broker.topics.load(NAME)
    assert [in_journal(broker, i.ledger_id) for i in topic.ledger.ledgers() if not i.open] == [
        0
    ] * (len(topic.ledger.ledgers()) - 1)


@scenario(sealEnabled=True, sealFreshnessSeconds=0, **ROLL_EARLY)
async def test_a_deleted_topic_takes_its_table_along(broker: BrokerInMemory) -> None:
    await appended(broker, 25)
    await asyncio.sleep(2 * CHECK_SECONDS)
    assert rows_in(broker) > 0
    await broker.broker.deletion.delete_topic(NAME)
    assert await broker.metadata.get(table_path(NAME)) is None
    assert await broker.metadata.children(table_path(NAME)) == []
    disk: Any = broker.broker.runtime.disk
    assert disk.files() == ()
    originals = await appended(broker, 25)
    await asyncio.sleep(2 * CHECK_SECONDS)
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


def data_files(broker: BrokerInMemory) -> list[str]:
    disk: Any = broker.broker.runtime.disk
    return [path for path in disk.files() if path.endswith(".parquet")]


@scenario(sealEnabled=True, sealFreshnessSeconds=1, tableVacuumRetentionHours=1, **ROLL_EARLY)
async def test_small_files_are_merged_and_what_they_were_is_deleted_later(
    broker: BrokerInMemory,
) -> None:
    originals: list[bytes] = []
    for _ in range(5):
        originals += await appended(broker, 2, first=len(originals))
        await asyncio.sleep(2 * CHECK_SECONDS)
    originals += await appended(broker, 3, first=10)
    await asyncio.sleep(2 * CHECK_SECONDS)
    topic = await broker.broker.topics.load(NAME)
    first = topic.ledger.ledgers()[0]
    assert (first.entries, first.open) == (10, False)
    assert len(data_files(broker)) == 6
    rows = rows_in(broker)
    await asyncio.sleep(TIDY_SECONDS)
    disk: Any = broker.broker.runtime.disk
    (table,) = disk.list("/table/public/default")
    files = attached_files(disk, f"/table/public/default/{table}")[1]
    assert [(f.ledger_id, f.first_entry_id, f.last_entry_id) for f in files] == [
        (first.ledger_id, 0, 9),
        (first.ledger_id + 1, 0, 2),
    ]
    assert rows_in(broker) == rows
    assert len(data_files(broker)) == 7, "readers of older versions may need the others"
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))
    await asyncio.sleep(3600 + TIDY_SECONDS)
    assert len(data_files(broker)) == 2
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


@scenario(sealEnabled=True, sealFreshnessSeconds=0, tableVacuumRetentionHours=0, **ROLL_EARLY)
async def test_rows_of_a_trimmed_ledger_leave_the_table(broker: BrokerInMemory) -> None:
    await appended(broker, 25)
    await asyncio.sleep(2 * CHECK_SECONDS)
    topic = await broker.broker.topics.load(NAME)
    first, second, third = topic.ledger.ledgers()
    assert len(data_files(broker)) == 2
    await topic.ledger.trim(Position(second.ledger_id, 0))
    await asyncio.sleep(2 * TIDY_SECONDS)
    assert rows_in(broker) == sum(max(i % 3, 1) for i in range(10, 20))
    assert len(data_files(broker)) == 1
    path = table_path(NAME)
    assert await broker.metadata.children(path) == [str(second.ledger_id)]
    assert third.open
    assert first.ledger_id not in {info.ledger_id for info in topic.ledger.ledgers()}


@scenario(sealEnabled=True, sealFreshnessSeconds=1)
async def test_topics_with_little_in_them_wait_for_their_turn(broker: BrokerInMemory) -> None:
    names = [TopicName.parse(f"persistent://public/default/t{i}") for i in range(100)]
    for i, name in enumerate(names):
        topic = await broker.broker.topics.load(name, create=True)
        topic.ledger.append(entry(i), stored_entry(EARLIEST, entry(i)))
    done: list[int] = []
    for _ in range(5):
        await asyncio.sleep(CHECK_SECONDS)
        done.append(len(await broker.metadata.children("/tables/public/default/persistent")))
    assert SMALL_TABLES_A_ROUND in done
    assert done[-1] == 100
    tasks = asyncio.all_tasks()
    assert [task.get_name() for task in tasks].count("sealing") == 1
    assert not [task for task in tasks if "Sealing" in repr(task.get_coro())]


@scenario(sealEnabled=True, sealFreshnessSeconds=3600)
async def test_an_unloaded_topic_is_sealed_and_stays_unloaded(
    broker: BrokerInMemory,
) -> None:
    originals = await appended(broker, 5)
    # Its ledger stays open, as after a kill.
    broker.broker.topics.forget(await broker.broker.topics.load(NAME))
    await asyncio.sleep(FIRST_SWEEP_SECONDS + 5)
    assert rows_in(broker) == sum(max(i % 3, 1) for i in range(5))
    assert broker.broker.topics.get_loaded(NAME) is None
    loaded = await broker.broker.topics.load(NAME)
    assert in_journal(broker, loaded.ledger.ledgers()[0].ledger_id) == 0
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


@scenario(sealEnabled=True, sealByJobs=True)
async def test_jobs_leave_unloaded_topics_to_the_broker(broker: BrokerInMemory) -> None:
    await appended(broker, 5)
    await asyncio.sleep(FIRST_SWEEP_SECONDS + 5)
    disk = broker.broker.runtime.disk
    assert disk.list("/table/public") == [], "it is loaded"
    broker.broker.topics.forget(await broker.broker.topics.load(NAME))
    sealing = broker.broker.sealing
    sealing.leases.lend(NAME, "job", 1.5 * SWEEP_SECONDS)
    await asyncio.sleep(SWEEP_SECONDS + 5)
    assert disk.list("/table/public") == [], "a job has it"
    await asyncio.sleep(SWEEP_SECONDS)
    assert rows_in(broker) == sum(max(i % 3, 1) for i in range(5))
    assert broker.broker.topics.get_loaded(NAME) is None


@scenario(sealEnabled=True, sealFreshnessSeconds=0, **ROLL_EARLY)
async def test_what_a_failed_attempt_staged_is_deleted(broker: BrokerInMemory) -> None:
    await appended(broker, 15)
    topic = await broker.broker.topics.load(NAME)
    disk: Any = broker.broker.runtime.disk
    process: Any = broker.broker.tables.processes.patient
    seal = process.seal

    async def dies(*arguments: Any) -> Any:
        await seal(*arguments)
        raise StorageError("the table process ended")

    process.seal = dies
    await asyncio.sleep(1.5 * CHECK_SECONDS)
    assert data_files(broker) == []
    process.seal = seal
    await asyncio.sleep(CHECK_SECONDS)
    (path,) = data_files(broker)
    # What a broker left that was killed: its name says that it is old.
    where, _, name = path.rpartition("/")
    number, _, rest = name.removeprefix("part-").partition("-")
    killed = f"{where}/part-{number}-{'0' * 12}{rest[12:]}"
    disk.create(killed).close()
    mine = f"{where}/part-{number}-someone-else.parquet"
    disk.create(mine).close()
    await asyncio.sleep(TIDY_SECONDS + CHECK_SECONDS)
    assert set(data_files(broker)) == {path, mine}
    assert STAGED_MS > TIDY_SECONDS * 1000
    assert topic.ledger.ledgers()[0].entries == 10


@scenario(sealEnabled=True, sealFreshnessSeconds=1)
async def test_sealing_waits_for_room_and_says_so(broker: BrokerInMemory) -> None:
    disk: Any = broker.broker.runtime.disk
    disk.capacity = 4 << 20
    filler = disk.create("/filler")
    filler.writev([bytes(4 << 20)[: disk.space("/")[0] - 50_000]])
    originals = await appended(broker, 5)
    topic = await broker.broker.topics.load(NAME)
    await asyncio.sleep(4 * CHECK_SECONDS)
    assert data_files(broker) == []
    originals += await appended(broker, 5, first=5)  # publishing goes on
    disk.remove("/filler")
    await asyncio.sleep(2 * CHECK_SECONDS)
    assert len(data_files(broker)) == 1
    assert in_journal(broker, topic.ledger.ledgers()[0].ledger_id) == 0
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))


async def staged_by_a_job(broker: BrokerInMemory) -> tuple[str, list[DataFile]]:
    """What a job would write for everything there is."""
    sealing = broker.broker.sealing
    (table,) = await sealing.jobs.plan(
        [NAME], "a", everything=True, lease_seconds=60, range_bytes=1 << 30
    )
    files = []
    for planned in table.ranges:
        wanted = planned.wanted
        entries = await broker.broker.ledgers.read(
            wanted.ledger_id, wanted.first, wanted.last, 1 << 30, confirmed=wanted.last
        )
        files += seal(
            entries, wanted.partition, wanted.ledger_id, table.roots,
            broker.broker.runtime.disk, planned.attempt,
        )  # fmt: skip
    return table.table_id, files


@scenario(sealEnabled=True, sealFreshnessSeconds=1, **ROLL_EARLY)
async def test_what_a_job_wrote_is_attached_once(broker: BrokerInMemory) -> None:
    originals = await appended(broker, 15)
    table_id, files = await staged_by_a_job(broker)
    sealing = broker.broker.sealing
    await asyncio.sleep(3 * CHECK_SECONDS)
    first = (await broker.broker.topics.load(NAME)).ledger.ledgers()[0].ledger_id
    assert in_journal(broker, first) == 10, "what a job has is left to it"
    again: Any = {"everything": True, "lease_seconds": 60, "range_bytes": 1 << 30}
    assert await sealing.jobs.plan([NAME], "another", **again) == []
    assert len(await sealing.jobs.plan([NAME], "a", **again)) == 1, "the run before may have died"
    assert await sealing.jobs.attach(NAME, table_id, files) == 1
    assert await sealing.jobs.attach(NAME, table_id, files) == 1, "the answer was lost"
    assert in_journal(broker, first) == 0
    assert rows_in(broker) == sum(max(i % 3, 1) for i in range(15))
    assert [client_view(e) for e in await everything(broker)] == list(map(client_view, originals))
    await asyncio.sleep(3 * CHECK_SECONDS)
    assert rows_in(broker) == sum(max(i % 3, 1) for i in range(15))


@scenario(sealEnabled=True, sealFreshnessSeconds=0, sealByJobs=True)
async def test_a_table_that_cannot_be_opened_is_left_out_of_the_plan_for_all(
    broker: BrokerInMemory,
) -> None:
    sealing = broker.broker.sealing
    other = TopicName.parse("persistent://public/default/other")
    for name in (NAME, other):
        topic = await broker.broker.topics.load(name, create=True)
        topic.ledger.append(entry(0), stored_entry(EARLIEST, entry(0)))
    await asyncio.sleep(0.01)
    open_ = sealing.tables.open

    async def behind(name: TopicName, table_id: str) -> Any:
        if name == NAME:
            raise StorageError("attach 3 has reached 0 roots of 1")
        return await open_(name, table_id)

    sealing.tables.open = behind  # type: ignore[method-assign]
    wanted: Any = {"everything": True, "lease_seconds": 60, "range_bytes": 1 << 30}
    planned = await sealing.jobs.plan([], "a", **wanted)
    assert [table.base for table in planned] == [other]
    assert not sealing.leases.is_lent(NAME)
    with pytest.raises(StorageError, match="0 roots of 1"):
        await sealing.jobs.plan([NAME], "a", **wanted)


@scenario(sealEnabled=True, sealFreshnessSeconds=0, sealByJobs=True)
async def test_a_page_of_copies_begins_where_the_one_before_ended(broker: BrokerInMemory) -> None:
    await broker.broker.resources.namespaces.create("public/default-old")
    sealing = broker.broker.sealing
    names = [
        TopicName.parse(f"persistent://public/{name}")
        for name in ("default-old/t", "default/t", "default/u")
    ]
    for name in names:
        topic = await broker.broker.topics.load(name, create=True)
        topic.ledger.append(entry(0), stored_entry(EARLIEST, entry(0)))
        await asyncio.sleep(0.01)
        await sealing.seal(name, [topic], everything=True)
    for limit, value in (("FILES_A_PAGE", 1), ("PAGE_SECONDS", 0.0)):
        found, after = [], ""
        with patch(f"pulsark.dispatch.tables.sealed_copies.{limit}", value):
            while True:
                tables, after = await sealing.copies.page([], after)
                assert len(tables) <= 1
                found += [table.name for table in tables]
                if not after:
                    break
        assert found == names


@scenario(sealEnabled=True, sealFreshnessSeconds=0, sealByJobs=True)
async def test_a_root_is_in_service_when_all_logs_are_complete_however_long_that_takes(
    broker: BrokerInMemory,
) -> None:
    sealing = broker.broker.sealing
    for number in range(3):
        name = TopicName.parse(f"persistent://public/default/t{number}")
        topic = await broker.broker.topics.load(name, create=True)
        topic.ledger.append(entry(0), stored_entry(EARLIEST, entry(0)))
        await asyncio.sleep(0.01)
        await sealing.seal(name, [topic], everything=True)
    (root,) = sealing.tables.roots.paths
    served: list[str] = []

    async def put_in_service(root: str) -> None:
        served.append(root)

    sealing.tables.roots.put_in_service = put_in_service  # type: ignore[method-assign]
    counts, after = [], ""
    with patch("pulsark.dispatch.tables.sealed_copies.PAGE_SECONDS", 0.0):
        while True:
            assert not served
            tables, after = await sealing.copies.put_in_service(root, after)
            counts.append(tables)
            if not after:
                break
    assert counts == [1, 1, 1, 0]
    assert served == [root]


@scenario(sealEnabled=True, sealFreshnessSeconds=0)
async def test_a_job_that_is_too_late_or_wrong_is_refused(broker: BrokerInMemory) -> None:
    await appended(broker, 5)
    table_id, files = await staged_by_a_job(broker)
    sealing = broker.broker.sealing
    attach = sealing.jobs.attach
    (file,) = files
    for path in ("../../etc/passwd", f"{file.path}/../x.parquet"):
        with pytest.raises(ValueError, match="is not the name of a file"):
            replace(file, path=path)
    for wrong in (
        replace(file, path=file.path.replace("partition=-1", "partition=0")),
        replace(file, ledger_id=file.ledger_id + 1),
        replace(file, last_entry_id=5),
        replace(file, first_entry_id=-1),
        replace(file, size=0),
    ):
        with pytest.raises(InvalidResourceError, match="files: "):
            await attach(NAME, table_id, [wrong])
    with pytest.raises(InvalidResourceError, match="1 to"):
        await attach(NAME, table_id, [])
    with pytest.raises(InUseError, match="deleted and created again"):
        await attach(NAME, "0" * 32, files)
    with pytest.raises(StorageError, match="is on 0 storage roots"):
        await attach(NAME, table_id, [replace(file, size=file.size + 1)])
    with pytest.raises(InUseError, match="plan anew"):
        await attach(NAME, table_id, [replace(file, first_entry_id=1)])
    topic = await broker.broker.topics.load(NAME)
    await sealing.seal(NAME, [topic], everything=True)  # somebody is faster
    with pytest.raises(InUseError, match="plan anew"):
        await attach(NAME, table_id, files)
    assert rows_in(broker) == sum(max(i % 3, 1) for i in range(5))


@scenario(sealEnabled=True, sealFreshnessSeconds=0, **ROLL_EARLY)
async def test_folded_ledgers_that_are_done_with_are_not_looked_at_again(
    broker: BrokerInMemory,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_runs, "SMALL_RUN", 2)
        patch.setattr(ledger_runs, "LARGE_RUN", 4)
        originals = await appended(broker, 35)
        topic = await broker.broker.topics.load(NAME)
        for first in range(35, 95, 10):
            await asyncio.sleep(2 * CHECK_SECONDS)
            originals += await appended(broker, 10, first)
        await asyncio.sleep(2 * CHECK_SECONDS)
        lines = topic.ledger.record.folded
        assert any(line.settled for line in lines)
        await broker.broker.topics.unload(NAME)
        told: list[int] = []
        release = broker.broker.ledgers.release

        async def counting(ledger_id: int, through: int) -> None:
            told.append(ledger_id)
            await release(ledger_id, through)

        broker.broker.ledgers.release = counting  # type: ignore[method-assign]
        topic = await broker.broker.topics.load(NAME)
        await asyncio.sleep(2 * CHECK_SECONDS)
        assert told
        assert min(told) >= topic.ledger.unsettled_from > 0
        assert list(map(client_view, await everything(broker))) == list(map(client_view, originals))


@scenario(sealEnabled=True, sealFreshnessSeconds=1)
async def test_a_topic_that_ends_the_process_delays_others_once(broker: BrokerInMemory) -> None:
    bad, good = (TopicName.parse(f"persistent://public/{n}/t") for n in ("default", "other"))
    await broker.broker.resources.namespaces.create("public/other")
    processes: Any = broker.broker.tables.processes
    deaths = 0

    async def publish(number: int) -> None:
        for name in (bad, good):
            topic = await broker.broker.topics.load(name, create=True)
            topic.ledger.append(entry(number), stored_entry(EARLIEST, entry(number)))

    async def sealed(name: TopicName) -> int:
        state = await broker.broker.sealing.table(name)
        return 0 if state is None else state.rows

    def dies_of(process: Any) -> None:
        exchange = process._exchange

        async def dies(request: Any, *rest: Any) -> Any:
            nonlocal deaths
            if request.get("table") != str(bad):
                return await exchange(request, *rest)
            deaths += 1
            if process is processes.alone:
                await asyncio.sleep(100)
            raise ProcessEndedError("it died")

        process._exchange = dies

    for process in (processes.normal, processes.patient, processes.alone):
        dies_of(process)
    before = 0
    for number in range(6):
        await publish(number)
        await asyncio.sleep(2 * CHECK_SECONDS + 1)
        assert await sealed(good) > before, "it waits for nobody"
        before = await sealed(good)
    assert await sealed(bad) == 0
    stats = await broker.broker.stats.topic(await broker.broker.topics.load(bad))
    assert stats["sealing"]["apart"]
    assert stats["sealing"]["reason"] == "it died"
    assert "sealing" not in await broker.broker.stats.topic(await broker.broker.topics.load(good))
    await asyncio.sleep(4000)
    found = broker.broker.sealing.apart.get(bad)
    assert found is not None
    assert found.deaths <= deaths
    assert found.in_a_row > 1
    if not broker.broker.sealing.apart.seconds_to_wait(bad):
        await asyncio.sleep(400)
    topic = await broker.broker.topics.load(bad)
    with pytest.raises(SealedApartError, match="waits"):
        await broker.broker.sealing.seal(bad, [topic], everything=True)
