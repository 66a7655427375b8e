"""Notebooks as users run them, with few rows; ``tests/docs`` runs them whole."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.support.notebooks import NOTEBOOKS, run_notebook
from tests.support.standalone import Standalone


@pytest.fixture(autouse=True)
def _surroundings(spark: SparkSession, broker: Standalone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSARK_SERVICE_URL", broker.service_url)
    monkeypatch.setenv("PULSARK_ADMIN_URL", broker.web_url)
    monkeypatch.setenv("PULSARK_ROWS", "3000")


def test_quickstart() -> None:
    names = run_notebook("quickstart")
    assert [tuple(row) for row in names["per_key"].collect()] == [
        ("espresso", 500),
        ("filter", 500),
    ]
    assert names["cups"] == {"espresso": 501, "filter": 500}
    assert names["first"].data() == b"coffee 0"


def test_topics_are_tables() -> None:
    names = run_notebook("topics_are_tables")
    assert names["consumed"] == names["table"].count() == 3000
    assert sum(count for _, count in names["by_duckdb"]) == 3000


def test_cursors_and_replay() -> None:
    names = run_notebook("cursors_and_replay")
    assert names["not_billed"] == [f"order {number}" for number in range(1, 12, 2)]
    assert names["restored"] == names["not_billed"]
    assert names["changes"].count("seek") == 2


def test_sql_over_topics() -> None:
    names = run_notebook("sql_over_topics")
    assert len(names["cancelled"]) == 22
    assert [row.flights for row in names["waiting"].collect()] == [7, 3]
    assert [tuple(row)[:2] for row in names["backlog"].collect()] == [("rebooking", 10)]


@pytest.mark.slow
def test_streaming_to_delta() -> None:
    names = run_notebook("streaming_to_delta")
    assert names["waiting"].rows[0]["backlog_entries"] > 0
    assert names["rows"]() == (3000, 3000)
    assert sum(row.flights for row in names["by_hour"].collect()) == 3000


@pytest.mark.slow
def test_exactly_once_write() -> None:
    names = run_notebook("exactly_once_write")
    assert names["written"].count() == 3000
    assert sorted(names["chosen"].values())[-1] == 3
    assert names["late_rows"]() == names["expected"] > 0


def test_queue_and_table() -> None:
    names = run_notebook("queue_and_table")
    assert set(names["settled"]) == {"Ada", "Grace", "Barbara"}
    assert names["settled"].total() == len(names["claims"])
    assert names["given_back"] > 0


@pytest.mark.slow
def test_moving_to_pulsark() -> None:
    names = run_notebook("moving_to_pulsark")
    assert "did you mean 'topics'" in names["message"]
    assert names["copied"].count() == 3000


def test_secured() -> None:
    names = run_notebook("secured")
    assert names["count"] == names["written"] == 100
    assert "answered 401" in names["refused"]


def test_every_notebook_is_run_here() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} <= tested
