"""The commit that makes a root's log say again what the metadata store says. Everything blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsark.storage.table.files.root_files import has_file
from pulsark.storage.table.log.delta_log import Action, added, repair_of
from pulsark.storage.table.log.log_sum import log_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import DataFile, TableRecord


@dataclass(frozen=True, slots=True)
class LogRepair:
    """What is to be written, on which version, and what it does."""

    commit: bytes
    seen: int
    adds: int
    removes: int

    def to_json(self) -> dict[str, Any]:
        """But for the commit."""
        return {"seen": self.seen, "adds": self.adds, "removes": self.removes}

    @classmethod
    def from_json(cls, document: dict[str, Any], commit: bytes) -> LogRepair:
        """The inverse."""
        return cls(commit, document["seen"], document["adds"], document["removes"])


def log_repair(
    disk: RootFiles, directory: str, record: TableRecord, named: Sequence[DataFile]
) -> LogRepair:
    """For the log in a directory; ``named`` are all files that the metadata store knows.

    Those that are not there are left out: a log that names them cannot be read by anybody.
    Raises ``OSError``, or ``CorruptEntryError`` for a log that has holes.
    """
    assert record.intent is not None
    found = log_sum(disk, directory)
    wanted = {file.path: file for file in named if has_file(disk, directory, file)}
    adds: list[Action] = []
    for path, file in wanted.items():
        there = found.files.pop((path, ""), None)
        if there is None or there.get("size") != file.size:
            adds.append(_add(file, found.ever.get(path), record.intent.time_ms))
    removes = list(found.files.values())
    return LogRepair(repair_of(record, adds, removes), found.version, len(adds), len(removes))


def _add(file: DataFile, before: Action | None, time_ms: int) -> Action:
    """As it was added before, which is more than the metadata store knows of a file."""
    add = added(file, time_ms)
    if before is not None and before.get("tags") == add["tags"] and before.get("stats"):
        add["stats"] = before["stats"]
    return add
