"""Bulk publish, crashed at every step of the disk and of the metadata store.

Producers append to two partitions meanwhile. Whatever the crash leaves, the next owner finds each
publish in all partitions or in none, where it belongs among the entries; what was answered is
there; what was not can be published from the files that were staged, once. Then that owner tidies
the table: it writes the files of each ledger anew, deletes the old ones, and folds the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pulsark.errors import MetadataError, StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.runtime import Runtime
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerConfig
from pulsark.storage.managed_ledger.record import ManagedLedgerRecord
from pulsark.storage.managed_ledger.reservation import Reservation
from pulsark.storage.managed_ledger.reservations import Reservations
from pulsark.storage.managed_ledger.states import State
from pulsark.storage.table.attach import TableOwner
from pulsark.storage.table.files.record import table_directory
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.process.process import Entries
from pulsark.storage.table.staging.staged_ledger import STAGING, StagedLedger
from pulsark.storage.table.table import Table
from pulsark.storage.table.tables import Tables
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry, entry_metadata
from pulsark.wire.position import Position
from pulsark.wire.topic_name import TopicName
from tests.sim.crashes import SAMPLED, recover_each
from tests.sim.disk import SURVIVALS, SimDisk, Survival
from tests.sim.metadata import AwayStore, SteppingStore
from tests.sim.simulation import Simulation
from tests.support.inline_table import inline_tables
from tests.support.ledgers import Appends, read_all
from tests.support.staged import stage
from tests.support.tables import attached_files, check_files

SEED = int(os.environ.get("SEED", "20261121"))
TOPIC = TopicName.parse("persistent://public/default/t")
TABLE_ID = "0123456789abcdef0123456789abcdef"
ROOTS = ("/root-1", "/root-2")
DIRECTORIES = [table_directory(root, TOPIC, TABLE_ID) for root in ROOTS]
CONFIG = ManagedLedgerConfig(1, 1, 1, max_entries=4, min_age_ms=0)
PARTITIONS = (0, 1)
PUBLISHES = 2
BULK = "pulsark.bulk.q"
TO_THE_END_EVERY = 5
TIDIES_EVERY = 2 * TO_THE_END_EVERY


def path_of(partition: int) -> str:
    return f"/managed-ledgers/public/default/persistent/t-partition-{partition}"


def message(producer: str, number: int) -> bytes:
    head = pb.MessageMetadata(producer_name=producer, sequence_id=number, publish_time=1)
    return build_entry(head, b"%d" % number)


def bulk_entries(publish: int, partition: int) -> list[list[bytes]]:
    """The entries of each ledger that a publish gives to a partition."""
    ledgers = 2 if partition == 0 else 1
    return [
        [message(f"{BULK}.{publish}.{ledger}", i) for i in range(2 + ledger)]
        for ledger in range(ledgers)
    ]


@dataclass
class Told:
    """What producers and publishers were told so far."""

    sent: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    confirmed: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    before: list[dict[int, int]] = field(default_factory=list)
    """For each publish: how many messages of each partition were confirmed before it began."""
    after: list[dict[int, int]] = field(default_factory=list)
    """For each publish that was answered: how many were sent by then."""

    def copy(self) -> Told:
        return Told(dict(self.sent), dict(self.confirmed), list(self.before), list(self.after))


class Partition(Appends):
    """Counts what is confirmed."""

    def __init__(self, told: Told, number: int) -> None:
        super().__init__()
        self._told = told
        self._number = number

    def entries_confirmed(
        self, ledger_id: int, first_entry_id: int, entries: list[bytes], contexts: list[int]
    ) -> None:
        super().entries_confirmed(ledger_id, first_entry_id, entries, contexts)
        self._told.confirmed[self._number] += len(entries)


@dataclass
class Owner:
    """A process that owns both partitions and their table."""

    runtime: Runtime
    store: MemoryMetadataStore
    told: Told
    tables: Tables = field(init=False)
    ledgers: dict[int, ManagedLedger] = field(default_factory=dict)

    async def open(self) -> None:
        bookie = await EmbeddedBookie.open("b", "/b/j", "/b/l", JournalSettings(), self.runtime)
        self.tables = inline_tables(ROOTS, self.store, self.runtime, copies=2, copies_needed=2)
        manager = LedgerManager(self.store, {"b": bookie}, self.runtime, self.tables)
        for number in PARTITIONS:
            name = TOPIC.with_partition(number)

            async def attached(_: str, ids: object, name: TopicName = name) -> set[int]:
                return await self.tables.publishing.existing(name, TABLE_ID, ids)  # type: ignore[arg-type]

            self.ledgers[number] = await ManagedLedger.open(
                path_of(number), manager, self.store, CONFIG, self.runtime,
                Partition(self.told, number), attached=attached,
            )  # fmt: skip

    def send(self, partition: int) -> None:
        number = self.told.sent[partition]
        self.told.sent[partition] += 1
        self.ledgers[partition].append(message("p", number), number)

    async def publish(self, number: int, staged: Sequence[StagedLedger]) -> bool:
        here = Reservations(self.ledgers)
        return await self.tables.publishing.publish(
            TOPIC, TABLE_ID, dict.fromkeys(self.ledgers, here), staged, "q", number
        )

    async def tidy(self) -> None:
        """Do to the table whatever tidying may do to it."""

        async def entries_of(wanted: SealRange) -> AsyncIterator[Entries]:
            span = TOPIC, wanted.ledger_id, wanted.first, wanted.last
            yield await self.tables.read(*span, max_bytes=2**20)

        async def table() -> Table:
            return await self.tables.open(TOPIC, TABLE_ID)

        for sealed in await self.tables.ledgers(TOPIC):
            await (await table()).merge(sealed.files, entries_of, 2**20)
        while await (await table()).state():
            pass
        await (await table()).checkpoint()
        await asyncio.sleep(1)
        now_ms = self.runtime.clock.now_ms()
        for sealed in await self.tables.ledgers(TOPIC):
            assert await (await table()).vacuum(sealed.ledger_id, now_ms)
        while await (await table()).fold_log(now_ms):
            pass

    async def script(self) -> None:
        await self.open()
        for number in range(PUBLISHES):
            for partition in PARTITIONS[: number + 1]:
                self.send(partition)
            await asyncio.sleep(0.01)
            staged = staged_files(self.runtime.disk, number)  # type: ignore[arg-type]
            self.told.before.append(dict(self.told.confirmed))
            publishing = asyncio.ensure_future(self.publish(number, staged))
            while not publishing.done():
                self.send(0)
                await asyncio.sleep(0.004)
            assert await publishing
            self.told.after.append(dict(self.told.sent))
            self.send(1)
        assert not await self.publish(PUBLISHES - 1, staged)
        await asyncio.sleep(0.05)


def staged_files(disk: SimDisk, number: int) -> list[StagedLedger]:
    return [
        stage(disk, DIRECTORIES, partition, entries, f"q{number}p{partition}l{ledger}")
        for partition in PARTITIONS
        for ledger, entries in enumerate(bulk_entries(number, partition))
    ]


@dataclass(frozen=True)
class Moment:
    step: str
    survival: Survival
    disk: SimDisk
    tree: MemoryTree
    told: Told


def moments(seed: int) -> list[Moment]:
    """The whole script, with a crash at every step."""
    disk, tree, told = SimDisk(), MemoryTree(), Told()
    rng = random.Random(seed)
    found: list[Moment] = []

    def keep(step: str) -> None:
        for survival in SURVIVALS:
            survivor = disk.survivor(survival, rng)
            found.append(Moment(step, survival, survivor, tree.copy(), told.copy()))

    disk.before_step = lambda: keep(f"disk step {disk.steps + 1} after {disk.trace[-1:]}")
    with Simulation(seed) as sim:
        owner = Owner(sim.runtime(disk), SteppingStore(tree, keep), told)
        sim.run(owner.script())
    return found


async def contents(owner: Owner) -> dict[int, list[tuple[str, int]]]:
    """Producer and number of everything in each partition, in order."""
    found: dict[int, list[tuple[str, int]]] = {}
    for partition, ledger in owner.ledgers.items():
        entries = await read_all(ledger)
        positions = [position for position, _ in entries]
        assert positions == sorted(set(positions))
        heads = [entry_metadata(entry) for _, entry in entries]
        found[partition] = [(str(h.producer_name), h.sequence_id) for h in heads]
        assert ledger.entries == len(entries)
        assert ledger.last_confirmed == (positions[-1] if positions else Position(-1, -1))
    return found


def is_there(found: dict[int, list[tuple[str, int]]], number: int) -> bool:
    """Whether a publish is in the topic; asserts that it is whole, or absent."""
    whole = []
    for partition, messages in found.items():
        wanted = [
            (f"{BULK}.{number}.{ledger}", i)
            for ledger, entries in enumerate(bulk_entries(number, partition))
            for i in range(len(entries))
        ]
        mine = [m for m in messages if m[0].startswith(f"{BULK}.{number}.")]
        assert mine in ([], wanted), f"publish {number} in part, or twice: {mine}"
        if mine:
            start = messages.index(mine[0])
            assert messages[start : start + len(mine)] == wanted, "something came in between"
        whole.append(bool(mine))
    assert len(set(whole)) == 1, f"publish {number} is in some partitions: {whole}"
    return whole[0]


def check(found: dict[int, list[tuple[str, int]]], told: Told) -> None:
    """What was answered is there, in its place."""
    for number in range(PUBLISHES):
        there = is_there(found, number)
        assert there or number >= len(told.after), f"publish {number} was answered and is lost"
        if not there:
            continue
        for partition, messages in found.items():
            place = [i for i, m in enumerate(messages) if m[0].startswith(f"{BULK}.{number}.")]
            sent = {m[1]: i for i, m in enumerate(messages) if m[0] == "p"}
            for early in range(told.before[number][partition]):
                assert sent[early] < place[0], "published before it, and now behind it"
            if number < len(told.after):
                late = [i for n, i in sent.items() if n >= told.after[number][partition]]
                assert all(i > place[-1] for i in late), "sent after it, and now before it"
    for partition, messages in found.items():
        numbers = [m[1] for m in messages if m[0] == "p"]
        assert numbers[: told.confirmed[partition]] == list(range(told.confirmed[partition]))
        assert len(numbers) <= told.sent[partition]


def no_other_files(disk: SimDisk) -> None:
    """The roots have equal logs, the files of those, and none besides."""
    logs = [attached_files(disk, root) for root in DIRECTORIES if disk.list(f"{root}/_delta_log")]
    for root, (number, files) in zip(DIRECTORIES, logs, strict=False):
        assert (number, files) == logs[0]
        check_files(disk, root, files)
        there = {
            f"{partition}/{ledger}/{name}"
            for partition in disk.list(root)
            if "=" in partition
            for ledger in disk.list(f"{root}/{partition}")
            for name in disk.list(f"{root}/{partition}/{ledger}")
        }
        assert there == {file.path for file in files}, "files that nobody knows"


def recovered(seed: int, moment: Moment, *, to_the_end: bool = True, tidies: bool = False) -> None:
    """The next owner: what it finds is true, and what is missing it can publish."""
    told = moment.told.copy()
    disk = moment.disk
    with Simulation(seed) as sim:

        async def main() -> None:
            owner = Owner(sim.runtime(disk), MemoryMetadataStore(moment.tree), told)
            await owner.open()
            found = await contents(owner)
            check(found, told)
            await owner.tables.open(TOPIC, TABLE_ID)
            no_other_files(disk)
            if to_the_end:
                await go_on(owner, found)

        async def go_on(owner: Owner, found: dict[int, list[tuple[str, int]]]) -> None:
            for number in range(len(told.before)):
                staged = staged_files(SimDisk(), number)  # their descriptions; the files are there
                assert await owner.publish(number, staged) != is_there(found, number)
            for partition in PARTITIONS:
                owner.send(partition)
            await asyncio.sleep(0.05)
            found = await contents(owner)
            assert all(is_there(found, number) for number in range(len(told.before)))
            assert all(messages[-1][0] == "p" for messages in found.values())
            assert not await owner.tables.remove_staged(TOPIC, 2**62)
            no_other_files(disk)
            if tidies:
                await owner.tidy()
                no_other_files(disk)
                assert await contents(owner) == found
            for number in range(len(told.before)):
                assert not await owner.publish(number, staged_files(SimDisk(), number))
            assert not [name for root in DIRECTORIES for name in disk.list(f"{root}/{STAGING}")]

        sim.run(main())


def explore(seed: int, every: int = 1) -> int:
    def one(number: int, moment: Moment) -> None:
        to_the_end, tidies = (number % every == 0 for every in (TO_THE_END_EVERY, TIDIES_EVERY))
        recovered(seed, moment, to_the_end=to_the_end, tidies=tidies)

    return recover_each(seed, moments(seed), one, every)


def test_a_crash_before_any_step_leaves_a_publish_in_all_partitions_or_in_none() -> None:
    assert explore(SEED) > 300


def without_the_store(at: int, seconds: float, made: bool) -> tuple[Moment, int]:
    """What a script leaves whose metadata store goes away at a write; and its number of writes."""
    disk, tree, told = SimDisk(), MemoryTree(), Told()
    store = AwayStore(tree, at, seconds, made=made)
    with Simulation(SEED) as sim:

        async def main() -> None:
            with contextlib.suppress(StorageError, MetadataError):
                await Owner(sim.runtime(disk), store, told).script()
            await asyncio.sleep(seconds + 60)

        sim.run(main())
    return Moment(f"write {at}", "all", disk, tree, told), store.writes


@pytest.mark.parametrize("made", [True, False])
def test_a_metadata_store_that_goes_away_at_any_write_leaves_no_publish_in_part(made: bool) -> None:
    """It is back when those who asked what became of the write have given up."""
    _, writes = without_the_store(0, 0, made)
    assert writes > 30
    first = 1 if made else SAMPLED  # together both have all writes
    for at in range(first, writes + 1, SAMPLED):
        moment, _ = without_the_store(at, 12, made)
        recovered(SEED, moment)


# -- planted bugs: each must be caught ---------------------------------------------------------


def no_pending(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ManagedLedgerRecord, "with_pending", lambda self, infos: self)


def listed_before_the_intent(patch: pytest.MonkeyPatch) -> None:
    close_ledger = Reservation.close_ledger

    async def hasty(self: Reservation) -> None:
        await close_ledger(self)
        assert self._record is not None
        exist = {info.ledger_id for info in self._record.pending}
        self._record = self._record.decided(exist)
        await self._stored.save(self._record)

    patch.setattr(Reservation, "close_ledger", hasty)


def appends_go_on(patch: pytest.MonkeyPatch) -> None:
    async def never(self: Reservation) -> None:
        self._last.life.state = State.RESERVED

    patch.setattr(Reservation, "close_ledger", never)


def not_noted(patch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> bool:
        return False

    patch.setattr("pulsark.storage.table.publishes.Publishes.has", never)


def table_not_asked(patch: pytest.MonkeyPatch) -> None:
    """What was reserved is given up without a look at the table."""

    async def existing(self: TableOwner, ledger_ids: object) -> set[int]:
        return set()

    patch.setattr(TableOwner, "existing", existing)


@pytest.mark.parametrize(
    "plant",
    [no_pending, listed_before_the_intent, appends_go_on, not_noted, table_not_asked],
)
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, StorageError, KeyError, FileNotFoundError)):
        explore(SEED, every=3)
