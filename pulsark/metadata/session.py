"""How long a process certainly has what it was given for its session.

A session lives while its process shows signs of life in time. The process learns later than the
store that its session ended. So it must stop earlier to act on what it has for the session: at a
deadline of its own. It counts from the moment at which it *sent* the last sign of life that was
heard. The deadline is shorter than the store's, for clocks that drift and for work under way.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.runtime import Clock

SURE_PART: Final = 0.7
"""Of the store's deadline, that part is the process's own."""

SIGNS_A_DEADLINE: Final = 6
"""Signs of life within the time after which a silent session is ended."""


class Session:
    """That of one process with its metadata store. Times are those of the monotonic clock."""

    def __init__(self, clock: Clock, timeout_seconds: float = math.inf) -> None:
        self.timeout_seconds = timeout_seconds
        self._clock = clock
        self._sure_until = clock.monotonic() + SURE_PART * timeout_seconds
        self._ended = False
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_sure(self) -> bool:
        """Whether it certainly lives now. Asked where answers are made: timers may be late."""
        return not self._ended and self._clock.monotonic() < self._sure_until

    @property
    def has_ended(self) -> bool:
        """Whether it is known to be over; it never lives again."""
        return self._ended

    def on_end(self, listener: Callable[[], None]) -> None:
        """Call ``listener()`` once when the session is known to be over."""
        self._listeners.append(listener)

    def heard(self, sent_at: float) -> None:
        """The store has heard a sign of life that was sent then."""
        self._sure_until = max(self._sure_until, sent_at + SURE_PART * self.timeout_seconds)

    def end(self) -> None:
        """It is over."""
        if self._ended:
            return
        self._ended = True
        for listener in self._listeners:
            listener()
