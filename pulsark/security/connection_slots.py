"""The file descriptors of a process that connections may take, on all its ports together.

A connection is a *stranger* until its client has logged in; without authentication, until it has
completed CONNECT or its first request. Strangers cost nothing to make, so they never keep a known
client out: when all slots are taken, the oldest stranger is closed for the next connection. Storage
has a reserve of descriptors that no connection gets.
"""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, Final

from pulsark.runtime import descriptor_limit
from pulsark.security.limits import DESCRIPTORS_RESERVED_MAX, STRANGERS_RELIEVED

if TYPE_CHECKING:
    from collections.abc import Callable

NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
"""Errors of ``accept`` that closing other connections helps against."""


class Slot:
    """The place of one connection. Its methods may be called from any thread, and repeated."""

    __slots__ = ("_slots", "close", "is_known", "weight")

    def __init__(self, slots: ConnectionSlots, close: Callable[[], object], weight: int) -> None:
        self._slots = slots
        self.close = close
        self.weight = weight
        self.is_known = False
        """Whether the client has logged in."""

    def log_in(self) -> None:
        """The client is known: no other connection takes its place."""
        self.is_known = True
        self._slots.keep(self)

    def ask(self) -> None:
        """A request is complete: the connection keeps its place until ``answered``."""
        self._slots.keep(self)

    def answered(self) -> None:
        """The request is answered: a client that has not logged in is a stranger again."""
        if not self.is_known:
            self._slots.doubt(self)

    def leave(self) -> None:
        """The connection is closed."""
        self._slots.free(self)


class ConnectionSlots:
    """All slots of a process. Any thread may use them."""

    def __init__(self, most: int | None = None) -> None:
        """``most``: descriptors for connections; None: what the process may open but a reserve."""
        self.most = for_connections(descriptor_limit()) if most is None else most
        self._lock = threading.Lock()
        self._strangers: dict[Slot, None] = {}
        """The oldest first."""
        self._kept: set[Slot] = set()
        self._taken = 0
        self.evicted = 0
        """Strangers that were closed to make room."""
        self.refused = 0
        """Connections that found no room, because all others are of known clients."""

    @property
    def taken(self) -> int:
        """Descriptors that connections have."""
        return self._taken

    @property
    def strangers(self) -> int:
        """Connections whose clients have not logged in."""
        return len(self._strangers)

    def take(self, close: Callable[[], object], weight: int = 1) -> Slot | None:
        """Give a new connection a slot, or None if only known clients are connected.

        ``close`` must be safe to call from any thread; it closes the connection. ``weight`` is the
        number of its descriptors.
        """
        slot = Slot(self, close, weight)
        with self._lock:
            leaving = self._make_room(weight)
            if self._taken + weight > self.most:
                self.refused += 1
                found = None
            else:
                self._strangers[slot] = None
                self._taken += weight
                found = slot
        for each in leaving:
            each.close()
        return found

    def relieve(self) -> None:
        """Close some of the oldest strangers: the process has no descriptor left."""
        with self._lock:
            leaving = list(self._strangers)[:STRANGERS_RELIEVED]
            for slot in leaving:
                self._evict(slot)
        for slot in leaving:
            slot.close()

    def doubt(self, slot: Slot) -> None:
        """A connection keeps its place no longer."""
        with self._lock:
            if slot in self._kept:
                self._kept.remove(slot)
                self._strangers[slot] = None

    def keep(self, slot: Slot) -> None:
        """A connection keeps its place for now."""
        with self._lock:
            if slot in self._strangers:
                del self._strangers[slot]
                self._kept.add(slot)

    def free(self, slot: Slot) -> None:
        """A connection is closed."""
        with self._lock:
            if slot in self._strangers:
                del self._strangers[slot]
            elif slot in self._kept:
                self._kept.remove(slot)
            else:
                return
            self._taken -= slot.weight

    def _make_room(self, weight: int) -> list[Slot]:
        leaving = []
        while self._strangers and self._taken + weight > self.most:
            slot = next(iter(self._strangers))
            self._evict(slot)
            leaving.append(slot)
        return leaving

    def _evict(self, slot: Slot) -> None:
        del self._strangers[slot]
        self._taken -= slot.weight
        self.evicted += 1


def for_connections(limit: int) -> int:
    """Return how many of a process's descriptors connections may take."""
    return limit - min(DESCRIPTORS_RESERVED_MAX, limit // 3)
