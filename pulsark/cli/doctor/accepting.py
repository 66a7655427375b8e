"""``pulsark doctor --data-dir D --accept-loss WHAT``: go on without something that is damaged.

What is lost is named by the operator, one thing a command, and is kept beside the data as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import quote

from pulsark.cli.doctor.stopped import Stopped
from pulsark.cli.errors import CommandError
from pulsark.metadata.sqlite_mending import take_damaged_value
from pulsark.runtime import OsDisk

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


WAYS: Sequence[Way] = (
    Way("the path of a damaged value", lambda what: what.startswith("/"), accept_value),
)


def accept_loss(stopped: Stopped, what: str) -> str:
    """Accept one thing as lost; returns what was done. Raises ``CommandError``."""
    for way in WAYS:
        if way.fits(what):
            return way.accept(stopped, what)
    forms = ", or ".join(way.form for way in WAYS)
    raise CommandError(f"--accept-loss {what}: give {forms}, as the doctor names it")
