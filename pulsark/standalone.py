"""``pulsark standalone``: bookies, broker, admin and Flight in one process.

What a cluster spreads over machines is wired together here over one data directory
(``storage/backup/data_dir.py``). With several brokers it is spread over processes
(``processes.supervisor``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from typing import TYPE_CHECKING

from pulsark import __version__
from pulsark.config.addresses import asks_for_login, check_access
from pulsark.errors import StorageError
from pulsark.processes.access import warn_of_access
from pulsark.processes.own_disks import OwnDisks
from pulsark.processes.served_broker import ServedBroker, Stored, within_fleet
from pulsark.runtime import Runtime, collect_rarely
from pulsark.storage.backup.data_dir import DataDir, locked

if TYPE_CHECKING:
    from pulsark.config.settings import Settings

log = logging.getLogger(__name__)

FAILED_STOP_SECONDS = 5.0
"""How long to try to stop in order after the disks have failed."""


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
        settings, runtime, cleanup = self._settings, self._runtime, self._cleanup
        check_access(settings.bindAddress, insecure=settings.insecure or asks_for_login(settings))
        data_dir = DataDir.of(settings)
        disks = OwnDisks(settings, data_dir, runtime, adopt=self._adopt)
        disks.make_directories()
        cleanup.enter_context(locked(data_dir))
        metadata = await disks.open_store(alone=True)
        cleanup.push_async_callback(metadata.close)
        metadata.session.on_end(self._session_ended)
        bookies = await disks.open_bookies(metadata, cleanup, self._fail)
        stored = Stored(metadata, bookies, await disks.open_roots(metadata))
        settings = within_fleet(settings, len(bookies))
        served = ServedBroker(settings, runtime, stored, cleanup, adopt=self._adopt)
        warn_of_access(settings)
        urls = await served.start()
        info = {"pid": str(os.getpid()), **urls.as_json(), "version": __version__}
        runtime.disk.write_atomic(data_dir.ready_path, json.dumps(info, indent=1).encode())
        cleanup.callback(runtime.disk.remove, data_dir.ready_path)
        return info

    def _fail(self, error: StorageError) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def _session_ended(self) -> None:
        self._fail(StorageError("the session of the metadata store has ended"))

    def end(self) -> None:
        """Complete ``ended``: the operator asked for an orderly stop."""
        if not self.ended.done():
            self.ended.set_result(None)

    async def stop(self) -> None:
        """Stop everything in the reverse order; durable state is on disk afterwards."""
        await self._cleanup.aclose()


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
