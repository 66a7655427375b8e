"""What sealing leaves free on a disk."""

from __future__ import annotations

import pytest

from pulsark.storage.table.files.disk_reserve import room_of
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.files.root_files import copy_file
from tests.sim.disk import SimDisk

MIB = 1 << 20


@pytest.mark.parametrize(
    ("free", "room"),
    [
        (1024 * MIB, 896 * MIB),
        (129 * MIB, 8 * MIB),
        (128 * MIB, 8 * MIB),
        (64 * MIB, 8 * MIB),
        (40 * MIB, 8 * MIB),
        (36 * MIB, 4 * MIB),
        (32 * MIB, 0),
        (0, 0),
    ],
)
def test_publishing_keeps_its_room_and_a_small_batch_may_free_the_journal(
    free: int, room: int
) -> None:
    assert room_of(free, 100_000 * MIB) == room


def test_a_copy_for_which_there_is_no_room_is_not_begun() -> None:
    disk = SimDisk()
    disk.make_dirs("/a")
    disk.write_new("/a/f", bytes(1000))
    disk.capacity = disk.used() + 1100
    file = DataFile("f", 0, 1, 0, 0, 1, 1000, 0, {})
    with pytest.raises(OSError, match="room for"):
        copy_file(disk, "/a", "/b", file)
    assert disk.files() == ("/a/f",)
