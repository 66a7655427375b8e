"""A root that lacks files or commits gets them from another one. Everything blocks.

Data files come first and are a job's work; the log follows, by the table's owner, so that it never
names a file that is not there.

A root that is lost for good leaves its tables: another one of the broker's takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Literal

import google_crc32c

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.runtime import Disk
from pulsark.storage.table.delta_log import CorruptCommitError, DeltaLog
from pulsark.storage.table.record import DataFile, TableRecord
from pulsark.storage.table.root_log import RootLog
from pulsark.storage.table.roots import storage_root_of

log = logging.getLogger(__name__)

READ_BYTES = 4 << 20

Copy = Literal["ok", "missing", "damaged"]
LogState = Literal["ok", "missing", "damaged", "behind"]


def placed(
    directories: Sequence[str], roots: Sequence[str], in_service: Sequence[str], copies: int
) -> list[str]:
    """Where a table should be: where it is, but for roots that are none of ``roots`` any more.

    Up to ``copies``, others that are in service take their places. Pure.
    """
    kept = [directory for directory in directories if storage_root_of(directory) in roots]
    used = set(map(storage_root_of, kept))
    free = [root for root in in_service if root not in used]
    below = directories[0].removeprefix(storage_root_of(directories[0]))
    return kept + [root + below for root in free[: max(copies - len(kept), 0)]]


def log_state(disk: Disk, record: TableRecord, directory: str) -> LogState:
    """How a root has the table's log, by its names and its newest commit. Raises ``OSError``."""
    if not record.attached:
        return "ok"
    table_log = DeltaLog(disk, directory)
    versions = table_log.versions()
    if not versions:
        return "missing"
    if versions != list(range(len(versions))):
        return "damaged"
    try:
        attached = table_log.attached(versions[-1:])
    except CorruptCommitError:
        return "damaged"
    return "ok" if attached >= record.attached - record.pending else "behind"


def copy_state(disk: Disk, directory: str, file: DataFile, *, verify: bool = False) -> Copy:
    """How a root has a file, by its size; with ``verify`` by its bytes. Raises ``OSError``."""
    path = f"{directory}/{file.path}"
    try:
        if disk.size(path) != file.size:
            return "damaged"
        if verify and _checksum(disk, path, file.size) != file.crc32c:
            return "damaged"
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    return "ok"


def _checksum(disk: Disk, path: str, size: int) -> int:
    file = disk.open(path)
    try:
        crc = 0
        for offset in range(0, size, READ_BYTES):
            crc = google_crc32c.extend(crc, file.read(offset, READ_BYTES))
        return crc
    finally:
        file.close()


def catch_up(disk: Disk, record: TableRecord, directory: str, files: Iterable[DataFile]) -> None:
    """Make a root's log whole again, whose data ``files`` are all there.

    ``StorageError`` if they are not, or if no other root has the log.
    """
    if record.intent is None:
        return
    for file in files:
        state = copy_state(disk, directory, file)
        if state != "ok":
            raise StorageError(f"{directory}/{file.path} is {state}")
    _restore_log(disk, record, directory)
    root_log = RootLog(disk, directory)
    root_log.clean()
    while not root_log.commit(record):
        pass


def _restore_log(disk: Disk, record: TableRecord, directory: str) -> None:
    """Commits that are missing or damaged, from a root that has all of them."""
    mine = DeltaLog(disk, directory)
    lacking = _lacking(mine)
    if not lacking and mine.versions():
        return
    for peer in record.roots:
        theirs = DeltaLog(disk, peer)
        try:
            if peer == directory or not theirs.versions() or _lacking(theirs):
                continue
            disk.make_dirs(f"{directory}/_delta_log")
            for version in theirs.versions():
                if version in lacking or version not in mine.versions():
                    mine.replace(version, theirs.read_bytes(version))
        except (OSError, CorruptEntryError) as e:
            log.warning("%s: its log cannot be copied: %s", peer, e)
            continue
        return
    raise StorageError(f"{directory}: no other root has the log")


def _lacking(table_log: DeltaLog) -> list[int]:
    """Versions of a log that are not there, or damaged; the newest one heals by itself."""
    versions = table_log.versions()
    lacking = sorted(set(range(versions[-1] + 1 if versions else 0)) - set(versions))
    for version in versions:
        try:
            table_log.read(version)
        except CorruptCommitError:
            lacking.append(version)
    return lacking
