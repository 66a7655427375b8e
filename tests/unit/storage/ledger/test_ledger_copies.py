"""Reads beside a bookie that is slow: another copy is asked in time, and first from then on."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.errors import CorruptEntryError, NoSuchEntryError, StorageError
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.storage.ledger.copies import PATIENCE_SECONDS
from pulsark.storage.ledger.manager import LedgerConfig, LedgerManager
from pulsark.storage.ledger.placement import SLOW_SECONDS
from tests.sim.simulation import Simulation
from tests.support.ledgers import Cluster, Writes, simulate

ALL = 10**9
ENTRIES = [(0, b"a"), (1, b"b")]


async def written(cluster: Cluster, size: int = 3, quorum: int = 3) -> LedgerManager:
    """A closed ledger 0 with two entries."""
    manager = cluster.manager()
    writer = await manager.create(LedgerConfig(size, quorum, quorum), Writes())
    writer.append([payload for _, payload in ENTRIES])
    await writer.close()
    return manager


def in_order(cluster: Cluster) -> list[str]:
    """The bookies as they are asked for entry 0."""
    return list(cluster.stored().ensembles[0].bookies)


def test_a_read_waits_for_a_bookie_that_hangs_only_as_long_as_its_patience() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        manager = await written(cluster)
        cluster.bookies[in_order(cluster)[0]].hang()
        began = sim.loop.time()
        assert await manager.read(0, 0, ALL, 100) == ENTRIES
        assert sim.loop.time() - began == pytest.approx(PATIENCE_SECONDS)

    simulate(main)


def test_each_further_bookie_that_hangs_costs_as_much() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        manager = await written(cluster)
        for name in in_order(cluster)[:2]:
            cluster.bookies[name].hang()
        began = sim.loop.time()
        assert await manager.read(0, 0, ALL, 100) == ENTRIES
        assert sim.loop.time() - began == pytest.approx(2 * PATIENCE_SECONDS)

    simulate(main)


def test_a_bookie_that_was_slow_is_asked_last_for_a_while() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        manager = await written(cluster)
        slow = cluster.bookies[in_order(cluster)[0]]
        slow.hang()
        await manager.read(0, 0, ALL, 100)
        slow.go_on()
        began = sim.loop.time()
        await manager.read(0, 0, ALL, 100)
        assert sim.loop.time() == began, "it was waited for again"
        assert slow.reads == 0
        await asyncio.sleep(SLOW_SECONDS)
        await manager.read(0, 0, ALL, 100)
        assert slow.reads == 1

    simulate(main)


def test_the_answer_that_comes_first_counts_also_if_it_is_the_slow_one_s() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        manager = await written(cluster)
        for bookie in cluster.all:
            bookie.hang()
        read = asyncio.create_task(manager.read(0, 0, ALL, 100))
        await asyncio.sleep(1.5 * PATIENCE_SECONDS)
        first, second, third = (cluster.bookies[name] for name in in_order(cluster))
        first.go_on()
        assert await read == ENTRIES
        second.go_on()
        third.go_on()
        await asyncio.sleep(0)
        assert (first.reads, second.reads, third.reads) == (1, 0, 0)

    simulate(main)


@pytest.mark.parametrize(
    ("fault", "kind"), [("lose", NoSuchEntryError), ("corrupt", CorruptEntryError)]
)
def test_an_entry_is_not_absent_before_the_slow_bookie_says_so(
    fault: str, kind: type[StorageError]
) -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 2)
        manager = await written(cluster, 2, 2)
        slow, quick = (cluster.bookies[name] for name in in_order(cluster))
        slow.hang()
        quick.lose(0, 1)
        read = asyncio.create_task(manager.read(0, 1, 1, 100))
        await asyncio.sleep(10 * PATIENCE_SECONDS)
        assert not read.done()
        (slow.lose if fault == "lose" else slow.corrupt)(0, 1)
        slow.go_on()
        with pytest.raises(StorageError) as caught:
            await read
        assert type(caught.value) is kind

    simulate(main)


def test_a_caller_that_goes_takes_all_its_questions_with_it() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        manager = await written(cluster)
        for bookie in cluster.all:
            bookie.hang()
        read = asyncio.create_task(manager.read(0, 0, ALL, 100))
        await asyncio.sleep(1.5 * PATIENCE_SECONDS)
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    simulate(main)


def test_with_a_patience_of_0_a_bookie_is_asked_only_when_the_one_before_failed() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await written(cluster)
        store = MemoryMetadataStore(cluster.tree)
        manager = LedgerManager(store, cluster.bookies, cluster.runtime, patience=0)
        first, second, _ = (cluster.bookies[name] for name in in_order(cluster))
        first.hang()
        read = asyncio.create_task(manager.read(0, 0, ALL, 100))
        await asyncio.sleep(100 * PATIENCE_SECONDS)
        assert (read.done(), second.reads) == (False, 0)
        first.down = True
        first.go_on()
        assert await read == ENTRIES

    simulate(main)


def test_a_stripe_of_a_bookie_that_hangs_is_read_from_its_other_copies() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 4)
        manager = await written(cluster, 4, 2)
        cluster.bookies[in_order(cluster)[0]].hang()
        began, found = sim.loop.time(), []
        while len(found) < 2:
            found += await manager.read(0, len(found), ALL, 100)
        assert found == ENTRIES
        assert sim.loop.time() - began == pytest.approx(PATIENCE_SECONDS)

    simulate(main)


@pytest.mark.parametrize("hanging", [1, 2, 3])
def test_who_reads_another_s_open_ledger_waits_for_no_bookie_that_hangs(hanging: int) -> None:
    """What is confirmed is asked of all, and one answer is enough."""

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        writer = await cluster.manager().create(LedgerConfig(3, 3, 3), Writes())
        for _, payload in ENTRIES:
            writer.append([payload])
            await writer.drained()
        for name in in_order(cluster)[:hanging]:
            cluster.bookies[name].hang()
        reader = cluster.manager()
        read = asyncio.create_task(reader.read(0, 0, ALL, 100))
        await asyncio.sleep(1.5 * PATIENCE_SECONDS)
        if hanging == 3:
            assert not read.done()
            for bookie in cluster.all:
                bookie.go_on()
        assert await read == ENTRIES[:1], "with the second entry came that the first is confirmed"
        began = sim.loop.time()
        assert await reader.read(0, 0, ALL, 100) == ENTRIES[:1]
        assert sim.loop.time() == began, "it is known by now who is slow"

    simulate(main)
