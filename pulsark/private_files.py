"""Permissions of everything that a process stores: nobody but its user may read them.

Journals, tables and backups have the messages of all topics, and the metadata store has the secret
by which brokers trust each other. ``create_privately`` sets the umask, so no file that is created
later has to think of it. ``make_private`` repairs directories of earlier releases.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

ACCESSES: Final = ("owner", "group")
"""Values of ``dataDirectoryAccess``."""

SECRET_MODE: Final = 0o600
"""Mode of files that even the group must not read."""

_secret = re.compile(r"LOCK|metadata\.db.*")
_own = re.compile(
    r"LOCK|(standalone|cluster)\.json(\.tmp)?|metadata\.db.*|run|bookies|zookeeper|bookie-\d+|tables|"
    r"lost\+found"
)


@dataclass(frozen=True, slots=True)
class _Modes:
    directory: int
    file: int
    umask: int


_MODES: Final = {
    "owner": _Modes(0o700, 0o600, 0o077),
    "group": _Modes(0o750, 0o640, 0o027),
}


def create_privately(access: str = "owner") -> None:
    """Set the umask of this process and of the processes that it starts."""
    os.umask(_MODES[access].umask)


def create_secret(path: str) -> None:
    """Create an empty file that only its user may open, unless the file exists."""
    with contextlib.suppress(OSError):  # opening it will report why it cannot be made
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, SECRET_MODE))


def make_private(data_dir: str, others: Iterable[str], access: str = "owner") -> int:
    """Give a data directory the modes of ``access`` and return the number of changed paths.

    ``others`` are directories of the same process elsewhere. The walk through a directory happens
    only if its own mode was wrong: nobody else gets to files below a private directory. A data
    directory that also holds foreign files, or belongs to another user, keeps its mode; what
    Pulsark made in it becomes private nevertheless.
    """
    modes = _MODES[access]
    changed = _repaired_data_dir(data_dir, modes)
    for path in others:
        changed += _repaired_tree(path, modes)
    if changed:
        log.warning(
            "other users of this machine could read %s, or the setting dataDirectoryAccess has "
            "changed: %d files and directories now have the modes of dataDirectoryAccess=%s",
            data_dir,
            changed,
            access,
        )
    return changed


def _repaired_data_dir(path: str, modes: _Modes) -> int:
    try:
        names = os.listdir(path)
    except OSError:  # missing, or not readable: opening it will report why
        return 0
    changed = 0
    if all(map(_own.fullmatch, names)):
        changed += _repaired(path, modes)
    for name in names:
        if _own.fullmatch(name):
            changed += _repaired_tree(os.path.join(path, name), modes)
    return changed


def _repaired_tree(path: str, modes: _Modes) -> int:
    """Repair a file or a directory, and what is below the directory if its own mode was wrong.

    A sticky directory is shared on purpose. Links are left alone, as is what other users own.
    """
    changed = _repaired(path, modes)
    if not changed or not os.path.isdir(path):
        return changed
    for _, names, files, descriptor in os.fwalk(path, onerror=_passed_over):
        for name in (*names, *files):
            changed += _repaired(name, modes, descriptor)
    return changed


def _repaired(path: str, modes: _Modes, directory: int | None = None) -> int:
    try:
        found = os.stat(path, dir_fd=directory, follow_symlinks=directory is None)
        wanted = _wanted(os.path.basename(path), found, modes)
        if wanted is None or stat.S_IMODE(found.st_mode) == wanted:
            return 0
        os.chmod(path, wanted, dir_fd=directory)
    except OSError as error:
        _passed_over(error)
        return 0
    return 1


def _wanted(name: str, found: os.stat_result, modes: _Modes) -> int | None:
    """Return the mode that a path should have, or None to leave it as it is."""
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
        return None
    if stat.S_ISDIR(found.st_mode):
        return 0o700 if _secret.fullmatch(name) or name == "run" else modes.directory
    if stat.S_ISREG(found.st_mode):
        return SECRET_MODE if _secret.fullmatch(name) else modes.file
    return None


def _passed_over(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        log.warning("cannot make %s private: %s", error.filename, error.strerror)
