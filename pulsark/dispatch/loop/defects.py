"""Unexpected exceptions: the log gets each origin once, with its trace.

Wrong input of a client is answered with a ``PulsarkError``. Any other exception is a defect of the
program, which a client may be able to cause at will: a known origin then gets one line a minute in
the log, with a count.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from pulsark.runtime import Clock

log = logging.getLogger(__name__)

AGAIN_SECONDS = 60.0
ORIGINS_MAX = 1000

Origin = tuple[str, int, str]


@dataclass
class _Known:
    told_at: float
    untold: int = 0


class Defects:
    """The places where exceptions came from."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._known: dict[Origin, _Known] = {}

    def report(self, error: Exception, what: str) -> None:
        """Tell the operator: ``what`` could not be done."""
        origin, now = _origin(error), self._now()
        known = self._known.get(origin)
        if known is None:
            if len(self._known) >= ORIGINS_MAX:
                self._known.clear()
            self._known[origin] = _Known(now)
            log.error("%s: unexpected error, please report it", what, exc_info=error)
        elif now - known.told_at < AGAIN_SECONDS:
            known.untold += 1
        else:
            times, known.untold, known.told_at = known.untold + 1, 0, now
            file, line, kind = origin
            log.error("%s: %s at %s:%d again, %d times", what, kind, file, line, times)


def _origin(error: Exception) -> Origin:
    """Where an exception was raised."""
    trace: TracebackType | None = error.__traceback__
    file, line = "?", 0
    while trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return file, line, type(error).__name__
