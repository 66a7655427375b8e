"""Sealing and attaching, crashed at every step of the disk and of the metadata store.

Whatever the crash leaves, the next owner finds a table in which each attach is whole or absent,
on every root; what was answered is there; and it goes on to the same end.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pulsark.errors import LedgerFencedError, StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import table_path
from pulsark.runtime import Runtime
from pulsark.storage.table.attach import TableOwner
from pulsark.storage.table.files.record import DataFile, SealedLedger, TableRecord
from pulsark.storage.table.files.seal import seal
from pulsark.storage.table.log.delta_log import DeltaLog
from pulsark.storage.table.log.root_log import RootLog
from pulsark.storage.table.owned_table_record import OwnedTableRecord
from pulsark.wire.topic_name import TopicName
from tests.sim.crashes import recover_each
from tests.sim.disk import SURVIVALS, SimDisk, Survival
from tests.sim.metadata import HeldStore, SteppingStore
from tests.sim.simulation import Simulation
from tests.support.tables import attached_files, check_entries, check_files, entries

SEED = 20261121
TO_THE_END_EVERY = 11
TOPIC = TopicName.parse("persistent://public/default/t-partition-1")
PATH = table_path(TOPIC)
TABLE_ID = "0123456789abcdef0123456789abcdef"
ROOTS = ("/root-1/public/default/t", "/root-2/public/default/t")
LEDGERS = {5: entries(9, 5), 7: entries(6, 7), 9: entries(4, 9)}

STEPS: tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...] = (
    ("add", ((5, 0, 3),)),
    ("add", ((5, 4, 8), (7, 0, 1))),
    ("merge", ((5, 0, 8),)),
    ("add", ((7, 2, 5), (9, 0, 3))),
    ("remove", ((7, 0, 5),)),
)
"""What the script does: ranges (ledger, first, last) that are sealed and attached."""


def expected(steps: int) -> set[tuple[int, int]]:
    """Ledger and entry of everything in the table after so many steps."""
    found: set[tuple[int, int]] = set()
    for kind, ranges in STEPS[:steps]:
        for ledger_id, first, last in ranges:
            ids = {(ledger_id, i) for i in range(first, last + 1)}
            found = found - ids if kind == "remove" else found | ids
    return found


async def sealed_ledgers(owner: TableOwner) -> dict[int, SealedLedger]:
    found = {ledger_id: await owner.sealed(ledger_id) for ledger_id in LEDGERS}
    return {ledger_id: sealed for ledger_id, sealed in found.items() if sealed is not None}


@dataclass
class Run:
    """A process that opens the table and does what is left of the script."""

    tree: MemoryTree
    runtime: Runtime
    store: MemoryMetadataStore
    answered: list[int] = field(default_factory=list)
    nonce: str = "n"

    async def open(self) -> TableOwner:
        worker = self.runtime.new_worker("table")
        return await TableOwner.open(
            PATH, TABLE_ID, ROOTS, self.store, self.runtime, worker, roots_needed=2
        )

    async def go_on(self) -> TableOwner:
        owner = await self.open()
        while owner.record.attached < len(STEPS):
            kind, ranges = STEPS[owner.record.attached]
            adds, removes = await self.files(owner, kind, ranges)
            number = await owner.attach(adds, removes)
            self.answered.append(number)
            for root in ROOTS:
                assert attached_files(self.runtime.disk, root)[0] >= number, f"{root} lacks it"
        return owner

    async def files(
        self, owner: TableOwner, kind: str, ranges: tuple[tuple[int, int, int], ...]
    ) -> tuple[list[DataFile], list[DataFile]]:
        adds: list[DataFile] = []
        removes: list[DataFile] = []
        for ledger_id, first, last in ranges:
            if kind != "add":
                found = await owner.sealed(ledger_id)
                assert found is not None
                removes += found.files
            if kind == "remove":
                continue
            adds += seal(
                [(i, LEDGERS[ledger_id][i]) for i in range(first, last + 1)],
                1,
                ledger_id,
                ROOTS,
                self.runtime.disk,
                f"{self.nonce}{owner.record.attached}",
                roots_needed=2,
            )
        for root in ROOTS:
            check_files(self.runtime.disk, root, adds)
        return adds, removes


@dataclass(frozen=True)
class Moment:
    step: str
    survival: Survival
    disk: SimDisk
    tree: MemoryTree
    answered: int


def moments(seed: int) -> list[Moment]:
    """The whole script, with a crash at every step."""
    disk, tree = SimDisk(), MemoryTree()
    rng = random.Random(seed)
    found: list[Moment] = []
    answered: list[int] = []

    def keep(step: str, survivals: tuple[Survival, ...]) -> None:
        for survival in survivals:
            found.append(
                Moment(step, survival, disk.survivor(survival, rng), tree.copy(), len(answered))
            )

    def disk_step() -> None:
        after = disk.trace[-1] if disk.trace else "nothing"
        keep(f"disk step {disk.steps + 1} after {after}", SURVIVALS)

    disk.before_step = disk_step
    with Simulation(seed) as sim:
        store = SteppingStore(tree, lambda step: keep(step, SURVIVALS))
        sim.run(Run(tree, sim.runtime(disk), store, answered).go_on())
    return found


def table_after(disk: SimDisk, record: TableRecord) -> None:
    """Both roots are what the metadata say: whole, equal, and readable."""
    wanted = expected(record.attached)
    if not record.attached:
        return
    logs = [attached_files(disk, root) for root in ROOTS]
    assert logs[0] == logs[1]
    for root in ROOTS:
        last, files = attached_files(disk, root)
        assert last == record.attached
        check_files(disk, root, files)
        ids = [(f.ledger_id, i) for f in files for i in _range(f)]
        assert len(ids) == len(set(ids)), "an entry has its rows twice"
        assert set(ids) == wanted
        log = DeltaLog(disk, root)
        assert all(not name.endswith(".tmp") for name in disk.list(f"{log.directory}/_delta_log"))


def _range(file: DataFile) -> Iterator[int]:
    yield from range(file.first_entry_id, file.last_entry_id + 1)


def recovered(seed: int, moment: Moment, to_the_end: bool = True) -> None:
    """The next owner: what it finds is true, and it comes to the same end."""
    with Simulation(seed) as sim:
        runtime = sim.runtime(moment.disk)

        async def main() -> None:
            run = Run(moment.tree, runtime, MemoryMetadataStore(moment.tree), nonce="again")
            owner = await run.open()
            assert owner.record.attached >= moment.answered, "an attach was answered and is lost"
            assert not owner.record.pending
            table_after(moment.disk, owner.record)
            if not to_the_end:
                return
            owner = await run.go_on()
            table_after(moment.disk, owner.record)
            sealed = await sealed_ledgers(owner)
            for root in ROOTS:
                check_entries(moment.disk, root, sealed, LEDGERS)
            assert {(i, n) for i, s in sealed.items() for n in range(s.through + 1)} == expected(
                len(STEPS)
            )

        sim.run(main())


def explore(seed: int) -> int:
    """Recover from every moment; go on to the end from some of them."""

    def one(number: int, moment: Moment) -> None:
        recovered(seed, moment, to_the_end=number % TO_THE_END_EVERY == 0)

    return recover_each(seed, moments(seed), one)


def test_a_crash_before_any_step_leaves_each_attach_whole_or_absent() -> None:
    assert explore(SEED) > 300


def test_crashes_while_rolling_forward() -> None:
    rng = random.Random(SEED)
    for moment in moments(SEED)[::7]:
        disk, tree = moment.disk, moment.tree
        for again in range(2):
            disk.crash_at = disk.steps + rng.randint(1, 15)
            with Simulation(SEED + again) as sim:
                run = Run(tree, sim.runtime(disk), MemoryMetadataStore(tree), nonce=f"x{again}")
                sim.run_until_crash(run.go_on())
            disk = disk.after_crash("random", rng)
        recovered(SEED, Moment(moment.step, "random", disk, tree, moment.answered))


def test_of_two_owners_the_stale_one_changes_nothing_at_any_step() -> None:
    """A second owner takes over before each step of the first one's attach, and goes on."""
    steps = 0
    at = 1
    while at == 1 or at <= steps:
        disk, tree = SimDisk(), MemoryTree()
        with Simulation(SEED) as sim:
            runtime = sim.runtime(disk)
            first = Run(tree, runtime, MemoryMetadataStore(tree), nonce="first")
            second = Run(tree, runtime, MemoryMetadataStore(tree), nonce="second")
            done: list[TableOwner] = []

            async def scenario(
                first: Run = first, second: Run = second, disk: SimDisk = disk,
                done: list[TableOwner] = done, at: int = at,
            ) -> int:  # fmt: skip
                owner = await first.open()
                kind, ranges = STEPS[0]
                adds, removes = await first.files(owner, kind, ranges)
                reached = asyncio.Event()
                count = 0

                def step() -> None:
                    nonlocal count
                    count += 1
                    if count == at:
                        reached.set()

                original = disk.before_step
                disk.before_step = step
                task = asyncio.ensure_future(owner.attach(adds, removes))
                await asyncio.wait(
                    [task, asyncio.ensure_future(reached.wait())],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                disk.before_step = original
                done.append(await second.go_on())
                documents = await sealed_ledgers(done[0])
                with contextlib.suppress(StorageError):
                    await task
                with pytest.raises(StorageError):
                    await owner.attach(adds)
                with pytest.raises(LedgerFencedError):
                    await owner.attach([], removes or documents[9].files)
                assert await sealed_ledgers(done[0]) == documents
                return count

            steps = max(steps, sim.run(scenario()))
            table_after(disk, done[0].record)
        at += 1
    assert steps > 8


def test_of_two_owners_the_stale_one_changes_no_document_at_any_request() -> None:
    """One request of the first owner is on its way until a second one has done all the rest."""
    at, was_held = 0, True
    while was_held:
        at += 1
        disk, tree = SimDisk(), MemoryTree()
        with Simulation(SEED) as sim:
            runtime = sim.runtime(disk)
            held = HeldStore(tree)
            first = Run(tree, runtime, held, nonce="first")
            second = Run(tree, runtime, MemoryMetadataStore(tree), nonce="second")
            was_held = sim.run(overtaken(first, second, held, at))
    assert at > 12


async def overtaken(first: Run, second: Run, held: HeldStore, at: int) -> bool:
    owner = await first.open()
    await owner.attach(*await first.files(owner, *STEPS[0]))
    adds, removes = await first.files(owner, *STEPS[1])
    held.hold_at = at
    work = asyncio.ensure_future(owner.attach(adds, removes))
    reached = asyncio.ensure_future(held.reached.wait())
    await asyncio.wait([work, reached], return_when=asyncio.FIRST_COMPLETED)
    newer = await second.go_on()
    before = await sealed_ledgers(newer)
    held.let_go.set()
    reached.cancel()
    with contextlib.suppress(StorageError):
        await work
    assert await sealed_ledgers(newer) == before
    table_after(second.runtime.disk, newer.record)
    return held.reached.is_set()


def test_of_two_owners_the_stale_one_deletes_nothing() -> None:
    disk, tree = SimDisk(), MemoryTree()
    with Simulation(SEED) as sim:

        async def main() -> None:
            run = Run(tree, sim.runtime(disk), MemoryMetadataStore(tree))
            stale = await run.go_on()
            files = disk.files()
            newer = await run.open()
            with pytest.raises(LedgerFencedError):
                await stale.vacuum(5, 1 << 62)
            assert disk.files() == files
            assert await newer.vacuum(5, 1 << 62) > 0
            assert disk.files() != files

        sim.run(main())


def test_a_root_that_was_away_catches_up_with_files_and_commits() -> None:
    disk, tree = SimDisk(), MemoryTree()
    with Simulation(SEED) as sim:
        runtime = sim.runtime(disk)

        async def main() -> None:
            run = Run(tree, runtime, MemoryMetadataStore(tree))
            owner = await TableOwner.open(
                PATH, TABLE_ID, ROOTS, run.store, runtime, runtime.new_worker("t"), roots_needed=1
            )
            for number, (kind, ranges) in enumerate(STEPS[:3]):
                disk.name_errno, disk.faulty = (28, "/root-2/") if number else (0, "")
                adds, removes = await run.files(owner, kind, ranges) if not number else ([], [])
                if number:
                    adds, removes = await away_files(run, owner, kind, ranges)
                await owner.attach(adds, removes)
            assert attached_files(disk, ROOTS[0])[0] == 3
            assert attached_files(disk, ROOTS[1])[0] == 1
            disk.name_errno = 0
            owner = await run.go_on()
            table_after(disk, owner.record)

        sim.run(main())


async def away_files(
    run: Run, owner: TableOwner, kind: str, ranges: tuple[tuple[int, int, int], ...]
) -> tuple[list[DataFile], list[DataFile]]:
    adds: list[DataFile] = []
    removes: list[DataFile] = []
    for ledger_id, first, last in ranges:
        if kind == "merge":
            found = await owner.sealed(ledger_id)
            assert found is not None
            removes += found.files
        numbered = [(i, LEDGERS[ledger_id][i]) for i in range(first, last + 1)]
        nonce = f"away{owner.record.attached}"
        adds += seal(numbered, 1, ledger_id, ROOTS, run.runtime.disk, nonce)
    return adds, removes


class BadDisk(SimDisk):
    """From its ``at``th change on, a root fails until it is healed, or takes one write wrongly."""

    def __init__(self, root: str, at: int, *, flips: bool) -> None:
        super().__init__()
        self._root = f"{root}/"
        self._at = at
        self._flips = flips
        self._changes = 0

    def heal(self) -> None:
        self.write_errno = self.sync_errno = self.name_errno = 0

    def _step(self, what: str, path: str) -> None:
        super()._step(what, path)
        if path.startswith(self._root):
            self._changes += 1
            if self._changes == self._at and not self._flips:
                self.faulty = self._root
                self.write_errno = self.sync_errno = self.name_errno = errno.EIO

    def _write(self, path: str, inode: Any, buffers: Sequence[bytes]) -> None:
        start = len(inode.data)
        super()._write(path, inode, buffers)
        if self._flips and path.startswith(self._root) and self._changes >= self._at:
            self._flips = False
            inode.data[start] ^= 1


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("flips", [False, True])
def test_a_root_that_goes_bad_at_any_change_has_what_was_answered(root: str, flips: bool) -> None:
    errors = 0
    for at in range(1, 70, 3):
        disk, tree = BadDisk(root, at, flips=flips), MemoryTree()
        with Simulation(SEED) as sim:
            runtime = sim.runtime(disk)

            async def main(
                disk: BadDisk = disk, tree: MemoryTree = tree, runtime: Runtime = runtime
            ) -> int:
                attempts = 0
                while True:
                    run = Run(tree, runtime, MemoryMetadataStore(tree), nonce=f"a{attempts}")
                    try:
                        owner = await run.go_on()
                        break
                    except (OSError, StorageError):
                        attempts += 1
                        assert attempts < 3
                        disk.heal()
                table_after(disk, owner.record)
                return attempts

            errors += sim.run(main())
    assert errors > 5


def test_whatever_is_asked_for_a_table_has_each_ledger_from_its_first_entry_on() -> None:
    refused = 0
    for seed in range(SEED, SEED + 10):
        rng = random.Random(seed)
        with Simulation(seed) as sim:
            run = Run(MemoryTree(), sim.runtime(SimDisk()), MemoryMetadataStore(MemoryTree()))
            refused += sim.run(confused(run, rng))
    assert refused > 20


async def confused(run: Run, rng: random.Random) -> int:
    """Somebody seals and removes at random; the number of refusals."""
    owner = await run.open()
    refused = 0
    for number in range(8):
        ledger_id = rng.choice(list(LEDGERS))
        first = rng.choice([0, 0, 1, 2, 3])
        last = rng.randrange(first, len(LEDGERS[ledger_id]))
        run.nonce = f"c{number}x"
        adds, _ = await run.files(owner, "add", ((ledger_id, first, last),))
        sealed = await owner.sealed(ledger_id)
        there = sealed.files if sealed is not None else ()
        removes = rng.sample(there, rng.randint(0, len(there)))
        try:
            await owner.attach(adds if rng.random() < 0.9 or not removes else [], removes)
        except StorageError:
            refused += 1
        for _, files in [attached_files(run.runtime.disk, root) for root in ROOTS]:
            for of_ledger in LEDGERS:
                ids = [i for f in files if f.ledger_id == of_ledger for i in _range(f)]
                assert ids == list(range(len(ids))), f"ledger {of_ledger}: {ids}"
    return refused


@pytest.mark.parametrize(
    "content",
    [b"", b'{"commitInfo":{}}\n{"txn":{"app', b"\0" * 100],
    ids=["empty", "torn", "zeros"],
)
@pytest.mark.parametrize("root", [0, 1])
def test_a_damaged_newest_commit_is_made_again(content: bytes, root: int) -> None:
    disk, tree = SimDisk(), MemoryTree()
    with Simulation(SEED) as sim:
        run = Run(tree, sim.runtime(disk), MemoryMetadataStore(tree))
        sim.run(run.go_on())
    newest = DeltaLog(disk, ROOTS[root]).versions()[-1]
    path = f"{ROOTS[root]}/_delta_log/{newest:020d}.json"
    before = disk.content(path)
    disk.edit(path, content)
    with Simulation(SEED) as sim:
        sim.run(Run(tree, sim.runtime(disk), MemoryMetadataStore(tree)).open())
    assert disk.content(path) == before


# -- planted bugs: each must be caught ---------------------------------------------------------


def commit_before_the_intent(patch: pytest.MonkeyPatch) -> None:
    made, save = TableOwner.__init__, OwnedTableRecord.save

    def linked(self: TableOwner, table: Any, *rest: Any) -> None:
        made(self, table, *rest)
        table.disk = self._disk

    async def hasty(self: Any, record: TableRecord, *rest: Any) -> None:
        if record.pending and hasattr(self, "disk"):
            for root in record.roots:
                RootLog(self.disk, root).commit(record)
        await save(self, record, *rest)

    patch.setattr(TableOwner, "__init__", linked)
    patch.setattr(OwnedTableRecord, "save", hasty)


def no_sync_of_commits(patch: pytest.MonkeyPatch) -> None:
    def unsynced(self: SimDisk, path: str, data: bytes) -> None:
        self.create(path).writev([data])

    patch.setattr(SimDisk, "write_new", unsynced)


def done_before_the_commits(patch: pytest.MonkeyPatch) -> None:
    roll_forward = TableOwner._roll_forward

    async def lazy(self: TableOwner, clean: bool = False) -> None:
        if self.record.pending:
            await self._table.save(self.record.done())
        await roll_forward(self, clean)

    patch.setattr(TableOwner, "_roll_forward", lazy)


@pytest.mark.parametrize(
    "plant", [commit_before_the_intent, no_sync_of_commits, done_before_the_commits]
)
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, StorageError, FileExistsError)):
        explore(SEED)
