"""A root that lacks files or commits gets them from another one. Everything blocks.

Data files come first and are a job's work; the log follows, by the table's owner, so that it never
names a file that is not there.

A root that is lost for good leaves its tables: another one of the broker's takes its place.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.storage.table.files.root_files import checksum
from pulsark.storage.table.log.delta_log import (
    LAST_CHECKPOINT,
    CorruptCommitError,
    DeltaLog,
    checkpoint_name,
    commit_name,
)
from pulsark.storage.table.log.root_log import RootLog
from pulsark.storage.table.root_identity import storage_root_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import DataFile, TableRecord

log = logging.getLogger(__name__)

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


def log_state(disk: RootFiles, record: TableRecord, directory: str) -> LogState:
    """How a root has the table's log, by its names and its newest commit. Raises ``OSError``."""
    if not record.attached:
        return "ok"
    table_log = DeltaLog(disk, directory)
    versions = table_log.versions()
    if not versions:
        return "missing"
    if versions[0] > record.first_version or not _follow_each_other(table_log, versions):
        return "damaged"
    try:
        attached = table_log.attached(versions[-1:])
    except CorruptCommitError:
        return "damaged"
    return "ok" if attached >= record.attached - record.pending else "behind"


def copy_state(disk: RootFiles, directory: str, file: DataFile, *, verify: bool = False) -> Copy:
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


def _checksum(disk: RootFiles, path: str, size: int) -> int:
    file = disk.open(path)
    try:
        return checksum(file, size)
    finally:
        file.close()


def catch_up(
    disk: RootFiles, record: TableRecord, directory: str, files: Iterable[DataFile]
) -> None:
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


def _restore_log(disk: RootFiles, record: TableRecord, directory: str) -> None:
    """Commits that are missing or damaged, from a root that has all of them."""
    mine = DeltaLog(disk, directory)
    versions, damaged = mine.versions(), _damaged(mine)
    # A log that only lacks the beginning that was folded away can go on by commits alone.
    goes_on = bool(versions) and versions[0] <= record.first_version <= versions[-1] + 1
    if goes_on and _follow_each_other(mine, versions) and not damaged - {versions[-1]}:
        return
    for peer in record.roots:
        theirs = DeltaLog(disk, peer)
        try:
            found = theirs.versions() if peer != directory else []
            if found and _follow_each_other(theirs, found) and not _damaged(theirs):
                if _differ(theirs, mine, damaged):
                    _discard_log(disk, theirs, mine, damaged)
                    damaged = set()
                _copy_log(disk, theirs, mine, damaged)
                return
        except (OSError, CorruptEntryError) as e:
            log.warning("%s: cannot copy the table's log: %s", peer, e)
    raise StorageError(f"{directory}: no other root has the log")


def _differ(theirs: DeltaLog, mine: DeltaLog, damaged: Collection[int]) -> bool:
    """Whether a number is not the same commit in both: another engine wrote to one of them."""
    both = set(theirs.versions()).intersection(mine.versions()).difference(damaged)
    return any(theirs.read_bytes(version) != mine.read_bytes(version) for version in both)


def _discard_log(
    disk: RootFiles, theirs: DeltaLog, mine: DeltaLog, damaged: Collection[int]
) -> None:
    """Make room for the whole of another log, newest commit first: what is left is a beginning."""
    intact = [version for version in mine.versions() if version not in damaged]
    if theirs.attached(theirs.versions()) < mine.attached(intact):
        raise CorruptEntryError(f"{theirs.directory} has fewer attaches than {mine.directory}")
    for name in sorted(disk.list(mine.path), reverse=True):
        disk.remove(f"{mine.path}/{name}")


def _copy_log(disk: RootFiles, theirs: DeltaLog, mine: DeltaLog, damaged: Collection[int]) -> None:
    """All that a whole log has, into one that lacks some of it, or is behind its beginning."""
    first, versions = theirs.first(), mine.versions()
    disk.make_dirs(mine.path)
    for version in theirs.checkpoints():
        if version >= first and version not in mine.checkpoints():
            _copy(disk, theirs, mine, checkpoint_name(version))
    for version in theirs.versions():
        if version >= first and (version in damaged or version not in versions):
            mine.replace(version, theirs.read_bytes(version))
    if first:
        for name in map(commit_name, (version for version in versions if version < first)):
            disk.remove(f"{mine.path}/{name}")
        if LAST_CHECKPOINT in disk.list(theirs.path):
            _copy(disk, theirs, mine, LAST_CHECKPOINT)


def _copy(disk: RootFiles, theirs: DeltaLog, mine: DeltaLog, name: str) -> None:
    path = f"{theirs.path}/{name}"
    file = disk.open(path)
    try:
        disk.write_atomic(f"{mine.path}/{name}", file.read(0, disk.size(path)))
    finally:
        file.close()


def _follow_each_other(table_log: DeltaLog, versions: Sequence[int]) -> bool:
    """Whether no commit is missing: from the first one on, or from a checkpoint."""
    if versions[0] and table_log.first() not in table_log.checkpoints():
        return False
    return list(versions) == list(range(versions[0], versions[-1] + 1))


def _damaged(table_log: DeltaLog) -> set[int]:
    """Versions of a log that cannot be read."""
    damaged = set()
    for version in table_log.versions():
        try:
            table_log.read(version)
        except CorruptCommitError:
            damaged.add(version)
    return damaged
