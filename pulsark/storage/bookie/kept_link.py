"""A connection to a bookie in another process, which is replaced when it breaks."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar

from pulsark.errors import BookieAwayError, MetadataError, StorageError

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.05
RETRY_SECONDS_MAX: Final = 1.0
"""The first and the longest pause between attempts to connect."""


class Breakable(Protocol):
    """What is known here of a connection."""

    error: StorageError | None
    """Why it has ended or is ending."""

    def fail(self, error: StorageError) -> None:
        """End it at once."""


C = TypeVar("C", bound=Breakable)
Ended = Callable[[C, StorageError], None]


class KeptLink(ABC, Generic[C]):
    """Keeps one channel to a bookie open.

    No error ends the attempts to connect: what is not expected is told with its trace.
    """

    def __init__(self, bookie_id: str, connect_seconds: float) -> None:
        """``connect_seconds``: for one attempt."""
        self._bookie_id = bookie_id
        self._connect_seconds = connect_seconds
        self.channel: C | None = None
        """The open channel."""
        self.opened: Callable[[C], None] = lambda _: None
        """Called with each new channel before its first use."""
        self._ready, self._gone = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._was_lost = False
        """Whether a channel was lost and none has taken its place yet."""

    @abstractmethod
    def _made(self, ended: Ended[C]) -> C:
        """A channel to connect, which says when it has ended."""

    @abstractmethod
    async def _connect(self, channel: C) -> None:
        """Connect it, and see that it is the right bookie. ``OSError``, ``StorageError``,
        ``MetadataError``."""

    async def _found(self) -> str:
        """Wait until it is known where the bookie is; returns that, if it is worth telling."""
        return ""

    @property
    def is_closed(self) -> bool:
        """Whether the link was closed."""
        return self._closed

    def open(self) -> None:
        """Start connecting, unless that is under way."""
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._keep_connecting())

    async def ready(self, seconds: float) -> C:
        """Wait for a channel; ``StorageError`` if that takes too long."""
        channel = self.channel
        if channel is not None and channel.error is None:
            return channel  # without a timer: each read comes here
        try:
            async with asyncio.timeout(seconds):
                while (channel := self.channel) is None or channel.error is not None:
                    if self._closed:
                        raise self._closed_error()
                    await (self._ready if channel is None else self._gone).wait()
        except TimeoutError:
            raise BookieAwayError(
                f"bookie {self._bookie_id} has been away for {seconds:g} s"
            ) from None
        return channel

    async def close(self) -> None:
        """Close the connection and stop connecting."""
        self._closed = True
        self._ready.set()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self.channel is not None:
            self.channel.fail(self._closed_error())

    def _closed_error(self) -> StorageError:
        return StorageError(f"bookie {self._bookie_id} is closed")

    async def _keep_connecting(self) -> None:
        pause = RETRY_SECONDS
        said = ""
        while True:
            where = ""
            channel = self._made(self._lost)
            try:
                where = await self._found()
                async with asyncio.timeout(self._connect_seconds):
                    await self._connect(channel)
                if channel.error is not None:
                    raise channel.error
            except asyncio.CancelledError:
                channel.fail(self._closed_error())
                raise
            except Exception as e:
                known = isinstance(e, OSError | StorageError | MetadataError)
                reason = str(e) or f"no answer within {self._connect_seconds:g} s"
                channel.fail(StorageError(f"bookie {self._bookie_id}: {reason}"))
                if reason != said:
                    said = reason
                    log.warning(
                        "cannot connect to bookie %s%s, will try again: %s",
                        self._bookie_id,
                        where,
                        reason,
                        exc_info=None if known else e,
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
                continue
            self._task = None
            if said or self._was_lost:
                self._was_lost = False
                log.warning("bookie %s is connected again", self._bookie_id)
            self.opened(channel)
            self.channel = channel
            self._gone.clear()
            self._ready.set()
            return

    def _lost(self, channel: C, error: StorageError) -> None:
        if self.channel is not channel:
            return  # never used: the attempt to connect reports it
        self.channel = None
        self._ready.clear()
        self._gone.set()
        if not self._closed:
            log.warning("%s; connecting again", error)
            self._was_lost = True
            self.open()
