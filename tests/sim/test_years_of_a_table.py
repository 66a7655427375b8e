"""A topic's table over three years of compressed time: nothing grows but what is kept in it.

The steps are the real ones: seals, attaches, and tidying every few hours. Only the Parquet files
are stubs, and the topic is a list of ledgers. Seals are fewer than on a busy topic, and the limits
at which things are folded are smaller in the same measure; ``make chaos`` has more of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

import google_crc32c
import pytest

from pulsark.config import Settings
from pulsark.dispatch.tidying import Tidying
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.runtime import Runtime
from pulsark.storage.ledger_list import LedgerInfo
from pulsark.storage.table import checkpoint
from pulsark.storage.table.delta_log import DeltaLog
from pulsark.storage.table.process import Entries, TableProcess
from pulsark.storage.table.record import DataFile, table_path
from pulsark.storage.table.repair import log_state
from pulsark.storage.table.roots import StorageRoots
from pulsark.storage.table.seal_range import SealRange
from pulsark.storage.table.staging import ledger_directory
from pulsark.storage.table.table_limits import TableLimits
from pulsark.storage.table.tables import Tables
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.inline_table import InlineTable
from tests.support.tables import attached_files

NAME: Final = TopicName.parse("persistent://public/default/t")
TABLE_ID: Final = "0" * 31 + "1"
YEARS: Final = 3
DAY_SECONDS: Final = 86_400
LEDGERS_A_DAY: Final = 1
TIDIED_A_DAY: Final = 1
ENTRY_BYTES: Final = 10
TARGET_BYTES: Final = 1000
LOG_DAYS: Final = 7


LONG: Final = [pytest.mark.chaos, pytest.mark.timeout(3600)]


class YearsDisk(SimDisk):
    """Counts what an attach has to do."""

    listed = 0

    def list(self, path: str) -> list[str]:
        self.listed += 1
        return super().list(path)

    @property
    def inodes(self) -> int:
        return len(self._names) + len(self._dirs)


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


class Ledgers:
    """The topic's list of ledgers; it closes and forgets them as a topic does."""

    is_fenced = False

    def __init__(self) -> None:
        self.known: dict[int, LedgerInfo] = {}
        self.last = -1

    def ledger(self, ledger_id: int) -> LedgerInfo | None:
        return self.known.get(ledger_id)

    def append(self, now_ms: int) -> SealRange:
        found = self.known.get(self.last)
        if found is None or not found.open:
            self.last += 1
            found = LedgerInfo(self.last, 0, 0, 0, open=True)
        first = found.entries
        self.known[self.last] = LedgerInfo(self.last, first + 3, 30, now_ms, open=True)
        return SealRange(-1, self.last, first, first + 2, 30)

    async def close_ledger(self) -> None:
        found = self.known[self.last]
        self.known[self.last] = LedgerInfo(self.last, found.entries, 30, found.timestamp_ms)


@dataclass(frozen=True)
class Size:
    """What there is of a table at one moment."""

    record_bytes: int
    documents: int
    largest_document: int
    commits: int
    checkpoints: int
    data_files: int
    inodes: int
    attach_steps: int
    """Of the disk, at most, since the moment before."""


