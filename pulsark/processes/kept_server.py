"""A server of another make, such as ZooKeeper, that is started again whenever it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, Protocol

from pulsark.errors import ConfigError
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.processes.java_process import JavaProcess

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 30.0


class Server(Protocol):
    """A server as one process of this machine."""

    @property
    def process(self) -> JavaProcess:
        """Its process; the same object after each start."""

    def start(self) -> None:
        """Start the process."""

    async def ready(self) -> None:
        """Return once it serves; ``ConfigError`` if it ends first, or takes too long."""


class KeptServer:
    """One server, from ``start`` to ``stop``."""

    def __init__(
        self,
        name: str,
        server: Server,
        ready: Callable[[], None],
        check: Callable[[], None] = lambda: None,
        given_up: Callable[[ConfigError], None] = lambda error: None,
    ) -> None:
        """``ready`` is called whenever a new process serves, ``check`` before a restart.

        That raises ``ConfigError`` if it is of no use; then there is none, and ``given_up`` is
        called.
        """
        self.name = name
        self._server = server
        # One that outlives its keeper would write to the same files as the next keeper's.
        server.process.dies_with_us = True
        self._ready = ready
        self._check = check
        self._given_up = given_up
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def pid(self) -> int:
        """The id of the running process, or 0."""
        return self._server.process.pid

    async def start(self) -> None:
        """Start it, and return once it serves. ``ConfigError`` if it does not."""
        self._server.start()
        await self._server.ready()
        if self._stopped:
            raise ConfigError(f"{self.name} was stopped")
        self._tell()
        self._task = unattended(self._keep(), f"keeping {self.name} running")

    async def stop(self) -> None:
        """End the process in order, also while it starts; it is not started again."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._server.process.stop)

    async def _keep(self) -> None:
        pause, serves = PAUSE_SECONDS, True
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._server.process.is_running:
                try:
                    self._check()
                except ConfigError as error:
                    self._given_up(error)
                    return
                log.error("%s has ended; restarting it in %g s", self.name, pause)
                await asyncio.sleep(pause)
                pause, serves = min(2 * pause, PAUSE_SECONDS_MAX), False
                await asyncio.to_thread(self._server.process.stop)  # forget the one that has ended
            if serves:
                continue
            try:
                if not self._server.process.pid:
                    self._server.start()
                await self._server.ready()
            except (ConfigError, OSError) as error:  # one that only takes long may serve yet
                log.error("%s: %s", self.name, error)
            else:
                pause, serves = PAUSE_SECONDS, True
                self._tell()

    def _tell(self) -> None:
        try:
            self._ready()
        except OSError as error:  # a full disk, for example: the server serves all the same
            log.error("cannot publish the address of %s: %s", self.name, error)
