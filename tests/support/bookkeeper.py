"""A real cluster of BookKeeper: bookies as processes of their own, beside one ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.maven import class_path
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.processes.bookkeeper_server import LOCK, BookieServer, Shell
from pulsark.storage.bookkeeper.cluster import new_cluster
from pulsark.storage.bookkeeper.encoder import LedgerKeys
from pulsark.storage.bookkeeper.registry import BookieRegistry
from tests.support.zookeeper import connected

ROOT = "/ledgers"


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
            registry = BookieRegistry(client, ROOT, LedgerKeys())
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
    cluster = Cluster(address, [], directory)
    for _ in range(count):
        cluster.new_bookie(**settings)
    try:
        asyncio.run(_start(cluster))
        yield cluster
    finally:
        for bookie in cluster.bookies:
            bookie.process.kill()


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
