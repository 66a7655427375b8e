"""The memory of publishes that wait to be stored, those of all connections together.

Each connection has a bound of its own, but there may be thousands of them. Above the limit no
connection with producers is read, each from its next read on, which is a small one; nobody goes
through all of them. Once half of the limit is free they go on, in the order in which they came to
wait, as long as there is room. What a client that is gone had published counts until it is stored
or has failed: until then it is in memory.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.dispatch.loop.run_queue import RunQueue


class Publishing(Protocol):
    """A connection."""

    def publishes_have_room(self) -> None:
        """Read on, as far as this is concerned."""


class PublishBuffer:
    """The publish buffer of one broker. A ``limit`` of 0 bytes or less is none."""

    def __init__(self, limit: int, run_queue: RunQueue) -> None:
        self.bytes = 0
        """The memory of unanswered publishes, including their overhead."""
        self.is_full = False
        """From the limit on until it is half of that."""
        self._limit = limit if limit > 0 else math.inf
        self._run_queue = run_queue
        self._waiting: OrderedDict[Publishing, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Connections that are not read because of the limit."""
        return len(self._waiting)

    def change(self, size: int) -> None:
        """Change the number of bytes that wait for their answers."""
        self.bytes += size
        if size > 0:
            if self.bytes > self._limit:
                self.is_full = True
        elif self.is_full and self.bytes <= self._limit / 2:
            self.is_full = False
            self._run_queue.call_all(self._resumptions())

    def wait(self, connection: Publishing) -> None:
        """It is not read until ``publishes_have_room`` of it is called."""
        self._waiting[connection] = None

    def forget(self, connection: Publishing) -> None:
        """It is closed."""
        self._waiting.pop(connection, None)

    def _resumptions(self) -> Iterator[Callable[[], None]]:
        while self._waiting and not self.is_full:
            connection, _ = self._waiting.popitem(last=False)
            yield connection.publishes_have_room
