"""The log of a table on one storage root: brought up to what was decided. Everything blocks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from pulsark.errors import DamagedLogError, OlderMetadataError, StorageError
from pulsark.storage.table.files.record import DataFile, OthersCommit, TableRecord
from pulsark.storage.table.files.root_files import ensure_file
from pulsark.storage.table.log.delta_log import (
    Action,
    CorruptCommitError,
    DeltaLog,
    attach_number,
    attach_time,
    commit_of,
    files_of,
    first_commit,
    is_commit_of,
    said_by_others,
)
from pulsark.storage.table.log.log_check import CommitChecks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.log.log_check import NamedFile

log = logging.getLogger(__name__)


COMMITS_A_TURN = 64
"""Commits that a root is given at a time; others have their turn in between."""


class OthersCommitError(StorageError):
    """A log has a commit of another engine, to be noted before anything is written."""

    def __init__(self, found: OthersCommit) -> None:
        super().__init__(f"{found.directory}: commit {found.version} is {found.what}")
        self.found = found


class RootLog:
    """One root's log, and where it goes on: it is only listed to find that out."""

    def __init__(self, disk: RootFiles, directory: str, topic: str = "TOPIC") -> None:
        """``topic`` is whose table it is, for errors."""
        self.directory = directory
        self._topic = topic
        self._disk = disk
        self._log = DeltaLog(disk, directory)
        self._checks = CommitChecks(self._log)
        self._next: _Next | None = None
        self._missing: _Missing | None = None

    def check(self, record: TableRecord) -> None:
        """``OlderMetadataError`` if the log has what the table's record does not know of.

        Nothing is changed. Raises ``OSError`` or ``StorageError`` if the log cannot be read.
        """
        versions = self._log.versions()
        if versions:
            self._check(record, self._last(versions))

    def check_sound(self, record: TableRecord) -> list[NamedFile]:
        """Raise ``DamagedLogError`` unless the log can be written behind.

        Returns files that it names and that are not there as it says: they are lost, or the log
        is damaged, and the metadata store knows which. Raises ``OSError``.
        """
        listed = self._log.listed()
        if not listed.versions:
            return []
        unsure = self._checks.check(listed)
        done = record.attached - record.pending
        if unsure and self._last(listed.versions).number < done:
            return []  # the root was away: what left the table since then may be deleted
        return unsure

    def look(self, record: TableRecord) -> None:
        """``OthersCommitError`` if another engine has written to the log. Else as ``check``."""
        if self._next is None or self._next.damaged or self._log.has(self._next.version):
            self._next = None
            self._next = self._found(record)

    def clean(self) -> None:
        """Remove what interrupted writers left behind."""
        self._log.clean()

    def commit(self, record: TableRecord) -> bool:
        """Bring log and files up to the record's intent; false if there is more to be done.

        It may be repeated. ``OlderMetadataError`` as from ``check``, and ``OthersCommitError`` for
        a commit that the record does not know of. Raises ``OSError`` or
        ``StorageError`` if it cannot be done now.
        """
        at, self._next = self._next, None
        if at is None or not self._log.has(at.version - 1):  # the log was filled from another one
            at = self._found(record)
        for _ in range(COMMITS_A_TURN):
            if at.attached >= record.attached:
                break
            at = self._step(record, at)
        if at.attached > record.attached:
            at = self._found(record)  # which says what is wrong
        self._next = at
        return at.attached == record.attached

    def repair(self, record: TableRecord, commit: bytes, seen: int) -> bool:
        """Write the commit of a repair, which was made of what the log had in version ``seen``.

        False if it has more by now. It may be repeated. Errors as from ``commit``.
        """
        self._next = None
        at = self._found(record)
        if at.attached < record.attached:
            if at.version != seen + 1:
                return False
            try:
                self._put(at, record.attached, commit)
            except FileExistsError:
                return False
            log.warning("%s: repaired by commit %d", self.directory, at.version)
        return True

    def is_at(self, record: TableRecord) -> bool:
        """Whether the log has the record's intent. Errors as from ``commit``."""
        self._next = None
        return self._found(record).attached == record.attached

    def _put(self, at: _Next, number: int, commit: bytes) -> None:
        if at.damaged:
            log.warning("%s: commit %d was damaged and is rewritten", self.directory, at.version)
            self._log.replace(at.version, commit)
        else:
            self._log.write(at.version, commit)
        if self._log.read_bytes(at.version) != commit:
            raise CorruptCommitError(f"{self.directory}: commit {at.version} reads differently")
        self._checks.note(at.version, number, commit)

    def _step(self, record: TableRecord, at: _Next) -> _Next:
        """One attach more."""
        intent = record.intent
        assert intent is not None
        peers = [root for root in record.roots if root != self.directory]
        if at.attached + 1 < intent.number or intent.repairs:
            number, commit, files = self._next_of_peer(peers, at)
        else:
            self._missing = None
            number, commit, files = intent.number, commit_of(record), intent.adds
        for file in files:
            ensure_file(self._disk, self.directory, peers, file)
        try:
            self._put(at, number, commit)
        except FileExistsError:
            return self._found(record)
        log.debug("%s: attach %d is commit %d", self.directory, number, at.version)
        return _Next(at.version + 1, number, at.version)

    def _next_of_peer(
        self, peers: Iterable[str], at: _Next
    ) -> tuple[int, bytes, Sequence[DataFile]]:
        """The next attach, its commit, and the files that have to be there before."""
        # What fails is looked for anew the next time, maybe in another root.
        missing, self._missing = self._missing, None
        if missing is None or missing.attached != at.attached or not missing.versions:
            missing = self._missing_after(peers, at)
        version = missing.versions[-1]
        commit = missing.log.read_bytes(version)
        actions = missing.log.read(version)
        number = missing.attached + 1
        if attach_number(actions) != number:
            raise StorageError(f"{missing.log.directory} has no attach {number}")
        # What a later commit removed may be gone already.
        files = [file for file in files_of(actions) if file.path not in missing.removed]
        missing.versions.pop()
        missing.attached = number
        self._missing = missing
        return number, commit, files

    def _missing_after(self, peers: Iterable[str], at: _Next) -> _Missing:
        """What comes behind the last attach here, from a root that has it."""
        for peer in peers:
            theirs = DeltaLog(self._disk, peer)
            try:
                missing, before = _commits_after(theirs, at.attached)
                differs = before is not None and theirs.read_bytes(before) != self._log.read_bytes(
                    at.attached_at
                )
            except (OSError, StorageError) as e:
                log.warning("%s: cannot be copied from: %s", peer, e)
                continue
            if differs:
                problem = f"attach {at.attached} is another one in {peer}"
                raise self._older(problem)
            if missing is not None:
                return missing
        raise StorageError(
            f"{self.directory}: no root has attach {at.attached + 1} any more; the job "
            "replicate_ledgers fills the root from one that is back, and without one the log is "
            f"completed by: pulsark tables repair {self._topic}"
        )

    def _found(self, record: TableRecord) -> _Next:
        """Where the log goes on, by what is in it. It is made if there is none."""
        self._log.create(record)
        while True:
            versions = self._log.versions()
            last = self._last(versions)
            if last.bad != 0:
                break
            self._log.replace(0, first_commit(record))
        self._check(record, last)
        self._check_others(record, [v for v in versions if v > max(last.version, 0)], last.bad)
        if last.bad is not None:
            return _Next(last.bad, last.number, last.version, damaged=True)
        return _Next(versions[-1] + 1, last.number, last.version)

    def _older(self, problem: str) -> OlderMetadataError:
        return OlderMetadataError(
            f"{self.directory}: {problem}: the metadata store is older than this table. Nothing "
            "was changed; stop the broker and put the newest metadata store back. Without it, what "
            f"the log says is taken up by: pulsark tables repair {self._topic}"
        )

    def _check(self, record: TableRecord, last: _Last) -> None:
        if last.number > record.attached:
            problem = f"its log has attach {last.number}, and the last known one is "
            raise self._older(f"{problem}{record.attached}")
        if record.intent is None or last.number < record.attached:
            return
        if not is_commit_of(last.actions, record.intent):
            if attach_time(last.actions) == record.intent.time_ms:
                raise DamagedLogError(
                    f"{self.directory}: its log is damaged: commit {last.version} was changed "
                    "after it was written"
                )
            problem = f"attach {last.number} is another one in its log than the one that is known"
            raise self._older(problem)

    def _check_others(self, record: TableRecord, behind: list[int], bad: int | None) -> None:
        """``behind`` are the versions behind the last attach; the first commit is no attach."""
        newest = max((version for version in behind if version != bad), default=-1)
        if newest > record.known_of_others(self.directory):
            time_ms, what = said_by_others(self._log.read(newest))
            raise OthersCommitError(OthersCommit(self.directory, newest, time_ms, what))

    def _last(self, versions: list[int]) -> _Last:
        """The last attach in the log, and the newest commit if that one is damaged."""
        bad = None
        try:
            self._log.read(versions[-1])
        except CorruptCommitError:
            bad, versions = versions[-1], versions[:-1]
        for version in reversed(versions):
            actions = self._log.read(version)
            number = attach_number(actions)
            if number is not None:
                return _Last(number, version, actions, bad)
        return _Last(0, -1, [], bad)


