"""The commit that makes a root's log say again what the metadata store says. Everything blocks.

Before that, ``mend`` makes a damaged log readable. A commit that is missing or damaged is copied
from another root. Where no root has it, one without files takes its place, and the commit of the
repair says what it said.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.storage.table.files.root_files import has_file
from pulsark.storage.table.log.delta_log import (
    LAST_CHECKPOINT,
    Action,
    CorruptCommitError,
    DeltaLog,
    added,
    attach_number,
    attach_time,
    checkpoint_name,
    commit_name,
    first_commit,
    placeholder,
    repair_of,
)
from pulsark.storage.table.log.log_check import commit_faults, live_files
from pulsark.storage.table.log.log_sum import checkpoint_actions, log_sum

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import DataFile, TableRecord

log = logging.getLogger(__name__)

MENDED_COMMITS_MAX: Final = 10_000
"""Commits that a repair puts in the place of missing ones; each is a file."""


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
    Raises ``OSError``, or ``StorageError`` for a log that cannot be mended.
    """
    assert record.intent is not None
    mend(disk, directory, record)
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


def mend(disk: RootFiles, directory: str, record: TableRecord) -> None:
    """Make a log readable that lacks commits, or has damaged ones. The damaged ones are kept.

    It may be repeated. Raises ``OSError``, or ``StorageError`` if too many commits are missing.
    """
    table_log = DeltaLog(disk, directory)
    _remove_damaged_checkpoints(disk, table_log)
    versions = table_log.versions()
    if not versions:
        return
    sound: dict[int, list[Action]] = {}
    for version in versions:
        try:
            actions = table_log.read(version)
            if next(commit_faults(actions), None) is None:
                sound[version] = actions
        except CorruptCommitError:
            pass
    for fault in live_files(sorted(sound.items()))[1]:
        sound.pop(fault.version, None)
    first = table_log.first()
    if first not in table_log.checkpoints():
        first = 0
    bad = [version for version in range(first, versions[-1] + 1) if version not in sound]
    # The newest may be a torn commit, which whoever commits writes again.
    bad = [version for version in bad if version != versions[-1] or len(versions) == 1]
    if len(bad) > MENDED_COMMITS_MAX:
        raise StorageError(
            f"{directory}: its log lacks {len(bad)} commits, which is more than "
            f"{MENDED_COMMITS_MAX}: bring it back from a backup or from another storage root"
        )
    peers = [DeltaLog(disk, root) for root in record.roots if root != directory]
    for version in bad:
        number = _number_of(sound, bad, version)
        if version == 0:
            commit = first_commit(record)
        else:
            time_ms = max((attach_time(sound[v]) for v in sound if v < version), default=0)
            commit = _of_peers(peers, number) or placeholder(time_ms or record.created_ms, number)
        if version in versions:
            kept = f"{table_log.path}/{commit_name(version)}.damaged"
            disk.write_atomic(kept, table_log.read_bytes(version))
        table_log.replace(version, commit)
        log.warning("%s: commit %d was missing or damaged, and is replaced", directory, version)


def _remove_damaged_checkpoints(disk: RootFiles, table_log: DeltaLog) -> None:
    """Readers do without a checkpoint where all commits are there."""
    removed = False
    for version in table_log.checkpoints():
        path = f"{table_log.path}/{checkpoint_name(version)}"
        try:
            for _ in checkpoint_actions(disk, path):
                pass
        except CorruptEntryError as e:
            log.warning("%s is removed: %s", path, e)
            disk.remove(path)
            removed = True
    if removed:
        disk.remove(f"{table_log.path}/{LAST_CHECKPOINT}")


def _number_of(sound: dict[int, list[Action]], bad: Sequence[int], version: int) -> int | None:
    """Return the attach of a missing commit, if those around it leave only one number."""
    below = [attach_number(sound[v]) or 0 for v in sorted(sound) if v < version]
    above = [n for v in sorted(sound) if v > version and (n := attach_number(sound[v])) is not None]
    before = max(below, default=0)
    if not above:
        return None
    last_sound = max((v for v in sound if v < version), default=-1)
    next_sound = min(v for v in sound if v > version)
    group = [v for v in bad if last_sound < v < next_sound and v > 0]
    if version not in group or above[0] - before - 1 != len(group):
        return None
    return before + 1 + group.index(version)


def _of_peers(peers: Iterable[DeltaLog], number: int | None) -> bytes | None:
    """Return the commit of an attach as another root has it."""
    for peer in peers if number is not None else ():
        try:
            for version in peer.versions():
                actions = peer.read(version)
                if attach_number(actions) == number and not list(commit_faults(actions)):
                    return peer.read_bytes(version)
        except (OSError, StorageError) as e:
            log.warning("%s: cannot be copied from: %s", peer.directory, e)
    return None


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
