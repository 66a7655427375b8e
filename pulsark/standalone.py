"""``pulsark standalone``: bookies, broker, admin and Flight in one process.

What a cluster spreads over machines is wired together here over one data directory
(``storage/backup/data_dir.py``). With several brokers it is spread over processes
(``processes.supervisor``).
"""

from __future__ import annotations

import contextlib
import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsark import __version__
from pulsark.config.addresses import asks_for_login, check_access
from pulsark.processes.access import warn_of_access
from pulsark.processes.joined_metadata import live_by
from pulsark.processes.own_disks import OwnDisks
from pulsark.processes.served_broker import ServedBroker, Stored, within_fleet
from pulsark.processes.until_signal import FAILED_STOP_SECONDS, serve_until_signal
from pulsark.runtime import Runtime
from pulsark.storage.backup.data_dir import DataDir, locked

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pulsark.config.settings import Settings
    from pulsark.errors import PulsarkError


class Standalone:
    """All parts of one process, started and stopped in order."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        failed: Callable[[PulsarkError], None],
        *,
        adopt: bool = False,
    ) -> None:
        """``failed`` is called when nothing can be stored any more.

        ``adopt``: also serve bookies that the metadata store does not know (``--adopt``).
        """
        self._settings = settings
        self._runtime = runtime
        self._failed = failed
        self._cleanup = contextlib.AsyncExitStack()
        self._adopt = adopt

    async def start(self) -> dict[str, Any]:
        """Start everything; returns what ``standalone.json`` holds."""
        settings, runtime, cleanup = self._settings, self._runtime, self._cleanup
        check_access(settings.bindAddress, insecure=settings.insecure or asks_for_login(settings))
        data_dir = DataDir.of(settings)
        disks = OwnDisks(settings, data_dir, runtime, adopt=self._adopt)
        disks.make_directories()
        cleanup.enter_context(locked(data_dir))
        with contextlib.suppress(OSError):  # opening the store will report it
            runtime.disk.remove(data_dir.ready_path)  # one that was killed has left its addresses
        metadata = await disks.open_store(alone=True)
        live_by(metadata, cleanup, self._failed)
        bookies = await disks.open_bookies(metadata, cleanup, self._failed)
        roots = await disks.open_roots(metadata)
        stored = Stored(metadata, bookies, roots, data=data_dir, problems=disks.problems)
        settings = within_fleet(settings, len(bookies))
        served = ServedBroker(settings, runtime, stored, cleanup, adopt=self._adopt)
        warn_of_access(settings)
        urls = await served.start()
        info = {"pid": str(os.getpid()), **urls.as_json(), "version": __version__}
        runtime.disk.write_atomic(data_dir.ready_path, json.dumps(info, indent=1).encode())
        cleanup.callback(runtime.disk.remove, data_dir.ready_path)
        return info

    async def stop(self) -> None:
        """Stop everything in the reverse order; durable state is on disk afterwards."""
        await self._cleanup.aclose()


async def serve(
    settings: Settings, ready: asyncio.Future[dict[str, Any]], *, adopt: bool = False
) -> None:
    """Run a standalone until SIGINT or SIGTERM.

    Raises ``PulsarkError`` when nothing can be stored any more. Its supervisor starts
    the process again, which finds out what is on the disks.
    """
    make = partial(Standalone, settings, Runtime(), adopt=adopt)
    await serve_until_signal(
        make,
        ready,
        stop_seconds=settings.brokerShutdownTimeoutMs / 1000,
        failed_stop_seconds=FAILED_STOP_SECONDS,
    )
