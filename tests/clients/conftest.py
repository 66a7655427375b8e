"""With ``--record`` the clients that were run are noted in ``ran.toml``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.clients.pinned import PINNED, write_record

_passed: defaultdict[str, set[str]] = defaultdict(set)
_failed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="note which clients were run")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("client"):
            unknown = set(mark.args) - PINNED.keys()
            assert not unknown, f"{item.nodeid}: no such client: {unknown}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    for mark in item.iter_markers("client"):
        for client in mark.args:
            if report.failed:
                _failed.add(client)
            elif report.passed and report.when == "call":
                _passed[client].add(item.path.name)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    options = session.config.option
    selected = options.keyword or any("::" in argument for argument in session.config.args)
    if options.record and not selected:
        write_record({key: files for key, files in _passed.items() if key not in _failed})
