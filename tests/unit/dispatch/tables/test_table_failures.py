"""What fails is said once, and that storage roots are away once for all tables."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.dispatch.tables.rounds import TableFailures
from pulsark.errors import DamagedLogError, RootsAwayError, StorageError
from pulsark.wire.topic_name import TopicName


async def fails(error: Exception | None) -> None:
    if error is not None:
        raise error


def said(
    caplog: pytest.LogCaptureFixture, failures: TableFailures, *what: tuple[str, Exception | None]
) -> int:
    """Lines that come of some attempts."""
    before = len(caplog.messages)
    for topic, error in what:
        asyncio.run(failures.attempt(TopicName.parse(topic), fails(error)))
    return len(caplog.messages) - before


def test_roots_that_are_away_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    failures = TableFailures()
    away = RootsAwayError("0 storage roots of 1 can be reached")
    assert said(caplog, failures, *[(f"t{n}", away) for n in range(5)] * 3) == 1
    assert said(caplog, failures, ("other", StorageError("damaged")), ("t1", None)) == 1
    assert said(caplog, failures, ("t1", away), ("t0", away)) == 0
    assert said(caplog, failures, *[(f"t{n}", None) for n in range(5)]) == 1
    assert said(caplog, failures, ("t0", away), ("t1", away)) == 1


def test_another_reason_of_a_table_is_said(caplog: pytest.LogCaptureFixture) -> None:
    failures = TableFailures()
    for reason in ("one", "two"):
        attempts = [("t", StorageError(reason))] * 3
        assert said(caplog, failures, *attempts) == 1


def test_the_end_of_a_failure_is_said_at_its_level(caplog: pytest.LogCaptureFixture) -> None:
    failures = TableFailures()
    damage = DamagedLogError("commit 2 cannot be read")
    assert said(caplog, failures, ("t", damage), ("t", damage), ("t", None), ("t", None)) == 2
    first, last = caplog.records
    assert "commit 2 cannot be read" in first.getMessage()
    assert last.getMessage().endswith("sealing works again")
    assert first.levelno == last.levelno
    assert not failures.damaged


def test_a_damaged_log_is_known_until_it_is_repaired(caplog: pytest.LogCaptureFixture) -> None:
    failures = TableFailures()
    name = TopicName.parse("t")
    said(caplog, failures, ("t", DamagedLogError("commit 2 cannot be read")))
    assert failures.damaged == {name: "commit 2 cannot be read"}
    failures.drop(name)
    assert not failures.damaged
