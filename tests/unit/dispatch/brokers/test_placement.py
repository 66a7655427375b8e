"""Which broker is chosen for a bundle, and what is worth telling of a broker's load."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pulsark.dispatch.brokers.load import LoadReport
from pulsark.dispatch.brokers.placement import ABOUT_AS_BUSY, choose

BUNDLES = [f"public/default/0x{number:08x}_0x{number + 1:08x}" for number in range(100)]


def test_without_brokers_nobody_is_chosen() -> None:
    assert choose("b", {}) is None


def test_the_one_with_the_fewest_bundles_is_chosen() -> None:
    brokers = {"x": LoadReport(bundles=3), "y": LoadReport(bundles=1), "z": LoadReport(bundles=2)}
    assert {choose(bundle, brokers) for bundle in BUNDLES} == {"y"}


def test_one_that_is_clearly_busier_is_not_chosen() -> None:
    busy = LoadReport(utilisation=0.2 + ABOUT_AS_BUSY + 0.01)
    brokers = {"x": busy, "y": LoadReport(utilisation=0.2, bundles=50)}
    assert choose("b", brokers) == "y"
    brokers["x"] = replace(busy, utilisation=0.2 + ABOUT_AS_BUSY - 0.01)
    assert choose("b", brokers) == "x"


def test_what_is_asked_for_at_once_is_spread() -> None:
    brokers = dict.fromkeys(("x", "y", "z"), LoadReport())
    chosen: list[str] = []
    for bundle in BUNDLES:
        found = choose(bundle, brokers, chosen)
        assert found is not None
        chosen.append(found)
    assert sorted(Counter(chosen).values()) == [33, 33, 34]


def test_brokers_that_know_the_same_choose_the_same() -> None:
    names = ["x", "y", "z"]
    one = [choose(bundle, dict.fromkeys(names, LoadReport())) for bundle in BUNDLES]
    other = [choose(bundle, dict.fromkeys(names[::-1], LoadReport())) for bundle in BUNDLES]
    assert one == other
    assert set(one) == set(names)


def test_bundles_of_one_group_are_kept_apart() -> None:
    brokers = {"x": LoadReport(), "y": LoadReport(bundles=5), "z": LoadReport(bundles=9)}
    assert choose("b", brokers, (), {"x": 1}) == "y"
    assert choose("b", brokers, (), {"x": 1, "y": 2, "z": 1}) == "x"
    assert choose("b", {"x": LoadReport()}, (), {"x": 7}) == "x"  # there is no choice
    held = {"x": 0, "y": 1}
    busy = {"x": LoadReport(utilisation=0.9), "y": LoadReport()}
    assert choose("b", busy, (), held) == "x"


@pytest.mark.parametrize(
    ("now", "worth"),
    [
        (LoadReport(0.3, 2, 100, 1000.0), False),
        (LoadReport(0.35, 2, 105, 1050.0), False),
        (LoadReport(0.41, 2, 100, 1000.0), True),
        (LoadReport(0.3, 3, 100, 1000.0), True),
        (LoadReport(0.3, 2, 200, 1000.0), True),
        (LoadReport(0.3, 2, 0, 1000.0), True),
        (LoadReport(0.3, 2, 100, 2000.0), True),
    ],
)
def test_a_report_is_told_when_it_differs(now: LoadReport, worth: bool) -> None:
    assert now.differs_from(LoadReport(0.3, 2, 100, 1000.0)) is worth


def test_a_report_is_read_as_it_was_written() -> None:
    report = LoadReport(0.25, 3, 7, 1.5, 2.5, 100.0, 200.0)
    assert LoadReport.from_json(report.as_json()) == report
    assert LoadReport.from_json({"bundles": 3, "of a later program": 1}) == LoadReport(bundles=3)
