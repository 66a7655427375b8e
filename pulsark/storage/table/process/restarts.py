"""When a process may be started again after some that ended without an answer.

Each start takes most of a second of a processor. What was asked may be the reason, as a file that
makes the process take all memory; so whoever asks for the same again waits, and others do not,
unless processes end for them, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE_SECONDS_MAX: Final = 10.0
"""The longest pause; the first one is 0 s, each further one a second longer."""

SUBJECTS_MAX: Final = 1000


class Restarts:
    """What ended processes, by the subject of the request."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._failures: dict[str, int] = {}
        """By subject: since the last answer to a request for it."""
        self._due: dict[str, float] = {}
        self._in_vain: set[str] = set()
        """The subjects since the last answer to any request."""
        self._all_due = 0.0

    def due(self, subject: str) -> float:
        """The time from which a request may have a process."""
        return max(self._due.get(subject, 0.0), self._all_due)

    def failed(self, subject: str) -> None:
        """A process ended without an answer to a request."""
        now, failures = self._now(), self._failures
        if subject not in failures and len(failures) >= SUBJECTS_MAX:
            failures.clear()
            self._due.clear()
        self._due[subject] = now + min(failures.get(subject, 0), PAUSE_SECONDS_MAX)
        failures[subject] = failures.get(subject, 0) + 1
        self._in_vain.add(subject)
        self._all_due = now + min(len(self._in_vain) - 1, PAUSE_SECONDS_MAX)

    def answered(self, subject: str) -> None:
        """A request was answered."""
        self._failures.pop(subject, None)
        self._due.pop(subject, None)
        self._in_vain.clear()
        self._all_due = 0.0
