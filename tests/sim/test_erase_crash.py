"""Erasing messages from a table, crashed at every step of the disk and of the metadata store.

Whatever the crash leaves: what one attach erases is erased as a whole or not at all, on every root;
what was answered is erased; all other messages are what they were; and done again it comes to an
end at which no file of the table, of any version, has the messages.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.runtime import Runtime
from pulsark.storage.managed_ledger.erasure import ErasedIds, Indexes, without
from pulsark.storage.table.attach import TableOwner
from pulsark.storage.table.files.record import RowChange
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.process.process import Entries
from pulsark.storage.table.table import Table
from pulsark.storage.table.tables import Tables
from pulsark.wire.topic_name import TopicName
from tests.sim.crashes import recover_each
from tests.sim.disk import SURVIVALS, SimDisk, Survival
from tests.sim.metadata import SteppingStore
from tests.sim.simulation import Simulation
from tests.support.client_view import client_view
from tests.support.inline_table import inline_tables
from tests.support.tables import attached_files, check_files, entry

SEED = 20261121
TO_THE_END_EVERY = 9
NAME = TopicName.parse("persistent://public/default/t-partition-1")
TABLE_ID = "0123456789abcdef0123456789abcdef"
ROOTS = ("/root-1", "/root-2")
LEDGERS = {
    5: [entry(i, size) for i, size in enumerate((0, 3, 0, 2, 0))],
    7: [entry(10 + i, size) for i, size in enumerate((2, 0, 0))],
}
FIRST: ErasedIds = {5: {0: None, 1: {1}}, 7: {0: {0, 1}}}
SECOND: ErasedIds = {5: {1: {0}, 3: {1}}, 7: {2: None}}
ERASED_KEYS = {"k0", "k12"}
"""Of messages sent alone: no other message has these keys but batch members with ``k0``."""


def after(ledger_id: int, entry_id: int, *erased: ErasedIds) -> bytes:
    """An entry after some erasures."""
    data = LEDGERS[ledger_id][entry_id]
    for ids in erased:
        if entry_id in ids.get(ledger_id, {}):
            data = without(data, ids[ledger_id][entry_id])
    return data


@dataclass
class Run:
    """A process that does the script; each part of it may be done again."""

    tree: MemoryTree
    runtime: Runtime
    store: MemoryMetadataStore
    answered: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tables: Tables = inline_tables(
            ROOTS, self.store, self.runtime, copies=2, copies_needed=2
        )

    async def open(self) -> None:
        await self.tables.open(NAME, TABLE_ID)

    async def go_on(self) -> None:
        await self.open()
        await self.seal(5)
        await self.seal(7)
        await self.erase("first", FIRST)
        await self.erase("second", SECOND)
        for ledger_id in LEDGERS:
            await (await self.tables.open(NAME, TABLE_ID)).vacuum(ledger_id, 1 << 62)

    async def seal(self, ledger_id: int) -> None:
        if await self.tables.sealed(NAME, ledger_id) is not None:
            return
        last = len(LEDGERS[ledger_id]) - 1
        middle = last // 2
        ranges = [SealRange(1, ledger_id, 0, middle), SealRange(1, ledger_id, middle + 1, last)]
        await (await self.tables.open(NAME, TABLE_ID)).seal(ranges, _originals, 1 << 20)

    async def erase(self, what: str, ids: ErasedIds) -> None:
        for ledger_id, wanted in ids.items():
            sealed = await self.tables.sealed(NAME, ledger_id)
            assert sealed is not None
            files = [
                file
                for file in sealed.files
                if any(file.first_entry_id <= i <= file.last_entry_id for i in wanted)
            ]
            entries_of = partial(self.erased_entries, wanted)
            await (await self.tables.open(NAME, TABLE_ID)).rewrite(
                sealed, files, entries_of, 1 << 20, RowChange.ERASE
            )
            self.answered.append(f"{what} {ledger_id}")

    async def erased_entries(
        self, wanted: dict[int, Indexes], part: SealRange
    ) -> AsyncIterator[Entries]:
        for entry_id, data in await self.stored(part.ledger_id, part.first, part.last):
            yield [(entry_id, without(data, wanted[entry_id]) if entry_id in wanted else data)]

    async def stored(self, ledger_id: int, first: int, last: int) -> Entries:
        found: Entries = []
        while first <= last:
            found += await self.tables.read(NAME, ledger_id, first, last, 1 << 20)
            first = found[-1][0] + 1
        return found


async def _originals(part: SealRange) -> AsyncIterator[Entries]:
    yield [(i, LEDGERS[part.ledger_id][i]) for i in range(part.first, part.last + 1)]


@dataclass(frozen=True)
class Moment:
    step: str
    survival: Survival
    disk: SimDisk
    tree: MemoryTree
    answered: tuple[str, ...]


def moments(seed: int) -> list[Moment]:
    """The whole script, with a crash at every step from the first erasure on."""
    disk, tree = SimDisk(), MemoryTree()
    rng = random.Random(seed)
    found: list[Moment] = []
    with Simulation(seed) as sim:

        def keep(step: str) -> None:
            if run.erasing:  # what comes before is for the crash test of attach
                for survival in SURVIVALS:
                    survivor = disk.survivor(survival, rng)
                    found.append(Moment(step, survival, survivor, tree.copy(), tuple(run.answered)))

        class Watched(Run):
            erasing = False

            async def erase(self, what: str, ids: ErasedIds) -> None:
                self.erasing = True
                await super().erase(what, ids)

        run = Watched(tree, sim.runtime(disk), SteppingStore(tree, keep))
        disk.before_step = lambda: keep(f"disk step {disk.steps + 1}")
        sim.run(run.go_on())
    return found


async def check(run: Run, disk: SimDisk, answered: tuple[str, ...]) -> None:
    """Both roots are equal and whole, and each message is there or gone as it has to be."""
    (table,) = disk.list("/root-1/public/default")
    directories = [f"{root}/public/default/{table}" for root in ROOTS]
    logs = [attached_files(disk, directory) for directory in directories]
    assert logs[0] == logs[1]
    for directory, (_, files) in zip(directories, logs, strict=True):
        check_files(disk, directory, files)
    for ledger_id, originals in LEDGERS.items():
        found = await run.stored(ledger_id, 0, len(originals) - 1)
        views = [client_view(data) for _, data in found]
        states = [
            [client_view(after(ledger_id, i, *done)) for i in range(len(originals))]
            for done in ((), (FIRST,), (FIRST, SECOND))
        ]
        assert views in states, f"ledger {ledger_id} is erased in part"
        least = sum(f"{what} {ledger_id}" in answered for what in ("first", "second"))
        assert views in states[least:], f"ledger {ledger_id}: an answered erasure is undone"


def keys_in_files(disk: SimDisk, named_only: bool = False) -> list[str | None]:
    """Keys of messages sent alone in the data files of both roots, whatever version they are of."""
    found: list[str | None] = []
    for path in disk.files():
        if path.endswith(".parquet"):
            rows = pq.read_table(pa.BufferReader(disk.content(path)))
            alone = rows.filter(pa.compute.equal(rows.column("batch_index"), -1))
            found += alone.column("key").to_pylist()
    return found


def recovered(seed: int, moment: Moment, *, to_the_end: bool) -> None:
    with Simulation(seed + 1) as sim:
        runtime = sim.runtime(moment.disk)

        async def main() -> None:
            run = Run(moment.tree, runtime, MemoryMetadataStore(moment.tree))
            await run.open()
            await check(run, moment.disk, moment.answered)
            if not to_the_end:
                return
            await run.go_on()
            await check(run, moment.disk, ("first 5", "first 7", "second 5", "second 7"))
            await run.tables.remove_staged(NAME, 1 << 62)
            assert not ERASED_KEYS & set(keys_in_files(moment.disk))

        sim.run(main())


def explore(seed: int, every: int = 1) -> int:
    """Recover from every moment, or each so many; go on to the end from some of them."""

    def one(number: int, moment: Moment) -> None:
        recovered(seed, moment, to_the_end=number % TO_THE_END_EVERY == 0)

    return recover_each(seed, moments(seed), one, every)


def test_a_crash_before_any_step_leaves_erasures_whole_or_undone() -> None:
    assert explore(SEED) > 200


def test_the_messages_were_there_before() -> None:
    disk, tree = SimDisk(), MemoryTree()
    with Simulation(SEED) as sim:
        run = Run(tree, sim.runtime(disk), MemoryMetadataStore(tree))

        async def main() -> None:
            await run.open()
            await run.seal(5)
            await run.seal(7)

        sim.run(main())
    assert set(keys_in_files(disk)) >= ERASED_KEYS


# -- planted bugs: each must be caught ---------------------------------------------------------


def old_files_go_before_the_intent(patch: pytest.MonkeyPatch) -> None:
    attach = TableOwner.attach

    async def hasty(self: TableOwner, adds: Any, removes: Any = (), *rest: Any) -> int:
        for root in self.record.roots:
            for file in removes:
                self._disk.remove(f"{root}/{file.path}")
        return await attach(self, adds, removes, *rest)

    patch.setattr(TableOwner, "attach", hasty)


def one_file_at_a_time(patch: pytest.MonkeyPatch) -> None:
    rewrite = Table.rewrite

    async def piecemeal(self: Table, *given: Any) -> None:
        sealed, files, *rest = given
        for file in files:
            await rewrite(self, sealed, [file], *rest)

    patch.setattr(Table, "rewrite", piecemeal)


@pytest.mark.parametrize("plant", [old_files_go_before_the_intent, one_file_at_a_time])
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, FileNotFoundError)):
        explore(SEED, every=3)
