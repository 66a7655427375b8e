"""Repairing a table, also crashed at every step: in the end the logs say what the topic has."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import pytest

from pulsark.errors import StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import table_path
from pulsark.runtime import Runtime
from pulsark.storage.table.files.record import DataFile, table_directory
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.log.delta_log import DeltaLog
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
from tests.support.inline_table import inline_tables
from tests.support.tables import entries

SEED = 20261122
NAME = TopicName.parse("persistent://public/default/t")
TABLE_ID = "0123456789abcdef0123456789abcdef"
ROOTS = ("/root-1", "/root-2")
DIRECTORIES = [table_directory(root, NAME, TABLE_ID) for root in ROOTS]
LEDGERS = {5: entries(12, 5), 7: entries(8, 7)}
SURVIVALS: tuple[Survival, ...] = ("none", "random")


@dataclass
class World:
    """A broker, on a disk that others may have used before."""

    runtime: Runtime
    store: MemoryMetadataStore
    held: Collection[int] = ()
    """Ledgers that the bookies still have, from entry ``held_from`` on."""
    held_from: int = 0
    unknown: Collection[tuple[int, int]] = ()
    """Entries of which nobody can say whether a bookie has them."""
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        self.tables = inline_tables(ROOTS, self.store, self.runtime, copies=2, copies_needed=2)

    async def entries_of(self, wanted: SealRange) -> AsyncIterator[Entries]:
        first = wanted.first
        while first <= wanted.last:
            if any((wanted.ledger_id, i) in self.unknown for i in range(first, wanted.last + 1)):
                raise StorageError("b2 is not available")
            if wanted.ledger_id in self.held and first >= self.held_from:
                found = [(i, LEDGERS[wanted.ledger_id][i]) for i in range(first, wanted.last + 1)]
            else:
                found = await self.tables.read(NAME, wanted.ledger_id, first, wanted.last, 1 << 20)
            yield found
            first = found[-1][0] + 1

    async def sealed(self) -> None:
        async def sent(wanted: SealRange) -> AsyncIterator[Entries]:
            yield [(i, LEDGERS[wanted.ledger_id][i]) for i in range(wanted.first, wanted.last + 1)]

        for ledger_id, first, last in [(5, 0, 3), (5, 4, 7), (7, 0, 7), (5, 8, 11)]:
            await (await self.tables.open(NAME, TABLE_ID)).seal(
                [SealRange(-1, ledger_id, first, last)], sent, 1 << 20
            )

    async def repair(self, *, give_up: bool = False) -> Repair:
        repair = Repair()
        await self.tables.repair(NAME, TABLE_ID, self.entries_of, 1 << 20, repair, give_up=give_up)
        return repair

    async def files(self) -> list[DataFile]:
        return [file for sealed in await self.tables.ledgers(NAME) for file in sealed.files]

    async def check(self, given_up: Collection[tuple[int, int]] = ()) -> None:
        """Logs and files are what the metadata say, and consumers get everything."""
        record = (await self.tables.open(NAME, TABLE_ID)).record
        assert not record.pending
        assert record.others == ()
        files = await self.files()
        for directory in DIRECTORIES:
            found = log_sum(self.runtime.disk, directory)
            assert {path for path, _ in found.files} == {file.path for file in files}
            for file in files:
                assert self.runtime.disk.size(f"{directory}/{file.path}") == file.size
        for ledger_id, originals in LEDGERS.items():
            got: list[tuple[int, bytes]] = []
            while len(got) < len(originals):
                got += await self.tables.read(NAME, ledger_id, len(got), 99, 1 << 20)
            for (entry_id, again), original in zip(got, originals, strict=True):
                if (ledger_id, entry_id) in given_up:
                    assert parse_entry(again).marker
                else:
                    assert client_view(again) == client_view(original)


def somebody_optimises(disk: SimDisk, directory: str) -> None:
    """All rows of ledger 5 into one file of a foreign name, and the others are vacuumed."""
    found = log_sum(disk, directory)
    old = [add for (path, _), add in found.files.items() if "ledger_id=5" in path]
    new = {**old[0], "path": "partition=-1/ledger_id=5/part-00000-optimised.parquet", "tags": None}
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": 7, "operation": "OPTIMIZE", "engineInfo": "other/1"}},
        *({"remove": {"path": add["path"], "dataChange": False}} for add in old),
        {"add": new},
    ]
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    DeltaLog(disk, directory).write(found.version + 1, lines.encode())
    disk.discard(f"{directory}/{old[0]['path']}")


def everybody_optimises(disk: SimDisk) -> None:
    for directory in DIRECTORIES:
        somebody_optimises(disk, directory)


def loses(ledger_id: int, *directories: str) -> Callable[[SimDisk], None]:
    def lose(disk: SimDisk) -> None:
        for path in disk.files():
            if f"ledger_id={ledger_id}/" in path and path.startswith(tuple(directories)):
                disk.discard(path)

    return lose


def whole_directories_go(disk: SimDisk) -> None:
    for path in disk.files():
        if path.startswith(tuple(DIRECTORIES)):
            disk.discard(path)


def one_directory_goes(disk: SimDisk) -> None:
    for path in disk.files():
        if path.startswith(DIRECTORIES[0]):
            disk.discard(path)


DAMAGES: dict[str, Callable[[SimDisk], None]] = {
    "optimised": lambda disk: somebody_optimises(disk, DIRECTORIES[0]),
    "optimised everywhere": everybody_optimises,
    "one root lacks files": loses(5, DIRECTORIES[1]),
    "files are gone": loses(7, *DIRECTORIES),
    "one directory is gone": one_directory_goes,
    "the table is gone": whole_directories_go,
}


def damaged(
    how: str, store: Callable[[MemoryTree], MemoryMetadataStore]
) -> tuple[SimDisk, MemoryTree]:
    disk, tree = SimDisk(), MemoryTree()
    with Simulation(SEED) as sim:
        sim.run(World(sim.runtime(disk), store(tree)).sealed())
    DAMAGES[how](disk)
    return disk, tree


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_table_is_made_whole_again(how: str) -> None:
    disk, tree = damaged(how, MemoryMetadataStore)
    with Simulation(SEED) as sim:

        async def main() -> None:
            world = World(sim.runtime(disk), MemoryMetadataStore(tree), held=LEDGERS)
            repair = await world.repair()
            assert repair.to_json()["filesLost"] == 0
            await world.check()
            again = await world.repair()
            assert (again.copied, again.made_again, again.files) == (0, 0, repair.files)
            await world.check()

        sim.run(main())


def test_a_log_that_was_folded_and_is_gone_begins_anew() -> None:
    disk, tree = damaged("optimised", MemoryMetadataStore)
    with Simulation(SEED) as sim:

        async def main() -> None:
            world = World(sim.runtime(disk), MemoryMetadataStore(tree), held=LEDGERS)
            owner = (await world.tables.open(NAME, TABLE_ID)).owner
            await owner.begin_log_at(3)
            whole_directories_go(disk)
            await world.repair()
            await world.check()

        sim.run(main())


@pytest.mark.parametrize("how", ["files are gone", "the table is gone"])
def test_what_nobody_has_is_lost_until_it_is_given_up(how: str) -> None:
    disk, tree = damaged(how, MemoryMetadataStore)
    with Simulation(SEED) as sim:

        async def main() -> None:
            world = World(sim.runtime(disk), MemoryMetadataStore(tree), held={7}, held_from=5)
            repair = await world.repair()
            lost = [(f.ledger_id, f.first_entry_id, f.last_entry_id) for f, _ in repair.lost]
            all_lost = [(5, 0, 3), (5, 4, 7), (5, 8, 11), (7, 0, 7)]
            assert lost == (all_lost if how == "the table is gone" else all_lost[3:])
            with pytest.raises(StorageError):
                await world.tables.read(NAME, 7, 0, 7, 1)
            repair = await world.repair(give_up=True)
            assert repair.lost == []
            assert repair.given_up == (17 if how == "the table is gone" else 5)
            gone = {(5, i) for i in range(12)} if how == "the table is gone" else set()
            await world.check(gone | {(7, i) for i in range(5)})

        sim.run(main())


@pytest.mark.parametrize("unknown", range(8))
def test_what_a_bookie_that_is_away_may_have_is_not_given_up(unknown: int) -> None:
    disk, tree = damaged("files are gone", MemoryMetadataStore)
    with Simulation(SEED) as sim:

        async def main() -> None:
            world = World(sim.runtime(disk), MemoryMetadataStore(tree), held={7}, held_from=5)
            world.unknown = {(7, i) for i in range(unknown, 8)}
            repair = await world.repair(give_up=True)
            assert repair.given_up == 0
            ((file, reason),) = repair.lost
            assert (file.ledger_id, file.first_entry_id, file.last_entry_id) == (7, 0, 7)
            assert reason == "it cannot be given up now: b2 is not available"
            world.unknown = ()
            repair = await world.repair(give_up=True)
            assert (repair.lost, repair.given_up) == ([], 5)
            await world.check({(7, i) for i in range(5)})

        sim.run(main())


def test_an_attach_that_was_decided_and_cannot_be_done_is_part_of_the_repair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise OSError("not now")

    with Simulation(SEED) as sim:

        async def main() -> None:
            disk, store = SimDisk(), MemoryMetadataStore(MemoryTree())
            world = World(sim.runtime(disk), store, held=LEDGERS)

            async def sent(wanted: SealRange) -> AsyncIterator[Entries]:
                yield [(i, LEDGERS[5][i]) for i in range(wanted.first, wanted.last + 1)]

            async def seal(world: World, first: int, last: int) -> None:
                wanted = SealRange(-1, 9, first, last)
                await (await world.tables.open(NAME, TABLE_ID)).seal([wanted], sent, 1 << 20)

            await world.sealed()
            with monkeypatch.context() as patch:
                patch.setattr(DeltaLog, "write", fails)
                with pytest.raises(StorageError, match="has reached 0 roots"):
                    await seal(world, 0, 3)
            whole_directories_go(disk)
            with pytest.raises(StorageError):
                await seal(world, 0, 3)
            with pytest.raises(StorageError, match="has reached 0 roots"):
                await World(sim.runtime(disk), store).tables.open(NAME, TABLE_ID)
            monkeypatch.setitem(LEDGERS, 9, LEDGERS[5][:4])
            await world.repair()
            await world.check()
            monkeypatch.delitem(LEDGERS, 9)
            await seal(world, 4, 7)
            again = World(sim.runtime(disk), store)
            await seal(again, 8, 9)
            await again.check()

        sim.run(main())


@dataclass(frozen=True)
class Moment:
    step: str
    survival: Survival
    disk: SimDisk
    tree: MemoryTree


def moments(how: str) -> list[Moment]:
    """A repair, with a crash at every step."""
    disk, tree = damaged(how, MemoryMetadataStore)
    rng, found = random.Random(SEED), list[Moment]()

    def keep(step: str) -> None:
        for survival in SURVIVALS:
            found.append(Moment(step, survival, disk.survivor(survival, rng), tree.copy()))

    disk.before_step = lambda: keep(f"disk step {disk.steps + 1}")
    with Simulation(SEED) as sim:
        world = World(sim.runtime(disk), SteppingStore(tree, keep), held=LEDGERS)
        sim.run(world.repair())
    return found


@pytest.mark.parametrize("how", DAMAGES)
def test_a_repair_that_crashes_anywhere_is_finished_by_the_next_one(how: str) -> None:
    def recovered(number: int, moment: Moment) -> None:
        with Simulation(SEED + number) as sim:

            async def main() -> None:
                store = MemoryMetadataStore(moment.tree)
                world = World(sim.runtime(moment.disk), store, held=LEDGERS)
                await world.repair()
                await world.check()

            sim.run(main())

    assert recover_each(SEED, moments(how), recovered, every=7) > 20


@pytest.mark.parametrize("how", ["optimised", "optimised everywhere"])
def test_a_repair_that_was_decided_is_finished_by_whoever_opens_the_table(how: str) -> None:
    path = table_path(NAME)

    def opened(number: int, moment: Moment) -> None:
        with Simulation(SEED + number) as sim:

            async def main() -> None:
                store = MemoryMetadataStore(moment.tree)
                found = await store.get(path)
                assert found is not None
                world = World(sim.runtime(moment.disk), store, held=LEDGERS)
                record = (await world.tables.open(NAME, TABLE_ID)).record
                assert not record.pending
                if b'"repairs":true' in found.value:
                    assert record.others == ()
                    for directory in DIRECTORIES:
                        paths = {path for path, _ in log_sum(moment.disk, directory).files}
                        assert "partition=-1/ledger_id=5/part-00000-optimised.parquet" not in paths

            sim.run(main())

    recover_each(SEED, moments(how), opened, every=3)
