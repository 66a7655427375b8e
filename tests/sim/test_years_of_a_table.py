"""A topic's table over three years of compressed time: nothing grows but what is kept in it.

The steps are the real ones: appends, seals, attaches, tidying, trimming. Only the Parquet files are
stubs. What is compressed:

- a busy topic has thousands of seals a day and a ledger every few minutes. Here it is 3 seals, or
  20, and one ledger a day;
- a table is tidied once a day, and not every ten minutes;
- limits are smaller in the same measure: a log is folded when it has ten days of old commits, and
  gets a checkpoint every twenty days.

So a log is folded about a hundred times. What is compared is the third year with the years before:
it does not matter how much there is, only that it does not grow. ``tests/sim/test_years.py`` has a
list of as many ledgers as there are. ``make chaos`` has whole years, the topic that forgets nothing
and the one with more seals, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

import google_crc32c
import pytest

from pulsark.config.settings import Settings
from pulsark.dispatch.tables.tidying import Tidying
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import managed_ledger_path, table_path
from pulsark.metadata.store import Versioned
from pulsark.runtime import Runtime
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerConfig
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.files.table_limits import TableLimits
from pulsark.storage.table.log import checkpoint
from pulsark.storage.table.log.delta_log import DeltaLog
from pulsark.storage.table.process.process import Entries, TableProcess
from pulsark.storage.table.repair import log_state
from pulsark.storage.table.root_identity import StorageRoots
from pulsark.storage.table.staging.staged_ledger import ledger_directory
from pulsark.storage.table.tables import Tables
from pulsark.wire.position import EARLIEST, Position
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.inline_table import InlineTable
from tests.support.ledgers import Appends, turns
from tests.support.memory_bookie import MemoryBookie
from tests.support.tables import attached_files

NAME: Final = TopicName.parse("persistent://public/default/t")
TABLE_ID: Final = "0" * 31 + "1"
YEARS: Final = 3
DAY_SECONDS: Final = 86_400
LEDGERS_A_DAY: Final = 1
TIDIED_A_DAY: Final = 1
ENTRIES: Final = 3
"""Of a seal."""
ENTRY_BYTES: Final = 10
TARGET_BYTES: Final = 1000
LOG_DAYS: Final = 7
LEDGERS: Final = ManagedLedgerConfig(min_age_ms=1 << 50)
"""They are closed when the test says so."""


LONG: Final = [pytest.mark.chaos, pytest.mark.timeout(600)]


class YearsDisk(SimDisk):
    """Counts what an attach has to do."""

    listed = 0

    def list(self, path: str) -> list[str]:
        self.listed += 1
        return super().list(path)

    @property
    def inodes(self) -> int:
        return len(self._names) + len(self._dirs)


class YearsStore(MemoryMetadataStore):
    """Counts what it is asked for, and each name that it lists."""

    asked = 0

    async def get(self, path: str) -> Versioned | None:
        self.asked += 1
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        found = await super().children(path)
        self.asked += len(found)
        return found


class StubTable(InlineTable):
    """Its files have a few bytes for each entry, and nobody reads them."""

    disk: YearsDisk

    async def seal(
        self,
        entries: AsyncIterator[Any],
        partition: int,
        ledger_id: int,
        directories: Any,
        nonce: str,
        *_: Any,
        **__: Any,
    ) -> list[DataFile]:
        ids = [entry_id async for piece in entries for entry_id, _ in piece]
        data = b"%d" % ledger_id + b"." * ENTRY_BYTES * len(ids)
        path = f"{ledger_directory(partition, ledger_id)}/part-{ids[0]:012d}-{nonce}-0.parquet"
        for directory in directories:
            self.disk.make_dirs(f"{directory}/{path}".rpartition("/")[0])
            self.disk.edit(f"{directory}/{path}", data)
        crc = google_crc32c.value(data)
        return [DataFile(path, partition, ledger_id, ids[0], ids[-1], len(ids), len(data), crc, {})]


class Listener(Appends):
    """Knows what was appended last."""

    last = EARLIEST
    awaited = 0

    def entries_confirmed(
        self, ledger_id: int, first_entry_id: int, entries: list[bytes], contexts: list[Any]
    ) -> None:
        self.last = Position(ledger_id, first_entry_id + len(entries) - 1)
        self.awaited -= len(entries)


@dataclass(frozen=True)
class Size:
    """What there is of a table at one moment."""

    list_bytes: int
    """The list of the topic's ledgers."""
    record_bytes: int
    documents: int
    largest_document: int
    commits: int
    checkpoints: int
    data_files: int
    inodes: int
    attach_steps: int
    """Of the disk, at most, since the moment before."""
    attach_asked: int
    """Of the metadata store, likewise."""


