"""The table of a topic whose partitions several brokers own is whole, and has nothing twice."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from pulsark.dispatch.broker import Broker
from pulsark.dispatch.brokers.owners import BundleOwner
from pulsark.dispatch.tables.far_tables import FarAttach
from pulsark.dispatch.tables.sealing_due import CHECK_SECONDS, TIDY_SECONDS
from pulsark.errors import OlderMetadataError, PulsarkError
from pulsark.metadata.paths import bundle_owner_path
from pulsark.storage.managed_ledger.reservation import NewLedger
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.files.seal import seal
from pulsark.storage.table.table_repair import Repair
from pulsark.wire.topic_name import TopicName
from tests.support.client_view import client_view
from tests.support.table_brokers import BASE, PARTITIONS, AnswerLost, TableBrokers, two_brokers


async def published(brokers: TableBrokers, count: int = 6) -> None:
    for number in range(PARTITIONS):
        await brokers.publish(brokers.owner(number), number, count)


async def sealed(brokers: TableBrokers) -> None:
    await brokers.seal(brokers.a, 0, 2)
    await brokers.seal(brokers.b, 1, 3)


async def check_read(brokers: TableBrokers) -> None:
    """Consumers get from the table what was published, under the ids that it had."""
    for number in range(PARTITIONS):
        found = await brokers.read(brokers.owner(number), number)
        sent = brokers.sent[number]
        assert [client_view(data) for _, data in found] == list(map(client_view, sent))


@two_brokers()
async def test_each_broker_seals_its_partitions_into_the_one_table(brokers: TableBrokers) -> None:
    await published(brokers)
    ids = [[at for at, _ in await brokers.read(brokers.owner(n), n)] for n in range(PARTITIONS)]
    await sealed(brokers)
    brokers.check_whole()
    assert await brokers.in_journal() == 0
    await check_read(brokers)
    assert ids == [
        [at for at, _ in await brokers.read(brokers.owner(n), n)] for n in range(PARTITIONS)
    ]
    await published(brokers, 3)
    await sealed(brokers)
    brokers.check_whole()
    await check_read(brokers)
    assert brokers.b.tables.get(BASE) is None  # it never owned the table


@two_brokers(sealEnabled=True, sealFreshnessSeconds=4)
async def test_brokers_seal_by_themselves(brokers: TableBrokers) -> None:
    await published(brokers)
    await asyncio.sleep(4 + 2 * CHECK_SECONDS)
    brokers.check_whole()
    assert await brokers.in_journal() == 0
    await check_read(brokers)


@two_brokers()
async def test_both_brokers_seal_at_once(brokers: TableBrokers) -> None:
    await published(brokers, 20)
    await asyncio.gather(
        brokers.seal(brokers.a, 0, 2), brokers.seal(brokers.b, 1), brokers.seal(brokers.b, 3)
    )
    brokers.check_whole()
    await check_read(brokers)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_answer_that_is_lost_doubles_nothing_and_loses_nothing(moment: str) -> None:
    @two_brokers()
    async def scenario(brokers: TableBrokers) -> None:
        await published(brokers)

        async def lose(_asked: FarAttach) -> None:
            raise AnswerLost("the connection broke off")

        setattr(brokers.calls, moment, lose)
        with pytest.raises(PulsarkError, match="broke off"):
            await brokers.seal(brokers.b, 1, 3)
        setattr(brokers.calls, moment, brokers.calls.nothing)
        await sealed(brokers)
        brokers.check_whole()
        assert await brokers.in_journal() == 0
        await check_read(brokers)

    scenario()


@two_brokers()
async def test_a_call_that_comes_after_the_next_one_is_refused(brokers: TableBrokers) -> None:
    await published(brokers)
    late: list[FarAttach] = []

    async def hold(asked: FarAttach) -> None:
        late.append(asked)
        raise AnswerLost("no answer")

    brokers.calls.before = hold
    with pytest.raises(PulsarkError):
        await brokers.seal(brokers.b, 1, 3)
    brokers.calls.before = brokers.calls.nothing
    await sealed(brokers)
    with pytest.raises(PulsarkError, match="sealed through"):
        await brokers.calls.attach(brokers.a.registry.own_id, late[0])
    brokers.check_whole()


@two_brokers()
async def test_a_stale_owner_of_a_partition_attaches_nothing(brokers: TableBrokers) -> None:
    await published(brokers)

    async def lose_bundle(asked: FarAttach) -> None:
        await brokers.take(brokers.a, 3, brokers.b)

    brokers.calls.before = lose_bundle
    with pytest.raises(PulsarkError, match="owns it no more"):
        await brokers.seal(brokers.b, 1, 3)
    brokers.calls.before = brokers.calls.nothing
    bundle = await brokers.b.ownership.bundle_named(brokers.name(3))
    assert brokers.b.ownership.guard_of(bundle) is None  # now it knows
    assert not brokers.disk.list("/table/public/default") or not brokers.files()
    await brokers.seal(brokers.a, 0, 2, 3)
    await brokers.seal(brokers.b, 1)
    brokers.check_whole()


@two_brokers()
async def test_a_stale_owner_of_the_table_commits_nothing(brokers: TableBrokers) -> None:
    await published(brokers)
    await sealed(brokers)
    await published(brokers)
    bundle = await brokers.a.ownership.bundle_named(BASE)
    await brokers.a.ownership._claims.end(brokers.a.ownership.guard_of(bundle))
    await brokers.b.ownership.claim(bundle)
    with pytest.raises(PulsarkError):  # it has the table open, and has not heard of it
        await brokers.seal(brokers.a, 0, 2)
    await brokers.seal(brokers.b, 1, 3)
    await brokers.seal(brokers.a, 0, 2)
    brokers.check_whole()
    await check_read(brokers)
    assert brokers.a.tables.get(BASE) is None


@two_brokers()
async def test_the_table_moves_while_a_call_is_on_its_way(brokers: TableBrokers) -> None:
    await published(brokers)
    c = await brokers.started("c")
    bundle = await brokers.a.ownership.bundle_named(BASE)

    async def move(_asked: FarAttach) -> None:
        await brokers.a.ownership.begin_leaving(bundle)
        await brokers.a.ownership.leave(bundle)
        await c.ownership.claim(bundle)

    brokers.calls.before = move
    with pytest.raises(PulsarkError):
        await brokers.seal(brokers.b, 1, 3)
    brokers.calls.before = brokers.calls.nothing
    await sealed(brokers)
    brokers.check_whole()
    await check_read(brokers)
    assert c.tables.get(BASE) is not None


@two_brokers()
async def test_a_topic_that_is_deleted_gets_no_table_by_a_call_that_is_late(
    brokers: TableBrokers,
) -> None:
    await published(brokers)
    record = await brokers.a.resources.partitioned_topics.get(BASE)
    assert record is not None

    async def delete(_asked: FarAttach) -> None:
        await brokers.a.resources.partitioned_topics.begin_delete(BASE)

    brokers.calls.before = delete
    with pytest.raises(PulsarkError, match="was deleted"):
        await brokers.seal(brokers.b, 1, 3)
    assert brokers.disk.list("/table/public/default") in ([], [record.topic_id])


@two_brokers(sealEnabled=True, sealFreshnessSeconds=4, tableVacuumRetentionHours=0)
async def test_only_the_broker_of_the_table_merges_files(brokers: TableBrokers) -> None:
    for _ in range(12):
        for number in (1, 3):  # all partitions of it are the other broker's
            await brokers.publish(brokers.b, number, 1)
        await asyncio.sleep(10)
    assert len(brokers.ranges()[1]) > 10
    await check_read(brokers)  # and so it knows where the entries are
    await asyncio.sleep(2 * TIDY_SECONDS)
    assert len(brokers.ranges()[1]) < 5
    brokers.check_whole()
    await asyncio.sleep(2 * TIDY_SECONDS)  # old files are deleted
    await brokers.b.tables.forget_content()  # as after a restart of the process that reads
    await check_read(brokers)
    assert brokers.b.tables.get(BASE) is None


@two_brokers()
async def test_a_partition_with_reserved_ledgers_asks_the_broker_of_the_table(
    brokers: TableBrokers,
) -> None:
    """A bulk publish was broken off when all partitions were at one broker."""
    await published(brokers)
    await sealed(brokers)
    topic = await brokers.b.topics.load(brokers.name(3))
    async with topic.ledger.reservation() as reservation:
        (reserved,) = await reservation.add([NewLedger(3, 30)])
        c = await brokers.started("c")
        await brokers.take(c, 3, brokers.b)  # which knows nothing of it
    found = await c.topics.load(brokers.name(3))  # the table is that of another one
    assert found.ledger.ledger(reserved) is None
    assert not found.ledger.record.pending
    assert c.tables.get(BASE) is None
    await brokers.publish(c, 3, 2)
    await brokers.seal(c, 3)
    brokers.check_whole()


@two_brokers()
async def test_what_a_stale_owner_of_a_partition_remembers_takes_no_rows_out(
    brokers: TableBrokers,
) -> None:
    await published(brokers)
    await sealed(brokers)
    await brokers.take(brokers.b, 0, brokers.a)  # which has the table, and the topic loaded
    await brokers.publish(brokers.b, 0, 5)  # into a ledger that it does not know
    await brokers.seal(brokers.b, 0)
    await brokers.a.sealing.tidy(BASE, [])
    brokers.check_whole()
    assert len({ledger for ledger, *_ in brokers.ranges()[0]}) == 2
    await brokers.a.sealing.tidy(BASE, [])
    brokers.check_whole()


class Moving:
    """Three brokers; partitions and the table go from one to another, in order or not."""

    def __init__(self, brokers: TableBrokers, rng: random.Random) -> None:
        self.brokers = brokers
        self.rng = rng
        self.all: list[Broker] = []
        self.publishing = [asyncio.Lock() for _ in range(PARTITIONS)]

    async def start(self) -> None:
        self.all = [self.brokers.a, self.brokers.b, await self.brokers.started("c")]
        self.brokers.calls.before = self.brokers.calls.after = self.perhaps

    async def perhaps(self, _asked: FarAttach) -> None:
        """Something happens while a call, or its answer, is on its way."""
        if self.rng.random() < 0.15:
            raise AnswerLost("no answer")
        if self.rng.random() < 0.15:
            await self.move()

    async def owner(self, name: TopicName) -> Broker:
        bundle = await self.all[0].ownership.bundle_named(name)
        stored = await self.all[0].metadata.get(bundle_owner_path(bundle))
        if stored is not None:  # others may think that it is theirs
            broker_id = BundleOwner.decode(stored.value).broker_id
            return next(each for each in self.all if each.registry.own_id == broker_id)
        broker = self.rng.choice(self.all)
        await self.claim(broker, name)
        return broker

    async def claim(self, broker: Broker, name: TopicName) -> None:
        """Claim the bundle of a topic anew, also by one that has lost it and does not know."""
        held = broker.ownership.guard_of(await broker.ownership.bundle_named(name))
        if held is not None:
            broker.ownership.lost(held)
            await broker.bundle_release.settled()
        await broker.ownership.own(name)

    async def move(self) -> None:
        name = self.rng.choice([BASE, *map(self.brokers.name, range(PARTITIONS))])
        bundle = await self.all[0].ownership.bundle_named(name)
        before, after = await self.owner(name), self.rng.choice(self.all)
        if before is after:
            return
        if self.rng.random() < 0.5:
            await before.bundle_release.release(bundle)
        else:  # it does not know
            await before.ownership._claims.end(before.ownership.guard_of(bundle))
        await self.claim(after, name)

    async def seal(self, number: int) -> None:
        owner = await self.owner(self.brokers.name(number))
        await self.brokers.seal(owner, number)

    async def step(self) -> None:
        number = self.rng.randrange(PARTITIONS)
        broker = self.rng.choice(self.all)
        with suppress(PulsarkError):
            match self.rng.randrange(6):
                case 0 | 1:
                    async with self.publishing[number]:
                        owner = await self.owner(self.brokers.name(number))
                        await self.brokers.publish(owner, number, self.rng.randrange(1, 4))
                case 2 | 3:
                    await self.seal(number)
                case 4:
                    await broker.sealing.tidy(BASE, [])
                case _:
                    await self.move()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_moves_and_whatever_is_lost_the_table_is_whole(seed: int) -> None:
    @two_brokers(managedLedgerMaxEntriesPerLedger=12, managedLedgerMinLedgerRolloverTimeMinutes=0)
    async def scenario(brokers: TableBrokers) -> None:
        moving = Moving(brokers, random.Random(seed))
        await moving.start()
        for _ in range(12):
            await asyncio.gather(*(moving.step() for _ in range(4)))
        brokers.calls.before = brokers.calls.after = brokers.calls.nothing
        for number in range(PARTITIONS):
            for attempt in reversed(
                range(5)
            ):  # who does not know that it lost something hears of it
                try:
                    owner = await moving.owner(brokers.name(number))
                    found = await brokers.read(owner, number)
                    await brokers.seal(owner, number)
                    break
                except PulsarkError:
                    if not attempt:
                        raise
                    await asyncio.sleep(1)
            ends = brokers.ranges()[number]
            in_table = {(i, e) for i, first, last in ends for e in range(first, last + 1)}
            assert sum(last - first + 1 for _, first, last in ends) == len(in_table)
            assert {tuple(at) for at, _ in found} == in_table
            got = [client_view(data) for _, data in found]
            assert [view for view in map(client_view, brokers.sent[number]) if view in got] == got

    scenario()


async def gone_back(brokers: TableBrokers) -> None:
    """The metadata store does not know what the table has got since."""
    await published(brokers, 3)
    await sealed(brokers)
    await brokers.restart()
    older = brokers.tree.copy()
    await brokers.restart(own=True)
    await published(brokers, 3)
    await sealed(brokers)
    await brokers.restart(older, own=True)


@pytest.mark.parametrize("adopts", [False, True])
def test_partitions_of_both_list_again_what_only_the_table_knows(adopts: bool) -> None:
    @two_brokers()
    async def scenario(brokers: TableBrokers) -> None:
        await gone_back(brokers)
        record = await brokers.a.tables.record(BASE)
        assert record is not None
        with pytest.raises(OlderMetadataError):
            await brokers.a.tables.check(BASE, record.table_id)
        if adopts:
            for broker in (brokers.b, brokers.a):  # one has the table
                broker.sealing.repairs.adopts = True
                broker.sealing.start()
            assert brokers.a.sealing._adopting is not None
            await brokers.a.sealing._adopting
            assert not brokers.b.sealing.repairs._adopted
        else:
            repair = Repair()
            await brokers.a.sealing.repairs.repair(BASE, repair, give_up=False)
            assert (repair.taken_up, repair.lost, repair.lost_entries) == (PARTITIONS, [], [])
        await check_read(brokers)
        brokers.check_whole()

    scenario()


@pytest.mark.parametrize("event", ["lost", "partition taken", "table taken"])
@pytest.mark.parametrize(
    "step",
    [f"{when} {what}" for what in ("rejoin", "listed", "repaired") for when in ("before", "after")],
)
def test_a_repair_that_is_broken_off_is_done_by_the_next_one(step: str, event: str) -> None:
    @two_brokers()
    async def scenario(brokers: TableBrokers) -> None:
        await gone_back(brokers)
        a, b = brokers.a, brokers.b
        table, owners, happened = a, [a, b, a, b], False

        async def happen(at: str) -> None:
            nonlocal happened, table
            if not at.startswith(step) or happened:
                return
            happened = True
            if event == "lost":
                raise AnswerLost("no answer")
            if event == "partition taken":
                await brokers.take(a, 1, b)
                owners[1] = a
            else:
                bundle = await a.ownership.bundle_named(BASE)
                await a.ownership._claims.end(a.ownership.guard_of(bundle))
                await b.ownership.claim(bundle)
                table = b

        brokers.calls.at_step = happen
        with suppress(PulsarkError):
            await a.sealing.repairs.repair(BASE, Repair(), give_up=False)
        assert happened
        await asyncio.sleep(1)  # all know what has moved
        repair = Repair()
        await table.sealing.repairs.repair(BASE, repair, give_up=False)
        assert (repair.lost, repair.lost_entries) == ([], [])
        await check_read_of(brokers, dict(enumerate(owners)))
        brokers.check_whole()

    scenario()


async def staged_by_a_job(brokers: TableBrokers) -> tuple[str, list[DataFile]]:
    """What a job would write for all partitions, as each broker plans it."""
    files: list[DataFile] = []
    for broker in (brokers.a, brokers.b):
        (table,) = await broker.sealing.jobs.plan(
            [BASE], "job", everything=True, lease_seconds=600, range_bytes=1 << 30
        )
        for planned in table.ranges:
            wanted = planned.wanted
            entries = await broker.ledgers.read(
                wanted.ledger_id, wanted.first, wanted.last, 1 << 30, confirmed=wanted.last
            )
            files += seal(
                entries, wanted.partition, wanted.ledger_id, table.roots,
                brokers.disk, planned.attempt,
            )  # fmt: skip
    assert len({file.partition for file in files}) == PARTITIONS
    return table.table_id, files


@two_brokers(sealEnabled=True, sealFreshnessSeconds=1, sealByJobs=True)
async def test_a_job_seals_partitions_of_both(brokers: TableBrokers) -> None:
    await published(brokers)
    await asyncio.sleep(3 * CHECK_SECONDS)
    assert await brokers.in_journal() == 6 * PARTITIONS, "it is left to jobs"
    table_id, files = await staged_by_a_job(brokers)
    assert brokers.b.tables.get(BASE) is None  # it never owned the table
    for _ in range(2):  # the answer was lost
        assert await brokers.a.sealing.jobs.attach(BASE, table_id, files) == 1
    brokers.check_whole()
    assert await brokers.in_journal() == 0
    await check_read(brokers)
    assert not brokers.b.sealing.leases.is_lent(BASE)


@two_brokers(sealEnabled=True, sealByJobs=True)
async def test_what_the_tables_broker_has_attached_is_not_planned_again(
    brokers: TableBrokers,
) -> None:
    await published(brokers)
    table_id, files = await staged_by_a_job(brokers)

    async def lose(step: str) -> None:
        if step.startswith("before attached"):
            raise AnswerLost("it does not hear of it")

    brokers.calls.at_step = lose
    assert await brokers.a.sealing.jobs.attach(BASE, table_id, files) == 1
    for broker in (brokers.a, brokers.b):
        assert not await broker.sealing.jobs.plan(
            [BASE], "job", everything=True, lease_seconds=600, range_bytes=1 << 30
        )


@two_brokers(sealEnabled=True, sealByJobs=True)
async def test_files_of_a_job_are_attached_only_while_their_partitions_stay(
    brokers: TableBrokers,
) -> None:
    await published(brokers)
    table_id, files = await staged_by_a_job(brokers)
    taken = False

    async def take(step: str) -> None:
        nonlocal taken
        if step == "before intent" and not taken:
            taken = True
            await brokers.take(brokers.a, 3, brokers.b)

    brokers.calls.at_step = take
    with pytest.raises(PulsarkError, match="is at version"):
        await brokers.a.sealing.jobs.attach(BASE, table_id, files)
    assert not brokers.disk.list("/table/public/default") or not brokers.files()
    await brokers.a.sealing.jobs.attach(BASE, table_id, files)
    brokers.check_whole()
    await check_read_of(brokers, {0: brokers.a, 1: brokers.b, 2: brokers.a, 3: brokers.a})


async def check_read_of(brokers: TableBrokers, owners: dict[int, Broker]) -> None:
    for number, owner in owners.items():
        found = await brokers.read(owner, number)
        sent = brokers.sent[number]
        assert [client_view(data) for _, data in found] == list(map(client_view, sent))
