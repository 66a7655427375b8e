"""Bounds the lines that one cause writes to the log, whoever calls the logger.

A client can repeat what is worth a warning as often as it likes, and a full disk repeats it by
itself. The *kind* of a record is its logger and the template of its message; the *cause* is the
kind with its first argument, which is the topic, role or file in question. Each has a budget of
lines a minute. What exceeds the budget is counted, and one line tells the number when the minute
is over. A cause that goes on has a smaller budget in the following minutes.

Records below WARNING have ten times the budget, because an operator has asked for them, and DEBUG
has no bound.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from pulsark.limits import (
    LOG_CAUSES_MAX,
    LOG_LINES_OF_CAUSE_MAX,
    LOG_LINES_OF_KIND_MAX,
    LOG_LINES_OF_LASTING_CAUSE_MAX,
    LOG_LINES_OF_LASTING_KIND_MAX,
    LOG_WINDOW_SECONDS,
)
from pulsark.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

_SUBJECT_CHARS: Final = 120
_TEMPLATE_CHARS: Final = 300
_ASKED_FOR: Final = 10

Key = tuple[str, str, str]


@dataclass(slots=True)
class _Window:
    """What one cause, or one kind, has written since a moment."""

    begun: float
    lasting: bool = False
    """Whether lines were suppressed in the window before."""
    written: int = 0
    suppressed: int = 0
    level: int = 0
    """The highest level of what was suppressed."""
    example: str = ""
    """The template of the last line that was suppressed."""

    def is_full(self, most: int, most_lasting: int, more: int) -> bool:
        """Return whether no more lines fit."""
        return self.written >= (most_lasting if self.lasting else most) * more


class LogBudget:
    """The windows of all causes of a process. Use it from one thread at a time."""

    def __init__(self, now: Callable[[], float]) -> None:
        """``now`` is a monotonic clock."""
        self._now = now
        self._windows: OrderedDict[Key, _Window] = OrderedDict()
        """The oldest first."""
        self._untold = 0
        """Windows with suppressed lines."""

    def admit(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        """Return the records to write now: summaries that are due, and maybe this record."""
        if record.levelno < logging.INFO:
            return [record]
        out = self.due()
        more = 1 if record.levelno >= logging.WARNING else _ASKED_FOR
        kind, subject = _kind_of(record), _subject_of(record)
        # The kind comes first: without room in it there is no count of the cause, or a client
        # that thinks up names would make the oldest counts end.
        of_kind = self._window((record.name, kind, ""), out)
        if of_kind.is_full(LOG_LINES_OF_KIND_MAX, LOG_LINES_OF_LASTING_KIND_MAX, more):
            self._suppress(of_kind, record)
            return out
        of_cause = self._window((record.name, kind, subject), out)
        if of_cause.is_full(LOG_LINES_OF_CAUSE_MAX, LOG_LINES_OF_LASTING_CAUSE_MAX, more):
            self._suppress(of_cause, record)
            return out
        of_kind.written += 1
        of_cause.written += 1
        return [*out, record]

    @property
    def suppresses(self) -> bool:
        """Whether some line was suppressed of which no summary has told."""
        return self._untold > 0

    def _suppress(self, window: _Window, record: logging.LogRecord) -> None:
        self._untold += not window.suppressed
        window.suppressed += 1
        window.level = max(window.level, record.levelno)
        window.example = str(record.msg)[:_TEMPLATE_CHARS]

    def due(self, *, all_now: bool = False) -> list[logging.LogRecord]:
        """End windows whose time is over, and return their summaries."""
        before = self._now() - LOG_WINDOW_SECONDS
        out: list[logging.LogRecord] = []
        lasting: list[Key] = []
        while self._windows:
            key, window = next(iter(self._windows.items()))
            if window.begun > before and not all_now:
                break
            if self._end(key, out):
                lasting.append(key)
        for key in lasting:
            self._windows[key] = _Window(self._now(), lasting=True)
        return out

    def _window(self, key: Key, out: list[logging.LogRecord]) -> _Window:
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= LOG_CAUSES_MAX:
                self._end(next(iter(self._windows)), out)
            window = self._windows[key] = _Window(self._now())
        return window

    def _end(self, key: Key, out: list[logging.LogRecord]) -> bool:
        """Forget a window; returns whether it had suppressed lines, which ``out`` tells."""
        window = self._windows.pop(key)
        if not window.suppressed:
            return False
        self._untold -= 1
        name, _, subject = key
        about = f" about {subject}" if subject else ""
        out.append(
            logging.LogRecord(
                name, window.level, "", 0,
                "%d more lines%s were left out in the last %.0f s, like: %s",
                (window.suppressed, about, self._now() - window.begun, window.example), None,
            )
        )  # fmt: skip
        return True


class BudgetedHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream what the budget admits."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = SystemClock.monotonic) -> None:
        super().__init__(stream)
        self._budget = LogBudget(now)
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless its cause has written too much. The caller holds the lock."""
        for each in self._budget.admit(record):
            super().emit(each)
        if self._timer is None and self._budget.suppresses:
            # Nothing else may be logged for hours, and the summary is wanted soon.
            self._start_timer()

    def close(self) -> None:
        """Tell what was suppressed before the process ends."""
        self._tell(all_now=True)
        super().close()

    def _tell(self, *, all_now: bool = False) -> None:
        self.acquire()
        try:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            for each in self._budget.due(all_now=all_now):
                super().emit(each)
            if self._budget.suppresses:
                self._start_timer()
        finally:
            self.release()

    def _start_timer(self) -> None:
        self._timer = threading.Timer(LOG_WINDOW_SECONDS, self._tell)
        self._timer.daemon = True
        self._timer.start()


def _kind_of(record: logging.LogRecord) -> str:
    """Return the template; of a text without arguments, which may be made of names, its place."""
    if record.args:
        return str(record.msg)[:_TEMPLATE_CHARS]
    return f"{record.module}:{record.lineno}"


def _subject_of(record: logging.LogRecord) -> str:
    args = record.args
    first = next(iter(args), "") if isinstance(args, tuple) else ""
    if not args:
        first = record.msg
    return str(first)[:_SUBJECT_CHARS] or "-"