@dataclass
class Years:
    """A broker with one topic that is published to day after day."""

    runtime: Runtime
    disk: YearsDisk
    seals_a_day: int
    retention_days: int | None
    tree: MemoryTree = field(default_factory=MemoryTree)
    heard: Listener = field(default_factory=Listener)
    steps: int = 0
    asked: int = 0

    def __post_init__(self) -> None:
        self.clock = self.sure_clock = self.runtime.clock
        self.metadata = YearsStore(self.tree)
        self.settings = Settings(tableLogRetentionDays=LOG_DAYS, tableVacuumRetentionHours=24)
        self.tables = Tables(
            StorageRoots(("/root",)),
            self.metadata,
            self.runtime,
            new_process=self.new_process,
            limits=TableLimits(commits_folded=10 * self.seals_a_day),
        )
        self.tables.states = lambda: False  # the files here are no Parquet to read statistics from
        topics: Any = self
        clock: Any = self.sure_clock
        self.tidying = Tidying(
            self.settings, self.clock, clock, self.metadata, topics, self.tables, self.entries
        )

    def new_process(self) -> TableProcess:
        table = StubTable(self.disk)
        table.disk = self.disk
        return table

    async def entries(self, wanted: SealRange) -> AsyncIterator[Entries]:
        yield [(i, b"") for i in range(wanted.first, wanted.last + 1)]

    # What tidying asks of the topics in memory.

    def get_loaded(self, name: TopicName) -> Any:
        assert name == NAME
        return self

    # Time goes by.

    async def begin(self) -> None:
        store = MemoryMetadataStore(self.tree)
        manager = LedgerManager(store, {"b1": MemoryBookie("b1")}, self.runtime)
        self.ledger = await ManagedLedger.open(
            managed_ledger_path(NAME), manager, store, LEDGERS, self.runtime, self.heard
        )

    async def append(self) -> SealRange:
        for _ in range(ENTRIES):
            self.ledger.append(b"." * ENTRY_BYTES, None)
        self.heard.awaited += ENTRIES
        while self.heard.awaited:
            await turns(10)
        ledger_id, last = self.heard.last
        return SealRange(-1, ledger_id, last + 1 - ENTRIES, last, ENTRIES * ENTRY_BYTES)

    async def day(self) -> None:
        for seal in range(self.seals_a_day):
            await asyncio.sleep(DAY_SECONDS / self.seals_a_day)
            if seal % (self.seals_a_day // LEDGERS_A_DAY) == 0:
                await self.ledger.close_ledger()
            wanted = await self.append()
            before, listed, asked = self.disk.steps, self.disk.listed, self.metadata.asked
            await (await self.tables.open(NAME, TABLE_ID)).seal(
                [wanted], self.entries, TARGET_BYTES
            )
            assert self.disk.listed == listed or not self.steps, "an attach lists no directory"
            self.steps = max(self.steps, self.disk.steps - before)
            self.asked = max(self.asked, self.metadata.asked - asked)
            if seal % (self.seals_a_day // TIDIED_A_DAY) == 1:
                await self.tidy()
        if self.retention_days is not None:
            old_ms = self.clock.now_ms() - 1000 * DAY_SECONDS * self.retention_days
            for info in list(self.ledger.each_ledger()):
                if not info.open and info.timestamp_ms <= old_ms:
                    await self.ledger.trim(Position(info.ledger_id + 1, -1))

    async def tidy(self) -> None:
        policies: Any = self
        tidied = await self.tidying.tidy(NAME, TABLE_ID, policies)
        assert tidied.error is None, tidied.error

    @property
    def sealing(self) -> Any:
        """Of the policies."""
        return self

    target_file_bytes = TARGET_BYTES

    def size(self) -> Size:
        path = table_path(NAME)
        documents = [self.tree.get(f"{path}/{child}") for child in self.tree.children(path)]
        record = self.tree.get(path)
        assert record is not None
        (root,) = self.disk.list("/root/public/default")
        log = DeltaLog(self.disk, f"/root/public/default/{root}")
        found = Size(
            self.ledger.record_bytes,
            len(record.value),
            len(documents),
            max(len(document.value) for document in documents if document is not None),
            len(log.versions()),
            len(log.checkpoints()),
            sum(path.endswith("-0.parquet") for path in self.disk.files()),
            self.disk.inodes,
            self.steps,
            self.asked,
        )
        self.steps = self.asked = 0
        return found

    async def is_sound(self) -> None:
        record = await self.tables.record(NAME)
        assert record is not None
        (directory,) = record.roots
        assert log_state(self.disk, record, directory) == "ok"
        _, files = attached_files(self.disk, directory)
        ends = {file.ledger_id: file.last_entry_id for file in files}
        assert ends == {i.ledger_id: i.entries - 1 for i in self.ledger.each_ledger()}


def years(days: int, seals_a_day: int, retention_days: int | None) -> list[Size]:
    """The sizes after each year of so many days."""
    sizes = []
    with Simulation() as sim, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "CHECKPOINT_COMMITS", 20 * seals_a_day)
        disk = YearsDisk()

        async def main() -> None:
            run = Years(sim.runtime(disk), disk, seals_a_day, retention_days)
            await run.begin()
            for _ in range(YEARS):
                for _ in range(days):
                    await run.day()
                await run.tidy()
                await run.tidy()
                sizes.append(run.size())
                disk.trace.clear()
            await run.is_sound()

        sim.run(main())
    return sizes


def check(sizes: list[Size], seals_a_day: int, ledgers: int) -> None:
    first, second, last = sizes
    assert last.list_bytes < 64 << 10
    # It has the files of the last attach, which may have been a merge.
    assert last.record_bytes < 200 * (seals_a_day + 10)
    assert last.record_bytes <= 1.1 * second.record_bytes
    assert last.largest_document < 300 * (seals_a_day + 20)
    assert last.documents <= ledgers
    assert last.data_files <= ledgers + 3 * seals_a_day
    assert last.commits <= 30 * seals_a_day
    assert last.checkpoints <= 11
    assert last.attach_steps <= first.attach_steps
    assert last.attach_asked <= first.attach_asked
    grown = [size.inodes - size.commits for size in sizes]
    assert grown[2] - grown[1] <= 1.1 * (grown[1] - grown[0]) + 10, (
        "no year takes more than another"
    )


@pytest.mark.parametrize(
    ("days", "seals_a_day", "retention_days"),
    [
        (100, 3, 10),  # a year in which the log is folded ten times
        pytest.param(365, 3, 10, marks=LONG),
        pytest.param(365, 3, None, marks=LONG),
        pytest.param(365, 20, 30, marks=LONG),
    ],
)
def test_a_table_stays_small_for_three_years(
    days: int, seals_a_day: int, retention_days: int | None
) -> None:
    sizes = years(days, seals_a_day, retention_days)
    check(sizes, seals_a_day, LEDGERS_A_DAY * ((retention_days or days * YEARS) + 3))
    if retention_days is not None:
        others = [size.inodes - size.commits for size in sizes]
        assert others[-1] <= 1.1 * others[0], "the third year is as the first one"
