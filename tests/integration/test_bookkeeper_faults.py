"""Faults of real bookies below a topic that is published to, in three copies of which two confirm.

One set of bookies for all, so each test leaves it as it was. Every test keeps what was promised to
the producer against what is read in the end, and the longest wait for a receipt against a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pulsark.config.settings import Settings
from pulsark.errors import ConfigError, CorruptEntryError, MetadataError
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.processes.bookkeeper_server import AutoRecovery, BookieServer
from pulsark.processes.bookkeeper_storage import BookKeeperStorage, open_bookkeeper
from pulsark.processes.joined_metadata import join_metadata
from pulsark.processes.zookeeper_server import ZooKeeperServer
from pulsark.runtime import Runtime
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerConfig
from tests.support.bookie_faults import Broker, Publishing, broker_of, check, until
from tests.support.bookkeeper import ROOT, Cluster, running
from tests.support.zookeeper import below_a_root_of_its_own

pytestmark = pytest.mark.chaos

WAIT_SECONDS = 2.0
"""No receipt comes later when a bookie dies or hangs, on a machine that has the time for it."""
BUSY_WAIT_SECONDS = 10.0
"""Where others want several times the processors that there are, each step of three processes
waits for its turn. A bookie that is waited for until its session is over still takes longer."""
REPAIR_SECONDS = 180.0
GRACE_SECONDS = 30
"""After which auto-recovery closes a ledger that names a lost bookie: BookKeeper's default."""

_numbers = itertools.count()


@dataclass
class Bookies:
    """Three that run, and auto-recovery."""

    cluster: Cluster
    repair: AutoRecovery

    def named(self, bookie_id: str) -> BookieServer:
        return next(b for b in self.cluster.bookies if b.bookie_id == bookie_id)


@pytest.fixture(scope="module")
def bookies(
    shared_zookeeper: ZooKeeperAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bookies]:
    directory = tmp_path_factory.mktemp("bookies")
    with running(below_a_root_of_its_own(shared_zookeeper), directory, 3) as cluster:
        repair = cluster.auto_recovery(
            openLedgerRereplicationGracePeriod=1000 * GRACE_SECONDS, rwRereplicateBackoffMs=500
        )
        repair.start()
        try:
            yield Bookies(cluster, repair)
        finally:
            repair.process.kill()


@pytest.fixture(autouse=True)
def all_there(bookies: Bookies) -> Iterator[None]:
    """A test that failed with a bookie down is not the failure of those after it."""
    yield
    for bookie in bookies.cluster.bookies[:3]:
        bookie.process.resume()
        if not bookie.process.is_running:
            bookie.process.kill()
            bookie.start()
            asyncio.run(bookie.ready())


@pytest.fixture
def spare(bookies: Bookies) -> Iterator[BookieServer]:
    """A fourth bookie: what repairs need. It is gone for good afterwards."""
    bookie = bookies.cluster.new_bookie()
    bookie.start()
    asyncio.run(bookie.ready())
    yield bookie
    bookie.process.stop()  # so that nobody looks for it: it is unregistered at once


@dataclass
class World:
    """A broker whose topic is published to."""

    bookies: Bookies
    broker: Broker
    topic: ManagedLedger
    publishing: Publishing

    def members(self) -> set[str]:
        """The bookies of the ledger that is written; none between two, as after auto-recovery has
        closed one."""
        writer = self.broker.ledgers.open_ledgers.get(self.ledger_id())
        if writer is None:
            return set()
        return {*writer.metadata.ensembles[-1].bookies} - {*writer.failed}

    def ledger_id(self) -> int:
        """The ledger that is written."""
        newest = self.topic.newest_ledger()
        assert newest is not None
        return newest.ledger_id

    async def until_on(self, members: set[str], seconds: float = 60.0) -> None:
        await until(lambda: self.members() == members, seconds)

    async def restored(self, lost: str) -> None:
        """Return once no closed ledger of the topic names a bookie, and each has all copies."""
        async with asyncio.timeout(REPAIR_SECONDS):
            for info in self.topic.ledgers():
                while True:
                    stored = await self.broker.ledgers._store.get(info.ledger_id)
                    assert stored is not None
                    if lost not in stored.metadata.bookie_ids():
                        break
                    await asyncio.sleep(0.5)

    async def copies_hold(self) -> None:
        """Each bookie that closed ledgers name has all that it should."""
        for info in self.topic.ledgers():
            stored = await self.broker.ledgers._store.get(info.ledger_id)
            assert stored is not None
            metadata = stored.metadata
            if not metadata.is_closed:
                continue
            for ensemble in metadata.ensembles:
                last = min(metadata.ensemble_at(ensemble.first_entry_id)[1], metadata.last_entry_id)
                for bookie_id in ensemble.bookies:
                    n = ensemble.first_entry_id
                    while n <= last:
                        found = await self.broker.bookies[bookie_id].read(
                            metadata.ledger_id, n, last, 1 << 20
                        )
                        assert [e for e, _ in found] == [*range(n, n + len(found))]
                        n += len(found)


