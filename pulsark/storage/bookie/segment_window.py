"""Buffered positioned reads of one segment file, and the cache of open files."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from pulsark.storage.bookie.journal_format import segment_name

if TYPE_CHECKING:
    from pulsark.runtime import Disk, ReadFile

WINDOW_BYTES = 64 * 1024
MAX_OPEN_FILES = 64


class Window:
    """The part of a file that was read last. Small reads near each other cost one ``pread``."""

    def __init__(self, file: ReadFile, ahead: int = WINDOW_BYTES) -> None:
        self._file = file
        self._ahead = ahead
        self._start = 0
        self._data = b""

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes at ``offset``; fewer only at the end of the file."""
        begin = offset - self._start
        if begin < 0 or begin + size > len(self._data):
            self._data = self._file.read(offset, max(size, self._ahead))
            self._start, begin = offset, 0
        return self._data[begin : begin + size]


class SegmentFiles:
    """Open segment files, the least recently used closed first. For one thread."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._open: OrderedDict[int, ReadFile] = OrderedDict()

    def path(self, segment_id: int) -> str:
        """Where the segment's file is."""
        return f"{self._directory}/{segment_name(segment_id)}"

    def file(self, segment_id: int) -> ReadFile:
        """The segment's file; raises ``FileNotFoundError``."""
        file = self._open.get(segment_id)
        if file is None:
            file = self._open[segment_id] = self._disk.open(self.path(segment_id))
            if len(self._open) > MAX_OPEN_FILES:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(segment_id)
        return file

    def drop(self, segment_id: int) -> None:
        """Close the segment's file: it is about to be unlinked."""
        file = self._open.pop(segment_id, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._open.popitem()[1].close()
