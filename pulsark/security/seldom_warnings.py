"""Warnings of what any client can cause as often as it likes: they must not fill the log.

Each kind is a warning at most once a minute. At level INFO, the log has each case with its client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.security.limits import COMPLAINT_SECONDS

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable


class SeldomWarnings:
    """The warnings of one place, by their texts."""

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        """``now`` is a monotonic clock."""
        self._log = log
        self._now = now
        self._next: dict[str, float] = {}
        """When each text may be a warning again."""
        self._silent: dict[str, int] = {}

    def note(self, text: str, *parts: object) -> None:
        """It happened; ``text`` and ``parts`` are as for a logger."""
        now = self._now()
        if now < self._next.get(text, now):
            self._silent[text] = self._silent.get(text, 0) + 1
            self._log.info(text, *parts)
            return
        self._next[text] = now + COMPLAINT_SECONDS
        more = self._silent.pop(text, 0)
        if more:
            text += f" ({more} more since the last such warning)"
        self._log.warning(text, *parts)
