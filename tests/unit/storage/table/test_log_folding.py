"""A log whose old commits were folded into a checkpoint: for its owner, and for roots behind it."""

from __future__ import annotations

import asyncio
import errno
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import OlderMetadataError, StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import sealed_ledger_path, table_path
from pulsark.runtime import Runtime
from pulsark.schemas.column_types import BINARY
from pulsark.storage.table.files.record import DataFile, TableRecord, table_directory
from pulsark.storage.table.files.root_files import copy_file
from pulsark.storage.table.files.seal import seal
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.files.table_limits import TableLimits
from pulsark.storage.table.log import checkpoint
from pulsark.storage.table.log import folding as log_folding
from pulsark.storage.table.log.delta_log import APP_ID, DeltaLog, checkpoint_name, commit_name
from pulsark.storage.table.log.log_content import log_content
from pulsark.storage.table.log.time_travel import (
    ATTEMPTS,
    NoSuchVersionError,
    read_log,
    table_at,
    version_at,
)
from pulsark.storage.table.process.process import Entries
from pulsark.storage.table.repair import copy_state, log_state
from pulsark.storage.table.table_repair import Repair
from pulsark.storage.table.tables import Tables
from pulsark.wire.topic_name import TopicName
from tests.sim.clock import SimClock
from tests.sim.disk import SimDisk
from tests.sim.loop import SimulatedCrash
from tests.sim.simulation import Simulation
from tests.support.inline_table import inline_tables
from tests.support.tables import attached_files, check_files, entry

NAME = TopicName.parse("persistent://public/default/t")
TABLE_ID = "0" * 31 + "1"
ROOTS = ["/root-1", "/root-2"]
ONE, TWO = (table_directory(root, NAME, TABLE_ID) for root in ROOTS)
DAY = 86_400
EVERY = 5
"""So many steps are between two crashes: the checkpoints of a library take their time."""
LIMITS = TableLimits(commits_folded=3, commits_deleted=2, files_a_turn=3)


