"""BookKeeper's auto-recovery beside our writers: it repairs what we wrote, and we go on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsark.errors import LedgerFencedError
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.storage.bookkeeper.registry import BookieRegistry
from pulsark.storage.ledger.manager import LedgerConfig, LedgerManager
from pulsark.storage.ledger.metadata import LedgerMetadata
from tests.support.bookkeeper import Cluster, ledgers_of, read_all, running
from tests.support.ledgers import Writes
from tests.support.zookeeper import below_a_root_of_its_own

pytestmark = pytest.mark.chaos

REPAIR_SECONDS = 180
ROUNDS = 12


@pytest.fixture
def cluster(shared_zookeeper: ZooKeeperAddress, tmp_path: Path) -> Iterator[Cluster]:
    """Five bookies, and what repairs copies that are lost."""
    with running(below_a_root_of_its_own(shared_zookeeper), tmp_path, 5) as cluster:
        repair = cluster.auto_recovery(
            openLedgerRereplicationGracePeriod=10_000, rwRereplicateBackoffMs=500
        )
        repair.start()
        try:
            yield cluster
        finally:
            repair.process.kill()


async def without(ledgers: LedgerManager, ledger_id: int, bookie_id: str) -> LedgerMetadata:
    """The ledger's metadata once they do not name the bookie any more."""
    async with asyncio.timeout(REPAIR_SECONDS):
        while True:
            stored = await ledgers._store.get(ledger_id)
            assert stored is not None
            if bookie_id not in stored.metadata.bookie_ids():
                return stored.metadata
            await asyncio.sleep(0.5)


async def check_copies(
    registry: BookieRegistry, metadata: LedgerMetadata, payloads: list[bytes]
) -> None:
    """Each bookie that should hold a part of a closed ledger does."""
    for ensemble in metadata.ensembles:
        _, end = metadata.ensemble_at(ensemble.first_entry_id)
        last = min(end, metadata.last_entry_id)
        for bookie_id in ensemble.bookies:
            n = ensemble.first_entry_id
            while n <= last:
                for entry_id, payload in await registry[bookie_id].read(
                    metadata.ledger_id, n, last, 1 << 20
                ):
                    assert (entry_id, payload) == (n, payloads[n])
                    n += 1


@pytest.mark.feature("F70")
def test_copies_of_a_dead_bookie_are_restored_in_closed_and_open_ledgers(cluster: Cluster) -> None:
    async def scenario() -> None:
        payloads = [b"%06d" % n * 20 for n in range(6000)]
        async with ledgers_of(cluster) as ledgers, cluster.registry() as registry:
            config = LedgerConfig(3, 3, 2)
            closed = await ledgers.create(config, Writes())
            victim = closed.metadata.ensembles[0].bookies[0]
            writes = Writes()
            opened = await ledgers.create(config, writes)
            while victim not in opened.metadata.bookie_ids():
                await opened.close()
                opened = await ledgers.create(config, writes)
            for writer in (closed, opened):
                for n in range(0, 3000, 100):
                    writer.append(payloads[n : n + 100])
            await closed.close()
            await opened.drained(everywhere=True)

            next(b for b in cluster.bookies if b.bookie_id == victim).process.kill()
            for n in range(3000, 4000, 100):
                opened.append(payloads[n : n + 100])
                await asyncio.sleep(0.1)
            await opened.drained()
            assert len(opened.metadata.ensembles) == 2, "a spare has taken its place"

            repaired = await without(ledgers, closed.ledger_id, victim)
            await check_copies(registry, repaired, payloads)
            await without(ledgers, opened.ledger_id, victim)
            for n in range(4000, 6000, 100):
                opened.append(payloads[n : n + 100])
            metadata = await opened.close()
            assert writes.errors == []
            assert victim not in metadata.bookie_ids(), "the close has kept what was repaired"
            assert metadata.last_entry_id == 5999
            await check_copies(registry, metadata, payloads)
            for ledger_id, count in ((closed.ledger_id, 3000), (opened.ledger_id, 6000)):
                assert await read_all(ledgers, ledger_id, count) == payloads[:count]
            listed = (await cluster.shell.run("listunderreplicated")).splitlines()
            ids = {str(closed.ledger_id), str(opened.ledger_id)}
            counted = "Under replicated ledger count:"  # which may be that of an id, 0
            assert not [line for line in listed if counted not in line and ids & set(line.split())]

    asyncio.run(scenario())


def test_nothing_is_lost_while_bookies_are_killed_and_come_back(cluster: Cluster) -> None:
    """With two copies confirmed and one bookie dead at a time, a ledger always goes on."""

    async def scenario() -> None:
        rng = random.Random(5)
        async with ledgers_of(cluster) as ledgers:
            writes = Writes()
            writer = await ledgers.create(LedgerConfig(3, 3, 2), writes)
            done: list[tuple[int, int]] = []
            sent = 0

            async def publish() -> None:
                nonlocal writer, writes, sent
                while True:
                    try:
                        writer.append([b"%08d" % n for n in range(sent, sent + 10)])
                        sent += 10
                        await writer.drained()
                    except LedgerFencedError:
                        # Auto-recovery has closed it: go on with what it found.
                        found = await ledgers.recover(writer.ledger_id)
                        done.append((writer.ledger_id, found.last_entry_id + 1))
                        assert found.last_entry_id >= writer.last_confirmed
                        sent = sum(count for _, count in done)
                        writes = Writes()
                        writer = await ledgers.create(LedgerConfig(3, 3, 2), writes)
                    await asyncio.sleep(0.005)

            publishing = asyncio.create_task(publish())
            for _ in range(ROUNDS):
                bookie = rng.choice(cluster.bookies)
                bookie.process.kill()
                await asyncio.sleep(rng.uniform(0, 8))
                bookie.start()
                await bookie.ready()
                await asyncio.sleep(rng.uniform(0, 3))
                assert not publishing.done(), publishing.exception()
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            found = await ledgers.recover(writer.ledger_id)
            assert found.last_entry_id >= writer.last_confirmed
            done.append((writer.ledger_id, found.last_entry_id + 1))
            n = 0
            for ledger_id, count in done:
                entries = await read_all(ledgers, ledger_id, count)
                assert entries == [b"%08d" % i for i in range(n, n + count)]
                n += count
            assert n > 1000

    asyncio.run(scenario())
