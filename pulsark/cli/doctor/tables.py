"""Is the metadata store as new as the tables, and is every file there that it names?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from pulsark.cli.doctor.finding import FAILURE, OK, Finding, restoring
from pulsark.cli.doctor.stopped import Stopped
from pulsark.errors import PulsarkError
from pulsark.storage.backup.table_files import KnownTable, known_tables
from pulsark.storage.table.log.delta_log import DeltaLog

FILES_SHOWN = 3


def check(stopped: Stopped) -> Iterator[Finding]:
    """Findings about tables that are not as the metadata say; one if all are."""
    sound = True
    tables = known_tables(stopped.store.nodes)
    for table in tables:
        for finding in _check(stopped, table):
            sound = False
            yield finding
    if sound:
        yield Finding("tables", OK, f"{len(tables)} tables, all files of them are there")


def _check(stopped: Stopped, table: KnownTable) -> Iterator[Finding]:
    there = [
        f"{root}/{table.place}"
        for root in stopped.data.storage_roots
        if _is_there(stopped, f"{root}/{table.place}")
    ]
    for directory in there:
        log = DeltaLog(stopped.files, directory)
        try:
            attached = log.attached(log.versions())
        except (OSError, PulsarkError) as e:
            yield Finding("tables", FAILURE, f"the log of {directory} cannot be read: {e}")
            continue
        if attached > table.attached:
            yield Finding(
                "tables",
                FAILURE,
                f"{directory} has attach {attached}, the metadata store knows {table.attached}: "
                "the store is older",
                f"put the newest metadata.db back\n{restoring(stopped.data.path)}",
            )
    nowhere = [
        name
        for name in sorted(table.files)
        if not any(
            _size(stopped, f"{directory}/{name}") == table.files[name] for directory in there
        )
    ]
    if nowhere:
        yield _lost(table, nowhere)


def _is_there(stopped: Stopped, directory: str) -> bool:
    try:
        return bool(stopped.files.list(directory))
    except OSError:
        return False  # the check of the roots says so


def _size(stopped: Stopped, path: str) -> int | None:
    try:
        return stopped.files.size(path)
    except OSError:
        return None


def _lost(table: KnownTable, files: list[str]) -> Finding:
    names = ", ".join(files[:FILES_SHOWN]) + (", ..." if len(files) > FILES_SHOWN else "")
    return Finding(
        "tables",
        FAILURE,
        f"the table of {table.topic} in {table.place} lacks {len(files)} of {len(table.files)} "
        f"files on every root, or they have another size: {names}",
        "bring the files back, from a backup for instance\n"
        f"pulsark tables repair {shlex.quote(table.topic)} (while the standalone runs: makes again "
        "what bookies still have, and says what is lost)",
    )
