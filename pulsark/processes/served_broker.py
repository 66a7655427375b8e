"""A broker with its ports: the main part of every process that serves clients."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pulsark.config.addresses import hosts_of
from pulsark.config.store_urls import store_url
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.connection.server import Server
from pulsark.dispatch.loop.garbage import Garbage
from pulsark.dispatch.loop.load import LoopLoad, waited_seconds
from pulsark.dispatch.loop.run_queue import RunQueue
from pulsark.dispatch.loop.stalls import LoopStalls
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.dispatch.policies.schemas import Schemas
from pulsark.metadata.sqlite_file import keep_reserve
from pulsark.runtime import collect, resident_bytes
from pulsark.storage.bookie.disk_watch import disk_watch_of
from pulsark.storage.bookie.known_bookies import KnownBookies
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.ledger.placement import Places
from pulsark.storage.roots.any_root import files_of_roots
from pulsark.storage.roots.options import ObjectStoreOptions
from pulsark.storage.roots.root_files import in_object_store
from pulsark.storage.table.process.process import TableProcess, memory_environment
from pulsark.storage.table.process.processors import Processors
from pulsark.storage.table.tables import Tables
from pulsark.tasks import unattended

if TYPE_CHECKING:
    import contextlib
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from pulsark.admin.server import AdminServer
    from pulsark.config.settings import Settings
    from pulsark.dispatch.spark.flight_listener import FlightListener
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime
    from pulsark.security.audit.audit import Audit
    from pulsark.security.tls import ServerTls
    from pulsark.storage.backup.data_dir import DataDir
    from pulsark.storage.bookie.bookie import Bookie
    from pulsark.storage.bookie.disk_watch import DiskWatch
    from pulsark.storage.ledger.store import LedgerStore
    from pulsark.storage.table.root_identity import StorageRoots

log = logging.getLogger(__name__)

_SPOKEN = {"web_tls": ("http/1.1",), "flight_tls": ("h2",)}
"""The protocols that a TLS port offers (ALPN)."""


class Fleet(Places, KnownBookies, Protocol):
    """Which bookies a cluster has, and where they stand."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The storage under a broker. The caller opens it and closes it."""

    metadata: MetadataStore
    bookies: Mapping[str, Bookie]
    roots: StorageRoots
    ledgers: LedgerStore | None = None
    """Where the metadata of ledgers are, if not in the metadata store."""
    fleet: Fleet | None = None
    """What the cluster knows of its bookies, if they are not this machine's."""
    data: DataDir | None = None
    """The directories of this machine's bookies and metadata store, if it has some."""
    problems: Sequence[str] = ()
    """What the bookies had lost when they were opened, one sentence each."""


@dataclass(frozen=True, slots=True)
class SharedPorts:
    """Ports that several brokers share, in addition to each one's own ports."""

    sockets: Mapping[str, Sequence[socket.socket]]
    """Listening sockets by the setting that names the port."""
    urls: ServiceUrls
    address_of: Callable[[int], str]
    """The Unix socket of the broker with this binary port."""
    in_place: bool = False
    """Whether this process takes the place of one that has ended."""


