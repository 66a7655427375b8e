"""Room on the disks of storage roots: sealing must not take what publishing needs.

A journal keeps a reserve of its disk for acknowledgements and refuses publishes there. Sealing
keeps twice that free, so that publishing goes on although there is no room to seal. A small
batch may always be sealed, into the reserve if need be: it is what frees the journal in the end.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from pulsark.storage.bookie.journal_settings import JournalSettings

if TYPE_CHECKING:
    from pulsark.storage.roots.root_files import RootFiles

RESERVES_KEPT: Final = 2
"""Reserves of a journal that sealing leaves free."""


def room(disk: RootFiles, directory: str) -> int:
    """Bytes that may be written below a directory now. Blocks; raises ``OSError``."""
    disk.make_dirs(directory)
    return room_of(*disk.space(directory))


def room_of(free: int, total: int) -> int:
    """Bytes that may be written to a disk with ``free`` of ``total`` bytes free."""
    reserve = JournalSettings().reserve(total)
    small_batch = min(reserve // 8, free - reserve // 2)
    return max(free - RESERVES_KEPT * reserve, small_batch, 0)


def check_room(disk: RootFiles, directory: str, size: int) -> None:
    """Raise ``OSError`` (ENOSPC) unless ``size`` bytes may be written below a directory."""
    found = room(disk, directory)
    if found < size:
        raise OSError(errno.ENOSPC, f"{size} bytes, and room for {found}", directory)
