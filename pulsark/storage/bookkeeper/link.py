"""A connection to one instance of a bookie, which is replaced when it breaks."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from pulsark.errors import BookieAwayError, MetadataError, StorageError
from pulsark.storage.bookkeeper.channel import Channel

if TYPE_CHECKING:
    from pulsark.storage.bookkeeper.limits import ClientSettings

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.05
RETRY_SECONDS_MAX: Final = 1.0
"""The first and the longest pause between attempts to connect."""


class Address(NamedTuple):
    """Where a bookie listens."""

    host: str
    port: int


class Whereabouts(Protocol):
    """What is known of a bookie outside of its connections. One for each instance."""

    @property
    def bookie_id(self) -> str:
        """Its name, which another instance may get."""

    async def address(self) -> Address:
        """Where it listens; waits until that is known."""

    async def check_instance(self) -> None:
        """Raise a ``StorageError`` if another instance has its name now, ``MetadataError`` if that
        cannot be known."""


class Link:
    """Keeps one ``Channel`` open."""

    def __init__(self, whereabouts: Whereabouts, settings: ClientSettings) -> None:
        self._whereabouts = whereabouts
        self._bookie_id = whereabouts.bookie_id
        self._settings = settings
        self.channel: Channel | None = None
        """The open channel."""
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def open(self) -> None:
        """Start connecting, unless that is under way."""
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._keep_connecting())

    async def ready(self, seconds: float) -> Channel:
        """Wait for a channel; ``StorageError`` if that takes too long."""
        try:
            async with asyncio.timeout(seconds):
                while self.channel is None:
                    if self._closed:
                        raise StorageError(f"bookie {self._bookie_id} is closed")
                    await self._ready.wait()
        except TimeoutError:
            raise BookieAwayError(
                f"bookie {self._bookie_id} has been away for {seconds:g} s"
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
            self.channel.fail(StorageError(f"bookie {self._bookie_id} is closed"))

    async def _keep_connecting(self) -> None:
        pause = RETRY_SECONDS
        said = ""
        while True:
            address = await self._whereabouts.address()
            channel = Channel(self._bookie_id, self._settings, self._lost)
            try:
                async with asyncio.timeout(self._settings.connect_seconds):
                    await asyncio.get_running_loop().create_connection(
                        partial(_same, channel), *address
                    )
                    # Only now: whoever accepted the connection had its name by then.
                    await self._whereabouts.check_instance()
                if channel.error is not None:
                    raise channel.error
            except Exception as e:
                known = isinstance(e, OSError | StorageError | MetadataError | TimeoutError)
                reason = str(e) or f"no connection within {self._settings.connect_seconds:g} s"
                channel.fail(StorageError(f"bookie {self._bookie_id}: {reason}"))
                if reason != said:
                    said = reason
                    log.warning(
                        "cannot connect to bookie %s at %s:%d, will try again: %s",
                        self._bookie_id,
                        *address,
                        reason,
                        exc_info=None if known else e,
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
                continue
            except asyncio.CancelledError:
                channel.fail(StorageError(f"bookie {self._bookie_id} is closed"))
                raise
            self._task = None
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


def _same(channel: Channel) -> Channel:
    return channel
