"""Commits of somebody else are noticed before anything is written behind them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from pulsark.errors import ChangedTableError, MetadataError, StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import table_path
from pulsark.storage.table.attach import TableOwner
from pulsark.storage.table.files.record import DataFile, TableRecord
from pulsark.storage.table.files.seal import seal
from pulsark.storage.table.log.delta_log import DeltaLog, commit_name, files_of
from pulsark.storage.table.repair import catch_up
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.tables import entries

TOPIC = "persistent://public/default/a b%2Fc"
PATH = table_path(TopicName.parse(TOPIC))
ROOTS = ("/one/t", "/two/t")
ORIGINALS = entries(40)
OPTIMIZE = {
    "commitInfo": {"timestamp": 99, "operation": "OPTIMIZE", "engineInfo": "some-engine/1.0"}
}


class Table:
    """One on two roots, that grows by attaches of five entries."""

    def __init__(self, sim: Simulation) -> None:
        self.disk = SimDisk()
        self.runtime = sim.runtime(self.disk)
        self.store = MemoryMetadataStore(MemoryTree())
        self.attaches = 0

    async def open(self) -> TableOwner:
        worker = self.runtime.new_worker("table")
        return await TableOwner.open(
            PATH, "ab" * 16, ROOTS, self.store, self.runtime, worker, roots_needed=2
        )

    def files(self, first: int, last: int) -> list[DataFile]:
        self.attaches += 1
        some = [(i, ORIGINALS[i]) for i in range(first, last + 1)]
        return seal(some, 0, 5, ROOTS, self.disk, f"n{self.attaches}")

    async def grow(self, owner: TableOwner) -> None:
        sealed = await owner.sealed(5)
        first = sealed.through + 1 if sealed else 0
        await owner.attach(self.files(first, first + 4))

    def somebody_writes(self, root: str, version: int) -> None:
        DeltaLog(self.disk, root).write(version, json.dumps(OPTIMIZE).encode() + b"\n")


Next = Callable[[Table, TableOwner], Awaitable[TableOwner]]


async def attach(table: Table, owner: TableOwner) -> TableOwner:
    await table.grow(owner)
    return owner


async def look(table: Table, owner: TableOwner) -> TableOwner:
    with pytest.raises(ChangedTableError, match=r"commit 3 in /two/t is OPTIMIZE by some-engine"):
        await owner.look()
    return owner


async def open_again(table: Table, owner: TableOwner) -> TableOwner:
    return await table.open()


@pytest.mark.parametrize("what", [attach, look, open_again])
def test_a_commit_of_another_engine_is_noticed_and_stops_what_takes_files_out(
    what: Next, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        table = Table(sim)
        owner = await table.open()
        await table.grow(owner)
        await table.grow(owner)
        await owner.look()
        table.somebody_writes(ROOTS[1], 3)
        owner = await what(table, owner)
        assert [(o.directory, o.version) for o in owner.record.others] == [(ROOTS[1], 3)]
        assert f"pulsark tables repair {TOPIC}" in caplog.text
        before = len(caplog.records)
        owner = await table.open()
        await table.grow(owner)
        assert len(caplog.records) == before, "it is said once"
        assert owner.record.others, "it is remembered"
        sealed = await owner.sealed(5)
        assert sealed is not None
        with pytest.raises(ChangedTableError, match="pulsark tables repair"):
            await owner.attach(table.files(0, sealed.through), sealed.files)
        with pytest.raises(ChangedTableError):
            await owner.vacuum(5, 1 << 60)
        assert await owner.sealed(5) == sealed
        table.somebody_writes(ROOTS[1], DeltaLog(table.disk, ROOTS[1]).versions()[-1] + 1)
        await table.grow(owner)
        assert [o.version for o in owner.record.others] > [3], "the newest one"

    with Simulation() as sim:
        sim.run(main())


def test_it_is_noted_before_the_next_commit_exists() -> None:
    async def main() -> None:
        table = Table(sim)
        owner = await table.open()
        await table.grow(owner)
        table.somebody_writes(ROOTS[0], 2)
        put, saves = table.store.put, list[bytes]()

        async def fails(path: str, value: bytes, version: int | None = None) -> int:
            saves.append(value)
            if len(saves) == 2:  # the first is the intent
                raise MetadataError("not now")
            return await put(path, value, version)

        table.store.put = fails  # type: ignore[method-assign]
        with pytest.raises(MetadataError):
            await table.grow(owner)
        assert TableRecord.decode(PATH, saves[1]).others
        assert DeltaLog(table.disk, ROOTS[0]).versions() == [0, 1, 2]

    with Simulation() as sim:
        sim.run(main())


@pytest.mark.parametrize("hurt", [3, 4])
@pytest.mark.parametrize("root", ROOTS)
def test_a_log_is_filled_from_one_in_which_the_numbers_of_commits_are_others(
    root: str, hurt: int
) -> None:
    async def main() -> None:
        table = Table(sim)
        owner = await table.open()
        await table.grow(owner)
        await table.grow(owner)
        table.somebody_writes(ROOTS[1], 3)
        for _ in range(3):
            await table.grow(owner)
        sealed = await owner.sealed(5)
        assert sealed is not None
        table.disk.edit(f"{root}/_delta_log/{commit_name(hurt)}", b"torn")
        catch_up(table.disk, owner.record, root, sealed.files)
        await table.grow(owner)
        sealed = await owner.sealed(5)
        assert sealed is not None
        for each in ROOTS:
            log = DeltaLog(table.disk, each)
            assert log.versions() == list(range(len(log.versions())))
            actions = [action for version in log.versions() for action in log.read(version)]
            numbers = [int(a["txn"]["version"]) for a in actions if "txn" in a]
            assert numbers == [1, 2, 3, 4, 5, 6]
            assert {f.path for f in files_of(actions)} == {f.path for f in sealed.files}

    with Simulation() as sim:
        sim.run(main())


def test_a_log_that_has_more_is_not_replaced() -> None:
    async def main() -> None:
        table = Table(sim)
        owner = await table.open()
        await table.grow(owner)
        table.somebody_writes(ROOTS[1], 2)
        for _ in range(3):
            await table.grow(owner)
        newest = DeltaLog(table.disk, ROOTS[1]).versions()[-1]
        table.disk.discard(f"{ROOTS[1]}/_delta_log/{commit_name(newest)}")
        table.disk.edit(f"{ROOTS[0]}/_delta_log/{commit_name(2)}", b"torn")
        before = table.disk.content(f"{ROOTS[0]}/_delta_log/{commit_name(4)}")
        with pytest.raises(StorageError, match="no other root has the log"):
            catch_up(table.disk, owner.record, ROOTS[0], ())
        assert table.disk.content(f"{ROOTS[0]}/_delta_log/{commit_name(4)}") == before

    with Simulation() as sim:
        sim.run(main())
