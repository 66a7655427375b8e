"""Medians, thresholds and the table of the comparison."""

from __future__ import annotations

import pytest

from benchmarks.report import Row, resources, table
from benchmarks.scenarios import CLUSTER_SCENARIOS, NAMES, SCENARIOS, START, Measure
from benchmarks.usage import Usage

HIGHER = Measure("rate", "k/s", "higher", lambda answer: answer["x"], 1.2)
LOWER = Measure("latency", "ms", "lower", lambda answer: answer["x"], 0.7)


def row(measure: Measure, pulsark: list[float], pulsar: list[float]) -> Row:
    made = Row(measure)
    for value in pulsark:
        made.add("Pulsark", value, Usage(0.9, 0.9, 0.3, 0.2, 0.5, 0.1, 0.2))
    for value in pulsar:
        made.add("Pulsar", value, Usage(1.4, 0.4, 0.5, 0.2, 0.05, 0.1, 0.2))
    return made


@pytest.mark.parametrize(
    ("measure", "pulsark", "pulsar", "passed"),
    [
        (HIGHER, [121, 500, 120], [100, 100, 90], True),
        (HIGHER, [119, 119, 500], [100, 100, 90], False),
        (LOWER, [0.7], [1.0], True),
        (LOWER, [0.8], [1.0], False),
        (LOWER, [0.8], [], True),
    ],
)
def test_the_ratio_of_medians_decides(
    measure: Measure, pulsark: list[float], pulsar: list[float], passed: bool
) -> None:
    assert row(measure, pulsark, pulsar).passed is passed


def test_a_side_that_broke_off_is_told_beside_what_it_measured_before() -> None:
    broken = row(HIGHER, [500, 500], [100])
    broken.failed["Pulsar"] = "Not enough non-faulty bookies available"
    assert not broken.passed
    text = table([broken, row(LOWER, [0.5], [1.0])])
    assert "FAIL" in text
    assert "Pulsar: Not enough non-faulty bookies available" in text
    assert "latency" in text


def test_tables_fit_80_columns() -> None:
    rows = [row(m, [123456.0, 99999.0], [123456.0, 1.0]) for s in SCENARIOS for m in s.measures]
    rows += [row(measure, [0.1234], [5.0]) for s in CLUSTER_SCENARIOS for measure in s.measures]
    rows += [row(measure, [0.1234], [5.0]) for measure in START]
    rows[0].failed["Pulsar"] = "a reason " * 20
    text = table(rows) + "\n" + resources(rows)
    assert max(map(len, text.splitlines())) <= 80
    assert "FAIL" in text
    assert "broker thread" in text
    assert "all cores" in text


def test_the_issue_names_every_threshold() -> None:
    thresholds = {
        measure.label: measure.threshold
        for measure in (*START, *(m for s in SCENARIOS for m in s.measures))
        if measure.threshold is not None
    }
    assert sorted(thresholds.values()) == [0.15, 0.3, 0.7, 0.7, 0.8, 1.0, 1.0, 1.0, 1.2, 1.2, 1.2]
    assert len(set(NAMES)) == len(SCENARIOS) + 1


def test_lone_messages_to_a_cluster_are_not_delayed_by_the_sealing_of_others() -> None:
    assert CLUSTER_SCENARIOS[0].name == "cluster-lone"


def test_what_a_message_costs_the_brokers_of_a_cluster_is_told() -> None:
    answer = {"messages": 2e6, "seconds": 1.0, "broker_seconds": 3.0, "bookie_seconds": 9.0}
    batched = CLUSTER_SCENARIOS[1]
    assert [measure.value(answer) for measure in batched.measures] == [2000, 1.5, 4.5]


@pytest.mark.parametrize(
    ("measure", "now", "passed"),
    [(HIGHER, 97.1, True), (HIGHER, 96.9, False), (LOWER, 103.0, True), (LOWER, 103.2, False)],
)
def test_beside_an_earlier_commit_nothing_may_be_more_than_3_percent_worse(
    measure: Measure, now: float, passed: bool
) -> None:
    compared = Row(measure.against_before(), "before", pulsark=[now], peer=[100.0])
    assert compared.passed is passed
    assert "before" in table([compared])
