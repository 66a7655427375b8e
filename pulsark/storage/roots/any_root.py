"""``RootFiles`` of roots of both kinds: a path says which it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.runtime import Clock, Disk, OsDisk, SystemClock
from pulsark.storage.roots.options import ObjectStoreOptions
from pulsark.storage.roots.root_files import RootFiles, in_object_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pulsark.runtime import AppendFile, ReadFile


class AnyRoot:
    """Directories are those of ``disk``. obstore is imported when it is needed first."""

    def __init__(self, disk: RootFiles, options: ObjectStoreOptions, clock: Clock) -> None:
        self._disk = disk
        self._options = options
        self._clock = clock
        self._objects: RootFiles | None = None

    def _of(self, path: str) -> RootFiles:
        if not in_object_store(path):
            return self._disk
        if self._objects is None:
            from pulsark.storage.roots.object_files import ObjectFiles

            self._objects = ObjectFiles(self._options, self._clock)
        return self._objects

    def make_dirs(self, path: str) -> None:
        self._of(path).make_dirs(path)

    def create(self, path: str) -> AppendFile:
        return self._of(path).create(path)

    def open(self, path: str) -> ReadFile:
        return self._of(path).open(path)

    def list(self, path: str) -> list[str]:
        return self._of(path).list(path)

    def size(self, path: str) -> int:
        return self._of(path).size(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        self._of(path).write_atomic(path, data)

    def write_new(self, path: str, data: bytes) -> None:
        self._of(path).write_new(path, data)

    def link(self, path: str, name: str) -> None:
        self._of(path).link(path, name)

    def remove(self, path: str) -> None:
        self._of(path).remove(path)

    def remove_dir(self, path: str) -> None:
        self._of(path).remove_dir(path)

    def space(self, path: str) -> tuple[int, int]:
        return self._of(path).space(path)


def files_of_roots(
    roots: Iterable[str], disk: Disk, options: ObjectStoreOptions, clock: Clock
) -> RootFiles:
    """The files of some roots: those of the disk alone, if none is in an object store."""
    if any(map(in_object_store, roots)):
        return AnyRoot(disk, options, clock)
    return disk


def files_here(environment: Mapping[str, str]) -> RootFiles:
    """The files of any root, for a process that has no settings: a task, or a table process."""
    return AnyRoot(OsDisk(), ObjectStoreOptions.from_environment(environment), SystemClock())