@asynccontextmanager
async def published(bookies: Bookies, *relayed: str, slowly: bool = False) -> AsyncIterator[World]:
    """Publish until the block ends, then read all and check it. ``slowly``: it is to be copied."""
    async with broker_of(bookies.cluster, relayed=relayed) as broker:
        publishing = Publishing(window=5, pause=0.05) if slowly else Publishing()
        path = f"/managed-ledgers/t/n/persistent/x{next(_numbers)}"
        topic = await broker.open(path, publishing)
        publishing.start(topic)
        await publishing.until(50)
        world = World(bookies, broker, topic, publishing)
        await until(lambda: len(world.members()) == 3)
        yield world
        await publishing.stop()
        await check(publishing, topic)
        await topic.delete()  # so that auto-recovery has nothing to do with it in later tests


def told(what: str, world: World, since: float) -> None:
    """The longest wait is printed with the load, which it means nothing without."""
    load = os.getloadavg()[0]
    longest, count = world.publishing.longest(since), world.publishing.receipts
    print(f"{what}: longest wait {longest:.2f} s, {count} receipts, load {load:.1f}", flush=True)


def longest_wait() -> float:
    """What no receipt may wait for; the load is that of the last minute."""
    busy = os.getloadavg()[0] > 4 * (os.cpu_count() or 1)
    return BUSY_WAIT_SECONDS if busy else WAIT_SECONDS


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


@pytest.mark.feature("F70")
def test_a_bookie_that_hangs_and_goes_on_delays_nobody(bookies: Bookies) -> None:
    """Its process stands still, first shortly and then for longer than its session lasts."""

    async def scenario() -> None:
        async with published(bookies) as world:
            since = time.monotonic()
            for bookie, seconds in zip(bookies.cluster.bookies[:3], (1, 6, 15), strict=True):
                bookie.process.pause()
                await asyncio.sleep(seconds)
                bookie.process.resume()
                await world.until_on({"bookie-1", "bookie-2", "bookie-3"}, 120)
            told("paused in turns", world, since)
            assert world.publishing.longest(since) < longest_wait()
            assert not world.publishing.errors

    run(scenario)


@pytest.mark.feature("F70")
def test_a_bookie_whose_disk_is_slow_delays_nobody(bookies: Bookies) -> None:
    """Each of its answers comes 5 s late; then another one dies."""

    async def scenario() -> None:
        async with published(bookies, "bookie-2") as world:
            relay = world.broker.bookies.relays["bookie-2"]
            since = time.monotonic()
            relay.delay = 5.0
            await asyncio.sleep(20)
            told("5 s late", world, since)
            relay.delay = 0.0
            # The ledger has lost a copy, and the next loss would be its end.
            bookies.cluster.bookies[0].process.kill()
            await world.publishing.until(500)
            told("another one killed", world, since)
            assert world.publishing.longest(since) < longest_wait()
            bookies.cluster.bookies[0].start()
            await bookies.cluster.bookies[0].ready()
            await world.until_on({"bookie-1", "bookie-2", "bookie-3"}, 120)
            assert not world.publishing.errors

    run(scenario)


@pytest.mark.feature("F70")
def test_without_a_spare_a_topic_goes_on_in_new_ledgers(bookies: Bookies) -> None:
    """Longer than auto-recovery waits before it closes ledgers that name the lost bookie."""

    async def scenario() -> None:
        async with published(bookies) as world:
            first = world.ledger_id()
            since = time.monotonic()
            bookies.named("bookie-3").process.kill()
            await until(lambda: world.ledger_id() != first, GRACE_SECONDS)
            assert world.members() == {"bookie-1", "bookie-2"}
            second = world.ledger_id()
            await asyncio.sleep(GRACE_SECONDS + 15)
            assert world.ledger_id() == second, "nobody has closed it"
            told("no spare", world, since)
            assert world.publishing.longest(since) < longest_wait()
            bookies.named("bookie-3").start()
            await bookies.named("bookie-3").ready()
            await world.until_on({"bookie-1", "bookie-2", "bookie-3"}, 120)
            assert not world.publishing.errors

    run(scenario)


