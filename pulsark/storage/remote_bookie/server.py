"""Serves an embedded bookie to other processes of the same user on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING

from pulsark.storage.remote_bookie.limits import BOOKIE_CONNECTIONS_MAX, BOOKIE_RUN_BYTES_MAX
from pulsark.storage.remote_bookie.messages import Hello
from pulsark.storage.remote_bookie.served import ServedConnection

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from pulsark.storage.bookie.embedded import EmbeddedBookie

log = logging.getLogger(__name__)


class BookieServer:
    """Accepts connections, and completes their requests even if they close."""

    def __init__(self, bookie: EmbeddedBookie, store_id: str, *, entry_bytes_max: int) -> None:
        """``store_id``: the identity of the metadata store that knows the bookie's ledgers."""
        self._bookie = bookie
        self._hello = Hello(
            bookie.bookie_id,
            bookie.instance_id.hex(),
            store_id,
            entry_bytes_max + BOOKIE_RUN_BYTES_MAX,
        )
        self._connections: set[ServedConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._leaving: asyncio.Future[None] | None = None

    async def listen(self, path: str) -> None:
        """Accept connections at ``path``, which only this user may open."""
        listening = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # left by a process that died
        before = os.umask(0o177)
        try:
            listening.bind(path)
        finally:
            os.umask(before)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accept, sock=listening)

    async def left(self) -> None:
        """Wait until all connections have closed."""
        while self._connections:
            self._leaving = asyncio.get_running_loop().create_future()
            await self._leaving

    async def close(self) -> None:
        """Close all connections, then wait for the requests under way."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def connection(self) -> ServedConnection:
        """The protocol of a new connection."""
        connection = ServedConnection(self._bookie, self._hello, self._run, self._ended)
        self._connections.add(connection)
        return connection

    def _accept(self) -> asyncio.Protocol:
        if len(self._connections) >= BOOKIE_CONNECTIONS_MAX:
            log.error(
                "bookie %s already has %d connections; refusing another one",
                self._bookie.bookie_id,
                BOOKIE_CONNECTIONS_MAX,
            )
            return _Refused()
        return self.connection()

    def _ended(self, connection: ServedConnection) -> None:
        self._connections.discard(connection)
        if not self._connections and self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(None)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
