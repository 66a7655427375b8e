"""The operator hears of each cause of failed logins once in a minute, and what to do."""

from __future__ import annotations

import pytest

from pulsark.security.complaints import _ADVICE, Complaints
from pulsark.security.expiries import Expiries


def test_each_cause_is_told_once_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints()
    for second in (0.0, 1.0, 59.9):
        complaints.note("expired", second)
        complaints.note("password", second)
    complaints.note("expired", 60.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    first, second, third = (record.getMessage() for record in caplog.records)
    assert "(expired): tokens have expired; clients need new ones" in first
    assert "(password): users or passwords do not match the file of basicAuthConf" in second
    assert "(expired, and 2 more since the last such warning)" in third


def test_causes_of_others_are_kept_as_one(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints()
    for number in range(100):
        complaints.note(f"cause {number}", 0.0)
    assert [record.getMessage() for record in caplog.records] == [
        "a client cannot log in (other): see the log of level INFO"
    ]
    assert len(complaints._told) == 1
    assert "other" not in _ADVICE


def test_how_long_tokens_are_good_is_counted_in_buckets() -> None:
    expiries = Expiries()
    for minutes in (1, 5, 6, 60, 100, 300):
        expiries.add(minutes * 60_000)
    assert expiries.buckets() == [("5", 2), ("10", 3), ("60", 4), ("240", 5), ("+Inf", 6)]
    assert (expiries.count, expiries.total_minutes) == (6, 472.0)
