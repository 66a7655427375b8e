"""Where the parts of a standalone are: the metadata store, the bookies, the tables.

::

    DATA/LOCK               held while the process lives; so in each bookie's directories
    DATA/standalone.json    addresses and pid, while it serves
    DATA/metadata.db        the metadata store
    DATA/run/               sockets by which the processes of several brokers find each other
    DATA/bookies/NAME/      journal and storage root of each embedded bookie;
                            the tables of topics are in ledgers/table

``journalDirectories`` and ``ledgerDirectories`` put the last ones elsewhere, ``tableRoots`` tables.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.errors import ConfigError
from pulsark.file_locks import LOCK_NAME, lock_directory
from pulsark.private_files import make_private
from pulsark.storage.bookie.fleet import BookieHome
from pulsark.storage.roots.root_files import ROOT_MARKER, absolute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pulsark.config.settings import Settings
    from pulsark.runtime import Disk

METADATA_NAME = "metadata.db"
READY_NAME = "standalone.json"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class DataDir:
    """The directories of a standalone."""

    path: str
    homes: tuple[BookieHome, ...]
    roots: tuple[str, ...] = ()
    """Storage roots that are elsewhere (``tableRoots``)."""

    @classmethod
    def of(cls, settings: Settings) -> DataDir:
        """As the settings say it."""
        path = os.path.abspath(settings.dataDir)
        homes = []
        for index in range(settings.bookies):
            home = _default_home(path, index + 1)
            journals, ledgers = settings.journalDirectories, settings.ledgerDirectories
            homes.append(
                BookieHome(
                    journals[index] if journals else home.journal_dir,
                    ledgers[index] if ledgers else home.ledger_dir,
                )
            )
        return cls(path, tuple(homes), tuple(map(absolute, settings.tableRoots)))

    @classmethod
    def found(cls, settings: Settings, disk: Disk, known: int = 0) -> DataDir:
        """The directories of the settings, and all bookies in the usual place.

        So a tool that does not know the number of bookies misses none. ``known``
        are the places that the metadata store knows.
        """
        told = cls.of(settings)
        if settings.journalDirectories or settings.ledgerDirectories:
            return told
        homes = list(told.homes)
        names = disk.list(os.path.join(told.path, "bookies"))
        while len(homes) < known or f"bookie-{len(homes) + 1}" in names:
            homes.append(_default_home(told.path, len(homes) + 1))
        return cls(told.path, tuple(homes), told.roots)

    def make_private(self, access: str) -> None:
        """Repair the modes of all directories (``dataDirectoryAccess``).

        A directory of ``tableRoots`` is repaired once it has the marker of a storage root.
        """
        homes = [path for home in self.homes for path in (home.journal_dir, home.ledger_dir)]
        roots = [root for root in self.roots if os.path.isfile(os.path.join(root, ROOT_MARKER))]
        make_private(self.path, [*homes, *roots], access)

    @property
    def metadata_path(self) -> str:
        """The file of the metadata store."""
        return os.path.join(self.path, METADATA_NAME)

    @property
    def ready_path(self) -> str:
        """The file that is there while the standalone serves."""
        return os.path.join(self.path, READY_NAME)

    @property
    def storage_roots(self) -> list[str]:
        """Where tables are: beside the index of each bookie, if not elsewhere."""
        return list(self.roots) or [os.path.join(home.ledger_dir, "table") for home in self.homes]


@dataclass(frozen=True, slots=True)
class Locks:
    """Locks of directories that are held."""

    held: Mapping[str, int]

    def check(self) -> None:
        """``ConfigError`` if one of the directories is not the one that was locked."""
        for path, lock in self.held.items():
            if not _is_lock_of(lock, path):
                raise ConfigError(
                    f"{path} was deleted or replaced while it was in use: no process can go on "
                    "with it. Restore a backup, or begin with an empty directory"
                )


@contextlib.contextmanager
def locked(data: DataDir) -> Iterator[None]:
    """Hold the locks of a data directory and of all directories of its bookies.

    So no two processes share any of them, whatever their settings say. (A storage root is in the
    ledger directory of its bookie.) A directory that is not there, or cannot be written, has no
    lock. Raises ``ConfigError`` if another process has one.
    """
    with _locked(data, (data.path, *_of_bookies(data))):
        yield


def locked_itself(data: DataDir) -> AbstractContextManager[Locks]:
    """Hold the lock of a data directory alone: another process has its bookies."""
    return _locked(data, (data.path,))


def locked_bookies(data: DataDir) -> AbstractContextManager[Locks]:
    """Hold the locks of the bookies' directories alone."""
    return _locked(data, _of_bookies(data))


def _of_bookies(data: DataDir) -> list[str]:
    return [path for home in data.homes for path in (home.journal_dir, home.ledger_dir)]


@contextlib.contextmanager
def _locked(data: DataDir, paths: Sequence[str]) -> Iterator[Locks]:
    held = {}
    try:
        for path in dict.fromkeys(map(os.path.realpath, paths)):
            key = "dataDir" if path == os.path.realpath(data.path) else "bookies"
            try:
                lock = lock_directory(path)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    raise ConfigError(
                        f"{key}: the file system of {path} has no locks ({error.strerror}), so "
                        "nothing keeps other processes out; choose a directory on another one "
                        "(--data-dir, journalDirectories, ledgerDirectories)"
                    ) from error
                continue  # its users report why it cannot be used
            if lock is None:
                raise ConfigError(
                    f"{key}: {path} is in use by another process; stop it or choose another "
                    "directory (--data-dir, journalDirectories, ledgerDirectories)"
                )
            held[path] = lock
        yield Locks(held)
    finally:
        for lock in held.values():
            os.close(lock)


def _default_home(path: str, place: int) -> BookieHome:
    home = os.path.join(path, "bookies", f"bookie-{place}")
    return BookieHome(os.path.join(home, "journal"), os.path.join(home, "ledgers"))


def _is_lock_of(lock: int, path: str) -> bool:
    """Whether a lock that ``lock_directory`` took is still that of the directory.

    It is not if the directory, or all that is in it, was deleted or replaced.
    """
    try:
        found = os.stat(os.path.join(path, LOCK_NAME))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a file system that does not answer now, perhaps
        return True
    return os.path.samestat(found, os.fstat(lock))
