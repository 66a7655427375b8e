"""What a managed ledger is doing with the ledger at its end: states, events, and one table.

Of a managed ledger at most one ledger is written. Nothing follows that ledger before its true end
is known, or else entries would appear, or vanish, where a reader already was. So ``OPENED`` and
``RESERVED`` are known only where no ledger's end is open. An event that a state does not know is a
bug: it raises, and the managed ledger refuses everything from then on. Its owner opens it anew.

What happens to an append::

    OPEN, ROLLING                              it is sent
    NO_LEDGER, FAILED                          it begins the change that lets it be sent
    LOADING, OPENING, CLOSING, UNRECORDED,
    RECOVERING, RESERVED                       it waits
    TERMINATED, CLOSED, DELETED, FENCED,
    STOPPED                                    it is refused

Events come one change after the other (``changes``). Only ``FAILED`` and ``FENCED`` come at any
time: a bookie or the metadata store says so.
"""

from __future__ import annotations

import logging
from collections import deque
from enum import StrEnum, auto

log = logging.getLogger(__name__)

STORY = 20
"""The latest transitions, which an error message lists."""


class State(StrEnum):
    """What the end of a managed ledger is."""

    LOADING = auto()
    """The record is ours; what the owner before left open is being recovered."""
    NO_LEDGER = auto()
    """All ledgers are closed, in the record too."""
    OPENING = auto()
    """The next ledger is being made."""
    OPEN = auto()
    """A ledger takes entries."""
    ROLLING = auto()
    """A full ledger takes entries while the next one is being made."""
    CLOSING = auto()
    """The ledger is being closed behind its last entry."""
    UNRECORDED = auto()
    """The ledger is closed, and the record does not have its end yet."""
    FAILED = auto()
    """The ledger is closed to us, and its end is not known."""
    RECOVERING = auto()
    """The end of a ledger that failed is being found."""
    RESERVED = auto()
    """All is closed. Ledgers at the end exist or do not: it is being decided elsewhere."""
    TERMINATED = auto()
    """Nothing will be appended ever again. Ledgers may still be trimmed."""
    CLOSED = auto()
    """The owner let it go."""
    DELETED = auto()
    """The topic is deleted."""
    FENCED = auto()
    """Another owner has it, or has to find out what became of it."""
    STOPPED = auto()
    """There was a bug."""


class Event(StrEnum):
    """What happens to the end of a managed ledger."""

    LOADED = auto()
    OPEN = auto()
    """The next ledger is to be made, behind closed ones."""
    OPENED = auto()
    """The record lists the new ledger, and those before it as closed."""
    NOT_OPENED = auto()
    ROLL = auto()
    NOT_ROLLED = auto()
    CLOSE = auto()
    ENDED = auto()
    """The ledger is closed at its end."""
    RECORDED = auto()
    """The record has the end of the ledger that was closed."""
    NOT_RECORDED = auto()
    """The record perhaps has it."""
    FAILED = auto()
    """The ledger confirms nothing more."""
    RECOVER = auto()
    RECOVERED = auto()
    """The record has the end of the ledger that had failed."""
    NOT_RECOVERED = auto()
    RESERVED = auto()
    DECIDED = auto()
    """The record has the reserved ledgers that exist."""
    TERMINATE = auto()
    SHUT = auto()
    """The owner closes the managed ledger."""
    DELETE = auto()
    FENCED = auto()
    """Another broker changed the record, or fenced the ledger."""
    BUG = auto()


WRITTEN = frozenset({State.OPEN, State.ROLLING, State.CLOSING})
"""A ledger may still confirm entries."""

FINAL = frozenset(
    {State.TERMINATED, State.CLOSED, State.DELETED, State.FENCED, State.STOPPED},
)
"""Appends are refused, for ever."""

_LIVES: dict[State, dict[Event, State]] = {
    State.LOADING: {
        Event.LOADED: State.NO_LEDGER,
        Event.TERMINATE: State.TERMINATED,
    },
    State.NO_LEDGER: {
        Event.OPEN: State.OPENING,
        Event.RESERVED: State.RESERVED,
        Event.TERMINATE: State.TERMINATED,
        Event.SHUT: State.CLOSED,
        Event.DELETE: State.DELETED,
    },
    State.OPENING: {
        Event.OPENED: State.OPEN,
        Event.NOT_OPENED: State.NO_LEDGER,
    },
    State.OPEN: {
        Event.ROLL: State.ROLLING,
        Event.CLOSE: State.CLOSING,
        Event.FAILED: State.FAILED,
        Event.DELETE: State.DELETED,
    },
    State.ROLLING: {
        Event.NOT_ROLLED: State.OPEN,
        Event.CLOSE: State.CLOSING,
        Event.FAILED: State.FAILED,
    },
    State.CLOSING: {
        Event.ENDED: State.UNRECORDED,
        Event.FAILED: State.FAILED,
    },
    State.UNRECORDED: {
        Event.OPENED: State.OPEN,
        Event.RECORDED: State.NO_LEDGER,
        Event.NOT_RECORDED: State.FAILED,
        Event.RESERVED: State.RESERVED,
    },
    State.FAILED: {
        Event.RECOVER: State.RECOVERING,
        Event.SHUT: State.CLOSED,
        Event.DELETE: State.DELETED,
    },
    State.RECOVERING: {
        Event.RECOVERED: State.NO_LEDGER,
        Event.NOT_RECOVERED: State.FAILED,
    },
    State.RESERVED: {
        Event.DECIDED: State.NO_LEDGER,
    },
    State.TERMINATED: {
        Event.SHUT: State.CLOSED,
        Event.DELETE: State.DELETED,
    },
    State.CLOSED: {
        Event.SHUT: State.CLOSED,
        Event.DELETE: State.DELETED,
    },
    State.DELETED: {
        Event.SHUT: State.DELETED,
        Event.DELETE: State.DELETED,
    },
    State.FENCED: {},
    State.STOPPED: {
        Event.SHUT: State.CLOSED,
        Event.DELETE: State.DELETED,
    },
}

TRANSITIONS: dict[State, dict[Event, State]] = {
    state: {
        **known,
        Event.FENCED: State.FENCED,
        Event.BUG: state if state in FINAL else State.STOPPED,
    }
    for state, known in _LIVES.items()
}
"""All that may happen. Another owner, and a bug, may turn up at any time."""


class UnknownEventError(Exception):
    """A bug: something happened in a state that does not know it. Tells how it came to that."""

    def __init__(self, life: Life, story: str) -> None:
        super().__init__(story)
        self.life = life
        """The managed ledger with the bug; it may be found while others are changed, too."""


class Life:
    """The state of one managed ledger, and how it came to it."""

    def __init__(self, name: str) -> None:
        self.state = State.LOADING
        self._name = name
        self._story: deque[tuple[State, Event]] = deque(maxlen=STORY)

    def on(self, event: Event) -> None:
        """Go on to the next state; ``UnknownEventError`` if there is none for this event."""
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            story = f"{self._name}: {event} while {self.state}; {self.story()}"
            error = UnknownEventError(self, story)
            log.error("%s", error)
            raise error
        self._story.append((self.state, event))
        self.state = after

    @property
    def is_final(self) -> bool:
        """Whether appends are refused, for ever."""
        return self.state in FINAL

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be done with it any more before it is opened anew."""
        return self.state in (State.FENCED, State.STOPPED)

    def story(self) -> str:
        """The last transitions, oldest first."""
        steps = [f"{state} --{event}-->" for state, event in self._story]
        return " ".join(["before that:", *steps, self.state])
