"""Log lines for programs."""

from __future__ import annotations

import json
import logging
import sys

from pulsark.log_format import JsonFormatter


def line(**more: object) -> dict[str, object]:
    record = logging.LogRecord("pulsark.x", logging.WARNING, "f", 1, "%s is %d", ("a", 1), None)
    vars(record).update(more)
    return json.loads(JsonFormatter().format(record))


def test_a_record_is_one_json_object_with_its_extras() -> None:
    found = line(topic="t")
    assert found["level"] == "WARNING"
    assert found["logger"] == "pulsark.x"
    assert found["message"] == "a is 1"
    assert found["topic"] == "t"
    assert set(found) == {"time", "level", "logger", "message", "topic"}


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        found = line(exc_info=sys.exc_info())
    assert "ValueError: no" in str(found["exception"])
