"""Are the bookies' journals sound?"""

from __future__ import annotations

from collections.abc import Iterator

from pulsark.cli.doctor.finding import FAILURE, OK, WARNING, Finding
from pulsark.cli.doctor.stopped import Stopped, StoppedBookie
from pulsark.storage.bookie.journal_format import segment_name
from pulsark.storage.bookie.journal_recovery import RecoveryReport

ENTRIES_SHOWN = 5


def check(stopped: Stopped) -> Iterator[Finding]:
    """One finding for each journal that can be read, and one for each damaged segment."""
    for bookie in stopped.bookies:
        if bookie.journal is None:
            continue
        report = bookie.journal.report
        harmed = sorted({s for s, *_ in report.damaged} | {s for s, *_ in report.corrupt})
        for segment_id in harmed:
            yield _damage(stopped, bookie, segment_id, report)
        if not harmed:
            status = WARNING if report.unknown_files else OK
            yield Finding("journal", status, f"{bookie.place}: {report}")


def _damage(
    stopped: Stopped, bookie: StoppedBookie, segment_id: int, report: RecoveryReport
) -> Finding:
    what = f"{bookie.place}/{segment_name(segment_id)}"
    parts = []
    ranges = [f"[{start}, {end})" for s, start, end in report.damaged if s == segment_id]
    if ranges:
        assert bookie.journal is not None
        bound = bookie.journal.index.segments[segment_id].damage_bound
        parts.append(
            f"{what}: the bytes {', '.join(ranges)} cannot be read; they may have held entries, "
            f"fences and deletions of ledgers up to {bound}"
        )
    entries = [f"{ledger}:{entry}" for s, ledger, entry in report.corrupt if s == segment_id]
    if entries:
        more = "" if len(entries) <= ENTRIES_SHOWN else ", ..."
        shown = ", ".join(entries[:ENTRIES_SHOWN]) + more
        parts.append(f"{what}: {len(entries)} entries fail their checksum: {shown}")
    copies = "with copies on other bookies nothing need be done: those are read\n"
    accepting = f"pulsark doctor --data-dir {stopped.data.path} --accept-loss {what} "
    return Finding(
        "journal",
        FAILURE,
        "; ".join(parts),
        f"{copies if len(stopped.bookies) > 1 else ''}{accepting}"
        "(what was there is absent then; topics that cannot be loaded can be)",
    )
