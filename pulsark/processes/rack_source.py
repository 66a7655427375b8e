"""The racks of bookies, as they are set while a broker runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.loop.followed_value import FollowedValue
from pulsark.metadata.bookie_racks import BookieRacks, racks_of
from pulsark.metadata.paths import BOOKIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.metadata.store import MetadataStore


class RackSource(FollowedValue):
    """Follows the value that the admin API sets."""

    def __init__(self, metadata: MetadataStore, tell: Callable[[Mapping[str, str]], None]) -> None:
        """``tell`` gets the racks by bookie, whenever they may have changed."""
        super().__init__(
            metadata,
            BOOKIES,
            without="all bookies count as in one rack",
            meanwhile="racks of bookies stay as they were known",
        )
        self._racks = BookieRacks(metadata)
        self._tell = tell

    async def refresh(self) -> None:
        seen = None
        while seen != self._changes:
            seen = self._changes
            racks = racks_of(await self._racks.get())
        self._tell(racks)
