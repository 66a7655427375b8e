"""How many lookups a broker answers at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError

if TYPE_CHECKING:
    from pulsark.config.settings import Settings


class LookupLimit:
    """Counts the lookups of all clients that are not answered yet."""

    def __init__(self, settings: Settings) -> None:
        self.pending = 0
        self._settings = settings

    def begin(self) -> None:
        """One more, which has to ``end``. ``ClientError`` if there are too many."""
        if self.pending >= self._settings.maxConcurrentLookupRequest:
            raise ClientError(
                ServerError.TooManyRequests, "Failed due to too many pending lookup requests"
            )
        self.pending += 1

    def end(self) -> None:
        """One is answered, or nobody waits for its answer any more."""
        self.pending -= 1