class _Last(NamedTuple):
    number: int
    """The last attach's number; 0 without one."""
    version: int
    actions: list[Action]
    bad: int | None
    """The newest commit, if it is damaged."""


class _Next(NamedTuple):
    version: int
    """That the next commit gets."""
    attached: int
    """The last attach."""
    attached_at: int
    """The version of that."""
    damaged: bool = False
    """Whether the version is there, and is no commit."""


class _Missing:
    """Attaches that another root has, and this one has not."""

    def __init__(
        self, table_log: DeltaLog, attached: int, versions: list[int], removed: set[str]
    ) -> None:
        self.log = table_log
        self.attached = attached
        """The last one that is here."""
        self.versions = versions
        """The versions of later attaches' commits, the next one last."""
        self.removed = removed
        """Paths of files that some of them take out of the table."""


def _commits_after(table_log: DeltaLog, attached: int) -> tuple[_Missing | None, int | None]:
    """The attaches behind one, and the version of that one, as far as they are there."""
    versions: list[int] = []
    removed: set[str] = set()
    last = attached
    for version in reversed(table_log.versions()):
        actions = table_log.read(version)
        number = attach_number(actions)
        if number is None:
            continue
        if number == attached:
            return (_Missing(table_log, attached, versions, removed) if versions else None), version
        if number < attached:
            break
        versions.append(version)
        last = number
        removed.update(action["remove"]["path"] for action in actions if "remove" in action)
    if last == attached + 1:
        return _Missing(table_log, attached, versions, removed), None
    return None, None
