"""Two brokers of a cluster, of either make, over the same ZooKeeper and the same three bookies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.brokers import PEER, Broker, Pulsar, Pulsark, free_port
from benchmarks.maven import class_path
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.processes.bookkeeper_server import LOCK, BookieServer
from pulsark.processes.zookeeper_server import ZooKeeperServer
from pulsark.runtime import Runtime
from pulsark.storage.bookkeeper.cluster import new_cluster

BOOKIES = 3
BOOKIE_MEMORY = "1g"
"""Of each heap, and as much beside it. Distributions give 2 GB each."""
BOOKIE_SETTINGS = {
    "dbStorage_writeCacheMaxSizeMb": 256,
    "dbStorage_readAheadCacheMaxSizeMb": 256,
    "journalPreAllocSizeMB": 16,
    "dbStorage_directIOEntryLogger": "true",
}
"""Caches as distributions have them: a quarter each of the memory beside the heap. Entry logs are
written around the page cache, unlike there: it costs more than brokers do (docs/benchmarks.md).
"""
FLUSHED_SECONDS = 15.0
"""Bookies write what they have in memory every 10 s."""
QUORUMS = {
    "managedLedgerDefaultEnsembleSize": 3,
    "managedLedgerDefaultWriteQuorum": 3,
    "managedLedgerDefaultAckQuorum": 2,
}
SESSION_SECONDS = 60
"""Brokers stand still while the other side is measured, and keep their sessions. ZooKeeper allows
no longer ones here."""
SESSIONS = {"metadataStoreSessionTimeoutMillis": 1000 * SESSION_SECONDS}
LEDGERS = "/ledgers"


class Servers:
    """ZooKeeper and bookies, which both sides use in turn."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.zookeeper = ZooKeeperServer(home / "zookeeper")
        self._bookies: list[BookieServer] = []

    def start(self) -> None:
        """Return once all of them serve."""
        asyncio.run(self._start())

    async def _start(self) -> None:
        self.zookeeper.start()
        await self.zookeeper.ready()
        hosts = ZooKeeperAddress(self.zookeeper.address)
        client = await ZooKeeperClient.connect(hosts, Runtime().clock)
        try:
            await new_cluster(client, LEDGERS)
        finally:
            await client.close()
        for number in range(1, BOOKIES + 1):
            name = f"bookie-{number}"
            where = f"{self.zookeeper.address}{LEDGERS}"
            jars = class_path(LOCK)
            bookie = BookieServer(
                name,
                self.home / name,
                where,
                jars,
                heap=BOOKIE_MEMORY,
                settings=BOOKIE_SETTINGS,
            )
            self._bookies.append(bookie)
            bookie.start()
        for bookie in self._bookies:
            await bookie.ready()

    @property
    def bookie_pids(self) -> list[int]:
        return [bookie.process.pid for bookie in self._bookies]

    def settle(self) -> None:
        """Return once the bookies have written what they were sent: a run does not pay for the
        one before it."""
        since = time.time()
        marks = [bookie.directory / "ledgers" / "current" / "lastMark" for bookie in self._bookies]
        while time.time() < since + FLUSHED_SECONDS:
            if all(mark.exists() and mark.stat().st_mtime > since for mark in marks):
                return
            time.sleep(0.2)

    def log_ends(self) -> str:
        """The last that the bookies said."""
        logs = {each.bookie_id: each.directory / "output.log" for each in self._bookies}
        ends = {name: log.read_text(errors="replace")[-1000:] for name, log in logs.items()}
        return "\n".join(f"{name}: {end}" for name, end in ends.items())

    def stop(self) -> None:
        """End them."""
        for bookie in self._bookies:
            bookie.process.stop()
        self.zookeeper.process.stop()


