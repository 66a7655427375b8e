"""Sealing finds its way around what makes it fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from pulsark.errors import (
    ProcessEndedError,
    SealedApartError,
    StorageFullError,
    UnsealableError,
)
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.storage.table import seal_attempts
from pulsark.storage.table.files.record import RowChange, SealedLedger
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.process.process import Entries, Piece, Reply
from pulsark.storage.table.process.reader import TableReader
from pulsark.storage.table.tables import Tables
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.client_view import client_view
from tests.support.inline_table import InlineTable, inline_tables
from tests.support.tables import entries

NAME = TopicName.parse("persistent://public/default/t")
TABLE_ID = "0123456789abcdef0123456789abcdef"
ORIGINALS = entries(40)


class Picky:
    """Makes table processes fail at some entries of ledger 5, unless these are kept as sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, poison: Collection[int]) -> None:
        self.poison = set(poison)
        self.kills = False
        """Whether they die of it."""
        self.always = False
        """Whether they fail at what is kept as sent, too."""
        exchange = InlineTable._exchange

        async def failing(
            table: InlineTable,
            request: dict[str, Any],
            pieces: AsyncIterator[Piece] | None = None,
        ) -> Reply:
            reply = await exchange(table, request, pieces)
            files = reply[0].get("files", ())
            ids = {i for f in files for i in range(f["entries"][0], f["entries"][1] + 1)}
            hit = request["op"] == "seal" and request["ledgerId"] == 5 and self.poison & ids
            if hit and (self.always or not request["asSent"]):
                if self.kills:
                    raise ProcessEndedError("the table process ended")
                return {"error": "UnsealableError", "message": "ZeroDivisionError"}, []
            return reply

        monkeypatch.setattr(InlineTable, "_exchange", failing)


async def pieces(wanted: SealRange) -> AsyncIterator[Entries]:
    yield [(i, ORIGINALS[i]) for i in range(wanted.first, wanted.last + 1)]


class Sealed:
    """Tables on a disk in memory."""

    def __init__(self, sim: Simulation) -> None:
        self.disk = SimDisk()
        runtime = sim.runtime(self.disk)
        self.metadata = MemoryMetadataStore(MemoryTree())
        self.tables: Tables = inline_tables(["/table"], self.metadata, runtime)
        self.directory = f"/table/public/default/{TABLE_ID}"

    async def seal(self, *ranges: SealRange) -> None:
        """What fails among others is sealed apart."""
        for last in (False, True):
            try:
                await (await self.tables.open(NAME, TABLE_ID)).seal(ranges, pieces, 1 << 20)
            except SealedApartError:
                assert not last
            else:
                break

    async def check(self, ledger_id: int, through: int, as_sent: Collection[int] = ()) -> None:
        sealed = await self.tables.sealed(NAME, ledger_id) or SealedLedger(ledger_id, 0)
        assert sealed.through == through
        reader = TableReader([self.directory], self.disk)
        found: list[tuple[int, bytes]] = []
        while len(found) <= through:
            found += reader.read(sealed, len(found), through, 1 << 20)
        for (entry_id, again), original in zip(found, ORIGINALS, strict=False):
            assert client_view(again) == client_view(original)
            assert entry_id not in as_sent or again == original
        staged = {name for name in self.disk.files() if f"ledger_id={ledger_id}/" in name}
        assert staged == {f"{self.directory}/{file.path}" for file in sealed.files}


WHOLE = SealRange(0, 5, 0, 39)


@pytest.mark.parametrize("poison", [[0], [39], [17], [3, 4, 30], range(30, 36)])
@pytest.mark.parametrize("kills", [False, True])
def test_entries_at_which_sealing_fails_are_kept_as_sent_and_the_others_are_sealed(
    monkeypatch: pytest.MonkeyPatch, poison: Collection[int], kills: bool
) -> None:
    async def main() -> None:
        table = Sealed(sim)
        Picky(monkeypatch, poison).kills = kills
        await table.seal(WHOLE)
        await table.check(5, 39, poison)

    with Simulation() as sim:
        sim.run(main())


def test_an_entry_that_cannot_be_sealed_at_all_holds_back_what_is_behind_it_in_its_ledger_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        table = Sealed(sim)
        picky = Picky(monkeypatch, [17])
        picky.always = True
        other = SealRange(1, 7, 0, 9)
        with pytest.raises(UnsealableError, match="entry 5:17 cannot be sealed"):
            await table.seal(WHOLE)
        await table.check(5, 16)
        with pytest.raises(UnsealableError, match="entry 5:17 cannot be sealed"):
            await table.seal(SealRange(0, 5, 17, 39), other)
        await table.check(5, 16)
        await table.check(7, 9)
        picky.always = False
        await table.seal(SealRange(0, 5, 17, 39))
        await table.check(5, 39, [17])

    with Simulation() as sim:
        sim.run(main())


def test_a_process_that_was_killed_once_is_no_reason_to_suspect_an_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        table = Sealed(sim)
        Picky(monkeypatch, [])
        process: Any = table.tables.processes.normal
        process.failure = ProcessEndedError("killed")
        await table.seal(WHOLE)
        alone: Any = table.tables.processes.alone
        assert [request["asSent"] for request in process.requests + alone.requests] == [False] * 2
        await table.check(5, 39)

    with Simulation() as sim:
        sim.run(main())


def test_it_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(seal_attempts, "FAILURES_MAX", 3)
        table = Sealed(sim)
        Picky(monkeypatch, range(40))
        with pytest.raises(UnsealableError):
            await table.seal(WHOLE)
        process: Any = table.tables.processes.alone
        assert len(process.requests) == 4
        assert not [name for name in table.disk.files() if name.endswith(".parquet")]

    with Simulation() as sim:
        sim.run(main())


def test_what_takes_the_place_of_files_is_whole_or_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        table = Sealed(sim)
        await table.seal(SealRange(0, 5, 0, 20))
        await table.seal(SealRange(0, 5, 21, 39))
        before = await table.tables.sealed(NAME, 5)
        assert before is not None
        picky = Picky(monkeypatch, [25])
        picky.always = True
        for _ in range(2):
            with pytest.raises((SealedApartError, UnsealableError)):
                await (await table.tables.open(NAME, TABLE_ID)).merge(before.files, pieces, 1 << 20)
        picky.poison = set()
        table.disk.capacity = table.disk.used() + 100
        with pytest.raises(StorageFullError):
            await (await table.tables.open(NAME, TABLE_ID)).rewrite(
                before, before.files, pieces, 1 << 20, RowChange.MERGE
            )
        assert await table.tables.sealed(NAME, 5) == before
        await table.check(5, 39)

    with Simulation() as sim:
        sim.run(main())
