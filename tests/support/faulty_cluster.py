"""The parts of a cluster as separate processes, with a network between them that can be cut.

Brokers are started again when they end, as systemd does. Each has ports of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.maven import class_path
from pulsark.config.settings import Settings
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.layout import CHANGE, Layout
from pulsark.processes.bookkeeper_server import LOCK, BookieServer
from pulsark.processes.cluster_metadata import initialize_cluster
from pulsark.processes.java_process import free_port
from pulsark.processes.zookeeper_server import ZooKeeperServer
from pulsark.storage.bookkeeper.paths import AVAILABLE, CLUSTER
from pulsark.storage.proto.bookkeeper_pb2 import BookieServiceInfoFormat
from tests.support.several_brokers import wait_for
from tests.support.tcp_proxy import Network
from tests.support.zookeeper import connected

RESTART_SECONDS = 0.2
START_SECONDS = 120.0
STORE = "/pulsark"
"""Where the metadata store is in ZooKeeper."""


class BrokerProcess:
    """``pulsark broker``, which is started again until ``stop``."""

    def __init__(
        self, folder: Path, name: str, settings: dict[str, object], env: Mapping[str, str]
    ) -> None:
        self.log_path = folder / f"{name}.log"
        self.port, self.web_port = free_port(), free_port()
        self._settings = settings
        self._env = {**os.environ, **env}
        self._ending = threading.Event()
        self.starts = 0
        """How often it was started."""
        self.process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, daemon=True)

    @property
    def service_url(self) -> str:
        return f"pulsar://localhost:{self.port}"

    @property
    def web_url(self) -> str:
        return f"http://localhost:{self.web_port}"

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Return once it serves."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.web_url}/admin/v2/brokers/ready", timeout=5):
                    return
            except OSError:
                said = self.log_path.read_text()[-3000:] if self.log_path.exists() else ""
                assert time.monotonic() < deadline, said
                time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL; it is started again."""
        os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End it in order; it is not started again."""
        self._ending.set()
        if self.process is not None:
            self.process.terminate()
        self._thread.join(60)
        if self._thread.is_alive() and self.process is not None:
            self.process.kill()
            self._thread.join()

    def _keep(self) -> None:
        settings = {
            **self._settings,
            "brokerServicePort": self.port,
            "webServicePort": self.web_port,
            "flightServicePort": 0,
        }
        sets = [f"--set={key}={value}" for key, value in settings.items()]
        while not self._ending.is_set():
            with self.log_path.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "pulsark", "broker", *sets],
                    stdout=log,
                    stderr=log,
                    env=self._env,
                )
            self.starts += 1
            self.process.wait()
            self._ending.wait(RESTART_SECONDS)


class FaultyCluster:
    """A ZooKeeper, three bookies and two brokers."""

    def __init__(
        self, folder: Path, env: Mapping[str, str] | None = None, **settings: object
    ) -> None:
        """``settings`` are Pulsark's; ``env`` is for brokers."""
        self._folder = folder
        self._env = env or {}
        self.client_log = folder / "client.log"
        self.network = Network()
        self.zookeeper = ZooKeeperServer(folder / "zookeeper")
        where = f"{self.zookeeper.address}/{CLUSTER}"
        self.bookies = [
            BookieServer(name, folder / name, where, class_path(LOCK))
            for name in ("bookie-1", "bookie-2", "bookie-3")
        ]
        self._settings = settings
        self.brokers: list[BrokerProcess] = []

    def __enter__(self) -> FaultyCluster:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.network.mend()
        for broker in self.brokers:
            broker.stop()
        for bookie in self.bookies:
            bookie.process.kill()
        self.zookeeper.process.kill()
        self.network.close()

    @property
    def service_url(self) -> str:
        return "pulsar://" + ",".join(f"localhost:{broker.port}" for broker in self.brokers)

    @property
    def web_url(self) -> str:
        """Of the first broker."""
        return self.brokers[0].web_url

    def start_zookeeper(self) -> None:
        """Start it, and return once it serves."""
        self.zookeeper.start()
        asyncio.run(self.zookeeper.ready())

    def restart_bookies(self) -> None:
        """Start those that have ended. Brokers reach them without the proxy then."""
        ended = [bookie for bookie in self.bookies if not bookie.process.is_running]
        for bookie in ended:
            bookie.process.kill()
            bookie.start()
        for bookie in ended:
            asyncio.run(bookie.ready())

    @contextmanager
    def new_sessions(self) -> Iterator[None]:
        """ZooKeeper is away for longer than the sessions of bookies meanwhile. At the end they are
        registered with new ones: until then, new ledgers have fewer copies, or none.

        A bookie that finds no ZooKeeper as it registers again, or its former session not over,
        ends itself; it is started again, as a service manager does.
        """
        before: dict[str, int] = {}

        def all_there() -> bool:
            before.update(asyncio.run(self._registrations()))
            return len(before) == len(self.bookies)

        def all_anew() -> bool:
            self.restart_bookies()
            now = asyncio.run(self._registrations())
            return all(now.get(id_, 0) not in (0, session) for id_, session in before.items())

        wait_for(all_there, START_SECONDS)
        try:
            yield
        finally:  # other tests need them
            wait_for(all_anew, START_SECONDS)

    async def _registrations(self) -> dict[str, int]:
        """Each bookie that is registered, and the session that it is with."""
        client = await connected(ZooKeeperAddress(self.zookeeper.address))
        try:
            found = {
                bookie.bookie_id: await client.get(f"/{CLUSTER}/{AVAILABLE}/{bookie.bookie_id}")
                for bookie in self.bookies
            }
        finally:
            await client.close()
        return {id_: node.owner for id_, node in found.items() if node is not None}

    @contextmanager
    def overwritten(self, records: Sequence[str], data: bytes) -> Iterator[None]:
        """Records of the metadata store have other data meanwhile; they and the queue of changes
        have them without the help of Pulsark. Those that were not there are gone at the end."""
        nodes = [STORE + Layout().node(path) for path in records]
        kept = asyncio.run(self._exchange(dict.fromkeys(nodes, data)))
        try:
            yield
        finally:
            asyncio.run(self._exchange(kept))

    async def _exchange(self, wanted: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
        """Give nodes other data, or none; returns what they had."""
        client = await connected(ZooKeeperAddress(self.zookeeper.address))
        had: dict[str, bytes | None] = {}
        try:
            for node, data in wanted.items():
                found = await client.get(node)
                had[node] = None if found is None else found.data
                if data is None:
                    await client.delete(node)
                elif found is None:
                    await client.make(node.rpartition("/")[0])
                    await client.create(node, data)
                else:
                    await client.set(node, data)
            await client.create(STORE + CHANGE, b"foreign", sequential=True)
        finally:
            await client.close()
        return had

    def _start(self) -> None:
        self.start_zookeeper()
        proxied = self.network.proxy(self.zookeeper.port)
        settings: dict[str, object] = {
            "metadataStoreUrl": f"zk:127.0.0.1:{proxied}{STORE}",
            "bookkeeperMetadataServiceUri": f"zk://127.0.0.1:{proxied}/{CLUSTER}",
            "tableRoots": self._folder / "tables",
            "advertisedAddress": "localhost",
            "managedLedgerDefaultEnsembleSize": 3,
            "managedLedgerDefaultWriteQuorum": 3,
            "managedLedgerDefaultAckQuorum": 2,
            **self._settings,
        }
        asyncio.run(self._start_bookies(settings))
        for number in (0, 1):
            broker = BrokerProcess(self._folder, f"broker-{number}", settings, self._env)
            self.brokers.append(broker)
            broker.start()
        for broker in self.brokers:
            broker.wait_until_ready()

    async def _start_bookies(self, settings: dict[str, object]) -> None:
        keys = ("metadataStoreUrl", "bookkeeperMetadataServiceUri")
        changes = {key: str(settings[key]) for key in keys}
        await initialize_cluster(dataclasses.replace(Settings(), **changes), {})  # type: ignore[arg-type]
        for bookie in self.bookies:
            bookie.start()
        client = await connected(ZooKeeperAddress(self.zookeeper.address))
        try:
            for bookie in self.bookies:
                await bookie.ready()
                node = f"/{CLUSTER}/{AVAILABLE}/{bookie.bookie_id}"
                found = None
                while found is None:
                    await asyncio.sleep(0.1)
                    found = await client.get(node)
                # Brokers are told of the proxy instead.
                info = BookieServiceInfoFormat.FromString(found.data)
                for endpoint in info.endpoints:
                    endpoint.port = self.network.proxy(bookie.port)
                await client.set(node, info.SerializeToString())
        finally:
            await client.close()
