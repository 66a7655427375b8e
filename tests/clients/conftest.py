"""With ``--record`` the clients that were run are noted in ``ran.toml``."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePath

import pytest

from tests.clients.pinned import PINNED, write_record

CLIENT = "client"
"""A property of a test's report: reports are all that one process gets of tests in others."""

_passed: defaultdict[str, set[str]] = defaultdict(set)
_failed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="note which clients were run")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers(CLIENT):
            unknown = set(mark.args) - PINNED.keys()
            assert not unknown, f"{item.nodeid}: no such client: {unknown}"
            item.user_properties += [(CLIENT, name) for name in mark.args]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for kind, client in report.user_properties:
        if kind == CLIENT and report.failed:
            _failed.add(str(client))
        elif kind == CLIENT and report.passed and report.when == "call":
            _passed[str(client)].add(PurePath(report.location[0]).name)


def pytest_sessionfinish(session: pytest.Session) -> None:
    options = session.config.option
    selected = options.keyword or any("::" in argument for argument in session.config.args)
    of_others = hasattr(session.config, "workerinput")  # the process that has all reports writes
    if options.record and not selected and not of_others:
        write_record({key: files for key, files in _passed.items() if key not in _failed})
