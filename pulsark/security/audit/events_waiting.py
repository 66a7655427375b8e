"""The events that wait to be written: a bounded number, and how many found no room. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from pulsark.limits import AUDIT_EVENTS_MAX

if TYPE_CHECKING:
    from pulsark.security.audit.events import Event


class Waiting(NamedTuple):
    """One event. ``lost_before``: how many found no room since the one before it."""

    event: Event
    lost_before: int


class EventsWaiting:
    """In order. Denials take half of the room at most, so changes always find some."""

    def __init__(self) -> None:
        self.dropped = 0
        """Since the start."""
        self._waiting: deque[Waiting] = deque()
        self._lost = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: Event, *, is_denial: bool = False) -> None:
        """Let it wait, or count that it found no room."""
        most = AUDIT_EVENTS_MAX // 2 if is_denial else AUDIT_EVENTS_MAX
        if len(self._waiting) >= most:
            self.dropped += 1
            self._lost += 1
            return
        self._waiting.append(Waiting(event, self._lost))
        self._lost = 0

    def take(self, most: int) -> list[Waiting]:
        """The oldest, which wait no more."""
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    @property
    def lost(self) -> int:
        """How many were lost after the last one that waits."""
        return self._lost
