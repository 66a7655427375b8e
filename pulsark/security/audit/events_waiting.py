"""The events that wait to be written: a bounded number, and how many found no room. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from pulsark.security.audit.limits import AUDIT_EVENTS_MAX

if TYPE_CHECKING:
    from pulsark.security.audit.events import Event


ROOM_OF_CHANGES = AUDIT_EVENTS_MAX
ROOM_OF_DENIALS = AUDIT_EVENTS_MAX // 2
ROOM_OF_ACCESSES = AUDIT_EVENTS_MAX // 4


class WaitingEvent(NamedTuple):
    """One event. ``lost_before``: how many found no room since the one before it."""

    event: Event
    lost_before: int


class EventsWaiting:
    """In order. Other events leave room for changes: denials half of it, accesses most of it."""

    def __init__(self) -> None:
        self.dropped = 0
        """Since the start."""
        self._waiting: deque[WaitingEvent] = deque()
        self._lost = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether not even a change finds room."""
        return len(self._waiting) >= AUDIT_EVENTS_MAX

    def put(self, event: Event, most: int = ROOM_OF_CHANGES) -> None:
        """Let it wait if fewer than ``most`` do, or count that it found no room."""
        if len(self._waiting) >= most:
            self.dropped += 1
            self._lost += 1
            return
        self._waiting.append(WaitingEvent(event, self._lost))
        self._lost = 0

    def take(self, most: int) -> list[WaitingEvent]:
        """The oldest, which wait no more."""
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    @property
    def lost(self) -> int:
        """How many were lost after the last one that waits."""
        return self._lost
