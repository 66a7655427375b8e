"""What bytes are copied through between a Flight client and the server."""

from __future__ import annotations

from pulsark.limits import FLIGHT_COPY_BYTES_MIN


class CopyBuffer:
    """The buffer of one direction. It is small until much arrives, because anyone may connect."""

    __slots__ = ("_most", "view")

    def __init__(self, most: int = FLIGHT_COPY_BYTES_MIN) -> None:
        self.view = memoryview(bytearray(FLIGHT_COPY_BYTES_MIN))
        """For the next read."""
        self._most = most

    def took(self, size: int) -> memoryview:
        """What was read into it. After a read that filled it, it is larger for the next one."""
        read = self.view[:size]
        if size == len(self.view) < self._most:
            self.view = memoryview(bytearray(min(4 * size, self._most)))
        return read
