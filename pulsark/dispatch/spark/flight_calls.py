"""How many Flight calls are under way on all connections together: each has a thread.

One more than there may be costs the connection that has most of them its place. That is not the one
of a client with a few calls, however many others a stranger has.
"""

from __future__ import annotations

import threading
from typing import Generic, Protocol, TypeVar


class Caller(Protocol):
    """A connection."""

    @property
    def calls(self) -> int:
        """The calls under way on it."""


C = TypeVar("C", bound=Caller)


class Calls(Generic[C]):
    """All of them. Called from any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._of: dict[C, int] = {}
        """By connection, for those that have any."""
        self.total = 0

    def count(self, caller: C) -> C | None:
        """Calls of a connection may have begun or ended; says who is to be cut for them."""
        if caller.calls == self._of.get(caller, 0):
            return None
        with self._lock:
            self._set(caller, caller.calls)
            if self.total <= self._most:
                return None
            largest = max(self._of, key=lambda each: (self._of[each], each is caller))
            self._set(largest, 0)
            return largest

    def forget(self, caller: C) -> None:
        """A connection has ended."""
        with self._lock:
            self._set(caller, 0)

    def _set(self, caller: C, calls: int) -> None:
        self.total += calls - self._of.pop(caller, 0)
        if calls:
            self._of[caller] = calls
