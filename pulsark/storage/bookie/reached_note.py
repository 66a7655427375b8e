"""How far the journal is known to be durable, noted beside it: a journal that got shorter shows.

A torn tail is what a crash leaves, and recovery cuts it silently. A journal whose copy broke off,
or that a repair of its file system cut, looks the same. The note in the ledger directory tells
them apart: what it names was synced before it was written, so what is missing was lost.

The note is no promise in the other direction. It is written without a sync, once a second and at
the close, and an old or missing one only says less.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

if TYPE_CHECKING:
    from pulsark.runtime import Clock, Disk

log = logging.getLogger(__name__)

NOTE_NAME: Final = "journal.reached"
NOTE_SECONDS: Final = 1.0
"""Time between two notes while the journal grows."""

_NOTE: Final = struct.Struct("<8s16sQQQ")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"PLSKRCHD"


class Reached(NamedTuple):
    """A segment, and bytes of it that were durable."""

    segment_id: int
    epoch: int
    size: int


class ReachedNote:
    """The note of one bookie. Use it from the journal's worker."""

    def __init__(self, disk: Disk, clock: Clock, ledger_dir: str, instance_id: bytes) -> None:
        self._disk = disk
        self._clock = clock
        self._path = f"{ledger_dir}/{NOTE_NAME}"
        self._instance_id = instance_id
        self._next = 0.0
        self._noted: Reached | None = None

    def grew(self, reached: Reached) -> None:
        """A group is durable."""
        if self._clock.monotonic() >= self._next or self._is_other_segment(reached):
            self._write(reached)

    def end(self, reached: Reached) -> None:
        """The journal is closed. A segment without a group since its start has nothing to lose."""
        if reached != self._noted and not self._is_other_segment(reached):
            self._write(reached)

    def _write(self, reached: Reached) -> None:
        """Write the note now. An error of the disk is no error of the journal."""
        data = _NOTE.pack(_MAGIC, self._instance_id, *reached)
        try:
            self._disk.write_hint(self._path, data + _CRC.pack(google_crc32c.value(data)))
        except OSError as e:
            log.debug("cannot write %s: %s", self._path, e)
            return
        self._noted = reached
        self._next = self._clock.monotonic() + NOTE_SECONDS

    def _is_other_segment(self, reached: Reached) -> bool:
        return self._noted is None or self._noted.segment_id != reached.segment_id


def load_reached(disk: Disk, ledger_dir: str, instance_id: bytes) -> Reached | None:
    """Return what a bookie noted last, or None if that cannot be known."""
    with contextlib.suppress(OSError):
        file = disk.open(f"{ledger_dir}/{NOTE_NAME}")
        try:
            found = file.read(0, _NOTE.size + _CRC.size)
        finally:
            file.close()
        data, crc = found[: _NOTE.size], found[_NOTE.size :]
        if len(found) == _NOTE.size + _CRC.size and _CRC.unpack(crc)[0] == google_crc32c.value(
            data
        ):
            magic, instance, segment_id, epoch, size = _NOTE.unpack(data)
            if magic == _MAGIC and instance == instance_id:
                return Reached(segment_id, epoch, size)
    return None
