"""Commits say what they change, and the log says which columns have statistics."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pulsark.errors import StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import table_path
from pulsark.runtime import Runtime
from pulsark.storage.table.attach import TableOwner
from pulsark.storage.table.files.file_skipping import STATED_COLUMNS
from pulsark.storage.table.files.record import DataFile, RowChange, TableRecord
from pulsark.storage.table.files.seal import seal
from pulsark.storage.table.files.table_limits import DEFAULT_LIMITS
from pulsark.storage.table.log.delta_log import DeltaLog, commit_of
from pulsark.storage.table.log.log_repair import log_repair
from pulsark.storage.table.log.log_sum import log_sum
from pulsark.storage.table.log.missing_statistics import missing_statistics
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SURVIVALS, SimDisk
from tests.sim.metadata import SteppingStore
from tests.sim.simulation import Simulation
from tests.support.tables import entry

TOPIC = TopicName.parse("persistent://public/default/t")
PATH = table_path(TOPIC)
TABLE_ID = "ab" * 16
ROOTS = ("/one/t", "/two/t")
INDEXED = {"delta.dataSkippingStatsColumns": ",".join(STATED_COLUMNS)}
NOTHING = {"delta.dataSkippingNumIndexedCols": "0"}


class Table:
    """One on two roots, of entries with two messages."""

    def __init__(self, sim: Simulation, *, states: bool = True, room: int = 1 << 20) -> None:
        self.disk = SimDisk()
        self.runtime: Runtime = sim.runtime(self.disk)
        self.tree = MemoryTree()
        self.store = MemoryMetadataStore(self.tree)
        self.states = states
        self.limits = replace(DEFAULT_LIMITS, document_bytes=room)
        self.made = 0

    async def open(self, runtime: Runtime | None = None, store: Any = None) -> TableOwner:
        runtime = runtime or self.runtime
        return await TableOwner.open(
            PATH, TABLE_ID, ROOTS, store or self.store, runtime, runtime.new_worker("table"),
            roots_needed=2, limits=self.limits, states=lambda: self.states,
        )  # fmt: skip

    def files(self, first: int, last: int, ledger_id: int = 5) -> list[DataFile]:
        self.made += 1
        some = [(i, entry(i, 2)) for i in range(first, last + 1)]
        return seal(some, 0, ledger_id, ROOTS, self.disk, f"n{self.made}")

    def actions(self, version: int = -1) -> list[dict[str, Any]]:
        """Those of a commit, which is the same on both roots."""
        logs = [DeltaLog(self.disk, root) for root in ROOTS]
        found = [log.read_bytes(log.versions()[version]) for log in logs]
        assert found[0] == found[1]
        return logs[0].read(logs[0].versions()[version])

    def info(self) -> dict[str, Any]:
        return dict(self.actions()[0]["commitInfo"])

    def changes(self) -> dict[str, set[bool]]:
        """``dataChange`` of what the newest commit adds and removes."""
        found: dict[str, set[bool]] = {"add": set(), "remove": set()}
        for action in self.actions():
            for name in found.keys() & action.keys():
                found[name].add(action[name]["dataChange"])
        return found

    def configuration(self) -> dict[str, str]:
        """What the newest ``metaData`` says of statistics."""
        log = DeltaLog(self.disk, ROOTS[0])
        found = [a["metaData"] for v in log.versions() for a in log.read(v) if "metaData" in a]
        said = found[-1]["configuration"].items()
        return {name: value for name, value in said if name.startswith("delta.dataSkipping")}

    def statistics(self) -> list[dict[str, Any]]:
        adds = log_sum(self.disk, ROOTS[0]).files.values()
        return [json.loads(add["stats"]) for add in adds]


async def appended(table: Table, owner: TableOwner) -> None:
    await owner.attach(table.files(4, 5))


async def merged(table: Table, owner: TableOwner) -> None:
    sealed = await owner.sealed(5)
    assert sealed is not None
    await owner.attach(table.files(0, 3), sealed.files, change=RowChange.MERGE)


async def erased(table: Table, owner: TableOwner) -> None:
    sealed = await owner.sealed(5)
    assert sealed is not None
    await owner.attach(table.files(0, 1), sealed.files[:1], change=RowChange.ERASE)


async def removed(table: Table, owner: TableOwner) -> None:
    sealed = await owner.sealed(5)
    assert sealed is not None
    await owner.attach([], sealed.files)


async def published(table: Table, owner: TableOwner) -> None:
    async def reserve() -> list[DataFile]:
        return table.files(0, 1, 9)

    async def decided(happened: bool | None) -> None:
        assert happened

    await owner.publish("query", 1, reserve, decided, "binary")


@pytest.mark.parametrize(
    ("change", "operation", "adds", "removes"),
    [
        (appended, "WRITE", {True}, set()),
        (published, "WRITE", {True}, set()),
        (merged, "OPTIMIZE", {False}, {False}),
        (erased, "DELETE", {False}, {True}),
        (removed, "DELETE", set(), {True}),
    ],
)
def test_a_commit_says_whether_rows_come_or_go(
    change: Callable[[Table, TableOwner], Awaitable[None]],
    operation: str,
    adds: set[bool],
    removes: set[bool],
) -> None:
    sim = Simulation()

    async def main() -> None:
        table = Table(sim)
        owner = await table.open()
        await owner.attach(table.files(0, 1))
        await owner.attach(table.files(2, 3))
        await change(table, owner)
        assert table.changes() == {"add": adds, "remove": removes}
        info = table.info()
        assert info["operation"] == operation
        for name in ("operationParameters", "operationMetrics"):
            assert info[name]
            assert all(isinstance(value, str) for value in info[name].values())
        record = owner.record
        again = TableRecord.decode(PATH, record.encode())
        assert (again, commit_of(again)) == (record, commit_of(record))

    sim.run(main())


def test_a_new_table_indexes_its_columns_with_its_first_files() -> None:
    sim = Simulation()

    async def main() -> None:
        table = Table(sim)
        owner = await table.open()
        await owner.attach(table.files(0, 1))
        assert table.configuration() == INDEXED
        assert owner.record.stated
        await owner.attach(table.files(2, 3))
        assert all("metaData" not in action for action in table.actions())
        assert all(found["minValues"]["key"] == "k0" for found in table.statistics())

    sim.run(main())


def test_without_all_brokers_a_commit_is_as_older_ones_make_it_again() -> None:
    sim = Simulation()

    async def main() -> None:
        table = Table(sim, states=False)
        owner = await table.open()
        await owner.attach(table.files(0, 1))
        document = json.loads(owner.record.encode())
        assert not {"change", "indexed"} & document["intent"].keys()
        assert not {"indexed", "stated"} & document.keys()
        assert table.configuration() == {}
        assert (table.info()["operation"], table.info()["operationParameters"]) == ("WRITE", {})
        table.states = True
        await owner.attach(table.files(2, 3))
        assert table.configuration() == NOTHING
        assert not owner.record.stated

    sim.run(main())


@pytest.mark.parametrize("states", [True, False])
def test_characters_stand_for_themselves_but_in_commits_of_older_releases(states: bool) -> None:
    sim = Simulation()

    async def main() -> None:
        table = Table(sim, states=states)
        owner = await table.open()
        (file,) = table.files(0, 1)
        highs = {**file.statistics["maxValues"], "key": "\U0001f600"}
        await owner.attach([replace(file, statistics={**file.statistics, "maxValues": highs})])
        commit = DeltaLog(table.disk, ROOTS[0]).read_bytes(1)
        assert ("\U0001f600".encode() in commit) is states
        assert (b"ud83d" in commit) is not states

    sim.run(main())


def test_statistics_without_room_come_later() -> None:
    sim = Simulation()

    async def main() -> None:
        table = Table(sim)
        owner = await table.open()
        await owner.attach(table.files(0, 1))
        many = [file for i in range(4) for file in table.files(0, 1, 10 + i)]
        size = len(owner.record.intending(0, many, (), None, RowChange.APPEND).encode())
        table.limits = replace(DEFAULT_LIMITS, document_bytes=size - 1)
        owner = await table.open()
        await owner.attach(many)
        assert table.configuration() == NOTHING
        assert table.statistics()[-1] == {"numRecords": 4}
        steps = 0
        while not owner.record.stated:
            found = missing_statistics(table.disk, owner.record, size // 3)
            await owner.state(found.files, owner.record.attached, found.indexed)
            steps += 1
            assert table.changes() == {"add": {False}, "remove": set()}
        assert steps > 1
        assert table.configuration() == INDEXED
        assert all("key" in found["maxValues"] for found in table.statistics())

    sim.run(main())


def test_statistics_of_a_table_that_changed_meanwhile_are_not_put() -> None:
    sim = Simulation()

    async def main() -> None:
        table = Table(sim, states=False)
        owner = await table.open()
        await owner.attach(table.files(0, 1))
        table.states = True
        found = missing_statistics(table.disk, owner.record, 1 << 20)
        await owner.attach(table.files(2, 3))
        with pytest.raises(StorageError, match="changed meanwhile"):
            await owner.state(found.files, 1, found.indexed)

    sim.run(main())


def test_a_file_that_no_root_has_keeps_no_other_one_from_its_statistics() -> None:
    sim = Simulation()

    async def main() -> None:
        table = Table(sim, states=False)
        owner = await table.open()
        (lost, kept) = (*table.files(0, 1), *table.files(2, 3))
        await owner.attach([replace(lost, statistics={}), replace(kept, statistics={})])
        for root in ROOTS:
            table.disk.remove(f"{root}/{lost.path}")
        found = missing_statistics(table.disk, owner.record, 1 << 20)
        assert ([file.path for file in found.files], found.indexed) == ([kept.path], None)
        await owner.state(found.files, 1, None)
        with pytest.raises(StorageError, match="no root has"):
            missing_statistics(table.disk, owner.record, 1 << 20)

    sim.run(main())


async def upgraded(table: Table) -> None:
    owner = await table.open()
    while not owner.record.stated:
        found = missing_statistics(table.disk, owner.record, 1 << 20, most=1)
        await owner.state(found.files, owner.record.attached, found.indexed)


def test_an_older_table_is_upgraded_although_it_is_killed_at_any_step() -> None:
    rng, moments = random.Random(1), list[tuple[SimDisk, MemoryTree]]()

    def keep(_: str = "") -> None:
        for survival in SURVIVALS:
            moments.append((table.disk.survivor(survival, rng), table.tree.copy()))

    with Simulation() as sim:
        table = Table(sim, states=False)

        async def main() -> None:
            owner = await table.open()
            for first in (0, 2, 4):
                files = [replace(file, statistics={}) for file in table.files(first, first + 1)]
                await owner.attach(files)
            table.states = True
            table.disk.before_step = keep
            table.store = SteppingStore(table.tree, keep)
            await upgraded(table)

        sim.run(main())
    assert len(moments) > 100
    for disk, tree in moments:
        with Simulation() as sim:
            again = Table(sim)
            again.disk, again.tree, again.store = disk, tree, MemoryMetadataStore(tree)
            again.runtime = sim.runtime(disk)
            sim.run(upgraded(again))
        assert again.configuration() == INDEXED
        assert [found["nullCount"]["key"] for found in again.statistics()] == [0, 0, 0]
        assert log_sum(disk, ROOTS[0]).files == log_sum(disk, ROOTS[1]).files


def test_a_repair_says_which_rows_it_brings_and_takes() -> None:
    sim = Simulation()

    async def main() -> None:
        table = Table(sim)
        owner = await table.open()
        await owner.attach(table.files(0, 1))
        await owner.attach(table.files(2, 3))
        sealed = await owner.sealed(5)
        assert sealed is not None
        one, two = sealed.files
        (whole,), (new,) = table.files(0, 3), table.files(4, 5)
        record = owner.record.repairing(9)

        def changes(named: Sequence[DataFile]) -> tuple[list[bool], list[bool]]:
            commit = log_repair(table.disk, ROOTS[0], record, named).commit
            actions = [json.loads(line) for line in commit.splitlines()]
            return (
                [a["add"]["dataChange"] for a in actions if "add" in a],
                [a["remove"]["dataChange"] for a in actions if "remove" in a],
            )

        assert changes([one, two]) == ([], [])
        assert changes([one, two, new]) == ([True], [])
        assert changes([whole]) == ([False], [False, False])
        assert changes([one]) == ([], [True])
        table.disk.remove(f"{ROOTS[0]}/{two.path}")
        assert changes([one, two]) == ([], [False]), "it is made again with the same rows"
        theirs = {"path": "theirs", "size": 1, "partitionValues": {}, "dataChange": True}
        gone = {"path": one.path, "dataChange": True}
        DeltaLog(table.disk, ROOTS[0]).write(
            3, json.dumps({"add": theirs}).encode() + b"\n" + json.dumps({"remove": gone}).encode()
        )
        assert changes([one]) == ([False], [True, True]), "its rows were there before"

    sim.run(main())
