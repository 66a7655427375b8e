"""A real cluster of BookKeeper: bookies as processes of their own, beside one ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.maven import class_path
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.processes.bookkeeper_server import LOCK, AutoRecovery, BookieServer, Shell
from pulsark.runtime import Runtime
from pulsark.storage.bookkeeper.cluster import new_cluster
from pulsark.storage.bookkeeper.encoder import LedgerKeys
from pulsark.storage.bookkeeper.ids import LedgerIds
from pulsark.storage.bookkeeper.ledger_store import BookKeeperCluster, BookKeeperLedgerStore
from pulsark.storage.bookkeeper.limits import ClientSettings
from pulsark.storage.bookkeeper.registry import BookieRegistry
from pulsark.storage.ledger.manager import LedgerManager
from tests.support.zookeeper import connected

ROOT = "/ledgers"
PATIENT = ClientSettings(connect_seconds=20, add_seconds=60, read_seconds=60)
"""On a busy machine nothing is to fail because it takes long."""


@dataclass
class Cluster:
    """Some bookies that run, and what clients need to find them."""

    address: ZooKeeperAddress
    """With a root that the cluster's root is below."""
    bookies: list[BookieServer]
    directory: Path

    @property
    def zookeeper_path(self) -> str:
        return f"{self.address.hosts}{self.address.root}{ROOT}"

    @property
    def shell(self) -> Shell:
        return Shell(self.directory / "shell", self.zookeeper_path, class_path(LOCK))

    def auto_recovery(self, **settings: object) -> AutoRecovery:
        """What repairs copies, not started."""
        directory = self.directory / "auto-recovery"
        return AutoRecovery(directory, self.zookeeper_path, class_path(LOCK), settings=settings)

    def new_bookie(self, **settings: object) -> BookieServer:
        """One more, which is not started."""
        number = len(self.bookies) + 1
        bookie = BookieServer(
            f"bookie-{number}",
            self.directory / f"bookie-{number}",
            self.zookeeper_path,
            class_path(LOCK),
            settings=settings,
        )
        self.bookies.append(bookie)
        return bookie

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ZooKeeperClient]:
        """A session with its ZooKeeper."""
        client = await connected(self.address)
        try:
            yield client
        finally:
            await client.close()

    @asynccontextmanager
    async def registry(self) -> AsyncIterator[BookieRegistry]:
        """All bookies, connected."""
        async with self.client() as client:
            registry = BookieRegistry(client, ROOT, LedgerKeys(), PATIENT)
            try:
                await registry.start()
                for bookie in registry.values():
                    await bookie.ready()
                yield registry
            finally:
                await registry.close()


@contextmanager
def running(
    address: ZooKeeperAddress, directory: Path, count: int, **settings: object
) -> Iterator[Cluster]:
    """A new cluster with so many bookies."""
    cluster = _cluster(address, directory, count, **settings)
    try:
        asyncio.run(_start(cluster))
        yield cluster
    finally:
        for bookie in cluster.bookies:
            bookie.process.kill()


def start_bookies(address: ZooKeeperAddress, directory: Path, count: int) -> dict[str, Any]:
    """So many bookies for ``one_for_all``."""
    cluster = _cluster(address, directory, count)
    asyncio.run(_start(cluster))
    return {"root": address.root, "pids": [bookie.process.pid for bookie in cluster.bookies]}


def _cluster(address: ZooKeeperAddress, directory: Path, count: int, **settings: object) -> Cluster:
    cluster = Cluster(address, [], directory)
    for _ in range(count):
        cluster.new_bookie(**settings)
    return cluster


async def _start(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await new_cluster(client, ROOT)
        for bookie in cluster.bookies:
            bookie.start()
        for bookie in cluster.bookies:
            await bookie.ready()
        registry = BookieRegistry(client, ROOT, LedgerKeys())
        try:
            await registry.start()
            for bookie in cluster.bookies:
                await registry[bookie.bookie_id].ready()
        finally:
            await registry.close()


def cluster_of(client: ZooKeeperClient, keys: LedgerKeys) -> BookKeeperCluster:
    """What stores of its ledgers share."""
    return BookKeeperCluster(client, ROOT, LedgerIds(client, ROOT), keys)


@asynccontextmanager
async def ledgers_of(cluster: Cluster) -> AsyncIterator[LedgerManager]:
    """Ledgers as one more broker has them."""
    async with cluster.client() as client, cluster.registry() as registry:
        metadata = MemoryMetadataStore(MemoryTree())
        shared = cluster_of(client, registry.ledger_keys)
        store = BookKeeperLedgerStore(shared, metadata)
        yield LedgerManager(metadata, registry, Runtime(), store=store, places=registry)


async def read_all(ledgers: LedgerManager, ledger_id: int, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        more = await ledgers.read(ledger_id, len(found), count - 1, 1 << 20)
        assert [n for n, _ in more] == list(range(len(found), len(found) + len(more)))
        found += [payload for _, payload in more]
    return found
