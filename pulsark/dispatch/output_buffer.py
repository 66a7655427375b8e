"""The memory of what clients do not read, of all connections together.

Each connection has a bound of its own, but there may be thousands of them. Above the limit a
client gets no further message before it has read what it got. A client that reads is not
concerned: its socket takes each message at once.
"""

from __future__ import annotations

import math


class OutputBuffer:
    """The output buffer of one broker. A ``limit`` of 0 bytes or less is none."""

    def __init__(self, limit: int) -> None:
        self.bytes = 0
        """What waits for sockets that do not take it; of each connection from some bytes on."""
        self._limit = limit if limit > 0 else math.inf

    @property
    def is_full(self) -> bool:
        """Whether more waits than should."""
        return self.bytes > self._limit

    def change(self, size: int) -> None:
        """Change the number of bytes that wait."""
        self.bytes += size
