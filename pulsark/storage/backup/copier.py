"""Copies files and computes their checksums; a file counts once it is durable."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

import google_crc32c

from pulsark.storage.backup.manifest import BackupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.runtime import Disk

CHUNK_BYTES = 1 << 20
_NO_PLAIN_FILE = (errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.ENXIO)


class Copier:
    """Copies into one directory. ``files`` has what is there: size and CRC32C by path."""

    def __init__(self, disk: Disk, target: str, copied: Callable[[int], None]) -> None:
        self._disk = disk
        self.target = target
        self._copied = copied
        self.files: dict[str, tuple[int, int]] = {}

    def path(self, name: str) -> str:
        """Where a file of the target is."""
        return f"{self.target}/{name}"

    def copy(self, top: str, below: str, name: str) -> None:
        """Copy what a file below a directory has now, unless it is there already.

        Do nothing if the file is gone. ``BackupError`` if the file is reached through a link.
        """
        try:
            size = self._disk.size(f"{top}/{below}")
            if name in self.files and self.files[name][0] == size:
                return
            file = self._disk.open_below(top, below)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in _NO_PLAIN_FILE:
                raise
            raise BackupError(
                f"{top}/{below} is a link, lies behind one, or is not a plain file. Nothing that "
                "Pulsark stores is: put the file itself there"
            ) from error
        try:
            self.drop(name)
            self._disk.make_dirs(os.path.dirname(self.path(name)))
            out = self._disk.create(self.path(name))
            try:
                crc, at = 0, 0
                while at < size and (data := file.read(at, min(CHUNK_BYTES, size - at))):
                    with _naming(self.path(name)):
                        out.writev([data])
                    crc = google_crc32c.extend(crc, data)
                    at += len(data)
                    self._copied(len(data))
                with _naming(self.path(name)):
                    out.sync()
            finally:
                out.close()
        finally:
            file.close()
        self.files[name] = (at, crc)

    def cut(self, name: str, size: int) -> None:
        """Keep only the first bytes of a file that was copied."""
        if self.files[name][0] == size:
            return
        self._disk.truncate(self.path(name), size)
        self.note(name)

    def drop(self, name: str) -> None:
        """Have a file no more."""
        self.files.pop(name, None)
        self._disk.remove(self.path(name))

    def note(self, name: str) -> None:
        """Count a file of the target that this did not write."""
        self.files[name] = checksum_of(self._disk, self.path(name))


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the file in an error of the disk, because a failed write does not."""
    try:
        yield
    except OSError as e:
        e.filename = e.filename or path
        raise


def checksum_of(disk: Disk, path: str) -> tuple[int, int]:
    """Size and CRC32C of a file."""
    file = disk.open(path)
    try:
        crc, at = 0, 0
        while data := file.read(at, CHUNK_BYTES):
            crc = google_crc32c.extend(crc, data)
            at += len(data)
        return at, crc
    finally:
        file.close()
