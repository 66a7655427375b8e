"""Is the metadata store as new as the tables, are their logs whole, and their files as written?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Literal

from pulsark.cli.doctor.finding import FAILURE, OK, WARNING, Finding, restoring
from pulsark.cli.doctor.stopped import Stopped
from pulsark.errors import CorruptEntryError, PulsarkError
from pulsark.storage.backup.table_files import KnownTable, known_tables
from pulsark.storage.table.files.root_files import checksum
from pulsark.storage.table.log.delta_log import DeltaLog, attach_number
from pulsark.storage.table.log.log_check import Fault, log_faults

FILES_SHOWN = 3
FAULTS_SHOWN = 5
"""Faults of one log that are named; the rest is counted."""


def check(stopped: Stopped) -> Iterator[Finding]:
    """Findings about tables that are not as the metadata say; one if all are."""
    sound = True
    tables = known_tables(stopped.store.nodes)
    for table in tables:
        for finding in _check(stopped, table):
            sound = False
            yield finding
    if sound:
        yield Finding("tables", OK, f"{len(tables)} tables; their logs and files are whole")


def _check(stopped: Stopped, table: KnownTable) -> Iterator[Finding]:
    there = [
        f"{root}/{table.place}"
        for root in stopped.data.storage_roots
        if _is_there(stopped, f"{root}/{table.place}")
    ]
    last: dict[str, int] = {}
    for directory in there:
        try:
            attached = last[directory] = _attached(DeltaLog(stopped.files, directory))
            behind = table.pending or attached != table.attached
            known = None if behind else table.files
            faults = list(log_faults(stopped.files, directory, known, partial(_rows, stopped)))
        except (OSError, PulsarkError) as e:
            yield Finding("tables", FAILURE, f"the log of {directory} cannot be read: {e}")
            continue
        if faults:
            yield _damaged_log(table, directory, faults)
        if attached > table.attached:
            yield Finding(
                "tables",
                FAILURE,
                f"{directory} has attach {attached}, the metadata store knows {table.attached}: "
                "the store is older",
                f"put the newest metadata.db back\n{restoring(stopped.data.path)}",
            )
    yield from _behind(table, last)
    states = {
        name: [_state(stopped, f"{directory}/{name}", *table.files[name]) for directory in there]
        for name in sorted(table.files)
    }
    damaged = [
        f"{directory}/{name}"
        for name, found in states.items()
        for directory, state in zip(there, found, strict=True)
        if state == "damaged"
    ]
    nowhere = [name for name, found in states.items() if "ok" not in found]
    if damaged:
        yield _damaged(table, damaged, lost=bool(nowhere))
    lost = [name for name in nowhere if "damaged" not in states[name]]
    if lost:
        yield _lost(table, lost)


def _behind(table: KnownTable, last: dict[str, int]) -> Iterator[Finding]:
    """Say where logs lack attaches that are done; ``last`` is each log's last one."""
    done = table.attached - table.pending
    lost = bool(last) and max(last.values()) < done
    for directory, attached in last.items():
        if attached < done and (attached or lost):  # 0: maybe none of the table's roots
            yield Finding(
                "tables",
                FAILURE if lost else WARNING,
                f"the log of {table.topic} in {directory} ends with attach {attached} of {done}: "
                "engines that read it miss the rows of later ones",
                f"pulsark tables repair {shlex.quote(table.topic)} (while the standalone runs)"
                if lost
                else "the broker brings it up to date when it seals into the table next; the job "
                "replicate_ledgers does so now",
            )


def _attached(log: DeltaLog) -> int:
    """Return the last attach of a log, as far as it can be read."""
    for version in reversed(log.versions()):
        with suppress(CorruptEntryError, KeyError, TypeError, AttributeError, ValueError):
            number = attach_number(log.read(version))
            if number is not None:
                return number
    return 0


def _rows(stopped: Stopped, path: str) -> int:
    """Return how many rows a Parquet file has, by its footer."""
    import pyarrow.parquet as pq

    from pulsark.storage.roots.disk_source import DiskSource

    with DiskSource(stopped.files.open(path), stopped.files.size(path)) as source:
        return int(pq.ParquetFile(source).metadata.num_rows)


def _damaged_log(table: KnownTable, directory: str, faults: list[Fault]) -> Finding:
    more = len(faults) - FAULTS_SHOWN
    shown = "; ".join(map(str, faults[:FAULTS_SHOWN])) + (f"; and {more} more" if more > 0 else "")
    return Finding(
        "tables",
        FAILURE,
        f"the log of {table.topic} in {directory} is damaged: {shown}",
        "bring the log back from a backup or from another storage root\n"
        f"pulsark tables repair {shlex.quote(table.topic)} (while the standalone runs: writes the "
        "log anew from what the metadata store knows)",
    )


def _state(stopped: Stopped, path: str, size: int, crc: int) -> Literal["ok", "missing", "damaged"]:
    """Return how a file is there: it is read as a whole if it has its size."""
    try:
        if stopped.files.size(path) != size:
            return "missing"
        file = stopped.files.open(path)
        try:
            return "ok" if checksum(file, size) == crc else "damaged"
        finally:
            file.close()
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "damaged"


def _is_there(stopped: Stopped, directory: str) -> bool:
    try:
        return bool(stopped.files.list(directory))
    except OSError:
        return False  # the check of the roots says so


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


def _damaged(table: KnownTable, paths: list[str], *, lost: bool) -> Finding:
    names = ", ".join(paths[:FILES_SHOWN]) + (", ..." if len(paths) > FILES_SHOWN else "")
    topic = shlex.quote(table.topic)
    copied = "run the job replicate_ledgers with --verify: it writes them again from other roots"
    made = (
        "bring the files back from a backup, or move them away and run, while the standalone "
        f"runs:\npulsark tables repair {topic} (makes again what bookies still have, and says what "
        "is lost)"
    )
    return Finding(
        "tables",
        FAILURE if lost else WARNING,
        f"the table of {table.topic} has {len(paths)} files with other bytes than were written, "
        f"{'some of them on every root' if lost else 'and all of them on another root'}: {names}",
        made if lost else copied,
    )
