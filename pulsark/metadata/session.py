"""How long a process may rely on its session with the metadata store.

A session lives while its process gives signs of life in time. A process learns of the end of its
session later than the store. So it must stop using its ephemeral values before that, at a deadline
of its own. This counts from the moment it *sent* the last acknowledged sign of life, and is shorter
than the store's, to allow for clock drift and work under way.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.runtime import Clock

SURE_PART: Final = 0.7
"""The process's own deadline as a share of the store's."""

SIGNS_A_DEADLINE: Final = 6
"""How many signs of life are sent within the store's deadline."""


class Session:
    """One process's session with its metadata store. Times are from the monotonic clock."""

    def __init__(self, clock: Clock, timeout_seconds: float = math.inf) -> None:
        self.timeout_seconds = timeout_seconds
        self._clock = clock
        self._begun = clock.monotonic()
        self._sure_until = self._begun + SURE_PART * timeout_seconds
        self.lapses = 0
        """How often it was not sure for a time, and then was again."""
        self._ended = False
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_sure(self) -> bool:
        """Whether the session certainly lives. Ask before each answer: timers may be late."""
        return not self._ended and self._clock.monotonic() < self._sure_until

    @property
    def has_ended(self) -> bool:
        """Whether the session is known to be over. It never lives again."""
        return self._ended

    @property
    def age_seconds(self) -> float:
        """For how long there has been this session."""
        return self._clock.monotonic() - self._begun

    @property
    def sure_seconds(self) -> float:
        """For how long it certainly lives, if no sign of life is acknowledged any more."""
        return 0.0 if self._ended else max(self._sure_until - self._clock.monotonic(), 0.0)

    def on_end(self, listener: Callable[[], None]) -> None:
        """Call ``listener()`` once, when the session is known to be over."""
        self._listeners.append(listener)

    def heard(self, sent_at: float) -> None:
        """The store has acknowledged a sign of life that was sent at this time."""
        self.lapses += not self._ended and not self.is_sure
        self._sure_until = max(self._sure_until, sent_at + SURE_PART * self.timeout_seconds)

    def set_timeout(self, timeout_seconds: float) -> None:
        """The store gives it another time from now on."""
        self.timeout_seconds = timeout_seconds
        now = self._clock.monotonic()
        self._sure_until = min(self._sure_until, now + SURE_PART * timeout_seconds)

    def end(self) -> None:
        """The session is over."""
        if self._ended:
            return
        self._ended = True
        for listener in self._listeners:
            listener()
