"""A table that knows more than the metadata store: its log tells what it has.

An older copy of the store is put back, at every step of its life, and the table is repaired; also
with a crash at every step of that.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from pulsark.errors import NoSuchEntryError, OlderMetadataError, SlowSealError, StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.runtime import Runtime
from pulsark.schemas.column_types import BINARY
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.table.files.record import DataFile, SealedLedger, table_directory
from pulsark.storage.table.files.seal import seal
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.log.log_sum import log_sum
from pulsark.storage.table.process.process import Entries
from pulsark.storage.table.table_repair import Repair
from pulsark.storage.table.tables import Tables
from pulsark.wire.entry import parse_entry
from pulsark.wire.topic_name import TopicName
from tests.sim.crashes import recover_each
from tests.sim.disk import SimDisk, Survival
from tests.sim.metadata import SteppingStore
from tests.sim.simulation import Simulation
from tests.support.client_view import client_view
from tests.support.inline_table import InlineTable, inline_tables
from tests.support.tables import entries

SEED = 20261123
NAME = TopicName.parse("persistent://public/default/t")
TABLE_ID = "0123456789abcdef0123456789abcdef"
ROOTS = ("/root-1", "/root-2")
DIRECTORIES = [table_directory(root, NAME, TABLE_ID) for root in ROOTS]
LEDGERS = {5: entries(12, 5), 7: entries(8, 7), 9: entries(4, 9)}
GROWTH = [(5, 0, 3), (5, 4, 7), (7, 0, 7), (5, 8, 11)]
BULK = 9
"""The ledger that is published in bulk."""
SURVIVALS: tuple[Survival, ...] = ("none", "random")


@dataclass
class World:
    """A broker, on a disk that others may have used before; bookies have nothing any more."""

    runtime: Runtime
    store: MemoryMetadataStore
    joined: list[int] = field(default_factory=list)
    refused: Collection[int] = ()
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        self.tables = inline_tables(ROOTS, self.store, self.runtime, copies=2, copies_needed=2)

    async def entries_of(self, wanted: SealRange) -> AsyncIterator[Entries]:
        first = wanted.first
        while first <= wanted.last:
            found = await self.tables.read(NAME, wanted.ledger_id, first, wanted.last, 1 << 20)
            yield found
            first = found[-1][0] + 1

    async def seal(self, ledger_id: int, first: int, last: int) -> None:
        async def sent(wanted: SealRange) -> AsyncIterator[Entries]:
            yield [(i, LEDGERS[ledger_id][i]) for i in range(wanted.first, wanted.last + 1)]

        wanted = SealRange(-1, ledger_id, first, last)
        await (await self.tables.open(NAME, TABLE_ID)).seal([wanted], sent, 1 << 20)

    async def publish(self, number: int) -> bool:
        """As the batch of a query."""
        owner = (await self.tables.open(NAME, TABLE_ID)).owner

        async def reserve() -> list[DataFile]:
            sent = list(enumerate(LEDGERS[BULK]))
            return seal(sent, -1, BULK, DIRECTORIES, self.runtime.disk, "bulk", roots_needed=2)

        async def decided(exist: bool | None) -> None:
            assert exist

        return await owner.publish("query", number, reserve, decided, BINARY)

    async def merge(self, ledger_id: int) -> None:
        sealed = await self.tables.sealed(NAME, ledger_id)
        assert sealed is not None
        await (await self.tables.open(NAME, TABLE_ID)).merge(sealed.files, self.entries_of, 1 << 20)

    async def join(self, ledgers: Sequence[SealedLedger]) -> list[int]:
        self.joined = [each.ledger_id for each in ledgers if each.ledger_id not in self.refused]
        return self.joined

    async def repair(self, *, give_up: bool = False) -> Repair:
        repair = Repair()
        await self.tables.repair(
            NAME, TABLE_ID, self.entries_of, 1 << 20, repair, give_up=give_up, join=self.join
        )
        return repair

    async def read(self, ledger_id: int) -> Entries:
        got: Entries = []
        while len(got) < len(LEDGERS[ledger_id]):
            got += await self.tables.read(NAME, ledger_id, len(got), 99, 1 << 20)
        return got

    async def check(self, ledgers: Collection[int] = LEDGERS) -> None:
        """Logs, files and the metadata store say the same, and it is all that was sealed."""
        record = (await self.tables.open(NAME, TABLE_ID)).record
        assert not record.pending
        files = [file for sealed in await self.tables.ledgers(NAME) for file in sealed.files]
        assert {file.ledger_id for file in files} == set(ledgers)
        for directory in DIRECTORIES:
            found = log_sum(self.runtime.disk, directory)
            assert {path for path, _ in found.files} == {file.path for file in files}
        if BULK in ledgers:
            assert not await self.publish(3), "a batch that is repeated is published once"
        for ledger_id in ledgers:
            got = await self.read(ledger_id)
            for (_, again), original in zip(got, LEDGERS[ledger_id], strict=True):
                assert client_view(again) == client_view(original)


def lived() -> tuple[SimDisk, list[MemoryTree]]:
    """A table that has grown, and copies of the store from before each of its changes."""
    disk, tree, older = SimDisk(), MemoryTree(), [MemoryTree()]

    def keep(step: str) -> None:
        if step.startswith("end"):
            older.append(tree.copy())

    with Simulation(SEED) as sim:

        async def main() -> None:
            world = World(sim.runtime(disk), SteppingStore(tree, keep))
            for ledger_id, first, last in GROWTH:
                await world.seal(ledger_id, first, last)
                if (ledger_id, last) == (5, 11):
                    await world.merge(5)
            assert await world.publish(3)

        sim.run(main())
    return disk, older


def test_whichever_older_store_is_put_back_the_table_is_whole_and_goes_on() -> None:
    disk, older = lived()
    assert len(older) > 15
    refused = 0
    for tree in older:
        with Simulation(SEED) as sim:

            async def main(runtime: Runtime, tree: MemoryTree) -> bool:
                world = World(runtime, MemoryMetadataStore(tree))
                reason = ""
                try:
                    await world.tables.open(NAME, TABLE_ID)
                except OlderMetadataError as error:
                    reason = str(error)
                    repair = await world.repair()
                    assert repair.lost == []
                assert not reason or f"pulsark tables repair {NAME}" in reason
                await world.check()
                LEDGERS[11] = LEDGERS[7]
                try:
                    await world.seal(11, 0, 7)
                    await World(runtime, world.store).check()
                finally:
                    del LEDGERS[11]
                return bool(reason)

            refused += sim.run(main(sim.runtime(disk.survivor("all", random.Random(SEED))), tree))
    assert refused > 12


def test_a_ledger_that_its_topic_cannot_list_stays_on_the_disk() -> None:
    disk, older = lived()
    with Simulation(SEED) as sim:

        async def main() -> None:
            world = World(sim.runtime(disk), MemoryMetadataStore(older[4]), refused={9})
            before = [path for path in disk.files() if "ledger_id=9/" in path]
            await world.repair()
            await world.check([5, 7])
            assert not await world.publish(3)
            assert [path for path in disk.files() if "ledger_id=9/" in path] == before

        sim.run(main())


def test_a_log_that_is_no_sequel_to_what_is_known_is_passed_over_if_it_is_given_up() -> None:
    """The store went back and on by itself while a root was away."""
    with Simulation(SEED) as sim:

        async def main() -> None:
            disk, tree = SimDisk(), MemoryTree()
            world = World(sim.runtime(disk), MemoryMetadataStore(tree))
            await world.seal(5, 0, 3)
            older = tree.copy()
            for ledger_id, first, last in [(5, 4, 7), (5, 8, 11), (9, 0, 3)]:
                await world.seal(ledger_id, first, last)
            away = inline_tables(
                ROOTS[1:], MemoryMetadataStore(older), sim.runtime(disk), copies=1, copies_needed=1
            )
            for version in (2, 3, 4):
                disk.discard(f"{DIRECTORIES[1]}/_delta_log/{version:020d}.json")

            async def sent(wanted: SealRange) -> AsyncIterator[Entries]:
                yield [(i, LEDGERS[7][i]) for i in range(8)]

            await (await away.open(NAME, TABLE_ID)).seal([SealRange(-1, 7, 0, 7)], sent, 1 << 20)
            again = World(sim.runtime(disk), MemoryMetadataStore(older))
            with pytest.raises(OlderMetadataError, match="--give-up"):
                await again.repair()
            await again.repair(give_up=True)
            record = (await again.tables.open(NAME, TABLE_ID)).record
            assert not record.pending
            with pytest.raises(NoSuchEntryError):
                await again.tables.read(NAME, 5, 4, 4, 1)
            await again.seal(5, 4, 11)
            again.tables.forget(NAME)
            await again.check([5, 7])

        sim.run(main())


def test_what_is_released_and_in_no_file_is_lost_until_it_is_given_up() -> None:
    disk, older = lived()
    for path in disk.files():
        if path.startswith(tuple(DIRECTORIES)):
            disk.discard(path)
    with Simulation(SEED) as sim:

        async def main() -> None:
            world = World(sim.runtime(disk), MemoryMetadataStore(older[4]))

            failures: list[StorageError] = []
            sealing = cast("InlineTable", world.tables.processes.normal)

            async def listed() -> AsyncIterator[tuple[int, LedgerInfo]]:
                sealing.failure = failures.pop() if failures else None
                for ledger_id, payloads in LEDGERS.items():
                    yield -1, LedgerInfo(ledger_id, len(payloads), 1000, 0)

            async def repair(*, give_up: bool) -> Repair:
                done = Repair()
                await world.tables.repair(
                    NAME, TABLE_ID, world.entries_of, 1 << 20, done, give_up=give_up, listed=listed
                )
                return done

            found = await repair(give_up=False)
            assert [lost.wanted.ledger_id for lost in found.lost_entries] == [5, 7, 9]
            failures.append(SlowSealError("the machine has much to do"))
            found = await repair(give_up=True)
            assert NAME in world.tables.processes.apart
            assert (found.lost, found.lost_entries) == ([], [])
            assert found.given_up == sum(map(len, LEDGERS.values()))
            for ledger_id, payloads in LEDGERS.items():
                got = await world.read(ledger_id)
                assert len(got) == len(payloads)
                assert all(parse_entry(entry).marker for _, entry in got)

        sim.run(main())


@dataclass(frozen=True)
class Moment:
    step: str
    survival: Survival
    disk: SimDisk
    tree: MemoryTree


def test_a_crash_at_any_step_is_made_up_for_by_the_next_repair() -> None:
    disk, older = lived()
    tree, rng, moments = older[4], random.Random(SEED), list[Moment]()

    def keep(step: str) -> None:
        for survival in SURVIVALS:
            moments.append(Moment(step, survival, disk.survivor(survival, rng), tree.copy()))

    disk.before_step = lambda: keep(f"disk step {disk.steps + 1}")
    with Simulation(SEED) as sim:
        sim.run(World(sim.runtime(disk), SteppingStore(tree, keep)).repair())

    def recovered(number: int, moment: Moment) -> None:
        with Simulation(SEED + number) as sim:

            async def main() -> None:
                world = World(sim.runtime(moment.disk), MemoryMetadataStore(moment.tree))
                try:
                    await world.tables.open(NAME, TABLE_ID)
                except StorageError:
                    await world.repair()
                await world.check()

            sim.run(main())

    assert recover_each(SEED, moments, recovered, every=1) > 20
