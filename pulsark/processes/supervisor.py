"""``pulsark standalone --brokers N``: one bookie process and N broker processes.

The supervisor locks the data directory and opens the shared ports, but serves no client itself. It
starts the bookie process first, because that checks the data, then the brokers. It restarts each
process that dies. Brokers stop before the bookies, so that they can close their ledgers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pulsark import __version__
from pulsark.config.addresses import asks_for_login, check_access, hosts_of, listening
from pulsark.config.several_brokers import SHARED_PORTS, of_broker
from pulsark.config.store_urls import store_url
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.errors import ConfigError
from pulsark.processes.access import warn_of_access
from pulsark.processes.duty import BOOKIE, BrokerDuty, Disks, Duty
from pulsark.processes.kept_child import KeptChild
from pulsark.processes.run_directory import RunDirectory
from pulsark.processes.until_signal import serve_until_signal
from pulsark.runtime import Runtime
from pulsark.storage.backup.data_dir import DataDir, Locks, locked_itself

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from pulsark.config.settings import Settings

log = logging.getLogger(__name__)

BROKER_STOP_SECONDS: Final = 20.0
BOOKIE_STOP_SECONDS: Final = 20.0

_DESERTED_LOOK_SECONDS: Final = 0.05
_DESERTED_LOOKS: Final = 600
"""How often to check whether the children of a dead supervisor have ended."""
_PORT_LOOKS: Final = 20
"""How often to try to open a port: a child that ends leaves its sockets last."""

_BACKLOG: Final = 1024
_SCHEMES: Final = ("pulsar", "pulsar+ssl", "http", "https")


class Supervisor:
    """All processes of one data directory; they start and stop in order."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        failed: Callable[[ConfigError], None] = lambda error: None,
        *,
        adopt: bool = False,
    ) -> None:
        """``failed`` is called if nothing can go on, and no restart of a process helps.

        ``adopt``: take bookies and tables as they are, although the metadata are older.
        """
        self._settings = settings
        self._adopt = adopt
        self._runtime = runtime
        self._cleanup = contextlib.AsyncExitStack()
        self._data = DataDir.of(settings)
        self._sockets: dict[str, list[socket.socket]] = {key: [] for key in SHARED_PORTS}
        self._urls = ServiceUrls()
        self._disks: Disks | None = None
        self._locks = Locks({})
        self._failed = failed
        kept = partial(KeptChild, check=self._check_data, given_up=self._give_up)
        self._bookie = kept(BOOKIE, self._duty_of_bookie, self._bookie_is_ready, vital=True)
        self._brokers = [
            kept(f"broker-{n}", partial(self._duty_of, n), partial(self._is_ready, n))
            for n in range(settings.standaloneBrokers)
        ]
        self._found: dict[int, dict[str, Any]] = {}
        """The addresses that each broker reported last, and its process."""
        self._bookie_pid = 0
        """The process that reported what ``_disks`` says."""
        self._serves = False

    async def start(self) -> dict[str, Any]:
        """Start everything, and return the contents of ``standalone.json``."""
        settings = self._settings
        check_access(settings.bindAddress, insecure=settings.insecure or asks_for_login(settings))
        self._runtime.disk.make_dirs(self._data.path)
        self._data.make_private(settings.dataDirectoryAccess)
        self._locks = self._cleanup.enter_context(locked_itself(self._data))
        with contextlib.suppress(OSError):  # the bookie's process will report it
            self._serves_no_more()  # a supervisor that was killed has left its addresses
        await self._wait_for_children_of_others()
        await self._listen_soon()
        warn_of_access(settings)
        self._cleanup.push_async_callback(self._bookie.stop, BOOKIE_STOP_SECONDS)
        self._bookie.start()
        await self._bookie.first
        self._cleanup.push_async_callback(self._stop_brokers)
        for broker in self._brokers:
            broker.start()
        await asyncio.gather(*[broker.first for broker in self._brokers])
        self._serves = True
        self._cleanup.callback(self._serves_no_more)
        return self._write_ready()

    async def stop(self) -> None:
        """Stop everything in reverse order. All durable state is on disk afterwards."""
        await self._cleanup.aclose()

    def _serves_no_more(self) -> None:
        self._serves = False  # a process that is ready while all stop is not published any more
        self._runtime.disk.remove(self._data.ready_path)

    def _check_data(self) -> None:
        """A process that is started again would make everything anew, or miss it for ever."""
        self._locks.check()
        path = self._data.metadata_path
        if not store_url(self._settings) and not os.path.lexists(path):
            raise ConfigError(
                f"the metadata store {path} was deleted while it was in use: no process can go on "
                "without it. Restore a backup"
            )

    def _give_up(self, error: ConfigError) -> None:
        log.error("stopping all processes: %s", error)
        self._failed(error)

    async def _stop_brokers(self) -> None:
        await asyncio.gather(*[broker.stop(BROKER_STOP_SECONDS) for broker in self._brokers])

    async def _wait_for_children_of_others(self) -> None:
        run = RunDirectory(self._data)
        try:
            if run.clear():
                return
            log.warning(
                "dataDir %s: waiting for processes of a dead supervisor to stop", self._data.path
            )
            for _ in range(_DESERTED_LOOKS):
                await asyncio.sleep(_DESERTED_LOOK_SECONDS)
                if run.clear():
                    return
            raise ConfigError(
                f"dataDir: {self._data.path} is still in use by child processes of a supervisor "
                "that died; end them (pulsark.processes.child) and start again"
            )
        finally:
            run.close()

    async def _listen_soon(self) -> None:
        """Open the shared ports, which a dead supervisor's last child may be about to leave."""
        for look in range(_PORT_LOOKS):
            try:
                return self._listen()
            except ConfigError as e:
                cause = e.__cause__
                in_use = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
                if not in_use or look == _PORT_LOOKS - 1:
                    raise
            await asyncio.sleep(_DESERTED_LOOK_SECONDS)
        return None

    def _listen(self) -> None:
        """Open the shared ports, all or none. They stay open while brokers come and go."""
        settings, found = self._settings, {}
        keys = ("broker", "broker_tls", "web", "web_tls")
        with contextlib.ExitStack() as opened:
            for setting, scheme, key in zip(SHARED_PORTS, _SCHEMES, keys, strict=True):
                port: int | None = getattr(settings, setting)
                if port is None:
                    continue
                hosts = hosts_of(settings.bindAddress, port)
                self._sockets[setting] = sockets = listening(hosts, port, setting, _BACKLOG)
                for each in sockets:
                    opened.callback(each.close)
                taken = sockets[0].getsockname()[1]
                found[key] = f"{scheme}://{settings.advertisedAddress}:{taken}"
            self._cleanup.callback(opened.pop_all().close)
        self._urls = ServiceUrls(**found)

    def _duty_of_bookie(self) -> Duty:
        first = self._disks is None  # later on the store knows what was adopted
        return Duty(BOOKIE, self._settings, adopt=self._adopt and first)

    def _duty_of(self, number: int) -> Duty:
        assert self._disks is not None
        sockets = {
            key: [each.fileno() for each in sockets] for key, sockets in self._sockets.items()
        }
        return Duty(
            f"broker-{number}",
            of_broker(self._settings, number),
            BrokerDuty(self._disks, sockets, self._urls, in_place=number in self._found),
            [descriptor for descriptors in sockets.values() for descriptor in descriptors],
            adopt=self._adopt,  # one that is started again may not have looked at all tables yet
        )

    def _bookie_is_ready(self, told: dict[str, Any]) -> None:
        before, self._disks = self._disks, Disks.from_json(told)
        self._bookie_pid = self._bookie.pid
        if before is not None and before != self._disks:
            log.error("the set of bookies or storage roots has changed: restarting all brokers")
            for broker in self._brokers:
                broker.restart()
        if self._serves:
            self._write_ready()

    def _is_ready(self, number: int, told: dict[str, Any]) -> None:
        self._found[number] = {"pid": str(self._brokers[number].pid), **told}
        if self._serves:
            self._write_ready()

    def _write_ready(self) -> dict[str, Any]:
        brokers = [self._found[number] for number in range(len(self._brokers))]
        flight = ServiceUrls(
            flight=self._found[0].get("flightUrl", ""),
            flight_tls=self._found[0].get("flightUrlTls", ""),
        )
        info = {
            "pid": str(os.getpid()),
            **self._urls.as_json(),
            **flight.as_json(),
            "version": __version__,
            "bookiePid": str(self._bookie_pid),
            "brokers": brokers,
        }
        self._runtime.disk.write_atomic(self._data.ready_path, json.dumps(info, indent=1).encode())
        return info


async def supervise(
    settings: Settings, ready: asyncio.Future[dict[str, Any]], *, adopt: bool = False
) -> None:
    """Run several brokers until SIGINT or SIGTERM; ``ConfigError`` if they cannot go on."""
    await serve_until_signal(partial(Supervisor, settings, Runtime(), adopt=adopt), ready)
