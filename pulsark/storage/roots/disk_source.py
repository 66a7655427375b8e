"""A file of the injected disk, as pyarrow reads one."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsark.runtime import ReadFile


class DiskSource(io.RawIOBase):
    """The first ``size`` bytes of an open file, which it closes with itself."""

    def __init__(self, file: ReadFile, size: int) -> None:
        super().__init__()
        self._file = file
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        wanted = self._size - self._position if size < 0 else size
        found = self._file.read(self._position, wanted)
        self._position += len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def uncache(self) -> None:
        """``ReadFile.uncache``."""
        self._file.uncache()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
