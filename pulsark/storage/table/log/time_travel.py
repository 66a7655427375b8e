"""Past versions of a table: which files it had then, and whether they are still there.

A commit says what joins the table and what leaves it, so a version is the sum of the commits up to
it. Files that left stay on disk until they are vacuumed. All calls block.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from pulsark.errors import CorruptEntryError, PulsarkError
from pulsark.storage.table.log.delta_log import (
    Action,
    DeltaLog,
    attach_number,
    files_of,
    said_by_others,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import DataFile

log = logging.getLogger(__name__)


ATTEMPTS: Final = 5
"""How often a log is listed that changes while it is read."""


class NoSuchVersionError(PulsarkError):
    """A version of a table does not exist, or not any more; the message says which ones do."""


class Commit(NamedTuple):
    """One version: what it adds, the paths of what it removes, and when it was decided (epoch)."""

    version: int
    time_ms: int
    adds: tuple[DataFile, ...]
    removes: tuple[str, ...]


class Version(NamedTuple):
    """A table as it was."""

    version: int
    time_ms: int
    files: tuple[DataFile, ...]
    later: tuple[DataFile, ...] = ()
    """Files with what was sealed later, of ledgers that the topic does not have any more."""
    later_whole: bool = True
    """Whether they are all there."""


NO_VERSION = Version(-1, -1, ())
"""Before the first one."""


def read_log(disk: RootFiles, directories: Sequence[str]) -> list[Commit]:
    """All commits, from the first root whose log is whole; ``NoSuchVersionError``.

    The first commit of a folded log has all files that there were then.
    """
    reason = "there is no table"
    for directory in directories:
        try:
            return _read_steady(disk, directory)
        except (OSError, CorruptEntryError) as e:
            reason = f"{directory}: {e}"
        log.warning("%s", reason)
    raise NoSuchVersionError(f"the log of the table cannot be read: {reason}")


def _read_steady(disk: RootFiles, directory: str) -> list[Commit]:
    """All commits of one root. What was listed may be folded away before it is read: then it is
    listed once more."""
    table_log = DeltaLog(disk, directory)
    attempts = ATTEMPTS
    while True:
        listed = disk.list(table_log.path)
        attempts -= 1
        try:
            return _read(disk, table_log)
        except (OSError, CorruptEntryError):
            if not attempts or disk.list(table_log.path) == listed:
                raise


def _read(disk: RootFiles, table_log: DeltaLog) -> list[Commit]:
    first = table_log.first()
    versions = [version for version in table_log.versions() if version >= first]
    if not versions or versions != list(range(first, versions[-1] + 1)):
        raise CorruptEntryError(f"it has {len(versions)} commits, and some are missing")
    commits: list[Commit] = []
    for version in versions:
        commits.append(_commit(version, table_log.read(version), commits[-1:]))
    if first:
        commits[0] = _base(disk, table_log.directory, commits[0])
    return commits


def _commit(version: int, actions: Iterable[Action], before: Sequence[Commit]) -> Commit:
    actions = list(actions)
    if version and attach_number(actions) is None:
        # None of the topic's doing, whose time is not believed: it changed nothing.
        time_ms = before[-1].time_ms if before else said_by_others(actions)[0]
        return Commit(version, time_ms, (), ())
    times = [action["commitInfo"]["timestamp"] for action in actions if "commitInfo" in action]
    removes = tuple(action["remove"]["path"] for action in actions if "remove" in action)
    return Commit(version, times[0] if times else 0, tuple(files_of(actions)), removes)


def _base(disk: RootFiles, directory: str, commit: Commit) -> Commit:
    from pulsark.storage.table.log.checkpoint import files_at

    return commit._replace(adds=tuple(files_at(disk, directory, commit.version)), removes=())


def version_at(commits: Sequence[Commit], time_ms: int) -> int:
    """The last version that there was at a time; -1 before the first one.

    ``NoSuchVersionError`` for a time before those that are still known.
    """
    if commits[0].version > 0 and all(commit.time_ms > time_ms for commit in commits):
        raise NoSuchVersionError(_forgotten(commits, f"one of {time_ms} ms"))
    return max((commit.version for commit in commits if commit.time_ms <= time_ms), default=-1)


def table_at(
    commits: Sequence[Commit], version: int, disk: RootFiles, directories: Sequence[str]
) -> Version:
    """A version with all its files; ``NoSuchVersionError`` if some are not there any more."""
    first, newest = commits[0].version, commits[-1].version
    if 0 <= version < first:
        raise NoSuchVersionError(_forgotten(commits, str(version)))
    if not first <= version <= newest:
        raise NoSuchVersionError(
            f"the table has the versions {first} to {newest}, and no {version}"
        )
    index = version - first
    files = _files(commits[: index + 1])
    later = {path for commit in commits[index + 1 :] for path in commit.removes}
    if any(_is_gone(disk, directories, files[path]) for path in files.keys() & later):
        whole = _oldest_whole(commits, index + 1, disk, directories)
        raise NoSuchVersionError(
            f"files of version {version} were deleted since then, as tableVacuumRetentionHours "
            f"says; the versions {whole} to {newest} are there"
        )
    return Version(version, commits[index].time_ms, tuple(files.values()))


def _forgotten(commits: Sequence[Commit], wanted: str) -> str:
    return (
        f"the table has the versions {commits[0].version} to {commits[-1].version}, and no "
        f"{wanted} any more: commits stay as long as tableLogRetentionDays says"
    )


def with_later(
    found: Version,
    commits: Sequence[Commit],
    listed: Collection[int],
    disk: RootFiles,
    directories: Sequence[str],
) -> Version:
    """A version, and what was sealed after it of ledgers that are not ``listed`` any more."""
    through: dict[int, int] = {}
    for file in found.files:
        through[file.ledger_id] = max(through.get(file.ledger_id, -1), file.last_entry_id)
    known = dict(through)
    adds = [
        file
        for commit in commits
        if commit.version > found.version
        for file in commit.adds
        if file.ledger_id not in listed
    ]
    later = []
    for file in sorted(adds, key=lambda f: (f.ledger_id, f.first_entry_id, f.last_entry_id)):
        ledger_id, last = file.ledger_id, file.last_entry_id
        known[ledger_id] = max(known.get(ledger_id, -1), last)
        had = through.get(ledger_id, -1)
        follows = file.first_entry_id <= had + 1 and last > had
        if follows and not _is_gone(disk, directories, file):
            later.append(file)
            through[ledger_id] = last
    return found._replace(later=tuple(later), later_whole=through == known)


def _files(commits: Iterable[Commit]) -> dict[str, DataFile]:
    files: dict[str, DataFile] = {}
    for commit in commits:
        for path in commit.removes:
            files.pop(path, None)
        files.update((file.path, file) for file in commit.adds)
    return files


def _oldest_whole(
    commits: Sequence[Commit], first: int, disk: RootFiles, directories: Sequence[str]
) -> int:
    """The first version from which on no file is missing."""
    known = {file.path: file for commit in commits for file in commit.adds}
    for commit in reversed(commits[first:]):
        # A repair takes out what another engine has added, too: no version has that.
        ours = [known[path] for path in commit.removes if path in known]
        if any(_is_gone(disk, directories, file) for file in ours):
            return commit.version  # the one that lacks them
    return commits[0].version + first


def _is_gone(disk: RootFiles, directories: Iterable[str], file: DataFile) -> bool:
    for directory in directories:
        try:
            if disk.size(f"{directory}/{file.path}") == file.size:
                return False
        except OSError:
            continue
    return True