@dataclass
class Years:
    """A broker with one topic that is published to day after day."""

    runtime: Runtime
    disk: YearsDisk
    seals_a_day: int
    retention_days: int | None
    tree: MemoryTree = field(default_factory=MemoryTree)
    topic: Ledgers = field(default_factory=Ledgers)
    steps: int = 0

    def __post_init__(self) -> None:
        self.clock = self.sure_clock = self.runtime.clock
        self.metadata = MemoryMetadataStore(self.tree)
        self.settings = Settings(tableLogRetentionDays=LOG_DAYS, tableVacuumRetentionHours=24)
        self.tables = Tables(
            StorageRoots(("/root",)),
            self.metadata,
            self.runtime,
            new_process=self.new_process,
            limits=TableLimits(commits_folded=10 * self.seals_a_day),
        )
        self.tidying = Tidying(self, self.tables, self.entries)  # type: ignore[arg-type]

    def new_process(self) -> TableProcess:
        table = StubTable(self.disk)
        table.disk = self.disk
        return table

    async def entries(self, wanted: SealRange) -> AsyncIterator[Entries]:
        yield [(i, b"") for i in range(wanted.first, wanted.last + 1)]

    # What tidying asks a broker for.

    def loaded_topic(self, name: TopicName) -> Any:
        assert name == NAME
        return self

    @property
    def ledger(self) -> Ledgers:
        return self.topic

    # Time goes by.

    async def day(self) -> None:
        for seal in range(self.seals_a_day):
            await asyncio.sleep(DAY_SECONDS / self.seals_a_day)
            if seal % (self.seals_a_day // LEDGERS_A_DAY) == 0 and self.topic.known:
                await self.topic.close_ledger()
            wanted = self.topic.append(self.clock.now_ms())
            before, listed = self.disk.steps, self.disk.listed
            await self.tables.seal(NAME, TABLE_ID, [wanted], self.entries, TARGET_BYTES)
            assert self.disk.listed == listed or not self.steps, "an attach lists no directory"
            self.steps = max(self.steps, self.disk.steps - before)
            if seal % (self.seals_a_day // TIDIED_A_DAY) == 1:
                await self.tidy()
        if self.retention_days is not None:
            old_ms = self.clock.now_ms() - 1000 * DAY_SECONDS * self.retention_days
            kept = {i: k for i, k in self.topic.known.items() if k.open or k.timestamp_ms > old_ms}
            self.topic.known = kept

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
            len(record.value),
            len(documents),
            max(len(document.value) for document in documents if document is not None),
            len(log.versions()),
            len(log.checkpoints()),
            sum(path.endswith("-0.parquet") for path in self.disk.files()),
            self.disk.inodes,
            self.steps,
        )
        self.steps = 0
        return found

    async def is_sound(self) -> None:
        record = await self.tables.record(NAME)
        assert record is not None
        (directory,) = record.roots
        assert log_state(self.disk, record, directory) == "ok"
        _, files = attached_files(self.disk, directory)
        ends = {file.ledger_id: file.last_entry_id for file in files}
        assert ends == {i: info.entries - 1 for i, info in self.topic.known.items()}


def years(seals_a_day: int, retention_days: int | None) -> list[Size]:
    """The sizes after each year."""
    sizes = []
    with Simulation() as sim, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "CHECKPOINT_COMMITS", 20 * seals_a_day)
        disk = YearsDisk()

        async def main() -> None:
            run = Years(sim.runtime(disk), disk, seals_a_day, retention_days)
            for _ in range(YEARS):
                for _ in range(365):
                    await run.day()
                await run.tidy()
                await run.tidy()
                sizes.append(run.size())
                disk.trace.clear()
            await run.is_sound()

        sim.run(main())
    return sizes


def check(sizes: list[Size], seals_a_day: int, ledgers: int) -> None:
    last = sizes[-1]
    assert last.record_bytes < 2000
    assert last.largest_document < 300 * (seals_a_day + 20)
    assert last.documents <= ledgers
    assert last.data_files <= ledgers + 3 * seals_a_day
    assert last.commits <= 30 * seals_a_day
    assert last.checkpoints <= 11
    assert last.attach_steps <= sizes[0].attach_steps


@pytest.mark.parametrize(
    ("seals_a_day", "retention_days"),
    [
        (3, 10),
        pytest.param(3, None, marks=LONG),
        pytest.param(20, 30, marks=LONG),
    ],
)
def test_a_table_stays_small_for_three_years(seals_a_day: int, retention_days: int | None) -> None:
    sizes = years(seals_a_day, retention_days)
    days = retention_days or 365 * YEARS
    check(sizes, seals_a_day, LEDGERS_A_DAY * (days + 3))
    if retention_days is not None:
        others = [size.inodes - size.commits for size in sizes]
        assert others[-1] <= 1.1 * others[0], "the third year is as the first one"
