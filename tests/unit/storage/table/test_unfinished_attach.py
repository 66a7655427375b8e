"""What is believed of a table whose attach was decided, and not done at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from pulsark.errors import MetadataError
from pulsark.metadata.changes import Change
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import sealed_ledger_path, table_path
from pulsark.storage.table.files.record import RowChange
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.process.process import Entries
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.metadata import paths_of
from tests.sim.simulation import Simulation
from tests.support.inline_table import inline_tables
from tests.support.tables import entries

NAME = TopicName.parse("persistent://public/default/t")
TABLE_ID = "0123456789abcdef0123456789abcdef"
LEDGER = sealed_ledger_path(table_path(NAME), 5)
BEFORE, AFTER = entries(20), entries(40)[20:]


async def before(wanted: SealRange) -> AsyncIterator[Entries]:
    yield [(i, BEFORE[i]) for i in range(wanted.first, wanted.last + 1)]


async def after(wanted: SealRange) -> AsyncIterator[Entries]:
    yield [(i, AFTER[i]) for i in range(wanted.first, wanted.last + 1)]


class Store(MemoryMetadataStore):
    """It fails once at the document of a ledger, if it is told to."""

    fails = False

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        if self.fails and LEDGER in paths_of(changes):
            self.fails = False
            raise MetadataError("the disk is full")
        return await super().commit(changes)


def test_files_that_an_attach_replaced_are_not_read_any_more_although_it_was_done_later() -> None:
    async def main() -> None:
        store = Store(MemoryTree())
        tables = inline_tables(["/table"], store, sim.runtime(SimDisk()))
        await (await tables.open(NAME, TABLE_ID)).seal([SealRange(0, 5, 0, 19)], before, 1 << 20)
        old = await tables.sealed(NAME, 5)
        assert old is not None
        store.fails = True
        with pytest.raises(MetadataError, match="disk is full"):
            await (await tables.open(NAME, TABLE_ID)).rewrite(
                old, old.files, after, 1 << 20, RowChange.ERASE
            )
        await tables.read(NAME, 5, 0, 19, 1 << 20)  # who reads just now gets the one or the other
        await (await tables.open(NAME, TABLE_ID)).seal([SealRange(0, 7, 0, 9)], before, 1 << 20)
        new = await tables.sealed(NAME, 5)
        assert new is not None
        assert {file.path for file in new.files}.isdisjoint(file.path for file in old.files)
        found = await tables.read(NAME, 5, 0, 0, 1 << 20)
        sent = await tables.read(NAME, 7, 0, 0, 1 << 20)
        assert found[0][1] != sent[0][1], "entry 0 is the new one"

    with Simulation() as sim:
        sim.run(main())
