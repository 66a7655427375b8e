"""Delta checkpoints: a short cut for readers of long logs, and where a log begins that was folded.

A library makes the checkpoint, in a directory of its own and of copies, because it syncs nothing.
What comes out is written into the log as everything else there: synced before it has a name.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pulsark.errors import CorruptEntryError
from pulsark.storage.table.files.seal import read_whole
from pulsark.storage.table.log.delta_log import (
    LAST_CHECKPOINT,
    DeltaLog,
    checkpoint_name,
    commit_name,
    files_of,
)

if TYPE_CHECKING:
    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import DataFile

CHECKPOINT_COMMITS: Final = 100
"""Commits after the last checkpoint until a log gets another one."""

CHECKPOINTS_KEPT: Final = 10
"""The newest ones, because a reader may use one that is no longer the last. Each names all files
of the table, so that old ones would soon be a lot. The one where the log begins stays."""


def checkpoint_if_due(disk: RootFiles, directory: str) -> int | None:
    """Write a checkpoint of the newest version if there should be one; returns that version.

    Old ones go. Blocks. Raises ``OSError``, or what the library raises for a log that it cannot
    read; the log is then as it was.
    """
    table_log = DeltaLog(disk, directory)
    before = table_log.checkpoints()
    last = before[-1] if before else -1
    versions = table_log.versions()
    if sum(version > last for version in versions) < CHECKPOINT_COMMITS:
        return None
    # Not that of the oldest commit: those before the beginning may be on their way out.
    first = table_log.first()
    write_checkpoint(disk, directory, versions[-1])
    for old in [*before, versions[-1]][:-CHECKPOINTS_KEPT]:
        if old != first:
            disk.remove(f"{table_log.path}/{checkpoint_name(old)}")
    return versions[-1]


def write_checkpoint(disk: RootFiles, directory: str, version: int) -> None:
    """Write the checkpoint of a version, unless it is there. Errors as of ``checkpoint_if_due``."""
    from deltalake import DeltaTable

    table_log = DeltaLog(disk, directory)
    versions, checkpoints = table_log.versions(), table_log.checkpoints()
    if version in checkpoints:
        return
    last = max((before for before in checkpoints if before < version), default=-1)
    wanted = [commit_name(v) for v in versions if last < v <= version]
    if last >= 0:
        wanted += [checkpoint_name(last), commit_name(last)]
    with tempfile.TemporaryDirectory(prefix="pulsark-checkpoint-") as scratch:
        copies = Path(scratch, "_delta_log")
        copies.mkdir()
        names = disk.list(table_log.path)
        for name in wanted:
            if name in names:
                Path(copies, name).write_bytes(read_whole(disk, f"{table_log.path}/{name}"))
        DeltaTable(scratch).create_checkpoint()
        name = checkpoint_name(version)
        disk.write_new(f"{table_log.path}/{name}", Path(copies, name).read_bytes())
        if not checkpoints or version > checkpoints[-1]:
            hint = Path(copies, LAST_CHECKPOINT).read_bytes()
            disk.write_atomic(f"{table_log.path}/{LAST_CHECKPOINT}", hint)


def files_at(disk: RootFiles, directory: str, version: int) -> list[DataFile]:
    """The files that the table had in a version of which there is a checkpoint. Blocks.

    Raises ``OSError``, or ``CorruptEntryError`` for one that cannot be read.
    """
    import pyarrow.parquet as pq

    path = f"{DeltaLog(disk, directory).path}/{checkpoint_name(version)}"
    data = read_whole(disk, path)
    try:
        adds = pq.read_table(io.BytesIO(data), columns=["add"])["add"].to_pylist()
        return files_of(
            {
                "add": {
                    **add,
                    "partitionValues": dict(add["partitionValues"]),
                    "tags": dict(add["tags"] or ()),
                }
            }
            for add in adds
            if add is not None
        )
    except (ValueError, KeyError, TypeError, OSError) as e:
        raise CorruptEntryError(f"{path} is damaged: {e!r}") from None
