"""Rows written to the view ``cursors`` as requests to the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pulsark.datasource.options.errors import OptionError
from pulsark.datasource.plan.cursor_changes import ACKS_A_REQUEST, changes, check_columns

T = "persistent://public/default/t"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = round(NOON.timestamp() * 1000)


def row(action: str, **columns: Any) -> dict[str, Any]:
    return {"topic": "t", "subscription": "s", "action": action, **columns}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (row("delete"), ("DELETE", "", None)),
        (row("create", message_id="earliest"), ("PUT", "", {"ledgerId": -1, "entryId": -1})),
        (row("create", message_id="3:4"), ("PUT", "", {"ledgerId": 3, "entryId": 4})),
        (row("restore", timestamp=NOON), ("POST", f"/restore/{NOON_MS}", None)),
        (row("restore", timestamp="2026-01-31T12:00"), ("POST", f"/restore/{NOON_MS}", None)),
        (row("seek", timestamp=NOON_MS), ("POST", f"/resetcursor/{NOON_MS}", None)),
        (
            row("seek", message_id="3:4:-1:2"),
            ("POST", "/resetcursor", {"ledgerId": 3, "entryId": 4, "batchIndex": 2}),
        ),
        (
            row("seek", message_id="3:4:-1:-1"),
            ("POST", "/resetcursor", {"ledgerId": 3, "entryId": 4}),
        ),
    ],
)
def test_a_row_is_a_request(columns: dict[str, Any], expected: tuple[Any, ...]) -> None:
    (change,) = changes([columns], None)
    assert (change.topic, change.subscription) == (T, "s")
    assert (change.method, change.path, change.body) == expected


def test_acknowledgements_go_together_as_long_as_they_are_of_one_subscription() -> None:
    acks = [row("ack", message_id=f"3:{i}") for i in range(ACKS_A_REQUEST + 1)]
    rows = [
        *acks,
        row("seek", message_id="3:0"),
        row("ack", message_id="3:0"),
        row("ack", message_id="3:1", partition=0),
        row("ack", message_id="3:2", partition=0, subscription="other"),
    ]
    found = list(changes(rows, None))
    assert [(c.path, len(c.body)) for c in found] == [
        ("/acknowledge", ACKS_A_REQUEST),
        ("/acknowledge", 1),
        ("/resetcursor", 2),
        ("/acknowledge", 1),
        ("/acknowledge", 1),
        ("/acknowledge", 1),
    ]
    assert [c.topic for c in found[3:]] == [T, f"{T}-partition-0", f"{T}-partition-0"]


def test_a_message_id_of_a_partition_names_the_partition() -> None:
    rows = [
        row("ack", message_id="3:4:1:-1"),
        row("seek", message_id="3:4:1:2", partition=1),
        row("seek", message_id="3:4:1:2", topic="t-partition-1"),
        row("delete", partition=2),
    ]
    found = [change.topic for change in changes(rows, None)]
    assert found == [f"{T}-partition-1"] * 3 + [f"{T}-partition-2"]


def test_the_option_names_the_topic_of_rows_without_one() -> None:
    (change,) = changes([{"subscription": "s", "action": "delete"}], "t")
    assert change.topic == T


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (row("delete", topic="a/b"), "columns 'topic' and 'partition': "),
        (row("ack", message_id="3:4:1:-1", partition=0), "is 0, and column 'message_id' names"),
        (row("reset"), "column 'action' is 'reset'; it is one of seek, ack"),
        (row("seek"), "column 'message_id' or timestamp is empty"),
        (row("ack", message_id="earliest"), "'earliest' is not a message id like ledger:entry"),
        (row("ack", message_id="3"), "'3' is not a message id like ledger:entry"),
        (row("restore", message_id="3:4"), "column 'timestamp' is empty"),
        (row("restore", timestamp="noon"), "neither milliseconds"),
        (row("delete", subscription=None), "column 'subscription' is empty"),
        (row("delete", topic=None), "column 'topic' is empty"),
    ],
)
def test_what_is_wrong_is_named(columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        list(changes([columns], None))


@pytest.mark.parametrize(
    ("types", "topic", "problem"),
    [
        ({"subscription": "string", "action": "string", "offset": "bigint"}, "t", "'offset'"),
        ({"subscription": "int", "action": "string"}, "t", "'subscription' is int"),
        ({"subscription": "string", "action": "string"}, None, "'topic' is missing"),
        ({"topic": "string", "action": "string"}, None, "'subscription' is missing"),
    ],
)
def test_columns_are_checked(types: dict[str, str], topic: str | None, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        check_columns(types, topic)


@pytest.fixture(params=["America/New_York", "Asia/Kolkata", "UTC"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ZoneInfo]:
    """The zone of the process, which Spark's session has, too."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield ZoneInfo(request.param)
    monkeypatch.undo()
    time.tzset()


def test_a_time_without_a_zone_is_in_that_of_the_session(zone: ZoneInfo) -> None:
    for month in (1, 7):
        local = datetime(2026, month, 31, 9, 30)
        expected = round(local.replace(tzinfo=zone).timestamp() * 1000)
        (change,) = changes([row("seek", timestamp=local)], None)
        assert change.path == f"/resetcursor/{expected}"
        (change,) = changes([row("restore", timestamp=local.replace(tzinfo=UTC))], None)
        assert change.path == f"/restore/{round(local.replace(tzinfo=UTC).timestamp() * 1000)}"
