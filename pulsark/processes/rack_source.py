"""The racks of bookies, as they are set while a broker runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.retries import until_read
from pulsark.errors import CorruptMetadataError
from pulsark.metadata.bookie_racks import BookieRacks, racks_of
from pulsark.metadata.paths import BOOKIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.metadata.store import MetadataStore

log = logging.getLogger(__name__)


class RackSource:
    """Follows the value that the admin API sets."""

    def __init__(self, metadata: MetadataStore, tell: Callable[[Mapping[str, str]], None]) -> None:
        """``tell`` gets the racks by bookie, whenever they may have changed."""
        self._metadata = metadata
        self._racks = BookieRacks(metadata)
        self._tell = tell
        self._changes = 0
        self._reading: asyncio.Task[None] | None = None
        self._end_watch: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Tell the racks, and follow them from now on."""
        self._end_watch = self._metadata.watch(BOOKIES, self._heard, self._missed)
        try:
            await self._read()
        except CorruptMetadataError as error:
            log.warning("all bookies count as in one rack: %s", error)

    def close(self) -> None:
        """Stop following."""
        self._end_watch()
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        seen = None
        while seen != self._changes:
            seen = self._changes
            racks = racks_of(await self._racks.get())
        self._tell(racks)

    def _heard(self, path: str) -> None:
        if path == BOOKIES:
            self._missed()

    def _missed(self) -> None:
        self._changes += 1
        if self._reading is None or self._reading.done():
            work = until_read(self._read, "racks of bookies stay as they were known")
            self._reading = asyncio.create_task(work)
