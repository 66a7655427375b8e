"""The TCP listener of the binary protocol."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.dispatch.connection.connection import Connection
from pulsark.dispatch.connection.handlers import HANDLERS
from pulsark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.dispatch.broker import Broker


class Server:
    """Accepts clients of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None

    async def listen(self, hosts: Sequence[str], port: int) -> int:
        """Take the port; returns it (``port`` 0 takes a free one). ``ConfigError`` if in use.

        No client is served before ``serve``.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(self._broker, HANDLERS),
                hosts,
                port,
                backlog=1024,
                start_serving=False,
            )
        except OSError as error:
            raise ConfigError.cannot_listen("brokerServicePort", hosts, port, error) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def serve(self) -> None:
        """Accept clients: the broker has started, and knows the addresses that it tells them."""
        assert self._server is not None
        await self._server.start_serving()

    def close(self) -> None:
        """Accept no more clients."""
        if self._server is not None:
            self._server.close()
