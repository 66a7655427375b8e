"""How the process logs: a line for people, or a JSON object a line for programs."""

from __future__ import annotations

import json
import logging
import sys

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
TEXT_OF_ROLE = "%(asctime)s %(levelname)-7s [{}] %(name)s: %(message)s"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time (ISO-8601, UTC offset as of the machine), level, logger, message, and the extras.

    Where several processes write to one place, also the role of the process.
    """

    def __init__(self, role: str = "") -> None:
        super().__init__()
        self._role = {"role": role} if role else {}

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line."""
        fields: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            **self._role,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {k: v for k, v in vars(record).items() if k not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def start_logging(level: str, form: str, role: str = "") -> None:
    """Log to stderr from ``level`` on, as ``text`` or ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    text = TEXT_OF_ROLE.format(role) if role else TEXT
    handler.setFormatter(JsonFormatter(role) if form == "json" else logging.Formatter(text))
    logging.basicConfig(level=level, handlers=[handler])
