"""How the process logs: a line for people, or a JSON object a line for programs.

Clients choose names of topics, subscriptions, producers and much else, and the log is read in
terminals. So formatters escape every character that is not printable: no client begins a line of
its own, moves the cursor or reverses the direction of text. ``log_budget`` bounds the number of
lines.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TextIO

from pulsark.log_budget import BudgetedHandler

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
TEXT_OF_ROLE = "%(asctime)s %(levelname)-7s [{}] %(name)s: %(message)s"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_INDENT = "    "


def escaped(text: str) -> str:
    """Return a text with all unprintable characters as JSON escapes them.

    Unprintable are line ends, terminal controls, bidirectional overrides and invisible characters.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def escaped_lines(text: str, indent: str = "") -> str:
    """Return a text of several lines with escaped lines, all but the first one indented."""
    return f"\n{indent}".join(map(escaped, text.split("\n")))


class TextFormatter(logging.Formatter):
    """One line for people; lines of a traceback are indented, so that none looks like a record."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:
        """Return a traceback, whose messages may have a client's words."""
        return _INDENT + escaped_lines(super().formatException(ei), _INDENT)  # type: ignore[arg-type]


class JsonFormatter(logging.Formatter):
    """Time (ISO-8601, UTC offset as of the machine), level, logger, message, and the extras.

    Where several processes write to one place, also the role of the process. Programs print what
    they decode, so texts are escaped before JSON escapes them again.
    """

    def __init__(self, role: str = "") -> None:
        super().__init__()
        self._role = {"role": role} if role else {}

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        fields: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            **self._role,
            "logger": record.name,
            "message": escaped(record.getMessage()),
        }
        fields |= {k: _shown(v) for k, v in vars(record).items() if k not in _STANDARD}
        if record.exc_info:
            fields["exception"] = escaped_lines(self.formatException(record.exc_info))
        return json.dumps(fields, default=lambda value: escaped(str(value)))


def _shown(value: object) -> object:
    return escaped(value) if isinstance(value, str) else value


def start_logging(level: str, form: str, role: str = "", *, stream: TextIO | None = None) -> None:
    """Log to a stream (stderr) from ``level`` on, as ``text`` or ``json``."""
    handler = BudgetedHandler(stream or sys.stderr)
    text = TEXT_OF_ROLE.format(role) if role else TEXT
    handler.setFormatter(JsonFormatter(role) if form == "json" else TextFormatter(text))
    logging.basicConfig(level=level, handlers=[handler])
