"""One cause writes a bounded number of lines, and what was left out is told."""

from __future__ import annotations

import io
import logging

import pytest

from pulsark.limits import (
    LOG_CAUSES_MAX,
    LOG_LINES_OF_CAUSE_MAX,
    LOG_LINES_OF_KIND_MAX,
    LOG_LINES_OF_LASTING_CAUSE_MAX,
    LOG_WINDOW_SECONDS,
)
from pulsark.log_budget import BudgetedHandler, LogBudget


class Log:
    """A logger with a handler whose clock stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        self._stream = io.StringIO()
        self._handler = BudgetedHandler(self._stream, lambda: self.now)
        self._read = 0
        self.logger = logging.Logger("a.b", logging.DEBUG)
        self.logger.addHandler(self._handler)

    def lines(self) -> list[str]:
        found = self._stream.getvalue()[self._read :].splitlines()
        self._read = len(self._stream.getvalue())
        return found

    def close(self) -> None:
        self._handler.close()


@pytest.fixture
def log() -> Log:
    return Log()


def test_forty_thousand_lines_of_one_cause_become_a_handful(log: Log) -> None:
    for entry in range(40_000):
        log.logger.warning("%s: cannot decode entry %d", "topic", entry)
    assert len(log.lines()) == LOG_LINES_OF_CAUSE_MAX
    log.now = LOG_WINDOW_SECONDS + 1
    log.logger.warning("something else")
    summary, other = log.lines()
    assert f"{40_000 - LOG_LINES_OF_CAUSE_MAX} more lines about topic were left out" in summary
    assert "%s: cannot decode entry %d" in summary
    assert other == "something else"


def test_names_that_a_client_thinks_up_share_the_budget_of_the_template(log: Log) -> None:
    for name in range(3 * LOG_CAUSES_MAX):
        log.logger.warning("%s: refused", f"name-{name}")
    assert len(log.lines()) == LOG_LINES_OF_KIND_MAX


def test_other_templates_and_other_topics_are_not_affected(log: Log) -> None:
    for _ in range(100):
        log.logger.warning("%s: full", "a")
    log.lines()
    log.logger.warning("%s: full", "b")
    log.logger.error("%s: lost", "a")
    logging.Logger.manager.getLogger("other")
    assert log.lines() == ["b: full", "a: lost"]


def test_a_cause_that_goes_on_writes_less(log: Log) -> None:
    def a_minute() -> int:
        for _ in range(100):
            log.logger.error("%s: no room", "disk")
        log.now += LOG_WINDOW_SECONDS
        return len([line for line in log.lines() if line == "disk: no room"])

    assert a_minute() == LOG_LINES_OF_CAUSE_MAX
    assert a_minute() == LOG_LINES_OF_LASTING_CAUSE_MAX
    assert a_minute() == LOG_LINES_OF_LASTING_CAUSE_MAX
    log.now += LOG_WINDOW_SECONDS
    log.logger.info("x")
    log.now += LOG_WINDOW_SECONDS
    log.lines()
    assert a_minute() == LOG_LINES_OF_CAUSE_MAX


def test_texts_without_arguments_count_by_their_place(log: Log) -> None:
    for name in range(1000):
        log.logger.warning(f"{name}: refused")
    assert len(log.lines()) == LOG_LINES_OF_KIND_MAX


def test_what_an_operator_asks_for_has_more_room(log: Log) -> None:
    for _ in range(1000):
        log.logger.info("%s: loaded", "t")
        log.logger.debug("%s: read", "t")
    lines = log.lines()
    assert lines.count("t: loaded") == 10 * LOG_LINES_OF_CAUSE_MAX
    assert lines.count("t: read") == 1000


def test_the_end_of_the_process_tells_what_was_left_out(log: Log) -> None:
    for _ in range(10):
        log.logger.error("%s: no room", "disk")
    log.lines()
    log.close()
    (summary,) = log.lines()
    assert summary.startswith(f"{10 - LOG_LINES_OF_CAUSE_MAX} more lines")


def test_memory_is_bounded() -> None:
    budget = LogBudget(lambda: 0.0)
    for number in range(2 * LOG_CAUSES_MAX):
        budget.admit(logging.LogRecord("l", 30, "", 0, f"%s {number}", ("x",), None))
    assert len(budget._windows) <= LOG_CAUSES_MAX
