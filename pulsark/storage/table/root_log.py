"""The log of a table on one storage root: brought up to what was decided. Everything blocks."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from pulsark.errors import StorageError
from pulsark.runtime import Disk
from pulsark.storage.table.delta_log import (
    Action,
    CorruptCommitError,
    DeltaLog,
    attach_number,
    commit_of,
    files_of,
    first_commit,
)
from pulsark.storage.table.record import DataFile, TableRecord
from pulsark.storage.table.root_files import ensure_file

log = logging.getLogger(__name__)


def commit_on_root(disk: Disk, record: TableRecord, directory: str, *, clean: bool = False) -> None:
    """Bring one root's log and files up to the record's intent. Blocks; may be repeated.

    Raises ``OSError`` or ``StorageError`` if that cannot be done now.
    """
    intent = record.intent
    assert intent is not None
    table_log = DeltaLog(disk, directory)
    if clean:
        table_log.clean()
    peers = [root for root in record.roots if root != directory]
    while True:
        table_log.create(record)
        versions = table_log.versions()
        attached, bad = _last_attach(table_log, versions)
        if bad == 0:
            table_log.replace(0, first_commit(record))
            continue
        if attached >= intent.number and bad is None:
            return
        if attached + 1 < intent.number:
            number, commit, adds = _next_of_peer(disk, peers, attached)
        else:
            number, commit, adds = intent.number, commit_of(record), list(intent.adds)
        for file in adds:
            ensure_file(disk, directory, peers, file)
        version = bad if bad is not None else versions[-1] + 1
        try:
            if bad is not None:
                log.warning("%s: commit %d is damaged, made again", directory, bad)
                table_log.replace(version, commit)
            else:
                table_log.write(version, commit)
        except FileExistsError:
            continue
        if table_log.read_bytes(version) != commit:
            raise CorruptCommitError(f"{directory}: commit {version} reads differently")
        log.debug("%s: attach %d is commit %d", directory, number, version)


def _last_attach(table_log: DeltaLog, versions: list[int]) -> tuple[int, int | None]:
    """The last attach in a log, and the newest commit if that one is damaged."""
    try:
        table_log.read(versions[-1])
    except CorruptCommitError:
        return table_log.attached(versions[:-1]), versions[-1]
    return table_log.attached(versions), None


@dataclass(frozen=True, slots=True)
class _PeerCommit:
    commit: bytes
    actions: list[Action]


def _next_of_peer(
    disk: Disk, peers: Iterable[str], attached: int
) -> tuple[int, bytes, list[DataFile]]:
    """The commit after attach ``attached``, from a root that has it, and the files it needs.

    Files that a later commit removed may be gone already, and are not needed.
    """
    for peer in peers:
        try:
            found = _commits_after(DeltaLog(disk, peer), attached)
        except (OSError, StorageError) as e:
            log.warning("%s: cannot be copied from: %s", peer, e)
            continue
        if attached + 1 in found:
            wanted = found[attached + 1]
            removed = {
                action["remove"]["path"]
                for commit in found.values()
                for action in commit.actions
                if "remove" in action
            }
            adds = [file for file in files_of(wanted.actions) if file.path not in removed]
            return attached + 1, wanted.commit, adds
    raise StorageError(f"no root has attach {attached + 1}")


def _commits_after(table_log: DeltaLog, attached: int) -> dict[int, _PeerCommit]:
    found: dict[int, _PeerCommit] = {}
    for version in reversed(table_log.versions()):
        actions = table_log.read(version)
        number = attach_number(actions)
        if number is not None:
            if number <= attached:
                break
            found[number] = _PeerCommit(table_log.read_bytes(version), actions)
    return found
