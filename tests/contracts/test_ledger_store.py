"""What every ``LedgerStore`` promises: run over each implementation."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import pytest

from pulsark.errors import (
    BadVersionError,
    LedgerFencedError,
    NoSuchLedgerError,
    OutcomeUnknownError,
    OwnershipLostError,
)
from pulsark.metadata.changes import Check
from pulsark.metadata.guarded import GuardedMetadataStore
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.storage.ledger import decisions
from pulsark.storage.ledger.metadata import Ensemble, LedgerConfig, LedgerMetadata, LedgerState
from pulsark.storage.ledger.store import LedgerStore, MetadataLedgerStore, StoredLedger
from tests.sim.simulation import Simulation
from tests.support.faulty_metadata import TURNS_LATE, Fate, FaultyStore
from tests.support.ledgers import simulate

UNHEARD = (Fate.NEVER, Fate.UNHEARD, Fate.LATE)
FIRST = Ensemble(0, 0, ("a", "b", "c"))
SECOND = Ensemble(10, 999, ("a", "d", "c"))


class Ledgers(Protocol):
    """One implementation: as many processes as a test likes, over the same ledgers."""

    def store(self) -> LedgerStore:
        """As one more process has it."""

    def guarding(self) -> MetadataStore:
        """A metadata store that the views of a store can have a guard in."""


class Json:
    """In the metadata store."""

    def __init__(self) -> None:
        self.tree = MemoryTree()

    def store(self) -> LedgerStore:
        return MetadataLedgerStore(MemoryMetadataStore(self.tree))

    def guarding(self) -> MetadataStore:
        return MemoryMetadataStore(self.tree)


Scenario = Callable[[Ledgers], Awaitable[None]]


@pytest.fixture(params=["json"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs a scenario on new ledgers."""

    def run_it(scenario: Scenario) -> None:
        async def main() -> None:
            await scenario(Json())

        asyncio.run(main())

    return run_it


def opened(ledger_id: int, ensemble: Ensemble = FIRST) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id, LedgerConfig(3, 3, 2, owner="/o"), LedgerState.OPEN, (ensemble,), 17
    )


async def created(ledgers: LedgerStore) -> StoredLedger:
    return await ledgers.create(opened(await ledgers.new_id()))


async def found(ledgers: LedgerStore, ledger_id: int) -> LedgerMetadata:
    stored = await ledgers.get(ledger_id)
    assert stored is not None
    return stored.metadata


def test_ids_ascend_whoever_asks(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: Ledgers) -> None:
        stores = [world.store(), world.store()]
        ids = [await stores[n % 2].new_id() for n in range(6)]
        ids += await asyncio.gather(*(stores[n % 2].new_id() for n in range(6)))
        assert ids[:6] == sorted(set(ids[:6]))
        assert len(set(ids)) == 12
        assert max(ids[:6]) < min(ids[6:])

    run(scenario)


def test_what_was_created_is_found(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: Ledgers) -> None:
        ours, theirs = world.store(), world.store()
        stored = await created(ours)
        assert await theirs.get(stored.metadata.ledger_id) == stored
        assert stored.metadata.config.owner == "/o"
        assert await theirs.get(stored.metadata.ledger_id + 1) is None
        attached = LedgerMetadata(
            await ours.new_id(), LedgerConfig(owner="/o"), LedgerState.CLOSED, (), 17, 41, 1000
        )
        await ours.create(attached)
        again = await found(theirs, attached.ledger_id)
        assert again.is_attached
        assert (again.last_entry_id, again.length) == (41, 1000)

    run(scenario)


def test_an_id_has_one_ledger(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: Ledgers) -> None:
        ours, theirs = world.store(), world.store()
        stored = await created(ours)
        with pytest.raises(BadVersionError):
            await theirs.create(replace(stored.metadata, created_ms=18))
        assert await theirs.get(stored.metadata.ledger_id) == stored

    run(scenario)


