"""Whether a connection is read: its states, and what leads from one to another. Pure.

A connection that is not read waits for something, and each state says for what: so something
always makes it go on. `intake` finds out what happened and does what a state means.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

STORY_LENGTH = 10


class State(Enum):
    """``READING`` is the only one in which the socket is read."""

    READING = "reading"
    FULL = "full"
    """Too much of this client waits: publishes, requests, or what it does not read."""
    QUEUED = "queued"
    """Publishes of all clients take too much memory: the publish buffer calls those that wait."""
    NO_ROOM = "without room"
    """A large frame has begun: the frame room calls when there is room for the rest of it."""
    OVER_RATE = "over its rate"
    """It published faster than a rate allows: the throttles of the rate let it go on."""
    BEHIND = "behind"
    """Commands are left of what was read: the run queue has a turn for them."""
    STUCK = "stuck"
    """Commands are left, but too many requests are under way: the end of one is awaited."""
    CLOSED = "closed"


class Event(Enum):
    """What can happen."""

    TOO_MUCH = "too much"
    """A limit of this client is reached."""
    ALL_TOO_MUCH = "all too much"
    """It has room, but the publish buffer has none."""
    TOO_LARGE = "too large"
    """There is no room for the rest of a large frame."""
    TOO_FAST = "too fast"
    """There is room, but a rate is overdrawn."""
    ROOM = "room"
    """Half of each limit is free."""
    CALLED = "called"
    """The publish buffer lets it go on, or the frame room does, or all of the throttles do."""
    LEFT = "left"
    """A turn ends before all that was read is carried out."""
    LEFT_FOR_REQUESTS = "left for requests"
    """Commands are left, and no more requests may begin because too many are under way."""
    REQUEST_ENDED = "request ended"
    DONE = "done"
    """What was left is carried out."""
    CLOSE = "close"
    """The client is not served any more."""


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.READING, Event.TOO_MUCH): State.FULL,
    (State.READING, Event.ALL_TOO_MUCH): State.QUEUED,
    (State.READING, Event.TOO_LARGE): State.NO_ROOM,
    (State.READING, Event.TOO_FAST): State.OVER_RATE,
    (State.READING, Event.LEFT): State.BEHIND,
    (State.READING, Event.LEFT_FOR_REQUESTS): State.STUCK,
    (State.READING, Event.CLOSE): State.CLOSED,
    (State.FULL, Event.ROOM): State.READING,
    (State.FULL, Event.ALL_TOO_MUCH): State.QUEUED,
    (State.FULL, Event.TOO_LARGE): State.NO_ROOM,
    (State.FULL, Event.TOO_FAST): State.OVER_RATE,
    # In the middle of a turn the socket's buffer may be full: then the turn ends with these.
    (State.FULL, Event.LEFT): State.BEHIND,
    (State.FULL, Event.LEFT_FOR_REQUESTS): State.STUCK,
    (State.FULL, Event.CLOSE): State.CLOSED,
    (State.QUEUED, Event.ROOM): State.READING,
    (State.QUEUED, Event.ALL_TOO_MUCH): State.QUEUED,
    (State.QUEUED, Event.TOO_FAST): State.OVER_RATE,
    (State.QUEUED, Event.CALLED): State.FULL,
    (State.QUEUED, Event.LEFT): State.BEHIND,
    (State.QUEUED, Event.LEFT_FOR_REQUESTS): State.STUCK,
    (State.QUEUED, Event.CLOSE): State.CLOSED,
    (State.NO_ROOM, Event.CALLED): State.FULL,
    (State.NO_ROOM, Event.CLOSE): State.CLOSED,
    (State.OVER_RATE, Event.CALLED): State.FULL,
    (State.OVER_RATE, Event.LEFT): State.BEHIND,
    (State.OVER_RATE, Event.LEFT_FOR_REQUESTS): State.STUCK,
    (State.OVER_RATE, Event.CLOSE): State.CLOSED,
    (State.BEHIND, Event.LEFT): State.BEHIND,
    (State.BEHIND, Event.LEFT_FOR_REQUESTS): State.STUCK,
    (State.BEHIND, Event.DONE): State.FULL,
    (State.BEHIND, Event.CLOSE): State.CLOSED,
    (State.STUCK, Event.REQUEST_ENDED): State.BEHIND,
    (State.STUCK, Event.CLOSE): State.CLOSED,
}


class UnknownTransitionError(Exception):
    """An event that cannot happen in a state: a defect."""


class Reading:
    """The state of one connection, and how it came there."""

    __slots__ = ("_story", "state", "waits_for_room")

    def __init__(self) -> None:
        self.state = State.READING
        self.waits_for_room = False
        """Whether ``ROOM`` is what it waits for; kept, because each receipt asks."""
        self._story: deque[tuple[State, Event]] = deque(maxlen=STORY_LENGTH)

    def on(self, event: Event) -> State:
        """The state after an event; `UnknownTransitionError` with the story if it knows none."""
        before = self.state
        after = TRANSITIONS.get((before, event))
        if after is None:
            raise UnknownTransitionError(
                f"A connection that is {before.value} does not know the event {event.value!r}. "
                f"Before: {self.story or 'nothing'}"
            )
        self._story.append((before, event))
        self.state = after
        self.waits_for_room = after is State.FULL or after is State.QUEUED
        return after

    @property
    def story(self) -> str:
        """The last transitions, oldest first."""
        return ", ".join(f"{state.value} + {event.value}" for state, event in self._story)
