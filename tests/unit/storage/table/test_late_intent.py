"""An attach whose intent comes later than those who ask for it, or after another owner."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from pulsark.errors import (
    BadVersionError,
    LedgerFencedError,
    OutcomeUnknownError,
    StorageError,
)
from pulsark.metadata.changes import Change, Put
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import table_path
from pulsark.metadata.store import Versioned
from pulsark.schemas.column_types import BINARY
from pulsark.storage.table.attach import TableOwner
from pulsark.storage.table.files.record import DataFile, TableRecord
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation

PATH = table_path(TopicName.parse("persistent://public/default/t"))
TABLE_ID = "0" * 31 + "1"
ROOT = "/root/public/default/t"
FILE = "partition=-1/ledger_id=1/part-0-n-0.parquet"


class LateStore(MemoryMetadataStore):
    """The write of the intent is answered by nobody, and made after the record was read once; as a
    server that was stopped makes it when it goes on."""

    def __init__(self, tree: MemoryTree, *, first: bool) -> None:
        """``first``: it is made before anything else is written."""
        super().__init__(tree)
        self.late: Sequence[Change] | None = None
        self.loses = False
        self._first = first

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        if self.loses and any(isinstance(c, Put) and c.path == PATH for c in changes):
            self.loses = False
            self.late = changes
            raise OutcomeUnknownError("no answer")
        if self._first:
            await self._make()
        versions = await super().commit(changes)
        await self._make()
        return versions

    async def get(self, path: str) -> Versioned | None:
        found = await super().get(path)
        if path == PATH:
            await self._make()
        return found

    async def _make(self) -> None:
        late, self.late = self.late, None
        if late is not None:
            with suppress(BadVersionError):
                await super().commit(late)


@pytest.mark.parametrize("first", [False, True])
def test_what_is_said_of_an_intent_stays_true_when_its_write_comes_late(first: bool) -> None:
    disk, tree = SimDisk(), MemoryTree()
    told: list[bool | None] = []

    async def reserve() -> list[DataFile]:
        disk.edit(f"{ROOT}/{FILE}", b"rows")
        store.loses = True
        return [DataFile(FILE, -1, 1, 0, 0, 1, 4, 0, {})]

    async def decided(exist: bool | None) -> None:
        told.append(exist)

    with Simulation() as sim:
        store = LateStore(tree, first=first)

        async def main() -> None:
            runtime = sim.runtime(disk)
            owner = await TableOwner.open(
                PATH, TABLE_ID, [ROOT], store, runtime, runtime.new_worker("table")
            )
            with suppress(StorageError):
                assert await owner.publish("query", 1, reserve, decided, BINARY)

        sim.run(main())

        async def stored() -> TableRecord:
            found = await MemoryMetadataStore(tree).get(PATH)
            assert found is not None
            return TableRecord.decode(PATH, found.value)

        record = sim.run(stored())
        assert told == [record.attached == 1]


@pytest.mark.parametrize("publishes", [False, True])
def test_who_lost_the_table_knows_that_nothing_was_attached(publishes: bool) -> None:
    disk, tree = SimDisk(), MemoryTree()
    told: list[bool | None] = []
    file = DataFile(FILE, -1, 1, 0, 0, 1, 4, 0, {})
    disk.edit(f"{ROOT}/{FILE}", b"rows")

    async def decided(exist: bool | None) -> None:
        told.append(exist)

    async def reserve() -> list[DataFile]:
        await open_table()
        return [file]

    with Simulation() as sim:
        store, runtime = MemoryMetadataStore(tree), sim.runtime(disk)

        async def open_table() -> TableOwner:
            return await TableOwner.open(
                PATH, TABLE_ID, [ROOT], store, runtime, runtime.new_worker("table")
            )

        async def main() -> None:
            before = await open_table()
            if publishes:
                with pytest.raises(LedgerFencedError):
                    await before.publish("query", 1, reserve, decided, BINARY)
                return
            after = await open_table()
            with pytest.raises(LedgerFencedError):
                await before.attach([file], decided=decided)
            assert after.record.attached == 0

        sim.run(main())
    assert told == [False]