@dataclass
class World:
    """A table on two roots, of which one is needed, and a day between its attaches."""

    runtime: Runtime
    tree: MemoryTree
    tables: Tables
    sealed: int = 0

    @property
    def disk(self) -> SimDisk:
        assert isinstance(self.runtime.disk, SimDisk)
        return self.runtime.disk

    async def record(self) -> TableRecord:
        found = await self.tables.record(NAME)
        assert found is not None
        return found

    def again(self) -> World:
        """After a restart."""
        store = MemoryMetadataStore(self.tree)
        tables = inline_tables(ROOTS, store, self.runtime, copies=2, limits=LIMITS)
        return World(self.runtime, self.tree, tables, self.sealed)

    async def days(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(DAY)
            wanted = SealRange(-1, 5, self.sealed, self.sealed, 100)
            await (await self.tables.open(NAME, TABLE_ID)).seal([wanted], _entries, 1 << 20)
            self.sealed += 1

    async def publish(self, query: str, number: int) -> bool:
        """Publish the next row in bulk, as if it were not of the ledger that grows."""
        owner = (await self.tables.open(NAME, TABLE_ID)).owner

        async def reserve() -> list[DataFile]:
            row = [(self.sealed, entry(self.sealed))]
            self.sealed += 1
            return seal(row, -1, 5, [ONE, TWO], self.disk, f"bulk{self.sealed}")

        async def decided(exist: bool | None) -> None:
            assert exist

        return await owner.publish(query, number, reserve, decided, BINARY)

    def put_clock(self, by_days: float) -> None:
        """The wall clock goes wrong by so much, or right again."""
        clock = self.runtime.clock
        assert isinstance(clock, SimClock)
        clock.step_ms = int(1000 * DAY * by_days)

    def somebody_commits(self, info: dict[str, Any]) -> None:
        for root in (ONE, TWO):
            log = DeltaLog(self.disk, root)
            commit = json.dumps({"commitInfo": {"operation": "OPTIMIZE", **info}}) + "\n"
            log.write(log.versions()[-1] + 1, commit.encode())

    async def fold(self, days: float) -> None:
        before_ms = self.runtime.clock.now_ms() - int(1000 * DAY * days)
        while await (await self.tables.open(NAME, TABLE_ID)).fold_log(before_ms):
            pass

    def is_whole(self, directory: str) -> None:
        last, files = attached_files(self.disk, directory)
        assert (last, len(files)) == (self.sealed, self.sealed)
        check_files(self.disk, directory, files)


async def _entries(wanted: SealRange) -> AsyncIterator[Entries]:
    yield [(i, entry(i)) for i in range(wanted.first, wanted.last + 1)]


def world(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        with Simulation() as sim:

            async def main() -> None:
                runtime, tree = sim.runtime(SimDisk()), MemoryTree()
                tables = inline_tables(
                    ROOTS, MemoryMetadataStore(tree), runtime, copies=2, limits=LIMITS
                )
                await test(World(runtime, tree, tables))

            sim.run(main())

    run.__name__ = test.__name__
    return run


@world
async def test_old_commits_go_and_the_log_begins_with_a_checkpoint(world: World) -> None:
    await world.days(10)
    await world.fold(20)
    assert DeltaLog(world.disk, ONE).versions() == list(range(11)), "nothing is so old"
    await world.fold(4.5)
    for root in (ONE, TWO):
        log = DeltaLog(world.disk, root)
        assert log.versions() == [5, 6, 7, 8, 9, 10]
        assert log.checkpoints() == [5]
        world.is_whole(root)
        assert log_state(world.disk, await world.record(), root) == "ok"
    assert (await world.record()).first_version == 5
    await world.fold(3.5)
    assert DeltaLog(world.disk, ONE).versions()[0] == 5, "one commit is not worth while"
    await world.days(5)
    world = world.again()
    await world.days(1)
    await world.fold(1.5)
    assert DeltaLog(world.disk, TWO).versions() == [14, 15, 16]
    world.is_whole(ONE)
    world.is_whole(TWO)


@world
async def test_commits_of_a_clock_that_went_forward_go_with_those_behind_them(
    world: World,
) -> None:
    await world.days(2)
    world.put_clock(3650)
    await world.days(3)
    world.put_clock(0)
    await world.fold(0)
    assert DeltaLog(world.disk, ONE).versions()[0] == 0, "nothing says that those are old"
    await world.days(5)
    await world.fold(3.5)
    for root in (ONE, TWO):
        assert DeltaLog(world.disk, root).versions() == [6, 7, 8, 9, 10]
        world.is_whole(root)


@world
async def test_a_commit_of_a_clock_that_went_back_lets_nothing_go_that_is_young(
    world: World,
) -> None:
    await world.days(3)
    world.put_clock(-3650)
    await world.days(1)
    world.put_clock(0)
    await world.days(6)
    await world.fold(8.5)
    assert DeltaLog(world.disk, ONE).versions() == list(range(11))
    await world.fold(3.5)
    assert DeltaLog(world.disk, ONE).versions()[0] == 6


@pytest.mark.parametrize("time", [1 << 60, 0, "yesterday", None])
def test_what_others_say_of_the_time_of_their_commits_is_not_believed(time: Any) -> None:
    @world
    async def scenario(world: World) -> None:
        await world.days(4)
        world.somebody_commits({} if time is None else {"timestamp": time})
        await world.days(6)
        world = world.again()
        await world.fold(8.5)
        assert DeltaLog(world.disk, ONE).versions()[0] == 0, "only one of them is so old"
        await world.fold(3.5)
        for root in (ONE, TWO):
            assert DeltaLog(world.disk, root).versions() == [7, 8, 9, 10, 11]

    scenario()


@world
async def test_two_commits_of_an_unused_topic_stay(world: World) -> None:
    await world.days(6)
    await asyncio.sleep(100 * DAY)
    await world.fold(4.5)
    assert DeltaLog(world.disk, ONE).versions() == [5, 6]
    content = world.disk.content(f"{ONE}/_delta_log/{commit_name(6)}")
    world.disk.edit(f"{ONE}/_delta_log/{commit_name(6)}", b"torn")
    world = world.again()
    await world.tables.open(NAME, TABLE_ID)
    assert world.disk.content(f"{ONE}/_delta_log/{commit_name(6)}") == content
    await world.days(1)
    world.is_whole(ONE)


@world
async def test_a_root_that_is_behind_the_beginning_is_filled_from_the_checkpoint(
    world: World,
) -> None:
    await world.days(3)
    world.disk.faulty, world.disk.name_errno = "/root-2/", errno.EROFS
    await world.days(7)
    await world.fold(3.5)
    world.disk.name_errno = 0
    await world.days(1)
    record = await world.record()
    world.is_whole(ONE)
    assert log_state(world.disk, record, TWO) == "behind"
    assert DeltaLog(world.disk, TWO).versions() == [0, 1, 2, 3]
    with pytest.raises(StorageError, match="is missing"):
        await world.tables.catch_up(NAME, TWO)
    (sealed,) = await world.tables.ledgers(NAME)
    for file in sealed.files:
        if copy_state(world.disk, TWO, file) != "ok":
            copy_file(world.disk, ONE, TWO, file)
    await world.tables.catch_up(NAME, TWO)
    assert log_state(world.disk, record, TWO) == "ok"
    assert DeltaLog(world.disk, TWO).versions()[0] == record.first_version
    await world.days(1)
    world.is_whole(TWO)


@world
async def test_a_root_that_lost_its_log_does_not_begin_a_new_one(world: World) -> None:
    await world.days(8)
    await world.fold(3.5)
    for path in world.disk.files():
        if path.startswith(f"{TWO}/_delta_log/"):
            world.disk.discard(path)
    world = world.again()
    await world.days(1)
    assert DeltaLog(world.disk, TWO).versions() == []
    assert log_state(world.disk, await world.record(), TWO) == "missing"
    (sealed,) = await world.tables.ledgers(NAME)
    for file in sealed.files:
        if copy_state(world.disk, TWO, file) != "ok":
            copy_file(world.disk, ONE, TWO, file)
    await world.tables.catch_up(NAME, TWO)
    world.is_whole(TWO)


@world
async def test_a_log_that_lost_its_beginning_otherwise_is_damaged(world: World) -> None:
    await world.days(8)
    for version in range(3):
        world.disk.discard(f"{TWO}/_delta_log/{commit_name(version)}")
    assert log_state(world.disk, await world.record(), TWO) == "damaged"
    await world.fold(3.5)
    assert log_state(world.disk, await world.record(), ONE) == "ok"
    world.disk.discard(f"{ONE}/_delta_log/{checkpoint_name(4)}")
    assert log_state(world.disk, await world.record(), ONE) == "damaged"


@world
async def test_versions_of_the_past_begin_where_the_log_does(world: World) -> None:
    await world.days(8)
    times = [commit.time_ms for commit in read_log(world.disk, [ONE])]
    before = [table_at(read_log(world.disk, [ONE]), v, world.disk, [ONE]) for v in range(9)]
    await world.fold(3.5)
    commits = read_log(world.disk, [ONE])
    for version in range(4, 9):
        found = table_at(commits, version, world.disk, [ONE])
        assert sorted(f.path for f in found.files) == sorted(f.path for f in before[version].files)
        assert version_at(commits, times[version]) == version
    with pytest.raises(NoSuchVersionError, match="the versions 4 to 8, and no 3 any more"):
        table_at(commits, 3, world.disk, [ONE])
    with pytest.raises(NoSuchVersionError, match="tableLogRetentionDays"):
        version_at(commits, times[3])
    with pytest.raises(NoSuchVersionError, match=r"and no 9$"):
        table_at(commits, 9, world.disk, [ONE])


def _folded_at(
    moment: int, calls: Iterator[int], disk: SimDisk, call: Callable[[str], Any]
) -> Callable[[str], Any]:
    """A call of the disk, before one of which old commits go."""

    def called(path: str) -> Any:
        if next(calls) == moment:
            log_folding.forget(disk, ONE, 5, 100)
        return call(path)

    return called


@world
async def test_a_log_that_is_folded_while_it_is_read_is_read_again(world: World) -> None:
    await world.days(8)
    log_folding.make_base(world.disk, ONE, 5)
    whole = {f.path for f in table_at(read_log(world.disk, [ONE]), 8, world.disk, [ONE]).files}
    moments, begins = 0, set[int]()
    while True:
        moments += 1
        disk, calls = world.disk.survivor("all", random.Random(moments)), iter(range(1, 1000))
        call = partial(_folded_at, moments, calls, disk)
        disk.list, disk.open = call(disk.list), call(disk.open)  # type: ignore[method-assign]
        commits = read_log(disk, [ONE])
        begins.add(commits[0].version)
        assert {f.path for f in table_at(commits, 8, disk, [ONE]).files} == whole
        if next(calls) <= moments:
            break
    assert moments > 10
    assert begins == {0, 5}


@world
async def test_a_log_that_changes_all_the_time_is_not_read_for_ever(world: World) -> None:
    await world.days(2)
    opened = list[str]()

    def gone(path: str) -> Any:
        opened.append(path)
        world.disk.edit(f"{ONE}/_delta_log/{len(opened)}.tmp", b"")
        raise FileNotFoundError(path)

    world.disk.open = gone  # type: ignore[method-assign]
    with pytest.raises(NoSuchVersionError, match="cannot be read"):
        read_log(world.disk, [ONE])
    assert len(opened) == ATTEMPTS


@pytest.mark.parametrize("time", [1 << 60, 0])
def test_the_version_at_a_time_does_not_depend_on_what_others_say(time: int) -> None:
    @world
    async def scenario(world: World) -> None:
        await world.days(4)
        world.somebody_commits({"timestamp": time})
        await world.days(2)
        commits = read_log(world.disk, [ONE])
        found = [version_at(commits, commit.time_ms) for commit in commits]
        assert found == [0, 1, 2, 3, 5, 5, 6, 7]

    scenario()


@world
async def test_a_file_that_only_the_checkpoint_names_is_never_deleted(world: World) -> None:
    await world.days(8)
    await world.fold(3.5)
    store = MemoryMetadataStore(world.tree)
    await store.delete(sealed_ledger_path(table_path(NAME), 5))
    await asyncio.sleep(2 * DAY)
    await world.again().tables.remove_staged(NAME, world.runtime.clock.now_ms() - DAY * 1000)
    world.is_whole(ONE)


@world
async def test_a_checkpoint_that_says_something_else_takes_no_commits_place(world: World) -> None:
    await world.days(8)
    write = log_folding.write_checkpoint

    def of_another_version(disk: Any, directory: str, version: int) -> None:
        write(disk, directory, version - 1)
        log = f"{directory}/_delta_log"
        disk.edit(
            f"{log}/{checkpoint_name(version)}",
            disk.content(f"{log}/{checkpoint_name(version - 1)}"),
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_folding, "write_checkpoint", of_another_version)
        await world.fold(3.5)
    assert (await world.record()).first_version == 0
    assert DeltaLog(world.disk, ONE).versions() == list(range(9))


@world
async def test_the_beginning_stays_while_commits_before_it_are_being_deleted(world: World) -> None:
    await world.days(10)
    before_ms = world.runtime.clock.now_ms() - int(1000 * DAY * 4.5)
    assert await (await world.tables.open(NAME, TABLE_ID)).fold_log(before_ms), (
        "there is more to be deleted"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "CHECKPOINT_COMMITS", 1)
        patch.setattr(checkpoint, "CHECKPOINTS_KEPT", 1)
        await (await world.tables.open(NAME, TABLE_ID)).checkpoint()
    log = DeltaLog(world.disk, ONE)
    assert log.versions()[0] == 2
    assert log.checkpoints() == [5, 10]
    assert read_log(world.disk, [ONE])[0].version == 5
    await world.fold(4.5)
    assert log.versions()[0] == 5


def test_a_crash_at_any_step_leaves_a_log_that_says_the_same() -> None:
    crashed, at = True, 0
    while crashed:
        at += EVERY
        crashed = crash_while_folding(at)
    assert at > 30


def crash_while_folding(at: int) -> bool:
    """Whether it came to so many steps."""
    tree, disk = MemoryTree(), SimDisk()

    def on(disk: SimDisk, day: int, work: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        with Simulation(at) as sim:

            async def main() -> None:
                store = MemoryMetadataStore(tree)
                await asyncio.sleep(day * DAY)
                tables = inline_tables(ROOTS, store, sim.runtime(disk), copies=2, limits=LIMITS)
                await work(World(sim.runtime(disk), tree, tables))

            sim.run(main())

    on(disk, 0, lambda world: world.days(8))
    disk.crash_at = disk.steps + at
    crashed = False
    try:
        on(disk, 8, lambda world: world.fold(3.5))
    except SimulatedCrash:
        crashed = True
        disk = disk.after_crash("random", random.Random(at))
    disk.crash_at = 0

    async def go_on(world: World) -> None:
        world.sealed = 8
        for root in (ONE, TWO):
            world.is_whole(root)
        await world.days(1)
        await world.fold(3.5)
        for root in (ONE, TWO):
            world.is_whole(root)
            record = await world.record()
            assert 0 < DeltaLog(world.disk, root).versions()[0] <= record.first_version
            assert log_state(world.disk, record, root) == "ok"

    on(disk, 8, go_on)
    return crashed


@world
async def test_a_store_older_than_the_beginning_of_the_log_knows_what_the_checkpoint_says(
    world: World,
) -> None:
    await world.days(2)
    older = world.tree.copy()
    await world.days(10)
    await world.fold(4.5)
    for root in (ONE, TWO):
        assert DeltaLog(world.disk, root).versions()[0] > 2
    back = World(world.runtime, older, world.tables, world.sealed).again()
    with pytest.raises(OlderMetadataError):
        await back.tables.open(NAME, TABLE_ID)
    repair = Repair()
    await back.tables.repair(NAME, TABLE_ID, _entries, 1 << 20, repair, give_up=False)
    assert (repair.taken_up, repair.lost) == (10, [])
    sealed = await back.tables.sealed(NAME, 5)
    assert sealed is not None
    assert (len(sealed.files), sealed.through) == (12, 11)
    assert (await back.record()).first_version > 2
    await back.days(1)
    await back.fold(4.5)


@world
async def test_a_checkpoint_in_the_place_of_commits_knows_their_bulk_publishes(
    world: World,
) -> None:
    world.put_clock(100 * 365)  # what is old by the clock of this machine is left out
    world = World(replace(world.runtime), world.tree, world.tables).again()
    older = world.tree.copy()
    for number, query in enumerate(["one", "two", "one"]):
        await world.days(1)
        assert await world.publish(query, number)
    await world.days(10)
    await world.fold(4.5)
    assert DeltaLog(world.disk, ONE).versions()[0] > 6
    back = World(world.runtime, older, world.tables, world.sealed).again()
    repair = Repair()
    await back.tables.repair(NAME, TABLE_ID, _entries, 1 << 20, repair, give_up=False)
    assert not await back.publish("one", 2)
    assert not await back.publish("two", 1)
    assert await back.publish("two", 2)


@world
async def test_a_checkpoint_does_not_keep_bulk_publishes_for_ever(world: World) -> None:
    for number in range(4):
        assert await world.publish(f"query-{number}", number)
    await world.days(10)
    await world.fold(4.5)
    found = log_content(world.disk, ONE, await world.record())
    assert found.attached == 14
    assert found.published == {}, "they are years ago by the clock of this machine"


@given(
    st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=9),
    st.integers(0, 10),
    st.integers(0, 10),
    st.integers(0, 4),
)
def test_the_base_is_the_newest_commit_that_is_old_as_all_before_it(
    times: list[int | None], before: int, now: int, least: int
) -> None:
    """``None``: another engine's commit. What is later than now was made by a clock gone wrong."""
    disk = SimDisk()
    disk.make_dirs(f"{ONE}/_delta_log")
    table_log = DeltaLog(disk, ONE)
    for version, time in enumerate(times):
        lines: list[dict[str, Any]] = [{"commitInfo": {"timestamp": time or 0}}]
        if time is not None:
            lines.append({"txn": {"appId": APP_ID, "version": version}})
        table_log.write(version, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def may_be(version: int) -> bool:
        believed = [time for time in times[: version + 1] if time is not None and time <= now]
        return (
            version >= max(least, 1)
            and version < len(times) - 1
            and (time := times[version]) is not None
            and time <= now
            and all(each < before for each in believed)
        )

    wanted = max(filter(may_be, range(len(times))), default=None)
    assert log_folding.base_due(disk, ONE, before, now, least) == wanted