class ServedBroker:
    """The broker of this process. ``cleanup`` closes what it opens."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        stored: Stored,
        cleanup: contextlib.AsyncExitStack,
        *,
        adopt: bool = False,
        shared: SharedPorts | None = None,
        of_cluster: bool = False,
    ) -> None:
        """``of_cluster``: an operator has initialised the metadata, and keeps them."""
        self._settings = settings
        self._cleanup = cleanup
        self._adopt = adopt
        self._shared = shared
        options = ObjectStoreOptions.of(settings)
        self._of_cluster = of_cluster
        tables = Tables(
            stored.roots,
            stored.metadata,
            runtime,
            files=files_of_roots(stored.roots.paths, runtime.disk, options, runtime.clock),
            new_process=partial(
                TableProcess,
                options.to_environment() | memory_environment(settings.tableProcessMemoryMB),
            ),
            copies=settings.managedLedgerDefaultWriteQuorum,
            copies_needed=settings.managedLedgerDefaultAckQuorum,
            schemas_of=Schemas(stored.metadata, runtime, RunQueue(runtime.clock)).by_version,
        )
        if of_cluster:  # bookies and other brokers are in other sessions
            tables.processes.spare = Processors(runtime.clock).spare
        ledgers = LedgerManager(
            stored.metadata,
            stored.bookies,
            runtime,
            tables,
            store=stored.ledgers,
            places=stored.fleet,
            patience=settings.bookkeeperClientSpeculativeReadTimeoutInMillis / 1000,
        )
        self.broker = Broker(settings, runtime, stored.metadata, ledgers, tables)
        if stored.fleet is not None:
            self.broker.known_bookies = stored.fleet
        self.broker.disks = self._disk_watch(stored, runtime)
        self.broker.storage_problems = stored.problems
        cleanup.callback(self.broker.disks.close)  # after the chores that use it
        cleanup.push_async_callback(self.broker.close)

    def _disk_watch(self, stored: Stored, runtime: Runtime) -> DiskWatch:
        roots = [root for root in stored.roots.paths if not in_object_store(root)]
        if stored.data is None:
            return disk_watch_of(self._settings, (), roots, runtime)
        homes = stored.data.homes
        watch = disk_watch_of(self._settings, homes, [stored.data.path, *roots], runtime)
        if not store_url(self._settings):
            watch.keep = partial(keep_reserve, stored.data.metadata_path)
        return watch

    async def start(self) -> ServiceUrls:
        """Open the ports and serve; returns this broker's own addresses."""
        from pulsark.admin.server import AdminServer
        from pulsark.dispatch.spark.flight_listener import FlightListener
        from pulsark.dispatch.spark.topic_entries import FlightEntries

        settings, broker = self._settings, self.broker
        server, admin, flight = (
            Server(broker),
            AdminServer(broker),
            FlightListener(
                FlightEntries(broker.topics),
                most=settings.flightMaxConnections,
                most_of_host=settings.flightMaxConnectionsPerIp,
                most_calls=settings.flightMaxCalls,
                clock=broker.clock,
                logins=broker.logins,
                authorization=broker.authorization,
                audit=broker.audit,
                slots=broker.connections.slots,
                turns=broker.request_turns,
            ),
        )
        urls = await self._open_ports(server, admin, flight, broker.audit)
        if self._shared is not None:
            self._share_ports(self._shared, server, admin, urls)
        broker.sealing.rounds.load = LoopLoad(broker.clock, time.thread_time)
        broker.sealing.repairs.adopts = self._adopt
        broker.load_reports.cpu_seconds = time.thread_time
        broker.loop_stalls = stalls = LoopStalls(broker.clock, broker.run_queue)
        stalls.start()
        self._cleanup.callback(stalls.close)
        load = LoopLoad(broker.clock, lambda: time.thread_time() + waited_seconds())
        garbage = Garbage(time.thread_time, load, resident_bytes, collect, sys.getallocatedblocks)
        garbage.start()
        self._cleanup.callback(garbage.close)
        broker.topics.damage.of_cluster = self._of_cluster
        await broker.start(
            urls,
            None if self._shared is None else self._shared.urls,
            of_cluster=self._of_cluster,
        )
        server.serve()
        if self._shared is not None and self._shared.in_place:
            # Clients and other brokers will ask at once, some of them this one through another.
            admin.load_soon()
        return urls

    async def _open_ports(
        self, server: Server, admin: AdminServer, flight: FlightListener, audit: Audit | None
    ) -> ServiceUrls:
        """Listen on the ports that the settings name. HTTP and Flight answer from now on."""
        settings, name = self._settings, self._settings.advertisedAddress
        self._cleanup.callback(server.close)
        self._cleanup.push_async_callback(admin.close)
        self._cleanup.push_async_callback(flight.close)
        found: dict[str, str] = {}
        for key, scheme, port, listen in (
            ("broker", "pulsar", settings.brokerServicePort, server.listen),
            ("web", "http", settings.webServicePort, admin.listen),
        ):
            if port is not None:
                found[key] = f"{scheme}://{name}:{listen(self._hosts(port), port)}"
        port = settings.flightServicePort
        if port is not None:
            found["flight"] = f"grpc://{name}:{await flight.listen(self._hosts(port), port)}"
        over_tls = (
            ("broker_tls", "pulsar+ssl", settings.brokerServicePortTls, server.listen_tls),
            ("web_tls", "https", settings.webServicePortTls, admin.listen_tls),
            ("flight_tls", "grpc+tls", settings.flightServicePortTls, flight.listen_tls),
        )
        if any(port is not None for _, _, port, _ in over_tls):
            tls = self._tls()
            if audit is not None:
                tls.told = partial(audit.broker, "reload")
            for key, scheme, port, listen_tls in over_tls:
                if port is not None:
                    context = tls.context(*_SPOKEN.get(key, ()))
                    taken = listen_tls(self._hosts(port), port, context)
                    found[key] = f"{scheme}://{name}:{taken}"
        return ServiceUrls(**found)

    def _share_ports(
        self, shared: SharedPorts, server: Server, admin: AdminServer, urls: ServiceUrls
    ) -> None:
        from pulsark.dispatch.connection.shared_port import SharedPort
        from pulsark.dispatch.handover.sender import SocketSender

        sockets = shared.sockets
        if sockets["brokerServicePort"]:
            sender = SocketSender(self._settings.advertisedAddress, shared.address_of)
            self._cleanup.callback(sender.close)
            own_port = int(urls.broker.rpartition(":")[2])
            address = shared.address_of(own_port)
            mine = (urls.broker, shared.urls.broker)
            server.share(SharedPort(sockets["brokerServicePort"], sender, address, mine))
        server.share_tls(sockets["brokerServicePortTls"])
        admin.share(sockets["webServicePort"])
        admin.share_tls(sockets["webServicePortTls"])

    def _tls(self) -> ServerTls:
        """The TLS configuration. Its files are checked for changes periodically."""
        from pulsark.security.tls import ServerTls, TlsRules  # only if TLS is on

        period = self._settings.tlsCertRefreshCheckDurationSec
        tls = ServerTls(TlsRules.of(self._settings), at_each_handshake=period == 0)
        if period:
            looking = unattended(_look_again(tls, period), "looking for new certificates")
            self._cleanup.callback(looking.cancel)
        return tls

    def _hosts(self, port: int) -> list[str]:
        return hosts_of(self._settings.bindAddress, port)


async def _look_again(tls: ServerTls, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        tls.look_again()


def within_fleet(settings: Settings, bookies: int) -> Settings:
    """Settings with quorums that this number of bookies can meet."""
    if settings.managedLedgerDefaultEnsembleSize <= bookies:
        return settings
    log.error(
        "only %d bookies for an ensemble of %d: new ledgers have fewer copies. Start the "
        "missing bookies, or lower managedLedgerDefaultEnsembleSize",
        bookies,
        settings.managedLedgerDefaultEnsembleSize,
    )
    return dataclasses.replace(
        settings,
        managedLedgerDefaultEnsembleSize=bookies,
        managedLedgerDefaultWriteQuorum=min(settings.managedLedgerDefaultWriteQuorum, bookies),
        managedLedgerDefaultAckQuorum=min(settings.managedLedgerDefaultAckQuorum, bookies),
    )
