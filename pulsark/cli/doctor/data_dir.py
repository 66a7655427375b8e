"""``pulsark doctor --data-dir D``: whether a stopped data directory is sound.

A check is a function from ``Stopped`` to findings; it changes nothing. A finding that is not
``ok`` says what is damaged, whether that can be accepted as lost, and one command for each way out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from pulsark.cli.doctor import bookies, journal, ledgers, metadata, roots, tables
from pulsark.cli.doctor.accepting import accept_loss
from pulsark.cli.doctor.finding import FAILURE, Finding, print_findings
from pulsark.cli.doctor.stopped import Stopped
from pulsark.cli.terminal.errors import CommandError
from pulsark.cli.terminal.output import print_json
from pulsark.config.sources import load_settings
from pulsark.config.store_urls import check_own_file
from pulsark.storage.backup.data_dir import locked

CHECKS: Sequence[Callable[[Stopped], Iterable[Finding]]] = (
    metadata.check,
    bookies.check,
    journal.check,
    ledgers.check,
    roots.check,
    tables.check,
)
"""In this order; a check that raises is a finding of its own."""


def run_data_doctor(
    data_dir: str, conf: str | None, accepted: str | None, *, as_json: bool
) -> bool:
    """Print all findings; whether a standalone can start here and lacks nothing.

    With ``accepted``, accept that as lost instead.
    """
    flags: dict[str, str | int | bool] = {"dataDir": data_dir}
    settings = load_settings(file=conf, environment=os.environ, flags=flags).settings
    check_own_file(settings, "doctor")
    path = os.path.abspath(settings.dataDir)
    if not os.path.isdir(path):
        raise CommandError(f"--data-dir: there is no directory {path}")
    stopped = Stopped(settings)
    with locked(stopped.data):
        if accepted is not None:
            done = accept_loss(stopped, accepted)
            if as_json:
                print_json({"accepted": accepted, "done": done})
            else:
                print(done)
            return True
        conclusion = ("Nothing is wrong here.", "Something is wrong here")
        return print_findings(examine(stopped), conclusion, as_json)


def examine(stopped: Stopped) -> Iterator[Finding]:
    """All checks, one after the other; none of them ends the others."""
    for check in CHECKS:
        try:
            yield from check(stopped)
        except Exception as e:  # noqa: BLE001 - damage may take any form
            name = check.__module__.rsplit(".", 1)[1]
            yield Finding(name, FAILURE, f"this check failed: {type(e).__name__}: {e}")
