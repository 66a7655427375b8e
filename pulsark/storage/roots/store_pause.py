"""When an object store that failed is asked again.

One thread does all work on tables. If it waited for each operation as long as a store takes to
fail, other roots and tables would wait, too. So after a failure the store is left alone for a
while, and operations fail at once.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pulsark.runtime import Clock

log = logging.getLogger(__name__)

FIRST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 60.0


class ObjectStoreError(OSError):
    """A store did not do what it was asked, or it is unknown whether it did."""


class DeniedStoreError(ObjectStoreError):
    """A store does not know who asks, or does not let them: it answered 401 or 403."""


class PausedStoreError(ObjectStoreError):
    """A store is not asked now, because it failed a moment ago."""


class StorePause:
    """Of one bucket. What is said of it is one line when it fails, and one when it answers."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._failures = 0
        self._until = 0.0

    def check(self, path: str) -> None:
        """``PausedStoreError`` while it is left alone."""
        if self._failures and self._clock.monotonic() < self._until:
            raise PausedStoreError(
                errno.EAGAIN, f"{self._name} failed a moment ago, and is asked again soon", path
            )

    def failed(self, reason: str) -> None:
        """An operation failed; the pause is twice as long as the one before."""
        pause = min(FIRST_SECONDS * 2**self._failures, MOST_SECONDS)
        if not self._failures:
            log.warning(
                "object store %s: %s. It is asked again after 1 s, later after up to %d s; "
                "messages stay in the journal until then",
                self._name, reason, MOST_SECONDS,
            )  # fmt: skip
        self._failures = min(self._failures + 1, 16)
        self._until = self._clock.monotonic() + pause

    def answered(self) -> None:
        """It did what it was asked, or said clearly why not."""
        if self._failures:
            self._failures = 0
            log.warning("object store %s answers again", self._name)
