"""A connection to a bookie process that is replaced when it breaks."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pulsark.errors import StorageError
from pulsark.storage.remote_bookie.channel import Channel
from pulsark.storage.remote_bookie.limits import BOOKIE_SEND_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.storage.remote_bookie.messages import Hello

    Connect = Callable[[asyncio.Protocol], Awaitable[object]]
    """Connects a protocol to the bookie's process; raises ``OSError``."""

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.05
RETRY_SECONDS_MAX: Final = 1.0
"""The first and the longest pause between attempts to connect."""


def unix_socket(path: str) -> Connect:
    """Connects to the bookie process that listens at ``path``."""

    async def connect(protocol: asyncio.Protocol) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(lambda: protocol, path)
        sending = transport.get_extra_info("socket")
        if sending is not None:  # else it has ended already, which the protocol knows
            sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BOOKIE_SEND_BYTES)

    return connect


class Link:
    """Keeps one ``Channel`` open. Some requests may wait for it."""

    def __init__(
        self, connect: Connect, expected: Hello, seconds: float, memory_bytes: int = 0
    ) -> None:
        """``seconds``: how long a request waits for an absent or silent bookie.

        ``memory_bytes``: to share with it, for large adds.
        """
        self._connect = connect
        self._expected = expected
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self.channel: Channel | None = None
        """The open channel."""
        self.opened: Callable[[Channel], None] = lambda _: None
        """Called with each new channel before its first use."""
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the link was closed."""
        return self._closed

    def open(self) -> None:
        """Start connecting."""
        self._task = asyncio.get_running_loop().create_task(self._keep_connecting())

    async def ready(self) -> Channel:
        """Wait for a channel; ``StorageError`` if that takes too long."""
        try:
            async with asyncio.timeout(self._seconds):
                while self.channel is None or self.channel.error is not None:
                    if self._closed:
                        raise StorageError(f"bookie {self._expected.bookieId} is closed")
                    await (self._ready if self.channel is None else self.channel.lost).wait()
        except TimeoutError:
            raise StorageError(
                f"bookie {self._expected.bookieId} has been away for {self._seconds:g} s"
            ) from None
        return self.channel

    async def close(self) -> None:
        """Close the connection and stop connecting."""
        self._closed = True
        self._ready.set()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self.channel is not None:
            self.channel.fail(StorageError(f"bookie {self._expected.bookieId} is closed"))

    async def _keep_connecting(self) -> None:
        pause = RETRY_SECONDS
        said = ""
        while True:
            channel = Channel(self._expected, self._seconds, self._lost, self._memory_bytes)
            try:
                async with asyncio.timeout(self._seconds):
                    await self._connect(channel)
                    await channel.greeted
                if channel.error is not None:
                    raise channel.error
            except Exception as e:
                known = isinstance(e, OSError | StorageError | TimeoutError)
                reason = str(e) or f"no answer within {self._seconds:g} s"
                channel.fail(StorageError(f"bookie {self._expected.bookieId}: {reason}"))
                if reason != said:
                    said = reason
                    log.warning(
                        "cannot connect to bookie %s, will try again: %s",
                        self._expected.bookieId,
                        reason,
                        exc_info=None if known else e,
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
                continue
            self.opened(channel)
            self.channel = channel
            self._ready.set()
            return

    def _lost(self, channel: Channel, error: StorageError) -> None:
        if self.channel is not channel:
            return  # never used: the attempt to connect reports it
        self.channel = None
        self._ready.clear()
        if not self._closed:
            log.warning("%s; connecting again", error)
            self.open()
