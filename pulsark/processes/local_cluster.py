"""``pulsark cluster``: ZooKeeper, bookies and brokers of a cluster on one machine, to try it.

The servers are the real ones, each a process: ZooKeeper from PySpark's jars, Apache BookKeeper's
bookies from Maven Central, and brokers as ``pulsark broker`` runs them. ZooKeeper and bookies have
small heaps and listen on loopback only. Everything is below one directory, and starts again from
there::

    DATA/LOCK            held while the cluster lives
    DATA/cluster.json    addresses and process ids, while it serves
    DATA/zookeeper/      what ZooKeeper stores
    DATA/bookie-N/       what bookie N stores
    DATA/tables/         the storage root of tables, unless ``tableRoots`` names others

Servers start in the order in which they need each other, and stop in the opposite one. One that
dies is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pulsark import __version__
from pulsark.config.addresses import asks_for_login, check_access
from pulsark.config.several_brokers import of_broker, own_ports
from pulsark.config.store_urls import STORES
from pulsark.errors import ConfigError
from pulsark.file_locks import lock_directory
from pulsark.private_files import make_private
from pulsark.processes.access import warn_of_access
from pulsark.processes.bookkeeper_server import LOCK, BookieServer, room_for
from pulsark.processes.bookkeeper_storage import client_settings
from pulsark.processes.cluster_metadata import initialize_cluster
from pulsark.processes.duty import Duty
from pulsark.processes.kept_child import KeptChild
from pulsark.processes.kept_server import KeptServer
from pulsark.processes.maven import class_path
from pulsark.processes.until_signal import serve_until_signal
from pulsark.processes.zookeeper_server import ZooKeeperServer
from pulsark.runtime import OsDisk, ThreadWorker, run_in_worker
from pulsark.storage.backup.data_dir import Locks
from pulsark.storage.bookkeeper.paths import CLUSTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.config.settings import Settings
    from pulsark.processes.kept_server import Server

BROKER_STOP_SECONDS: Final = 20.0
ZOOKEEPER: Final = "zookeeper"
READY_NAME: Final = "cluster.json"
_PORTS: Final = {
    "brokerServiceUrl": "brokerServicePort",
    "brokerServiceUrlTls": "brokerServicePortTls",
    "webServiceUrl": "webServicePort",
    "webServiceUrlTls": "webServicePortTls",
    "flightUrl": "flightServicePort",
    "flightUrlTls": "flightServicePortTls",
}
"""By the name of an address: the setting of its port."""

TABLES: Final = "tables"


def settings_of_brokers(settings: Settings, zookeeper: str, data: Path) -> Settings:
    """The settings, with the addresses of the servers that were started; ``data`` has tables."""
    own: dict[str, Any] = {
        **dict.fromkeys(STORES, ""),
        "metadataStoreUrl": f"zk:{zookeeper}/pulsark",
        "bookkeeperMetadataServiceUri": f"zk://{zookeeper}/{CLUSTER}",
        "tableRoots": settings.tableRoots or (str(data / TABLES),),
    }
    return dataclasses.replace(settings, **own)


class LocalCluster:
    """All processes of one directory; they start and stop in order."""

    def __init__(
        self,
        settings: Settings,
        jars: Path,
        progress: Callable[[str], None],
        failed: Callable[[ConfigError], None] = lambda error: None,
    ) -> None:
        """``standaloneBrokers`` and ``bookies`` say how many; ``progress`` hears what serves.

        ``jars``: a directory where those of BookKeeper are kept. ``failed`` is called if nothing
        can go on, and no restart of a process helps.
        """
        self._jars = jars
        self._settings = settings
        self._data = Path(os.path.abspath(settings.dataDir))
        self._tell = progress
        self._disk = OsDisk()
        self._cleanup = contextlib.AsyncExitStack()
        self._servers: dict[str, KeptServer] = {}
        self._failed = failed
        self._locks = Locks({})
        self._brokers = [
            KeptChild(
                f"broker-{n}",
                partial(self._duty_of, n),
                partial(self._is_ready, n),
                check=self._check_data,
                given_up=failed,
            )
            for n in range(settings.standaloneBrokers)
        ]
        self._found: dict[int, dict[str, Any]] = {}
        """The addresses that each broker reported last, and its process."""
        self._pids: dict[str, int] = {}
        """The process of each server that served last."""
        self._zookeeper = ""
        self._serves = False

    async def start(self) -> dict[str, Any]:
        """Start everything, and return the contents of ``cluster.json``."""
        settings = self._settings
        check_access(settings.bindAddress, insecure=settings.insecure or asks_for_login(settings))
        self._lock()
        self._serves_no_more()  # one that was killed has left its addresses
        warn_of_access(settings)
        await self._start_servers(await self._jars_fetched())
        self._cleanup.push_async_callback(self._stop_brokers)
        for broker in self._brokers:
            broker.start()
        await asyncio.gather(*[broker.first for broker in self._brokers])
        self._serves = True
        self._cleanup.callback(self._serves_no_more)
        return self._write_ready()

    async def stop(self) -> None:
        """Stop everything in the opposite order."""
        if self._servers:
            self._tell("stopping brokers, bookies and ZooKeeper")
        await self._cleanup.aclose()

    def _serves_no_more(self) -> None:
        self._serves = False  # a server that is ready while all stop is not published any more
        (self._data / READY_NAME).unlink(missing_ok=True)

    def _lock(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        make_private(str(self._data), (), self._settings.dataDirectoryAccess)
        lock = lock_directory(str(self._data))
        if lock is None:
            raise ConfigError(
                f"dataDir: {self._data} is in use by another process; stop it or choose another "
                "directory (--data-dir)"
            )
        self._cleanup.callback(os.close, lock)
        self._locks = Locks({str(self._data): lock})

    def _check_data(self) -> None:
        """A server that is started again would begin anew, without what the others have."""
        self._locks.check()

    async def _jars_fetched(self) -> str:
        """The class path of bookies."""
        where = self._jars / LOCK.stem
        if not where.exists():
            self._tell(f"fetching Apache BookKeeper from Maven Central to {where}, once")
        worker = ThreadWorker("jars")  # who stops meanwhile does not wait for it
        found = await run_in_worker(worker, partial(class_path, LOCK, self._jars))
        worker.close()
        return found

    async def _start_servers(self, jars: str) -> None:
        zookeeper = ZooKeeperServer(self._data / "zookeeper")
        self._cleanup.push_async_callback(self._stop_zookeeper)
        await self._start_server(ZOOKEEPER, zookeeper)
        self._zookeeper = zookeeper.address
        # What is there stays.
        await initialize_cluster(self._of_cluster(), {})
        self._cleanup.push_async_callback(self._stop_bookies)
        ledgers = f"{self._zookeeper}/{CLUSTER}"
        taken, heap = room_for(client_settings(self._settings).frame_bytes_max)
        bookies = {
            name: BookieServer(name, self._data / name, ledgers, jars, heap=heap, settings=taken)
            for name in (f"bookie-{number + 1}" for number in range(self._settings.bookies))
        }
        await asyncio.gather(*[self._start_server(*bookie) for bookie in bookies.items()])

    async def _start_server(self, name: str, server: Server) -> None:
        ready = partial(self._server_is_ready, name)
        kept = KeptServer(name, server, ready, self._check_data, self._failed)
        self._servers[name] = kept
        await kept.start()

    def _server_is_ready(self, name: str) -> None:
        self._pids[name] = self._servers[name].pid
        self._tell(f"{name} serves (process {self._pids[name]})")
        if self._serves:
            self._write_ready()

    async def _stop_bookies(self) -> None:
        bookies = [each for name, each in self._servers.items() if name != ZOOKEEPER]
        await asyncio.gather(*[bookie.stop() for bookie in bookies])

    async def _stop_zookeeper(self) -> None:
        await self._servers[ZOOKEEPER].stop()

    async def _stop_brokers(self) -> None:
        await asyncio.gather(*[broker.stop(BROKER_STOP_SECONDS) for broker in self._brokers])

    def _of_cluster(self) -> Settings:
        return settings_of_brokers(self._settings, self._zookeeper, self._data)

    def _duty_of(self, number: int) -> Duty:
        settings = self._of_cluster()
        ports = own_ports(settings, number, shared=False)
        # One that is started again has the ports that clients know, also if any were free.
        for key, url in self._found.get(number, {}).items():
            if key in _PORTS:
                ports[_PORTS[key]] = int(url.rpartition(":")[2])
        return Duty(
            f"broker-{number}",
            dataclasses.replace(of_broker(settings, number), **ports),  # type: ignore[arg-type]
        )

    def _is_ready(self, number: int, told: dict[str, Any]) -> None:
        self._found[number] = {"pid": str(self._brokers[number].pid), **told}
        self._tell(f"broker-{number} serves (process {self._brokers[number].pid})")
        if self._serves:
            self._write_ready()

    def _write_ready(self) -> dict[str, Any]:
        first = {key: url for key, url in self._found[0].items() if key in _PORTS}
        servers = self._of_cluster()
        info = {
            "pid": str(os.getpid()),
            **first,
            "version": __version__,
            "metadataStoreUrl": servers.metadataStoreUrl,
            "bookkeeperMetadataServiceUri": servers.bookkeeperMetadataServiceUri,
            "servers": {name: str(self._pids[name]) for name in self._servers},
            "brokers": [self._found[number] for number in range(len(self._brokers))],
        }
        content = json.dumps(info, indent=1) + "\n"
        self._disk.write_atomic(str(self._data / READY_NAME), content.encode())
        return info


async def serve_cluster(
    settings: Settings,
    jars: Path,
    ready: asyncio.Future[dict[str, Any]],
    progress: Callable[[str], None],
) -> None:
    """Run a cluster until SIGINT or SIGTERM; ``ConfigError`` if it cannot go on."""
    await serve_until_signal(partial(LocalCluster, settings, jars, progress), ready)
