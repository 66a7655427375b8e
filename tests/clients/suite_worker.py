"""Runs tests of one file of the official suite and reports each as a line of JSON.

``suite_worker.py FD list MODULE`` reports ``{"tests": [...]}`` or ``{"error": ...}``;
``suite_worker.py FD run TEST...`` reports ``{"begin": TEST}`` and, for each,
``{"end": TEST, "outcome": "passed" | "failed" | "skipped", "detail": ...}``.

The lines go to the file descriptor FD: tests and the client's library write to the standard
streams. The parent ends this process when it has been silent for too long, so it needs nothing of
this project and imports nothing but what the tests do.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import traceback
import unittest
from typing import Any


def tests_in(suite: unittest.TestSuite) -> list[unittest.TestCase]:
    """All cases of a tree of suites, in order."""
    cases: list[unittest.TestCase] = []
    for item in suite:
        cases += tests_in(item) if isinstance(item, unittest.TestSuite) else [item]
    return cases


class Reporter(unittest.TestResult):
    """Tells the parent about each test."""

    def __init__(self, to: io.TextIOBase) -> None:
        super().__init__()
        self._to = to
        self._outcome, self._detail = "passed", ""

    def tell(self, **what: Any) -> None:
        self._to.write(json.dumps(what) + "\n")
        self._to.flush()

    def startTest(self, test: unittest.TestCase) -> None:
        self._outcome, self._detail = "passed", ""
        self.tell(begin=test.id())
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self.tell(end=test.id(), outcome=self._outcome, detail=self._detail)

    def _set(self, test: Any, outcome: str, detail: str) -> None:
        self._outcome, self._detail = outcome, detail
        # What happens to a whole class happens to no test: its id is "setUpClass (module.Class)".
        if whole := re.fullmatch(r"\w+ \((.+)\)", test.id()):
            self.tell(end=whole[1], outcome=outcome, detail=detail)

    def _failed(self, test: Any, error: Any) -> None:
        self._set(test, "failed", "".join(traceback.format_exception(*error)))

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self._failed(test, err)

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self._failed(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._failed(test, err)

    def addUnexpectedSuccess(self, test: Any) -> None:
        super().addUnexpectedSuccess(test)
        self._set(test, "failed", "it was expected to fail")

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self._set(test, "skipped", reason)


def main(descriptor: str, what: str, *names: str) -> None:
    # A shell starts background jobs with SIGINT ignored; a test of the suite sends it to itself.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[0] = os.getcwd()
    reporter = Reporter(os.fdopen(int(descriptor), "w"))
    if what == "run":
        unittest.defaultTestLoader.loadTestsFromNames(names).run(reporter)
        return
    try:
        __import__(names[0])
    except Exception:
        reporter.tell(error=traceback.format_exc())
        return
    suite = unittest.defaultTestLoader.loadTestsFromName(names[0])
    reporter.tell(tests=[case.id() for case in tests_in(suite)])


if __name__ == "__main__":
    main(*sys.argv[1:])
