"""What a broker tells of its load."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from pulsark.dispatch.brokers.load import BundleLoad, LoadReport, busiest
from pulsark.dispatch.brokers.placement import ABOUT_AS_BUSY, choose
from pulsark.dispatch.stats.load_reports import REPORT_SECONDS, LoadReports


class Told:
    """A registry with another broker in it, and what it was told."""

    is_alone = False

    def __init__(self) -> None:
        self.own = SimpleNamespace(load=LoadReport())
        self.told: list[LoadReport] = []

    async def report(self, load: LoadReport) -> None:
        self.own.load = load
        self.told.append(load)


class Process:
    """A broker whose loop uses a part of a core, and its clock."""

    def __init__(self) -> None:
        self.now = self.used = 0.0
        self.loads: dict[str, BundleLoad] = {}
        self.registry = Told()
        parts: Any = (
            SimpleNamespace(monotonic=lambda: self.now),
            self.registry,
            SimpleNamespace(owned=lambda: ("a bundle",)),
            SimpleNamespace(served=list),
            self,
            10,
        )
        self.reports = LoadReports(*parts)
        self.reports.cpu_seconds = lambda: self.used

    async def measure(self) -> None:
        """Nothing: ``loads`` is what a test wants."""

    def run(self, seconds: float, busy: float) -> float:
        """The utilisation that others know after that time."""
        for _ in range(round(seconds / REPORT_SECONDS)):
            self.now += REPORT_SECONDS
            self.used += busy * REPORT_SECONDS
            asyncio.run(self.reports.report())
        return self.registry.own.load.utilisation


def test_a_start_does_not_keep_bundles_away() -> None:
    process = Process()
    after = process.run(REPORT_SECONDS, 1.0)
    assert 0 < after < ABOUT_AS_BUSY
    known = {"new": process.registry.own.load, "idle": LoadReport(bundles=2)}
    assert choose("b", known) == "new"


def test_what_lasts_is_told() -> None:
    process = Process()
    busy = process.run(180.0, 0.8)
    assert 0.65 < busy <= 0.8
    assert process.run(180.0, 0.1) < 0.25


def test_what_hardly_changes_is_told_once() -> None:
    process = Process()
    process.run(60.0, 0.05)
    assert [load.bundles for load in process.registry.told] == [1]


def test_bundles_have_their_parts_of_what_their_broker_is_busy() -> None:
    loads = {
        "small": BundleLoad(1, 1, messages_in=100),
        "many": BundleLoad(9, 9, messages_in=300, messages_out=300),
        "large": BundleLoad(1, 1, 50, 50, 409_600, 409_600),
        "idle": BundleLoad(5, 5),
    }
    found = busiest(loads, 0.5, 3)
    assert [bundle for bundle, _ in found] == ["many", "large", "small"]
    assert [round(part, 3) for _, part in found] == [0.3, 0.15, 0.05]
    assert busiest({"idle": BundleLoad(5, 5)}, 0.5, 3) == ()
    report = LoadReport(0.5, busiest=found)
    assert LoadReport.from_json(report.as_json()) == report
    assert LoadReport.from_json({"utilisation": 0.5}) == LoadReport(0.5)


def test_what_bundles_cost_is_told_when_it_changes() -> None:
    process = Process()
    process.loads = {"b": BundleLoad(1, 1, 1000), "c": BundleLoad(1, 1, 1000)}
    process.run(600.0, 0.5)
    told = len(process.registry.told)
    load = process.registry.own.load
    assert [round(part, 1) for _, part in load.busiest] == [0.2, 0.2]
    assert load.messages_in == 2000
    process.run(600.0, 0.5)
    assert len(process.registry.told) <= told + 1
    process.loads = {"b": BundleLoad(1, 1, 2000)}
    process.run(600.0, 0.5)
    assert [bundle for bundle, _ in process.registry.own.load.busiest] == ["b"]


@pytest.mark.parametrize(
    "told",
    [
        [],
        {"utilisation": "busy"},
        {"utilisation": None},
        {"utilisation": math.nan},
        {"bundles": math.inf},
        {"busiest": ["b"]},
        {"busiest": {"b": "much"}},
    ],
)
def test_a_report_that_is_none_is_that_of_a_broker_without_load(told: Any) -> None:
    assert LoadReport.from_json(told) == LoadReport()
