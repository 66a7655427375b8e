"""The operator hears of each cause of failed logins once in a minute, and what to do."""

from __future__ import annotations

import pytest

from pulsark.security.complaints import _ADVICE, Complaints
from pulsark.security.expiries import Expiries


def test_each_cause_is_told_once_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints()
    for second in (0.0, 1.0, 59.9):
        complaints.note("expired", second, f"10.0.0.{second:.0f}")
        complaints.note("password", second, "::1")
    complaints.note("expired", 60.0, "10.0.0.9")
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    first, second, third = (record.getMessage() for record in caplog.records)
    assert first.startswith(
        "a client at 10.0.0.0 cannot log in (expired): tokens have expired; clients need new ones"
    )
    assert second.startswith("a client at ::1 cannot log in (password): users or passwords do not")
    assert third.startswith(
        "a client at 10.0.0.9 cannot log in (expired, and 2 more from 10.0.0.1, 10.0.0.60 since "
        "the last such warning)"
    )


def test_a_warning_does_not_grow_with_the_number_of_addresses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    complaints = Complaints()
    for number in range(10_000):
        complaints.note("expired", number / 1000, f"10.0.{number >> 8}.{number & 255}")
    complaints.note("expired", 60.0, "10.0.0.9")
    assert len(caplog.records) == 2
    text = caplog.records[1].getMessage()
    assert "and 9999 more from 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5 and others" in text
    assert len(text) < 300


def test_causes_of_others_are_kept_as_one(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints()
    for number in range(100):
        complaints.note(f"cause {number}", 0.0, "")
    assert [record.getMessage() for record in caplog.records] == [
        "a client at an unknown address cannot log in (other): see the log of level INFO"
    ]
    assert len(complaints._told) == 1
    assert "other" not in _ADVICE


def test_how_long_tokens_are_good_is_counted_in_buckets() -> None:
    expiries = Expiries()
    for minutes in (1, 5, 6, 60, 100, 300):
        expiries.add(minutes * 60_000)
    assert expiries.buckets() == [("5", 2), ("10", 3), ("60", 4), ("240", 5), ("+Inf", 6)]
    assert (expiries.count, expiries.total_minutes) == (6, 472.0)
