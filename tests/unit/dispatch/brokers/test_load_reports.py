"""What a broker tells of its load."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from pulsark.dispatch.brokers.load import LoadReport
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
        self.registry = Told()
        parts: Any = (
            SimpleNamespace(monotonic=lambda: self.now),
            self.registry,
            SimpleNamespace(owned=lambda: ("a bundle",)),
            SimpleNamespace(served=list),
            SimpleNamespace(),
        )
        self.reports = LoadReports(*parts)
        self.reports.cpu_seconds = lambda: self.used

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
