"""A damaged log of a table: the broker seals no further, the doctor's check names it."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from pulsark.errors import DamagedLogError, StorageError
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.storage.backup.table_files import known_tables
from pulsark.storage.table.files.record import table_directory
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.log.checkpoint import write_checkpoint
from pulsark.storage.table.log.delta_log import DeltaLog, checkpoint_name, commit_name
from pulsark.storage.table.log.log_check import log_faults
from pulsark.storage.table.log.log_sum import log_sum
from pulsark.storage.table.process.process import Entries
from pulsark.storage.table.root_identity import commission
from pulsark.storage.table.table_repair import Repair
from pulsark.storage.table.tables import Tables
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.inline_table import inline_tables
from tests.support.tables import attached_files, check_files, entry

NAME = TopicName.parse("persistent://public/default/t")
TABLE_ID = "0" * 31 + "1"
ENTRIES = [entry(i, i % 3) for i in range(60)]


class World:
    def __init__(self, disk: SimDisk, tables: Tables, store: MemoryMetadataStore, roots: int):
        self.disk, self.tables, self.store = disk, tables, store
        self.directories = [
            table_directory(f"/root-{n}", NAME, TABLE_ID) for n in range(1, roots + 1)
        ]
        self.log = f"{self.directories[0]}/_delta_log"
        self.sealed = 0

    async def entries(self, wanted: SealRange) -> AsyncIterator[Entries]:
        yield [(i, ENTRIES[i]) for i in range(wanted.first, wanted.last + 1)]

    async def seal(self, count: int = 5) -> None:
        wanted = SealRange(-1, 5, self.sealed, self.sealed + count - 1, 1000)
        table = await self.tables.open(NAME, TABLE_ID)
        await table.seal([wanted], self.entries, 1 << 20)
        self.sealed += count

    def close(self) -> None:
        """Have the table opened anew, as after a restart of the broker."""
        self.tables.forget(NAME)

    async def repair(self) -> None:
        await self.tables.repair(NAME, TABLE_ID, self.entries, 1 << 20, Repair(), give_up=False)

    def path(self, version: int) -> str:
        return f"{self.log}/{commit_name(version)}"

    def change(self, version: int, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the first add of a commit."""
        actions = [json.loads(line) for line in self.disk.content(self.path(version)).splitlines()]
        change(next(action["add"] for action in actions if "add" in action))
        lines = [json.dumps(action, separators=(",", ":")) + "\n" for action in actions]
        self.disk.edit(self.path(version), "".join(lines).encode())

    async def faults(self) -> list[str]:
        nodes = {path: value.value for path, value in await _nodes(self.store)}
        (table,) = {table.place: table for table in known_tables(nodes)}.values()

        def rows_of(path: str) -> int:
            import pyarrow as pa
            import pyarrow.parquet as pq

            return int(pq.ParquetFile(pa.BufferReader(self.disk.content(path))).metadata.num_rows)

        return [
            str(fault)
            for directory in self.directories
            for fault in log_faults(self.disk, directory, table.files, rows_of)
        ]


async def _nodes(store: MemoryMetadataStore, path: str = "/tables") -> list[tuple[str, Any]]:
    found = []
    for child in await store.children(path):
        value = await store.get(f"{path}/{child}")
        if value is not None:
            found.append((f"{path}/{child}", value))
        found += await _nodes(store, f"{path}/{child}")
    return found


def world(test: Callable[..., Coroutine[Any, Any, None]], *args: Any, roots: int = 1) -> None:
    with Simulation() as sim:

        async def main() -> None:
            disk, store = SimDisk(), MemoryMetadataStore()
            runtime = sim.runtime(disk)
            names = [f"/root-{n}" for n in range(1, roots + 1)]
            known = await commission(names, store, runtime)
            tables = inline_tables(known, store, runtime, copies=roots, copies_needed=1)
            await test(World(disk, tables, store, roots), *args)
            await tables.close()

        sim.run(main())


def garbage(world: World) -> None:
    world.disk.edit(world.path(2), b"\x00garbage")


def no_object(world: World) -> None:
    world.disk.edit(world.path(2), b"[1]\n{}\n")


def nested(world: World) -> None:
    world.disk.edit(world.path(2), b'{"add":' * 100_000 + b"}\n")


