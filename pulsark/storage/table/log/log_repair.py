"""The commit that makes a root's log say again what the metadata store says. Everything blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsark.storage.table.files.root_files import has_file
from pulsark.storage.table.log.delta_log import Action, added, repair_of
from pulsark.storage.table.log.log_sum import log_sum

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    had = _Coverage(map(_entries_of, found.ever.values()))
    has = _Coverage((file.ledger_id, file.first_entry_id, file.last_entry_id) for file in named)
    adds: list[Action] = []
    for path, file in wanted.items():
        there = found.files.pop((path, ""), None)
        if there is None or there.get("size") != file.size:
            add = _add(file, found.ever.get(path), record.intent.time_ms)
            is_new = not had.has(file.ledger_id, file.first_entry_id, file.last_entry_id)
            adds.append({**add, "dataChange": is_new})
    removes = [{**add, "dataChange": _takes_rows(add, has)} for add in found.files.values()]
    return LogRepair(repair_of(record, adds, removes), found.version, len(adds), len(removes))


def _takes_rows(add: Action, has: _Coverage) -> bool:
    """Return whether rows leave the table with a file that its log has by mistake.

    The entries of a file of ours stay if the store names another file for them. What another engine
    added without new rows, when it optimised the table, takes none with it either.
    """
    entries = _entries_of(add)
    return bool(add.get("dataChange", True)) if entries is None else not has.has(*entries)


def _entries_of(add: Action) -> tuple[int, int, int] | None:
    """Return ledger, first and last entry of a file of ours; ``None`` of another engine's."""
    tags, values = add.get("tags") or {}, add.get("partitionValues") or {}
    try:
        first, last = map(int, tags["pulsark.entries"].split("-"))
        return int(values["ledger_id"]), first, last
    except (KeyError, TypeError, ValueError):
        return None


class _Coverage:
    """Entries of ledgers that some files have."""

    def __init__(self, ranges: Iterable[tuple[int, int, int] | None]) -> None:
        self._ends: dict[int, list[tuple[int, int]]] = {}
        for ledger_id, first, last in sorted(entries for entries in ranges if entries is not None):
            known = self._ends.setdefault(ledger_id, [])
            if known and first <= known[-1][1] + 1:
                known[-1] = known[-1][0], max(known[-1][1], last)
            else:
                known.append((first, last))

    def has(self, ledger_id: int, first: int, last: int) -> bool:
        """Return whether all of these entries are covered."""
        return any(low <= first and last <= high for low, high in self._ends.get(ledger_id, ()))


def _add(file: DataFile, before: Action | None, time_ms: int) -> Action:
    """As it was added before, which is more than the metadata store knows of a file."""
    add = added(file, time_ms)
    if before is not None and before.get("tags") == add["tags"] and before.get("stats"):
        add["stats"] = before["stats"]
    return add
