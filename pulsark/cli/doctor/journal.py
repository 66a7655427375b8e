"""What the bookies' journals say of themselves."""

from __future__ import annotations

from collections.abc import Iterator

from pulsark.cli.doctor.finding import FAILURE, OK, WARNING, Finding
from pulsark.cli.doctor.stopped import Stopped


def check(stopped: Stopped) -> Iterator[Finding]:
    """One finding for each journal that can be read."""
    for bookie in stopped.bookies:
        if bookie.journal is None:
            continue
        report = bookie.journal.report
        harmed = report.damaged or report.corrupt_entries
        status = FAILURE if harmed else WARNING if report.unknown_files else OK
        yield Finding("journal", status, f"{bookie.place}: {report}")
