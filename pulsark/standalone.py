"""``pulsark standalone``: bookies, broker, admin and Flight in one process.

What a cluster spreads over machines is wired together here over one data directory
(``storage/backup/data_dir.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

from pulsark import __version__
from pulsark.config.addresses import (
    asks_for_login,
    check_access,
    hosts_of,
    is_private,
    plain_ports,
)
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.connection.server import Server
from pulsark.dispatch.loop.garbage import Garbage
from pulsark.dispatch.loop.load import LoopLoad
from pulsark.dispatch.loop.run_queue import RunQueue
from pulsark.dispatch.loop.stalls import LoopStalls
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.dispatch.policies.schemas import Schemas
from pulsark.errors import StorageError
from pulsark.metadata.sqlite import SqliteMetadataStore
from pulsark.runtime import Runtime, collect, collect_rarely, resident_bytes
from pulsark.storage.backup.data_dir import DataDir, locked
from pulsark.storage.bookie.fleet import check_store_is_there, leave_when_failed, open_fleet
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.table.root_identity import commission
from pulsark.storage.table.tables import Tables

if TYPE_CHECKING:
    from pulsark.admin.server import AdminServer
    from pulsark.config.settings import Settings
    from pulsark.dispatch.spark.flight_listener import FlightListener
    from pulsark.security.audit.audit import Audit
    from pulsark.security.tls import ServerTls

log = logging.getLogger(__name__)

_SPOKEN = {"web_tls": ("http/1.1",), "flight_tls": ("h2",)}
"""What clients of a port over TLS ask for beside TLS (ALPN)."""

FAILED_STOP_SECONDS = 5.0
"""So long is tried to stop in order after the disks have failed."""


class Standalone:
    """All parts of one process, started and stopped in order."""

    def __init__(self, settings: Settings, runtime: Runtime, *, adopt: bool = False) -> None:
        """``adopt``: also serve bookies that the metadata store does not know (``--adopt``)."""
        self._settings = settings
        self._runtime = runtime
        self._cleanup = contextlib.AsyncExitStack()
        self._adopt = adopt
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set when the process has to end; with an error, when nothing can be stored any more."""
        self.ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def start(self) -> dict[str, str]:
        """Start everything; returns what ``standalone.json`` holds."""
        settings, runtime = self._settings, self._runtime
        check_access(settings.bindAddress, insecure=settings.insecure or asks_for_login(settings))
        data_dir = DataDir.of(settings)
        runtime.disk.make_dirs(data_dir.path)
        for home in data_dir.homes:
            with contextlib.suppress(OSError):  # who opens the bookie says it
                runtime.disk.make_dirs(home.journal_dir)
                runtime.disk.make_dirs(home.ledger_dir)
        self._cleanup.enter_context(locked(data_dir))
        if not self._adopt:
            check_store_is_there(data_dir.metadata_path, data_dir.homes, runtime.disk)
        metadata = await SqliteMetadataStore.open(
            data_dir.metadata_path,
            runtime,
            accept_loss=self._adopt,
            timeout_seconds=settings.metadataStoreOperationTimeoutSeconds,
        )
        self._cleanup.push_async_callback(metadata.close)
        bookies = await open_fleet(
            data_dir.homes,
            JournalSettings(journal_max_size=settings.journalMaxSizeMB << 20),
            metadata,
            runtime,
            adopt=self._adopt,
        )
        for bookie in bookies.values():
            self._cleanup.push_async_callback(bookie.close)
        settings = self._settings = within_fleet(settings, len(bookies))
        leave_when_failed(bookies, settings.managedLedgerDefaultAckQuorum, self._fail)
        tables = Tables(
            await commission(data_dir.storage_roots, metadata, runtime, adopt=self._adopt),
            metadata,
            runtime,
            copies=settings.managedLedgerDefaultWriteQuorum,
            copies_needed=settings.managedLedgerDefaultAckQuorum,
            schemas_of=Schemas(metadata, runtime, RunQueue(runtime.clock)).by_version,
        )
        ledgers = LedgerManager(metadata, bookies, runtime, tables)
        broker = Broker(settings, runtime, metadata, ledgers, tables)
        self._cleanup.push_async_callback(broker.close)
        info = await self._serve(broker)
        runtime.disk.write_atomic(data_dir.ready_path, json.dumps(info, indent=1).encode())
        self._cleanup.callback(runtime.disk.remove, data_dir.ready_path)
        return info

    async def _serve(self, broker: Broker) -> dict[str, str]:
        from pulsark.admin.server import AdminServer
        from pulsark.dispatch.spark.flight_listener import FlightListener
        from pulsark.dispatch.spark.topic_entries import TopicEntries

        settings = self._settings
        server, admin, flight = (
            Server(broker),
            AdminServer(broker),
            FlightListener(
                TopicEntries(broker.topics),
                most=settings.flightMaxConnections,
                most_of_host=settings.flightMaxConnectionsPerIp,
                most_calls=settings.flightMaxCalls,
                clock=broker.clock,
                logins=broker.logins,
                authorization=broker.authorization,
                audit=broker.audit,
            ),
        )
        if not is_private(settings.bindAddress) and not asks_for_login(settings):
            log.warning(
                "insecure: everyone who reaches %s can read, change and delete everything, because "
                "authentication is off; bindAddress=localhost is for this machine only. Clients "
                "are told to connect to %s: set advertisedAddress to the name by which they find "
                "this machine",
                settings.bindAddress,
                settings.advertisedAddress,
            )
        if not is_private(settings.bindAddress) and settings.authenticationEnabled:
            ports = plain_ports(settings)
            if ports:
                log.warning(
                    "tokens and passwords cross the network in the clear on %s; leave it empty and "
                    "set the one for TLS",
                    " and ".join(ports),
                )
        urls = await self._open_ports(server, admin, flight, broker.audit)
        broker.sealing.rounds.load = LoopLoad(broker.clock, time.thread_time)
        broker.sealing.repairs.adopts = self._adopt
        broker.load_reports.cpu_seconds = time.thread_time
        broker.loop_stalls = stalls = LoopStalls(broker.clock, broker.run_queue)
        stalls.start()
        self._cleanup.callback(stalls.close)
        load = LoopLoad(broker.clock, time.thread_time)
        garbage = Garbage(broker.clock, load, resident_bytes, collect)
        garbage.start()
        self._cleanup.callback(garbage.close)
        await broker.start(urls)
        await server.serve()
        return {"pid": str(os.getpid()), **urls.as_json(), "version": __version__}

    async def _open_ports(
        self, server: Server, admin: AdminServer, flight: FlightListener, audit: Audit | None
    ) -> ServiceUrls:
        """Take the ports that the settings name; HTTP and Flight answer from now on."""
        settings, name = self._settings, self._settings.advertisedAddress
        self._cleanup.callback(server.close)
        self._cleanup.push_async_callback(admin.close)
        self._cleanup.push_async_callback(flight.close)
        found: dict[str, str] = {}
        for key, scheme, port, listen in (
            ("broker", "pulsar", settings.brokerServicePort, server.listen),
            ("web", "http", settings.webServicePort, admin.listen),
            ("flight", "grpc", settings.flightServicePort, flight.listen),
        ):
            if port is not None:
                found[key] = f"{scheme}://{name}:{await listen(self._hosts(port), port)}"
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

    def _tls(self) -> ServerTls:
        """What TLS needs; its files are looked at again from time to time."""
        from pulsark.security.tls import ServerTls, TlsRules  # for those who need it

        period = self._settings.tlsCertRefreshCheckDurationSec
        tls = ServerTls(TlsRules.of(self._settings), at_each_handshake=period == 0)
        if period:
            looking = asyncio.get_running_loop().create_task(_look_again(tls, period))
            self._cleanup.callback(looking.cancel)
        return tls

    def _fail(self, error: StorageError) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def _hosts(self, port: int) -> list[str]:
        return hosts_of(self._settings.bindAddress, port)

    def end(self) -> None:
        """Complete ``ended``: the operator asked for an orderly stop."""
        if not self.ended.done():
            self.ended.set_result(None)

    async def stop(self) -> None:
        """Stop everything in the reverse order; durable state is on disk afterwards."""
        await self._cleanup.aclose()


