"""``pulsark doctor --data-dir D --accept-loss WHAT``: give up a damaged part.

The operator names one part per command; it is kept, unchanged, beside the data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import quote

from pulsark.cli.doctor.stopped import Stopped
from pulsark.cli.terminal.errors import CommandError
from pulsark.metadata.sqlite_mending import take_damaged_value
from pulsark.runtime import OsDisk, SystemClock
from pulsark.storage.bookie import accepted_loss as segments
from pulsark.storage.bookie.accepted_loss import AcceptedLoss, lost_path
from pulsark.storage.bookie.journal_format import segment_id_of

LOST_NAME = "lost"
"""Directory below the data directory for what was accepted as lost."""


class Way(NamedTuple):
    """How one kind of thing is accepted as lost."""

    form: str
    """What the operator writes, for people."""
    fits: Callable[[str], bool]
    accept: Callable[[Stopped, str], str]
    """Does it; returns what was done. Raises ``CommandError``."""


def accept_value(stopped: Stopped, path: str) -> str:
    """Remove a damaged value of the metadata store; it stays in a file."""
    data = stopped.data
    kept = os.path.join(data.path, LOST_NAME, f"{quote(path, safe='')}.value")
    disk = OsDisk()

    def keep(value: bytes) -> None:
        disk.make_dirs(os.path.dirname(kept))
        disk.write_atomic(kept, value)

    if not take_damaged_value(data.metadata_path, path, keep):
        raise CommandError(f"--accept-loss {path}: there is no damaged value of this path")
    return f"{path} is gone; what was left of it is in {kept}"


def names_segment(what: str) -> bool:
    """Whether this is ``<place>/<segment>``."""
    place, _, name = what.partition("/")
    return bool(place) and segment_id_of(name) is not None


def accept_segment(stopped: Stopped, what: str) -> str:
    """Give up what of a journal's segment cannot be read; the segment stays as it is."""
    place, _, name = what.partition("/")
    segment_id = segment_id_of(name)
    bookie = next((b for b in stopped.bookies if b.place == place), None)
    if bookie is None or bookie.journal is None or segment_id is None:
        raise CommandError(f"--accept-loss {what}: there is no journal of {place} to be read")
    report = bookie.journal.report
    ranges = [(start, end) for s, start, end in report.damaged if s == segment_id]
    entries = [(ledger, entry) for s, ledger, entry in report.corrupt if s == segment_id]
    if not ranges and not entries:
        raise CommandError(f"--accept-loss {what}: nothing of this segment is damaged")
    home = bookie.home
    loss = AcceptedLoss(ranges, entries, SystemClock().now_ms())
    segments.accept_loss(OsDisk(), home.journal_dir, home.ledger_dir, segment_id, loss)
    return (
        f"{what}: {sum(end - start for start, end in ranges)} bytes and {len(entries)} entries "
        f"are given up; {lost_path(home.journal_dir, segment_id)} says which"
    )


WAYS: Sequence[Way] = (
    Way("a damaged segment (bookie-1/0000000000000001.journal)", names_segment, accept_segment),
    Way("the path of a damaged value", lambda what: what.startswith("/"), accept_value),
)


def accept_loss(stopped: Stopped, what: str) -> str:
    """Accept one thing as lost; returns what was done. Raises ``CommandError``."""
    for way in WAYS:
        if way.fits(what):
            return way.accept(stopped, what)
    forms = ", or ".join(way.form for way in WAYS)
    raise CommandError(f"--accept-loss {what}: give {forms}, as the doctor names it")
