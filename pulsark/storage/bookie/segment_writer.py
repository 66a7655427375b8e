"""Appending groups to one segment file. Blocking: runs in the journal's worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.storage.bookie.journal_format import (
    GROUP_HEAD_SIZE,
    Kind,
    SegmentHead,
    Snapshot,
    encode_record,
    group_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.runtime import Disk, Piece


class SegmentWriter:
    """The segment that is being written. ``size`` is the end of its last durable group."""

    def __init__(self, disk: Disk, path: str, head: SegmentHead, snapshot: Snapshot) -> None:
        """Create the file, with its head and the snapshot durable. Removes it on ``OSError``."""
        self._disk = disk
        self.path = path
        self.segment_id = head.segment_id
        self.epoch = head.epoch
        encoded = head.encode()
        payload = snapshot.encode()
        meta, size = encode_record(Kind.SNAPSHOT, -1, 0, 0, [payload])
        group = group_of([meta], size, self.epoch, len(encoded), snapshot.max_ledger_id)
        self.size = len(encoded) + GROUP_HEAD_SIZE + size
        file = None
        try:
            file = disk.create(path)
            file.writev([encoded, group, meta, payload])
            file.sync()
        except OSError:
            if file is not None:
                file.close()
            disk.remove(path)
            raise
        self._file = file

    def write(
        self, metas: Sequence[bytes], pieces: list[Piece], size: int, max_ledger_id: int
    ) -> None:
        """Append a group of records, not yet durable; ``pieces[0]`` is left for its head.

        ``size`` is that of all records. Raises ``OSError``; after it the file may hold a part
        of the group, see ``cut``.
        """
        pieces[0] = group_of(metas, size, self.epoch, self.size, max_ledger_id)
        self._file.writev(pieces)

    def sync(self, size: int) -> None:
        """Make the group that was written durable. An ``OSError`` here is the journal's end."""
        self._file.sync()
        self.size += GROUP_HEAD_SIZE + size

    def cut(self) -> None:
        """Take a part of a group off the end again, durably."""
        self._disk.truncate(self.path, self.size)

    def close(self) -> None:
        """Close the file; all its groups are durable."""
        self._file.close()