class _TwoBrokers(Broker):
    """The second broker is started and ended with the first one."""

    def __init__(self, home: Path, servers: Servers, second: Broker | None, **options: Any) -> None:
        super().__init__(home, **options)
        self._servers = servers
        self._second = second

    @property
    def pids(self) -> list[int]:
        return [self.pid, *(self._second.pids if self._second is not None else ())]

    @property
    def is_running(self) -> bool:
        return super().is_running and (self._second is None or self._second.is_running)

    def start(self) -> None:
        super().start()
        if self._second is not None:
            self._second.start()

    def end(self) -> None:
        super().end()
        if self._second is not None:
            self._second.end()


class PulsarkOfCluster(_TwoBrokers, Pulsark):
    """Brokers of Pulsark, of this work tree or of a commit."""

    def __init__(
        self, home: Path, servers: Servers, *, is_second: bool = False, **options: Any
    ) -> None:
        second = None
        if not is_second:
            second = PulsarkOfCluster(home / "second", servers, is_second=True, **options)
        super().__init__(home, servers, second, **options)

    @property
    def _store(self) -> str:
        return f"zk:{self._servers.zookeeper.address}/{self.name.lower()}"

    def prepare(self) -> None:
        """Initialise the cluster's metadata."""
        super().prepare()
        self._pulsark(
            "initialize-cluster-metadata", "--cluster", "standalone",
            "--metadata-store", self._store,
            "--existing-bk-metadata-service-uri",
            f"zk://{self._servers.zookeeper.address}{LEDGERS}",
            "--web-service-url", self.admin_url, "--broker-service-url", self.url,
        )  # fmt: skip

    def _pulsark(self, *words: str) -> None:
        command = [sys.executable, "-m", "pulsark", *words]
        where, environment = self._checkout, self._environment()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=where, env=environment)

    def _command(self) -> list[str]:
        ports = ["--broker-port", str(self.port), "--web-port", str(self.web_port)]
        settings = {
            "metadataStoreUrl": self._store,
            "bookkeeperMetadataServiceUri": f"zk://{self._servers.zookeeper.address}{LEDGERS}",
            "tableRoots": self._servers.home / "tables" / self.name,
            **QUORUMS,
            **SESSIONS,
            **self._settings,
        }
        sets = [f"--set={key}={value}" for key, value in settings.items()]
        return [sys.executable, "-m", "pulsark", "broker", *ports, "--flight-port", "0", *sets]


class PulsarOfCluster(_TwoBrokers, Pulsar):
    """Brokers of Apache Pulsar 4.0.7."""

    def __init__(self, home: Path, servers: Servers, *, is_second: bool = False) -> None:
        second = None if is_second else PulsarOfCluster(home / "second", servers, is_second=True)
        super().__init__(home, servers, second)
        self._web_port = free_port()

    @property
    def _store(self) -> str:
        return f"zk:{self._servers.zookeeper.address}/pulsar"

    def prepare(self) -> None:
        """Fetch the jars, and initialise the cluster's metadata."""
        super().prepare()
        subprocess.run(
            [
                *self._java(), "org.apache.pulsar.PulsarClusterMetadataSetup",
                "--cluster", "standalone", "--metadata-store", self._store,
                "--configuration-metadata-store", self._store,
                "--existing-bk-metadata-service-uri",
                f"zk+hierarchical://{self._servers.zookeeper.address}{LEDGERS}",
                "--web-service-url", f"http://127.0.0.1:{self._web_port}",
                "--broker-service-url", self.url,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def _command(self) -> list[str]:
        ledgers = f"zk+hierarchical://{self._servers.zookeeper.address}{LEDGERS}"
        settings = {
            "clusterName": "standalone",
            "webServicePort": self._web_port,
            "metadataStoreUrl": self._store,
            "configurationMetadataStoreUrl": self._store,
            "bookkeeperMetadataServiceUri": ledgers,
            **QUORUMS,
            **SESSIONS,
            "bookkeeper_zkTimeout": 1000 * SESSION_SECONDS,  # for bookies it has one of its own
        }
        conf = self.home / "broker.conf"
        conf.write_text(
            (PEER / "standalone.conf").read_text()
            + self._addresses()
            + "".join(f"{key}={value}\n" for key, value in settings.items())
        )
        return [*self._java(), "org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", str(conf)]
