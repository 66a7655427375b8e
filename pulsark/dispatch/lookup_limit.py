"""How many lookups a broker answers at the same time."""

from __future__ import annotations

from pulsark.errors import ClientError, ServerError


class LookupLimit:
    """Counts the lookups of all clients that are not answered yet."""

    def __init__(self, most: int) -> None:
        self.pending = 0
        self._most = most

    def begin(self) -> None:
        """One more, which has to ``end``. ``ClientError`` if there are too many."""
        if self.pending >= self._most:
            raise ClientError(
                ServerError.TooManyRequests, "Failed due to too many pending lookup requests"
            )
        self.pending += 1

    def end(self) -> None:
        """One is answered, or nobody waits for its answer any more."""
        self.pending -= 1
