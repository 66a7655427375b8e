"""Files that are copied from one root to another."""

from __future__ import annotations

import google_crc32c
import pytest

from pulsark.errors import CorruptEntryError
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.files.root_files import copy_file, ensure_file
from tests.sim.disk import SimDisk

CONTENT = bytes(range(250)) * 4
FILE = DataFile("f", 0, 1, 0, 0, 1, len(CONTENT), google_crc32c.value(CONTENT), {})
DAMAGED = b"x" + CONTENT[1:]


def disk_with(**contents: bytes) -> SimDisk:
    """Roots by their names, with what each has of the file."""
    disk = SimDisk()
    for root, content in contents.items():
        disk.make_dirs(f"/{root}")
        disk.write_new(f"/{root}/f", content)
    return disk


def content(disk: SimDisk, root: str) -> bytes:
    return disk.open(f"/{root}/f").read(0, 2000)


def test_a_damaged_copy_stays_until_there_is_a_whole_one() -> None:
    """It may be all that is left: what is intact in it can be read."""
    disk = disk_with(a=DAMAGED, b=CONTENT[:-1] + b"y")
    with pytest.raises(CorruptEntryError):
        copy_file(disk, "/b", "/a", FILE)
    with pytest.raises(FileNotFoundError):
        copy_file(disk, "/c", "/a", FILE)
    with pytest.raises(CorruptEntryError):
        copy_file(disk, "/a", "/b", FILE)
    assert content(disk, "a") == DAMAGED
    assert content(disk, "b") == CONTENT[:-1] + b"y"


def test_a_damaged_copy_is_replaced_by_a_whole_one() -> None:
    disk = disk_with(a=DAMAGED[:-1], b=CONTENT)
    ensure_file(disk, "/a", ["/c", "/b"], FILE)
    assert content(disk, "a") == CONTENT