async def _look_again(tls: ServerTls, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        tls.look_again()


def within_fleet(settings: Settings, bookies: int) -> Settings:
    """Quorums that the bookies that are there can meet."""
    if settings.managedLedgerDefaultEnsembleSize <= bookies:
        return settings
    log.error(
        "only %d bookies are there for an ensemble of %d: new ledgers have fewer copies",
        bookies,
        settings.managedLedgerDefaultEnsembleSize,
    )
    return dataclasses.replace(
        settings,
        managedLedgerDefaultEnsembleSize=bookies,
        managedLedgerDefaultWriteQuorum=min(settings.managedLedgerDefaultWriteQuorum, bookies),
        managedLedgerDefaultAckQuorum=min(settings.managedLedgerDefaultAckQuorum, bookies),
    )


async def serve(
    settings: Settings,
    ready: asyncio.Future[dict[str, str]] | None = None,
    *,
    adopt: bool = False,
) -> None:
    """Run a standalone until SIGINT or SIGTERM.

    Raises ``StorageError`` when nothing can be stored any more. Its supervisor starts
    the process again, which finds out what is on the disks.
    """
    standalone = Standalone(settings, Runtime(), adopt=adopt)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, standalone.end)
    try:
        info = await standalone.start()
        collect_rarely()
        log.info("serving", extra=info)
        if ready is not None:
            ready.set_result(info)
        await standalone.ended
    except StorageError:
        # Much of what an orderly stop does waits for the disk that has failed.
        with contextlib.suppress(TimeoutError, StorageError):
            async with asyncio.timeout(FAILED_STOP_SECONDS):
                await standalone.stop()
        raise
    finally:
        await standalone.stop()
