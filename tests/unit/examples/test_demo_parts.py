"""The demo's expected answer, its verdict and its child process."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from examples.flights.flights import Delays, _messages, data_directory, expected_answer
from examples.flights.process import StandaloneProcess
from examples.flights.show import carriers_table, compare
from pulsark.errors import PulsarkError

FLIGHTS = pd.DataFrame(
    {
        "carrier": ["UA", "UA", "B6", "UA"],
        "year": [2013] * 4,
        "month": [1, 1, 1, 12],
        "day": [1, 1, 2, 31],
        "flight": [1, 2, 3, 4],
        "tailnum": ["N1", None, "N3", "N4"],
        "origin": ["EWR"] * 4,
        "dest": ["IAH"] * 4,
        "dep_delay": [2.0, float("nan"), -3.0, 10.0],
        "arr_delay": [11.0, float("nan"), float("nan"), 20.0],
        "distance": [1400] * 4,
        "time_hour": ["2013-01-01T10:00:00Z"] * 3 + ["2013-12-31T23:00:00Z"],
    }
)
ANSWER = {
    ("UA", "2013-01-01"): Delays(2, 1, 2, 1, 11),
    ("B6", "2013-01-02"): Delays(1, 1, -3, 0, 0),
    ("UA", "2013-12-31"): Delays(1, 1, 10, 1, 20),
}


def printed(found: dict[tuple[str, str], Delays]) -> tuple[bool, str]:
    out = io.StringIO()
    same = compare(Console(file=out, width=200), found, ANSWER)
    return same, out.getvalue()


def test_the_expected_answer_counts_what_departed() -> None:
    assert expected_answer(FLIGHTS) == ANSWER


def test_messages_have_the_scheduled_hour_and_no_nan() -> None:
    messages = list(_messages(FLIGHTS))
    assert [time for _, time in messages] == [1357034400000] * 3 + [1388530800000]
    assert messages[1][0] == {
        "carrier": "UA",
        "flight": 2,
        "tailnum": None,
        "origin": "EWR",
        "dest": "IAH",
        "dep_delay": None,
        "arr_delay": None,
        "distance": 1400,
    }
    assert type(messages[0][0]["dep_delay"]) is int


def test_equal_answers_match() -> None:
    same, text = printed(dict(ANSWER))
    assert same
    assert "matches: 3 carrier-days with 4 flights, 3 departures and 9 minutes" in text


def test_any_difference_is_shown() -> None:
    wrong = dict(ANSWER)
    del wrong["B6", "2013-01-02"]
    wrong["UA", "2013-01-01"] = Delays(2, 1, 3, 1, 11)
    wrong["XX", "2013-01-01"] = Delays(1, 0, 0, 0, 0)
    same, text = printed(wrong)
    assert not same
    assert "differs in 3 of 3" in text
    assert "matches" not in text


def test_the_table_sums_a_year() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(carriers_table(ANSWER, {"UA": "United Air Lines Inc."}))
    line = next(line for line in out.getvalue().splitlines() if "UA" in line)
    assert line.split() == ["UA", "United", "Air", "Li…", "3", "1", "6.0", "15.5", "12-31", "10.0"]


def test_the_data_is_found_without_importing_its_package() -> None:
    assert (data_directory() / "flights.csv.zip").is_file()


@pytest.mark.parametrize(
    ("port", "brokers", "why"), [(99999, 1, "99999"), (0, -3, "standaloneBrokers")]
)
def test_a_standalone_that_cannot_start_says_why(
    tmp_path: Path, port: int, brokers: int, why: str
) -> None:
    (tmp_path / "file").touch()
    process = StandaloneProcess(tmp_path, ports=(port, 0, 0), brokers=brokers)
    with pytest.raises(PulsarkError, match=rf"ended at once:(.|\n)*{why}"):
        process.start()
    process.stop()