def test_a_life_is_as_it_was_decided(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: Ledgers) -> None:
        ours, theirs = world.store(), world.store()
        stored = await created(ours)
        ledger_id = stored.metadata.ledger_id
        stored = await ours.update(stored, decisions.change_ensemble(FIRST, SECOND))
        assert await theirs.get(ledger_id) == stored
        assert [e.bookies for e in stored.metadata.ensembles] == [FIRST.bookies, SECOND.bookies]
        stored = await ours.update(stored, decisions.close(20, 1234))
        assert await theirs.get(ledger_id) == stored
        assert (stored.metadata.last_entry_id, stored.metadata.length) == (20, 1234)
        assert await ours.update(stored, decisions.close(20, 1234)) == stored, "nothing to write"

    run(scenario)


def test_a_decision_is_made_again_about_what_others_wrote(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(world: Ledgers) -> None:
        ours, repair = world.store(), world.store()
        first = await created(ours)
        second = await ours.update(first, decisions.change_ensemble(FIRST, SECOND))
        repaired = await repair.update(second, decisions.replace_lost(0, "b", "e"))
        assert repaired.metadata.ensembles[0].bookies == ("a", "e", "c")
        closed = await ours.update(second, decisions.close(20, 7))
        assert closed.metadata.ensembles[0].bookies == ("a", "e", "c")
        assert await found(repair, closed.metadata.ledger_id) == closed.metadata

    run(scenario)


def test_who_knows_an_old_version_hears_what_is_decided_of_the_new_one(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(world: Ledgers) -> None:
        writer, recovery = world.store(), world.store()
        old = await created(writer)
        stored = await recovery.update(old, decisions.start_recovery)
        for change in (decisions.close(20, 7), decisions.change_ensemble(FIRST, SECOND)):
            with pytest.raises(LedgerFencedError):
                await writer.update(old, change)
        assert await writer.get(old.metadata.ledger_id) == stored
        end = decisions.end_recovery(stored.metadata, (FIRST,), 5, 50)
        ended = await recovery.update(stored, end)
        again = await writer.update(
            stored, decisions.end_recovery(stored.metadata, (SECOND,), 6, 60)
        )
        assert again == ended, "the end that was found first holds"

    run(scenario)


def test_updates_at_the_same_time_are_all_made(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: Ledgers) -> None:
        ours = world.store()
        members = tuple(f"b{n}" for n in range(3))
        stored = await ours.create(opened(await ours.new_id(), Ensemble(0, 0, members)))
        stored = await ours.update(
            stored, decisions.change_ensemble(stored.metadata.ensembles[0], SECOND)
        )
        known = stored
        await asyncio.gather(
            *(
                world.store().update(known, decisions.replace_lost(0, f"b{n}", f"c{n}"))
                for n in range(3)
            )
        )
        metadata = await found(ours, stored.metadata.ledger_id)
        assert metadata.ensembles[0].bookies == ("c0", "c1", "c2")

    run(scenario)


def test_a_deleted_ledger_is_gone(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: Ledgers) -> None:
        ours, theirs = world.store(), world.store()
        stored = await created(ours)
        ledger_id = stored.metadata.ledger_id
        await theirs.update(stored, decisions.start_recovery)
        await ours.delete(ledger_id)
        assert await theirs.get(ledger_id) is None
        await theirs.delete(ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await ours.update(stored, decisions.close(0, 0))
        assert await ours.new_id() > ledger_id

    run(scenario)


def test_who_has_lost_the_guard_writes_nothing(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: Ledgers) -> None:
        metadata, ours = world.guarding(), world.store()
        assert not ours.has_owner
        await ours.check_owner()
        version = await metadata.put("/guard", b"", ABSENT)
        lost: list[bool] = []
        guarded = GuardedMetadataStore(
            metadata, Check("/guard", version), lambda: lost.append(True)
        )
        view = ours.over(guarded)
        assert view.has_owner
        await view.check_owner()
        stored = await created(view)
        assert not lost
        await metadata.put("/guard", b"another", version)
        next_id = await view.new_id()
        for write in (
            view.create(opened(next_id)),
            view.update(stored, decisions.start_recovery),
            view.delete(stored.metadata.ledger_id),
            view.check_owner(),
        ):
            with pytest.raises(OwnershipLostError):
                await write
        assert len(lost) == 4
        assert await view.get(stored.metadata.ledger_id) == stored, "reading is for everybody"
        assert await ours.get(next_id) is None

    run(scenario)


# Answers that are lost. These are rules of the loop, not of a server: one implementation shows it.


async def long_enough() -> None:
    for _ in range(2 * TURNS_LATE):
        await asyncio.sleep(0)


@pytest.mark.parametrize("fates", list(itertools.product(UNHEARD, repeat=2)), ids=str)
@pytest.mark.parametrize("change", ["create", "ensemble", "close", "recovery"])
def test_a_change_is_made_once_whatever_is_heard(fates: tuple[Fate, ...], change: str) -> None:
    async def scenario(_: Simulation) -> None:
        tree = MemoryTree()
        faulty = FaultyStore(tree)
        ours, other = MetadataLedgerStore(faulty), MetadataLedgerStore(MemoryMetadataStore(tree))
        before = await other.create(opened(7))
        if change == "create":
            await other.delete(7)
        faulty.fates.extend(fates)
        if change == "create":
            stored = await ours.create(before.metadata)
            assert stored.metadata == before.metadata
        else:
            decide = {
                "ensemble": decisions.change_ensemble(FIRST, SECOND),
                "close": decisions.close(3, 4),
                "recovery": decisions.start_recovery,
            }[change]
            stored = await ours.update(before, decide)
            assert stored == StoredLedger(decide(before.metadata), before.version + 1)
        await long_enough()
        assert await other.get(7) == stored, "and no late one counts"

    simulate(scenario)


def test_an_unheard_change_is_decided_anew_if_another_came_first() -> None:
    async def scenario(_: Simulation) -> None:
        tree = MemoryTree()
        faulty = FaultyStore(tree)
        ours, other = MetadataLedgerStore(faulty), MetadataLedgerStore(MemoryMetadataStore(tree))
        before = await other.create(opened(7))
        faulty.fates.append(Fate.NEVER)
        task = asyncio.create_task(ours.update(before, decisions.close(3, 4)))
        await long_enough()
        in_recovery = await other.update(before, decisions.start_recovery)
        with pytest.raises(LedgerFencedError):
            await task
        assert await other.get(7) == in_recovery

    simulate(scenario)


def test_what_stays_unheard_ends_as_unknown() -> None:
    async def scenario(_: Simulation) -> None:
        faulty = FaultyStore(MemoryTree())
        ours = MetadataLedgerStore(faulty)
        before = await ours.create(opened(7))
        faulty.fates.extend([Fate.NEVER] * 1000)
        with pytest.raises(OutcomeUnknownError):
            await ours.create(opened(8))
        with pytest.raises(OutcomeUnknownError):
            await ours.update(before, decisions.start_recovery)
        assert await ours.get(7) == before

    simulate(scenario)


def test_a_foreign_ledger_of_the_same_id_is_not_taken_for_ours() -> None:
    async def scenario(_: Simulation) -> None:
        tree = MemoryTree()
        faulty = FaultyStore(tree)
        ours, other = MetadataLedgerStore(faulty), MetadataLedgerStore(MemoryMetadataStore(tree))
        faulty.fates.append(Fate.NEVER)
        task = asyncio.create_task(ours.create(opened(7)))
        await long_enough()
        theirs = await other.create(opened(7, FIRST.with_bookie("b", "x")))
        with pytest.raises(BadVersionError):
            await task
        assert await other.get(7) == theirs

    simulate(scenario)
