"""The beginning of a long log is folded into a checkpoint: its old commits go.

A commit is an inode and a block of the disk, and a topic makes thousands a day. So there is a
*base*: a checkpoint of the newest version that is old enough. Then the owner of the table notes
that the log begins there, and then the commits before it are deleted, on each root that has the
base. Each step may be the last one, and may be done again. Everything blocks, and runs in a table
process.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.storage.table.log.checkpoint import files_at, write_checkpoint
from pulsark.storage.table.log.delta_log import DeltaLog, attached_ms, checkpoint_name, commit_name

if TYPE_CHECKING:
    from pulsark.storage.roots.root_files import RootFiles

log = logging.getLogger(__name__)


def base_due(
    disk: RootFiles, directory: str, before_ms: int, now_ms: int, least: int
) -> int | None:
    """The newest version decided before a time, if at least ``least`` commits would go.

    Two commits stay in any case: the newest one may have to be made again. A commit is not older
    than one before it, whatever it says. What others committed, and what a clock that went forward
    is said to have committed after ``now_ms``, has no time that could be believed: it goes with a
    commit behind it.
    """
    table_log = DeltaLog(disk, directory)
    versions, least, due = table_log.versions()[:-1], max(least, 1), None
    if len(versions) <= least:
        return None

    def time_of(version: int) -> int | None:
        time_ms = attached_ms(table_log.read(version))
        return None if time_ms is None or time_ms > now_ms else time_ms

    # Most of the time this one is too young, and no other has to be read.
    if (time_of(versions[least]) or 0) >= before_ms:
        return None
    for index, version in enumerate(versions):
        time_ms = time_of(version)
        if time_ms is None:
            continue
        if time_ms >= before_ms:
            break
        if index >= least:
            due = version
    return due


def make_base(disk: RootFiles, directory: str, version: int) -> None:
    """Write a checkpoint that takes the place of all commits up to a version.

    ``CorruptEntryError`` if it does not say the same as they do: then it goes again. Also raises
    ``OSError``, and what the library raises.
    """
    table_log = DeltaLog(disk, directory)
    if table_log.first() == version and version in table_log.checkpoints():
        return  # it begins there already
    if version not in table_log.versions():
        raise StorageError(f"{directory} has no version {version}")
    wanted = _paths_at(disk, table_log, version)
    write_checkpoint(disk, directory, version)
    if {file.path for file in files_at(disk, directory, version)} != wanted:
        disk.remove(f"{table_log.path}/{checkpoint_name(version)}")
        raise CorruptEntryError(
            f"{directory}: the checkpoint of {version} is not what its log says"
        )


def _paths_at(disk: RootFiles, table_log: DeltaLog, version: int) -> set[str]:
    before = [checkpoint for checkpoint in table_log.checkpoints() if checkpoint < version]
    versions = table_log.versions()
    paths: set[str] = set()
    start = versions[0]
    if start > 0:
        base = next((checkpoint for checkpoint in before if checkpoint >= start), None)
        if base is None:
            raise CorruptEntryError(f"{table_log.directory} has lost the beginning of its log")
        paths = {file.path for file in files_at(disk, table_log.directory, base)}
        start = base + 1
    for each in versions:
        if start <= each <= version:
            actions = table_log.read(each)
            # Files of other engines are in it, too, until a repair takes them out.
            paths.difference_update(a["remove"]["path"] for a in actions if "remove" in a)
            paths.update(a["add"]["path"] for a in actions if "add" in a)
    return paths


def forget(disk: RootFiles, directory: str, first: int, most: int) -> bool:
    """Delete commits and checkpoints before a version, at most ``most``; whether that was all.

    Nothing goes that is not in a checkpoint at that version or before it.
    """
    table_log = DeltaLog(disk, directory)
    checkpoints = table_log.checkpoints()
    base = max((version for version in checkpoints if version <= first), default=0)
    old = [commit_name(v) for v in table_log.versions() if v < base]
    old += [checkpoint_name(v) for v in checkpoints if v < base]
    for name in old[:most]:
        disk.remove(f"{table_log.path}/{name}")
    return len(old) <= most
