"""What is done to a table while something else is done to it, by its owner or by the next one.

The test stops an action before or after a call of the metadata store or of a table process, starts
another action, and lets both go on. Afterwards logs, files and the metadata store agree on one of
the states that the two actions lead to one after the other. An action that failed may have had its
effect, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any, Final, cast

import pytest

from pulsark.errors import PulsarkError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.runtime import Runtime
from pulsark.schemas.column_types import BINARY
from pulsark.storage.table.files.record import DataFile, RowChange, SealedLedger, table_directory
from pulsark.storage.table.files.seal import seal
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.log.log_sum import log_sum
from pulsark.storage.table.process.process import Entries
from pulsark.storage.table.table import Table
from pulsark.storage.table.tables import Tables
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.client_view import client_view
from tests.support.gates import Gate, Gated, outcomes, settle, with_change
from tests.support.inline_table import InlineTable, inline_tables
from tests.support.tables import entries

SECONDS_MAX: Final = 600.0
NAME: Final = TopicName.parse("persistent://public/default/t")
TABLE_ID: Final = "0123456789abcdef0123456789abcdef"
ROOTS: Final = ("/root-1", "/root-2")
DIRECTORIES: Final = [table_directory(root, NAME, TABLE_ID) for root in ROOTS]
LEDGERS: Final = {5: entries(12, 5), 7: entries(8, 7), 9: entries(4, 9)}
BULK: Final = 9
"""The ledger that is published in bulk."""

State = dict[int, int]
"""By ledger, how many of its entries are in the table."""
BEGIN: Final[State] = {5: 8, 7: 4}


async def sent(wanted: SealRange) -> AsyncIterator[Entries]:
    yield [(i, LEDGERS[wanted.ledger_id][i]) for i in range(wanted.first, wanted.last + 1)]


@dataclass
class Stage:
    """A table with three files; its owner, and whoever may be the next one."""

    runtime: Runtime
    tree: MemoryTree
    gate: Gate

    def __post_init__(self) -> None:
        self.tables = self.new_owner()

    def new_owner(self) -> Tables:
        def made(table: InlineTable) -> None:
            table.gate = self.gate

        store = cast("Any", Gated(MemoryMetadataStore(self.tree), self.gate))
        return inline_tables(ROOTS, store, self.runtime, made, copies=2, copies_needed=2)

    async def table(self) -> Table:
        return await self.tables.open(NAME, TABLE_ID)

    async def sealed(self, ledger_id: int) -> SealedLedger:
        found = await self.tables.sealed(NAME, ledger_id)
        return found or SealedLedger(ledger_id, -1)

    async def seal(self, ledger_id: int, first: int, last: int) -> None:
        await (await self.table()).seal([SealRange(-1, ledger_id, first, last)], sent, 1 << 20)

    async def found(self) -> State:
        """Return what a new owner finds. Logs, files and the metadata store have to agree."""
        tables = inline_tables(
            ROOTS, MemoryMetadataStore(self.tree), self.runtime, copies=2, copies_needed=2
        )
        record = (await tables.open(NAME, TABLE_ID)).record
        assert not record.pending
        ledgers = await tables.ledgers(NAME)
        files = [file for each in ledgers for file in each.files]
        for directory in DIRECTORIES:
            log = log_sum(self.runtime.disk, directory)
            assert {path for path, _ in log.files} == {file.path for file in files}
            for file in files:
                assert self.runtime.disk.size(f"{directory}/{file.path}") == file.size
        state: State = {}
        for each in ledgers:
            if not each.files:
                continue
            originals = LEDGERS[each.ledger_id][: each.through + 1]
            got: Entries = []
            while len(got) < len(originals):
                got += await tables.read(NAME, each.ledger_id, len(got), each.through, 1 << 20)
            for (entry_id, again), original in zip(got, originals, strict=True):
                assert client_view(again) == client_view(original), (each.ledger_id, entry_id)
            state[each.ledger_id] = len(originals)
        return state


@dataclass(frozen=True)
class Action:
    do: Callable[[Stage], Awaitable[object]]
    effect: Callable[[State], State | None]


async def seals(stage: Stage, ledger_id: int, first: int, last: int) -> None:
    await stage.seal(ledger_id, first, last)


def sealed(state: State, ledger_id: int, first: int, last: int) -> State | None:
    if state.get(ledger_id, 0) != first:
        return None
    return {**state, ledger_id: last + 1}


async def merges(stage: Stage) -> None:
    files = (await stage.sealed(5)).files
    await (await stage.table()).merge(files, sent, 1 << 20)


async def rewrites(stage: Stage) -> None:
    """Rewrite a file as an erasure does."""
    found = await stage.sealed(5)
    table = await stage.table()
    await table.rewrite(found, found.files[:1], sent, 1 << 20, RowChange.ERASE)


async def removes(stage: Stage) -> None:
    found = await stage.sealed(7)
    if found.files:
        await (await stage.table()).remove(found)


async def publishes(stage: Stage) -> None:
    owner = (await stage.table()).owner

    async def reserve() -> list[DataFile]:
        rows, disk = list(enumerate(LEDGERS[BULK])), stage.runtime.disk
        return seal(rows, -1, BULK, DIRECTORIES, disk, f"n{stage.runtime.rng.random()}")

    async def decided(exist: bool | None) -> None:
        """Nobody has listed the ledger."""

    await owner.publish("query", 1, reserve, decided, BINARY)


async def goes_to_another_broker(stage: Stage) -> None:
    """Let another broker own the table. Actions of the former owner may still go on."""
    stage.tables = stage.new_owner()
    await stage.table()


def another(action: Action) -> Action:
    """The same, by the next owner."""

    async def do(stage: Stage) -> None:
        await goes_to_another_broker(stage)
        await action.do(stage)

    return Action(do, action.effect)


def sealing(ledger_id: int, first: int, last: int) -> Action:
    ends = {"ledger_id": ledger_id, "first": first, "last": last}
    return Action(partial(seals, **ends), partial(sealed, **ends))


ACTIONS: Final = {
    "sealing 5": sealing(5, 8, 11),
    "sealing 7": sealing(7, 4, 7),
    "sealing 5 elsewhere": another(sealing(5, 8, 11)),
    "merging": Action(merges, lambda state: state),
    "merging elsewhere": another(Action(merges, lambda state: state)),
    "rewriting": Action(rewrites, lambda state: state),
    "removing 7": Action(removes, lambda state: {n: c for n, c in state.items() if n != 7}),
    "publishing": Action(publishes, lambda state: {**state, BULK: 4}),
    "another owner": Action(goes_to_another_broker, lambda state: state),
}


async def attempt(action: Action, stage: Stage, who: int, failed: set[int]) -> None:
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await action.do(stage)
    except PulsarkError:
        failed.add(who)


async def a_table_process_rests() -> None:
    """Let a table process come to rest, too."""
    await settle()
    await asyncio.sleep(0.1)


async def at(place: int, runtime: Runtime, name: str, other: str) -> bool:
    """Stop an action at a place, and let another one come; whether there is such a place."""
    gate = Gate(place, armed=False)
    stage = Stage(runtime, MemoryTree(), gate)
    for wanted in ((5, 0, 3), (5, 4, 7), (7, 0, 3)):
        await stage.seal(*wanted)
    gate.armed = True
    failed: set[int] = set()
    operation = attempt(ACTIONS[name], stage, 0, failed)
    if not await with_change(
        gate, operation, lambda: attempt(ACTIONS[other], stage, 1, failed), a_table_process_rests
    ):
        return False
    found = await stage.found()
    effects = [ACTIONS[name].effect, ACTIONS[other].effect]
    states = list(outcomes(BEGIN, effects, failed))
    where = f"{name} at place {place}, then {other}, of which {failed or 'none'} failed"
    assert found in states, f"{where}: {found} is none of {states}"
    return True


@pytest.mark.parametrize("name", ACTIONS)
def test_what_comes_meanwhile_comes_before_or_after(name: str) -> None:
    tried = 0
    for number, other in enumerate(ACTIONS):
        for place in chain(range(number % 3, 9, 3), count(9 + number % 10, 10)):
            with Simulation() as sim:
                if not sim.run(at(place, sim.runtime(SimDisk()), name, other)):
                    break
            tried += 1
    assert tried >= len(ACTIONS)
