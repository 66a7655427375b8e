"""Connections to a bookie process."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from pulsark.storage.bookie.kept_link import KeptLink
from pulsark.storage.remote_bookie.channel import Channel
from pulsark.storage.remote_bookie.limits import BOOKIE_SEND_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.storage.bookie.kept_link import Ended
    from pulsark.storage.remote_bookie.messages import Hello

    Connect = Callable[[asyncio.Protocol], Awaitable[object]]
    """Connects a protocol to the bookie's process; raises ``OSError``."""


def unix_socket(path: str) -> Connect:
    """Connects to the bookie process that listens at ``path``."""

    async def connect(protocol: asyncio.Protocol) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(lambda: protocol, path)
        sending = transport.get_extra_info("socket")
        if sending is not None:  # else it has ended already, which the protocol knows
            sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BOOKIE_SEND_BYTES)

    return connect


class Link(KeptLink[Channel]):
    """Keeps one ``Channel`` open."""

    def __init__(
        self, connect: Connect, expected: Hello, seconds: float, memory_bytes: int = 0
    ) -> None:
        """``seconds``: how long a silent bookie is waited for.

        ``memory_bytes``: to share with it, for large adds.
        """
        super().__init__(expected.bookieId, seconds)
        self._to_bookie = connect
        self._expected = expected
        self._seconds = seconds
        self._memory_bytes = memory_bytes

    def _made(self, ended: Ended[Channel]) -> Channel:
        return Channel(self._expected, self._seconds, ended, self._memory_bytes)

    async def _connect(self, channel: Channel) -> None:
        await self._to_bookie(channel)
        await channel.greeted
