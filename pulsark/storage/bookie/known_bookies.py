"""Which bookies a broker knows, and whether each can be used now."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.storage.bookie.bookie import Bookie


class BookieState(StrEnum):
    """What can be done with a bookie."""

    AVAILABLE = "available"
    READ_ONLY = "readonly"
    """It takes no new entries."""
    AWAY = "away"


class KnownBookies(Protocol):
    """The bookies of a cluster: the registry of BookKeeper has such a list."""

    async def states(self) -> Mapping[str, BookieState]:
        """By id; also those that are away, if the cluster still counts on them."""


class OwnBookies:
    """The bookies that a broker was started with."""

    def __init__(self, bookies: Mapping[str, Bookie]) -> None:
        """The mapping may change."""
        self._bookies = bookies

    async def states(self) -> Mapping[str, BookieState]:
        """Those that have failed for good are no longer in the mapping."""
        return {
            bookie_id: BookieState.AWAY if bookie.is_away else BookieState.AVAILABLE
            for bookie_id, bookie in sorted(self._bookies.items())
        }