@pytest.mark.feature("F70")
def test_two_bookies_are_lost_in_turn_with_repair_between(
    bookies: Bookies, spare: BookieServer
) -> None:
    async def scenario() -> None:
        async with published(bookies, slowly=True) as world:
            since = time.monotonic()
            everybody = {bookie.bookie_id for bookie in bookies.cluster.bookies[:3]}
            left = sorted(everybody)
            everybody.add(spare.bookie_id)
            for _ in range(2):
                lost = next(name for name in left if name in world.members())
                left.remove(lost)
                bookies.named(lost).process.kill()
                await world.until_on(everybody - {lost}, 60)
                await world.publishing.until(100)
                await world.topic.close_ledger()
                await world.publishing.until(100)
                await world.restored(lost)
                await world.copies_hold()
                bookies.named(lost).start()
                await bookies.named(lost).ready()
            told("two in turn", world, since)
            assert world.publishing.longest(since) < longest_wait()
            assert not world.publishing.errors

    run(scenario)


@pytest.mark.feature("F70")
def test_a_bookie_that_lost_its_disks_is_refused_and_copies_are_restored(
    bookies: Bookies, spare: BookieServer
) -> None:
    async def scenario() -> None:
        async with published(bookies, slowly=True) as world:
            since = time.monotonic()
            wiped = bookies.named("bookie-3")
            while "bookie-3" not in world.members():
                await world.topic.close_ledger()
                await world.publishing.until(10)
            await world.publishing.until(200)
            await world.topic.close_ledger()
            await world.publishing.until(100)
            wiped.process.kill()
            for part in ("journal", "ledgers"):
                shutil.rmtree(wiped.directory / part)
            wiped.start()
            with pytest.raises(ConfigError, match="does not start"):
                await wiped.ready()
            assert "InvalidCookieException" in (wiped.directory / "output.log").read_text()
            wiped.process.kill()
            await world.restored("bookie-3")
            await world.copies_hold()
            # An operator gives the name to an empty bookie: it is another one. (The shell's
            # cookie_delete knows no names but HOST:PORT.)
            await world.broker.client.delete(f"{ROOT}/cookies/bookie-3")
            wiped.start()
            await wiped.ready()
            await world.publishing.until(100)
            told("wiped", world, since)
            assert world.publishing.longest(since) < longest_wait()
            assert not world.publishing.errors

    run(scenario)


@pytest.mark.feature("F70")
def test_damaged_files_of_a_bookie_are_read_around(bookies: Bookies) -> None:
    async def scenario() -> None:
        async with published(bookies) as world:
            await world.publishing.until(3000)
            await world.publishing.stop()
            await world.topic.close_ledger()
            damaged = bookies.named("bookie-1")
            damaged.process.stop()  # in order: all that it has is in entry logs
            logs = sorted(damaged.directory.glob("ledgers/current/*.log"))
            ruined = b"." * 64
            count = 0
            for log in logs:
                data = log.read_bytes()
                count += data.count(ruined)
                log.write_bytes(data.replace(ruined, b"," * 64))
            assert count > 3000
            damaged.start()
            await damaged.ready()
            await until(lambda: not world.broker.bookies["bookie-1"].is_away)
            errors = 0
            for info in world.topic.ledgers():
                for n in range(info.entries):
                    try:
                        await world.broker.bookies["bookie-1"].read(info.ledger_id, n, n, 1)
                    except CorruptEntryError:
                        errors += 1
            assert errors == sum(info.entries for info in world.topic.ledgers())
            await check(world.publishing, world.topic)
            world.publishing.start(world.topic)
            await world.publishing.until(500)

    run(scenario)


