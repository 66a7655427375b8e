"""A metadata store that is older than a table: nothing of the table is changed or deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import dataclass

import pytest

from pulsark.errors import OlderMetadataError, StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import sealed_ledger_path, table_path
from pulsark.runtime import Runtime
from pulsark.storage.table.attach import TableOwner
from pulsark.storage.table.files.record import table_directory
from pulsark.storage.table.files.seal import seal
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.files.table_limits import TableLimits
from pulsark.storage.table.log.delta_log import DeltaLog
from pulsark.storage.table.log.log_sum import log_sum
from pulsark.storage.table.process.process import Entries
from pulsark.storage.table.table_repair import Repair
from pulsark.storage.table.tables import Tables
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.inline_table import inline_tables
from tests.support.tables import attached_files, check_files, entry

NAME = TopicName.parse("persistent://public/default/t")
TABLE_ID = "0" * 31 + "1"
ROOTS = ["/root-1", "/root-2"]
DIRECTORIES = [table_directory(root, NAME, TABLE_ID) for root in ROOTS]
DAY_SECONDS = 86_400


@dataclass
class World:
    """A broker with its metadata store, on a disk that others may have used before."""

    runtime: Runtime
    tree: MemoryTree
    tables: Tables

    @classmethod
    def new(cls, runtime: Runtime, tree: MemoryTree, step: int = 1) -> World:
        limits = TableLimits(files_a_turn=step)
        tables = inline_tables(
            ROOTS, MemoryMetadataStore(tree), runtime, copies=2, copies_needed=2, limits=limits
        )
        return cls(runtime, tree, tables)

    async def seal(self, first: int, last: int) -> None:
        async def entries(wanted: SealRange) -> AsyncIterator[Entries]:
            yield [(i, entry(i)) for i in range(wanted.first, wanted.last + 1)]

        wanted = SealRange(-1, 5, first, last, 1000)
        await (await self.tables.open(NAME, TABLE_ID)).seal([wanted], entries, 1 << 20)


def disk_of(runtime: Runtime) -> SimDisk:
    assert isinstance(runtime.disk, SimDisk)
    return runtime.disk


@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_table_that_knows_more_is_refused_and_nothing_is_touched(known: int) -> None:
    with Simulation() as sim:

        async def main() -> None:
            runtime, tree = sim.runtime(SimDisk()), MemoryTree()
            world, older = World.new(runtime, tree), MemoryTree()
            for number in range(3):
                if number == known:
                    older = tree.copy()
                await world.seal(10 * number, 10 * number + 9)
            disk = disk_of(runtime)
            steps, nodes = disk.steps, dict(older.copy()._nodes)
            await asyncio.sleep(2 * DAY_SECONDS)
            back = World.new(runtime, older)
            await World.new(runtime, tree).tables.check(NAME, TABLE_ID)
            with pytest.raises(OlderMetadataError, match="is older than this table"):
                await back.tables.check(NAME, TABLE_ID)
            with pytest.raises(OlderMetadataError, match="is older than this table"):
                await back.seal(10 * known, 10 * known + 9)
            with pytest.raises(OlderMetadataError) if known else nullcontext():
                await back.tables.remove_staged(NAME, runtime.clock.now_ms())
            assert disk.steps == steps
            assert older._nodes == nodes

        sim.run(main())


def test_a_root_that_could_not_be_looked_at_is_noticed_later() -> None:
    with Simulation() as sim:

        async def main() -> None:
            runtime, tree = sim.runtime(SimDisk()), MemoryTree()
            await World.new(runtime, tree).seal(0, 9)
            older = tree.copy()
            await World.new(runtime, tree).seal(10, 19)
            away = True

            def check(directory: str) -> None:
                if away:
                    raise StorageError("it is not mounted")

            with pytest.raises(StorageError, match="has reached 0 roots"):
                await opened(runtime, older, check)
            owner = await opened(runtime, older, check, roots_needed=0)
            away = False
            before = {root: attached_files(disk_of(runtime), root) for root in DIRECTORIES}
            files = seal([(10, entry(10))], -1, 5, DIRECTORIES, runtime.disk, "another")
            with pytest.raises(OlderMetadataError, match="attach 2 is another one"):
                await owner.attach(files)
            assert before == {root: attached_files(disk_of(runtime), root) for root in DIRECTORIES}

        sim.run(main())


async def opened(
    runtime: Runtime, tree: MemoryTree, check: Callable[[str], None], roots_needed: int = 1
) -> TableOwner:
    return await TableOwner.open(
        table_path(NAME), TABLE_ID, DIRECTORIES, MemoryMetadataStore(tree), runtime,
        runtime.new_worker("table"), check_root=check, roots_needed=roots_needed,
    )  # fmt: skip


def test_a_file_that_a_commit_names_is_never_deleted() -> None:
    """The list of a ledger's files is lost, and nothing else."""
    with Simulation() as sim:

        async def main() -> None:
            runtime, tree = sim.runtime(SimDisk()), MemoryTree()
            world = World.new(runtime, tree)
            for number in range(4):
                await world.seal(10 * number, 10 * number + 9)
            await asyncio.sleep(2 * DAY_SECONDS)
            await world.seal(40, 49)
            disk = disk_of(runtime)
            crashed = f"partition=-1/ledger_id=5/part-{50:012d}-{'0' * 24}-0.parquet"
            for root in DIRECTORIES:
                disk.edit(f"{root}/{crashed}", b"half of a file")
            path = table_path(NAME)
            await MemoryMetadataStore(tree).delete(sealed_ledger_path(path, 5))
            again = World.new(runtime, tree)
            assert (
                await again.tables.remove_staged(NAME, runtime.clock.now_ms() - 1000 * DAY_SECONDS)
                == 0
            )
            for root in DIRECTORIES:
                last, files = attached_files(disk, root)
                assert (last, len(files)) == (5, 5)
                check_files(disk, root, files)
                assert f"{root}/{crashed}" not in disk.files()
                assert len(DeltaLog(disk, root).versions()) == 6

        sim.run(main())


def test_logs_that_are_all_behind_are_told_the_command_that_completes_them() -> None:
    with Simulation() as sim:

        async def main() -> None:
            runtime, tree = sim.runtime(SimDisk()), MemoryTree()
            world = World.new(runtime, tree)
            for number in range(4):
                await world.seal(10 * number, 10 * number + 9)
            disk = disk_of(runtime)
            for root in DIRECTORIES:
                for version in (3, 4):
                    disk.discard(f"{root}/_delta_log/{version:020d}.json")
            again = World.new(runtime, tree)
            with pytest.raises(StorageError, match=f"pulsark tables repair {NAME}"):
                await again.seal(40, 49)

            async def entries(wanted: SealRange) -> AsyncIterator[Entries]:
                raise AssertionError("all files are there")
                yield []

            repair = Repair()
            await again.tables.repair(NAME, TABLE_ID, entries, 1 << 20, repair, give_up=False)
            assert repair.lost == []
            await again.seal(40, 49)
            for root in DIRECTORIES:
                assert len(log_sum(disk, root).files) == 5

        sim.run(main())
