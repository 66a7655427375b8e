"""The process that owns the disks of a data directory and serves its bookies to the brokers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from pulsark.limits import FRAME_OVERHEAD_BYTES
from pulsark.processes.duty import Disks
from pulsark.processes.own_disks import OwnDisks
from pulsark.processes.run_directory import RunDirectory
from pulsark.storage.backup.data_dir import DataDir, locked_bookies
from pulsark.storage.remote_bookie.server import BookieServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.errors import PulsarkError
    from pulsark.processes.duty import Duty
    from pulsark.runtime import Runtime

_LEAVE_SECONDS: Final = 8.0
"""How long brokers may go on using the bookies while both stop."""


class BookieProcess:
    """The parts of the process; they start and stop in order."""

    def __init__(
        self, duty: Duty, runtime: Runtime, failed: Callable[[PulsarkError], None]
    ) -> None:
        self._settings = duty.settings
        self._adopt = duty.adopt
        self._runtime = runtime
        self._failed = failed
        self._cleanup = contextlib.AsyncExitStack()
        self._servers: list[BookieServer] = []

    async def start(self) -> dict[str, Any]:
        """Start, and return what brokers need to know.

        This refuses a metadata store that does not belong to the bookies before any broker opens
        it. Brokers then accept only this store and these bookies.
        """
        settings, runtime, cleanup = self._settings, self._runtime, self._cleanup
        data = DataDir.of(settings)
        run = RunDirectory(data)
        cleanup.callback(run.close)
        run.live()
        disks = OwnDisks(settings, data, runtime, adopt=self._adopt)
        disks.make_directories()
        cleanup.enter_context(locked_bookies(data))
        metadata = await disks.open_store(alone=False)
        cleanup.push_async_callback(metadata.close)
        bookies = await disks.open_bookies(metadata, cleanup, self._failed)
        roots = await disks.open_roots(metadata)
        for bookie in bookies.values():
            server = BookieServer(
                bookie,
                metadata.identity,
                entry_bytes_max=settings.maxMessageSize + FRAME_OVERHEAD_BYTES,
            )
            await server.listen(run.address_of_bookie(bookie.bookie_id))
            self._servers.append(server)
            cleanup.push_async_callback(server.close)
        return Disks(sorted(bookies), roots, disks.problems).to_json()

    async def stop(self) -> None:
        """Stop once the brokers have closed their ledgers and left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                for server in self._servers:
                    await server.left()
        await self._cleanup.aclose()