def test_a_full_bookie_is_avoided_until_it_has_room(bookies: Bookies) -> None:
    """Its directories are on a file system of which it may use a little more than is used now."""
    small = Path("/dev/shm") / f"pulsark-{os.getpid()}"
    small.mkdir()
    room = 256 << 20  # the logs of its two indexes take 72 MB each once they are written
    disk = os.statvfs(small)
    total, used = disk.f_blocks * disk.f_frsize, (disk.f_blocks - disk.f_bavail) * disk.f_frsize
    threshold = (used + room) / total
    cluster = bookies.cluster
    full = cluster.new_bookie(
        ledgerDirectories=small / "ledgers",
        indexDirectories=small / "index",
        diskUsageThreshold=threshold,
        diskUsageWarnThreshold=threshold * 0.999,
        diskUsageLwmThreshold=threshold,
        diskCheckInterval=500,
        minUsableSizeForEntryLogCreation=1 << 20,
        minUsableSizeForIndexFileCreation=1 << 20,
        minUsableSizeForHighPriorityWrites=1 << 20,
    )
    third = bookies.named("bookie-3")

    async def scenario() -> None:
        full.start()
        await full.ready()
        async with published(bookies, slowly=True) as world:
            await until(lambda: full.bookie_id in world.broker.bookies)
            third.process.stop()
            await world.until_on({"bookie-1", "bookie-2", full.bookie_id})
            since = time.monotonic()
            with (small / "ballast").open("wb") as ballast:
                os.posix_fallocate(ballast.fileno(), 0, room + (1 << 20))
            await until(lambda: not world.broker.bookies.is_writable(full.bookie_id))
            assert full.bookie_id in world.broker.bookies, "it is read only, and can be read"
            await world.until_on({"bookie-1", "bookie-2"})
            await world.publishing.until(50)
            await world.topic.close_ledger()
            await world.publishing.until(50)
            assert world.members() == {"bookie-1", "bookie-2"}
            (small / "ballast").unlink()
            await until(lambda: world.broker.bookies.is_writable(full.bookie_id))
            await world.until_on({"bookie-1", "bookie-2", full.bookie_id}, 120)
            told("full", world, since)
            assert world.publishing.longest(since) < longest_wait()
            assert not world.publishing.errors
            third.start()
            await third.ready()

    try:
        run(scenario)
    finally:
        full.process.stop()
        shutil.rmtree(small)


def test_a_zookeeper_that_was_restored_from_a_backup_is_refused(tmp_path: Path) -> None:
    """By a broker that runs, and by one that starts."""
    server = ZooKeeperServer(tmp_path / "zookeeper", heap="128m")
    server.start()
    asyncio.run(server.ready())
    settings = Settings(metadataStoreUrl=f"zk:{server.address}/one")

    async def publish(broker: Broker, topic: str) -> None:
        publishing = Publishing()
        managed = await broker.open(topic, publishing, ManagedLedgerConfig())
        publishing.start(managed)
        await publishing.until(100)
        await publishing.stop()
        await managed.close()

    def restart(*, restored: bool) -> None:
        server.process.stop()
        if restored:
            shutil.rmtree(tmp_path / "zookeeper")
            shutil.copytree(tmp_path / "backup", tmp_path / "zookeeper")
        else:
            shutil.copytree(tmp_path / "zookeeper", tmp_path / "backup")
        server.start()

    async def opened(cleanup: contextlib.AsyncExitStack) -> BookKeeperStorage:
        metadata = await join_metadata(settings, "", Runtime(), create=False)
        cleanup.push_async_callback(metadata.close)
        return await open_bookkeeper(settings, metadata, Runtime(), cleanup)

    async def scenario(cluster: Cluster) -> None:
        (bookie,) = cluster.bookies
        async with broker_of(cluster) as broker:
            await publish(broker, "/managed-ledgers/t/n/persistent/kept")
        await asyncio.to_thread(restart, restored=False)
        await server.ready()
        async with contextlib.AsyncExitStack() as cleanup:
            running_since = await opened(cleanup)
            async with broker_of(cluster) as broker:
                for number in range(3):
                    await publish(broker, f"/managed-ledgers/t/n/persistent/lost{number}")
            await running_since.ledgers.new_id()
            await asyncio.to_thread(restart, restored=True)
            await server.ready()
            bookie.process.kill()
            bookie.start()
            await bookie.ready()
            async with broker_of(cluster):
                pass  # others are let in, so the bookie is registered again
            for _ in range(10):
                with pytest.raises(MetadataError):
                    await running_since.ledgers.new_id()
                await asyncio.sleep(1)
        async with contextlib.AsyncExitStack() as cleanup:
            with pytest.raises(MetadataError, match="ZooKeeper went back: bookie bookie-1"):
                await opened(cleanup)

    try:
        with running(ZooKeeperAddress(server.address, "/one"), tmp_path / "bookies", 1) as cluster:
            asyncio.run(scenario(cluster))
    finally:
        server.process.kill()
