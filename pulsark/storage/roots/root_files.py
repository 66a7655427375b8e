"""The files of a storage root: what tables need of a directory, or of an object store.

``runtime.Disk`` has it for directories, ``object_store`` for ``s3://BUCKET/PREFIX``. Tables use
nothing else, so a root may be of either kind.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pulsark.runtime import AppendFile, ReadFile

SCHEME: Final = "s3://"
ROOT_MARKER: Final = "STORAGE_ROOT"
"""The file on a root that has its id."""


def in_object_store(path: str) -> bool:
    """Whether a root, or what is below it, is in an object store."""
    return path.startswith(SCHEME)


def absolute(root: str) -> str:
    """A root as it is told to other processes."""
    return root.rstrip("/") if in_object_store(root) else os.path.abspath(root)


def check_relative(name: str) -> str:
    """Return a name that leads below the directory that it is joined to.

    Raises ``ValueError`` for every other name. Names come from logs of tables, from documents of
    the metadata store and from lists of backups, which somebody else may have written.
    """
    parts = name.split("/")
    if not all(parts) or not {".", ".."}.isdisjoint(parts) or not name.isprintable():
        raise ValueError(f"{name[:200]!r} is not the name of a file below a directory")
    return name


class RootFiles(Protocol):
    """All calls block, and raise ``OSError``. What has returned is durable.

    After an ``OSError`` it is unknown whether something was changed; each call may be repeated.
    """

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents, where there are directories."""

    def create(self, path: str) -> AppendFile:
        """A new file, which must not exist: ``FileExistsError``. In an object store it is there
        from its sync on, as a whole; so a name is to be used by one writer only."""

    def open(self, path: str) -> ReadFile:
        """Open an existing file for reading: ``FileNotFoundError``."""

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if there is none."""

    def size(self, path: str) -> int:
        """Length of a file in bytes: ``FileNotFoundError``."""

    def write_atomic(self, path: str, data: bytes) -> None:
        """Write a file as a whole, in place of the one that is there."""

    def write_new(self, path: str, data: bytes) -> None:
        """Write a file as a whole under a name that must not exist: ``FileExistsError``.

        Of several that write one name at the same time, one succeeds.
        """

    def link(self, path: str, name: str) -> None:
        """Give a file a second name that must not exist: ``FileExistsError``."""

    def remove(self, path: str) -> None:
        """Delete a file; it is no error if it does not exist."""

    def remove_dir(self, path: str) -> None:
        """Delete a directory if it is there and empty."""

    def space(self, path: str) -> tuple[int, int]:
        """``(free, total)`` bytes."""
