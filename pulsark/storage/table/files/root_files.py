"""The data files of a table on one storage root: copied from another one, and removed.

Everything blocks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import google_crc32c

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.storage.table.files.disk_reserve import check_room

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsark.runtime import ReadFile
    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import DataFile

log = logging.getLogger(__name__)

COPY_BYTES = 4 << 20


def ensure_file(disk: RootFiles, directory: str, peers: Iterable[str], file: DataFile) -> None:
    """A file is on this root with its size; copied from another root if it is not."""
    if has_file(disk, directory, file):
        return
    for peer in peers:
        try:
            if has_file(disk, peer, file):
                copy_file(disk, peer, directory, file)
                return
        except (OSError, StorageError) as e:
            log.warning("%s: cannot copy %s: %s", peer, file.path, e)
    raise StorageError(f"no root has {file.path} with {file.size} bytes")


def has_file(disk: RootFiles, directory: str, file: DataFile) -> bool:
    """Whether a directory has a file, with its size."""
    try:
        return disk.size(f"{directory}/{file.path}") == file.size
    except FileNotFoundError:
        return False


def copy_file(disk: RootFiles, source: str, target: str, file: DataFile) -> None:
    """Copy a file from one root to another, durably, and only if its checksum is right."""
    check_room(disk, target, file.size)
    path = f"{target}/{file.path}"
    disk.make_dirs(path.rpartition("/")[0])
    reading = disk.open(f"{source}/{file.path}")
    try:
        if is_there(disk, path):
            # Damaged as it is, it may be all that is left: it goes for one that is whole.
            if checksum(reading, file.size) != file.crc32c:
                raise CorruptEntryError(f"{source}/{file.path} is damaged")
            disk.remove(path)
        writing = disk.create(path)
        try:
            crc = 0
            for offset in range(0, file.size, COPY_BYTES):
                piece = reading.read(offset, min(COPY_BYTES, file.size - offset))
                crc = google_crc32c.extend(crc, piece)
                writing.writev([piece])
            writing.sync()
        except OSError:
            disk.remove(path)  # the rest of it may be what the disk had room for
            raise
        finally:
            writing.close()
    finally:
        reading.close()
    if crc != file.crc32c:
        disk.remove(path)
        raise CorruptEntryError(f"{source}/{file.path} is damaged")


def checksum(file: ReadFile, size: int) -> int:
    """The CRC of the first bytes of a file."""
    crc = 0
    for offset in range(0, size, COPY_BYTES):
        crc = google_crc32c.extend(crc, file.read(offset, min(COPY_BYTES, size - offset)))
    return crc


def is_there(disk: RootFiles, path: str) -> bool:
    """Whether there is a file, of any size."""
    try:
        disk.size(path)
    except FileNotFoundError:
        return False
    return True


def remove_files(disk: RootFiles, root: str, paths: Iterable[str]) -> None:
    """Delete some files of a table."""
    for path in paths:
        disk.remove(f"{root}/{path}")


def remove_tree(disk: RootFiles, directory: str) -> None:
    """Remove the files of a table. The log goes last, newest commit first: until then, what is
    left of the table says of itself that it lacks files."""
    for partition in disk.list(directory):
        if "=" in partition:
            for ledger in disk.list(f"{directory}/{partition}"):
                for name in disk.list(f"{directory}/{partition}/{ledger}"):
                    disk.remove(f"{directory}/{partition}/{ledger}/{name}")
                disk.remove_dir(f"{directory}/{partition}/{ledger}")
            disk.remove_dir(f"{directory}/{partition}")
    for name in disk.list(f"{directory}/_staged"):
        disk.remove(f"{directory}/_staged/{name}")
    for name in reversed(disk.list(f"{directory}/_delta_log")):
        disk.remove(f"{directory}/_delta_log/{name}")
    for name in ("_delta_log", "_staged"):
        disk.remove_dir(f"{directory}/{name}")
    disk.remove_dir(directory)
