"""Log lines for programs."""

from __future__ import annotations

import json
import logging
import sys

from pulsark.log_format import TEXT, JsonFormatter, TextFormatter


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


FORGED = "x\n2026-11-27 00:00:00,000 ERROR   p: forged\r\x1b[2J\x9b1m\u2028\u202egpj.\u200b\x7f"


def test_no_client_begins_a_line_or_moves_the_cursor() -> None:
    record = logging.LogRecord("pulsark.x", logging.WARNING, "f", 1, "%s left", (FORGED,), None)
    text = TextFormatter(TEXT).format(record)
    assert text.isprintable()
    assert "\\n2026-11-27" in text
    found = json.loads(JsonFormatter().format(record))
    assert str(found["message"]).isprintable()


def test_extras_and_what_stands_in_exceptions_are_escaped() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        record = logging.LogRecord("p", logging.ERROR, "f", 1, "no", (), sys.exc_info())
        found = line(exc_info=sys.exc_info(), topic=FORGED)
    first, *others = TextFormatter(TEXT).format(record).split("\n")
    assert first.endswith("no")
    assert all(each.startswith("    ") and each.isprintable() for each in others)
    assert str(found["topic"]).isprintable()
    assert all(each.isprintable() for each in str(found["exception"]).split("\n"))


def test_texts_of_all_languages_stay_readable() -> None:
    name = "\u00e4-\u65e5\u672c-\U0001f600"
    record = logging.LogRecord("pulsark.x", logging.WARNING, "f", 1, "%s", (name,), None)
    assert TextFormatter("%(message)s").format(record) == name
