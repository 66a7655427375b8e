"""Delta checkpoints: a short cut for readers of long logs, and never the truth.

A library makes the checkpoint, in a directory of its own and of copies, because it syncs nothing.
What comes out is written into the log as everything else there: synced before it has a name.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Final

from pulsark.runtime import Disk
from pulsark.storage.table.delta_log import DeltaLog
from pulsark.storage.table.seal import read_whole

CHECKPOINT_COMMITS: Final = 100
"""A log gets a checkpoint when it has so many commits after the last one."""

CHECKPOINTS_KEPT: Final = 10
"""Of the newest versions: somebody may be reading one that is no longer the last. Each names all
files of the table, so that old ones would soon be a lot; commits stay."""

LAST_CHECKPOINT: Final = "_last_checkpoint"

_name = re.compile(r"(\d{20})\.checkpoint\.parquet")


def checkpoint_if_due(disk: Disk, directory: str) -> int | None:
    """Write a checkpoint of the newest version if there should be one; returns that version.

    Old ones go. Blocks. Raises ``OSError``, or what the library raises for a log that it cannot
    read; the log is then as it was.
    """
    log = f"{directory}/_delta_log"
    names = disk.list(log)
    before = sorted(int(found[1]) for name in names if (found := _name.fullmatch(name)))
    last = before[-1] if before else -1
    versions = [version for version in DeltaLog(disk, directory).versions() if version > last]
    if len(versions) < CHECKPOINT_COMMITS:
        return None
    wanted = [f"{version:020d}.json" for version in versions]
    if last >= 0:
        wanted += [_checkpoint(last), f"{last:020d}.json"]
    from deltalake import DeltaTable

    with tempfile.TemporaryDirectory(prefix="pulsark-checkpoint-") as scratch:
        copies = Path(scratch, "_delta_log")
        copies.mkdir()
        for name in wanted:
            if name in names:
                Path(copies, name).write_bytes(read_whole(disk, f"{log}/{name}"))
        if LAST_CHECKPOINT in names:
            hint = read_whole(disk, f"{log}/{LAST_CHECKPOINT}")
            Path(copies, LAST_CHECKPOINT).write_bytes(hint)
        DeltaTable(scratch).create_checkpoint()
        name = _checkpoint(versions[-1])
        disk.write_new(f"{log}/{name}", Path(copies, name).read_bytes())
        disk.write_atomic(f"{log}/{LAST_CHECKPOINT}", Path(copies, LAST_CHECKPOINT).read_bytes())
    for old in [*before, versions[-1]][:-CHECKPOINTS_KEPT]:
        disk.remove(f"{log}/{_checkpoint(old)}")
    return versions[-1]


def _checkpoint(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"