def half(world: World) -> None:
    content = world.disk.content(world.path(2))
    world.disk.edit(world.path(2), content[: len(content) // 2])


def empty(world: World) -> None:
    world.disk.edit(world.path(1), b"")


def gap(world: World) -> None:
    world.disk.discard(world.path(2))


def no_beginning(world: World) -> None:
    world.disk.discard(world.path(0))


def missing_file(world: World) -> None:
    world.change(2, lambda add: add.update(path="partition=-1/ledger_id=5/none.parquet"))


def newest_names_a_missing_file(world: World) -> None:
    world.change(3, lambda add: add.update(path="partition=-1/ledger_id=5/none.parquet"))


def file_of_another_table(world: World) -> None:
    world.change(2, lambda add: add.update(path="../0002/partition=-1/ledger_id=5/a.parquet"))


def absolute(world: World) -> None:
    world.change(2, lambda add: add.update(path="/etc/passwd"))


def file_of_another_ledger(world: World) -> None:
    world.change(2, lambda add: add.update(path="partition=-1/ledger_id=6/a.parquet"))


def file_twice(world: World) -> None:
    first = next(iter(log_sum(world.disk, world.directories[0]).files))[0]
    world.change(2, lambda add: add.update(path=first))


def size(world: World) -> None:
    world.change(2, lambda add: add.update(size=add["size"] + 1))


def wrong_types(world: World) -> None:
    world.change(2, lambda add: add.update(size="many", partitionValues=7))


def protocol(world: World) -> None:
    content = world.disk.content(world.path(0))
    world.disk.edit(world.path(0), content.replace(b"minReaderVersion", b"minReaderVersimn"))


def schema(world: World) -> None:
    content = world.disk.content(world.path(0))
    world.disk.edit(world.path(0), content.replace(b'\\"long\\"', b'\\"lonf\\"', 1))


DAMAGES = [
    garbage, no_object, nested, half, empty, gap, no_beginning, missing_file,
    newest_names_a_missing_file, file_of_another_table, absolute, file_of_another_ledger,
    file_twice, size, wrong_types, protocol, schema,
]  # fmt: skip


@pytest.mark.parametrize("way", ["restored", "repaired"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_nothing_is_sealed_behind_a_damaged_log(damage: Callable[[World], None], way: str) -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            await world.seal()
        before = {p: world.disk.content(p) for p in world.disk.files()}
        damage(world)
        world.close()
        damaged = set(world.disk.files())
        for _ in range(2):
            with pytest.raises(StorageError, match="pulsark tables repair") as raised:
                await world.seal()
            assert isinstance(raised.value, DamagedLogError)
        assert {p for p in world.disk.files() if p.endswith(".json")} <= damaged
        assert await world.faults()
        if way == "restored":
            for path, content in before.items():
                if path.startswith(world.log):
                    world.disk.write_atomic(path, content)
        else:
            await world.repair()
        await world.seal()
        assert await world.faults() == []
        summed = log_sum(world.disk, world.directories[0])
        ends = [add["tags"]["pulsark.entries"] for add in summed.files.values()]
        assert sorted(ends) == ["0-4", "10-14", "15-19", "5-9"]
        world.close()
        await world.seal()

    world(scenario)


def test_a_sound_log_has_no_faults() -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            await world.seal()
        write_checkpoint(world.disk, world.directories[0], 2)
        await world.seal()
        assert await world.faults() == []

    world(scenario)


def _row_count(add: dict[str, Any]) -> None:
    add["stats"] = json.dumps({**json.loads(add["stats"]), "numRecords": 99})


def test_the_check_compares_row_counts_with_the_files() -> None:
    async def scenario(world: World) -> None:
        await world.seal()
        world.change(1, _row_count)
        (fault,) = await world.faults()
        assert "has 99 rows; it has" in fault

    world(scenario)


def test_the_check_finds_a_log_that_lacks_a_file_of_the_table() -> None:
    async def scenario(world: World) -> None:
        await world.seal()
        await world.seal()
        lines = world.disk.content(world.path(1)).splitlines(keepends=True)
        world.disk.edit(world.path(1), b"".join(line for line in lines if b'"add"' not in line))
        (fault,) = await world.faults()
        assert "it lacks partition=-1/ledger_id=5/" in fault

    world(scenario)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 garbage PAR1", b"\xff" * 4000])
def test_a_damaged_checkpoint(content: bytes) -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            await world.seal()
        write_checkpoint(world.disk, world.directories[0], 2)
        world.disk.edit(f"{world.log}/{checkpoint_name(2)}", content)
        world.close()
        with pytest.raises(DamagedLogError, match="checkpoint that cannot be read"):
            await world.seal()
        assert "checkpoint that cannot be read" in (await world.faults())[0]
        await world.repair()
        await world.seal()
        assert await world.faults() == []

    world(scenario)


def test_the_check_finds_a_pointer_to_no_checkpoint() -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            await world.seal()
        write_checkpoint(world.disk, world.directories[0], 2)
        world.disk.edit(f"{world.log}/_last_checkpoint", b"{")
        assert "_last_checkpoint cannot be read" in (await world.faults())[0]

    world(scenario)


def test_a_lost_file_is_no_damage_of_the_log() -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            await world.seal()
        _, files = attached_files(world.disk, world.directories[0])
        world.disk.discard(f"{world.directories[0]}/{files[0].path}")
        world.close()
        await world.seal()

    world(scenario)


def test_sealing_goes_on_on_the_other_root(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            await world.seal()
        content = world.disk.content(world.path(2))
        garbage(world)
        world.close()
        await world.seal()
        assert DeltaLog(world.disk, world.directories[0]).versions() == [0, 1, 2, 3]
        world.disk.edit(world.path(2), content)
        await (await world.tables.open(NAME, TABLE_ID)).look()
        await world.seal()
        for directory in world.directories:
            check_files(world.disk, directory, attached_files(world.disk, directory)[1])
            assert DeltaLog(world.disk, directory).versions() == [0, 1, 2, 3, 4, 5]

    with caplog.at_level(logging.ERROR):
        world(scenario, roots=2)
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert [text.rpartition(": ")[2] for text in said] == [
        "commit 2 cannot be read",
        "its log is whole again",
    ]


def test_a_repair_copies_commits_of_another_root() -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            await world.seal()
        content = world.disk.content(world.path(2))
        gap(world)
        world.close()
        await world.repair()
        assert world.disk.content(world.path(2)) == content
        await world.seal()
        assert await world.faults() == []

    world(scenario, roots=2)
