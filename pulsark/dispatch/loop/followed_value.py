"""A value of the metadata store that a broker has in force, and follows."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.retries import until_read
from pulsark.errors import CorruptMetadataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.metadata.store import MetadataStore

log = logging.getLogger(__name__)


class FollowedValue(ABC):
    """Read whenever it may have changed. Who extends this says how."""

    def __init__(self, metadata: MetadataStore, path: str, *, without: str, meanwhile: str) -> None:
        """The log says ``without`` if it is damaged from the start, and ``meanwhile`` while it
        cannot be read again later."""
        self._metadata = metadata
        self._path = path
        self._without = without
        self._meanwhile = meanwhile
        self._reading: asyncio.Task[None] | None = None
        self._end_watch: Callable[[], None] = lambda: None
        self._changes = 0
        """What was read at another number may be older than the value is now."""

    @abstractmethod
    async def refresh(self) -> None:
        """Read it, and have it in force."""

    async def start(self) -> None:
        """Have it in force, and follow it from now on. ``MetadataError``."""
        self._end_watch = self._metadata.watch(self._path, self._heard, self._missed)
        try:
            await self.refresh()
        except CorruptMetadataError as error:
            log.warning("%s: %s", self._without, error)

    def close(self) -> None:
        """Follow it no longer."""
        self._end_watch()
        if self._reading is not None:
            self._reading.cancel()

    def _heard(self, path: str) -> None:
        if path == self._path:
            self._missed()

    def _missed(self) -> None:
        self._changes += 1
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(until_read(self.refresh, self._meanwhile))
