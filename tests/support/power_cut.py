"""What a power failure would take of files that are made through Python's ``os``.

``Recorder`` stands in for the module ``os`` where a disk uses it: it does what it is asked, and
keeps what no sync has made durable yet. ``skip`` leaves out the n-th sync, as a bug would.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


class Recorder:
    """Pass it off as ``os`` with ``monkeypatch.setattr(runtime, "os", recorder)``."""

    def __init__(self, skip: int = 0) -> None:
        self.calls: list[tuple[str, str]] = []
        """Syncs, as ``(call, path)``."""
        self.unsynced: set[str] = set()
        """Files with bytes, and directories with names, that a power failure would take."""
        self.too_early: list[str] = []
        """Files that got their name before their bytes were durable."""
        self._skip = skip
        self._paths: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, *mode: int) -> int:
        new = not os.path.exists(path)
        fd = os.open(path, flags, *mode)
        self._paths[fd] = os.path.abspath(path)
        if new:
            self._changed_name(path)
        if flags & os.O_TRUNC:
            self.unsynced.add(self._paths[fd])
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)
        del self._paths[fd]

    def write(self, fd: int, data: bytes) -> int:
        self.unsynced.add(self._paths[fd])
        return os.write(fd, data)

    def writev(self, fd: int, buffers: Sequence[bytes]) -> int:
        self.unsynced.add(self._paths[fd])
        return os.writev(fd, buffers)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self.unsynced.add(self._paths[fd])
        return os.pwrite(fd, data, offset)

    def ftruncate(self, fd: int, size: int) -> None:
        self.unsynced.add(self._paths[fd])
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def rename(self, old: str, new: str) -> None:
        self._must_be_durable(old)
        os.rename(old, new)
        self.unsynced.discard(os.path.abspath(new))
        self._changed_name(old)
        self._changed_name(new)

    def link(self, old: str, new: str) -> None:
        self._must_be_durable(old)
        os.link(old, new)
        self._changed_name(new)

    def unlink(self, path: str) -> None:
        os.unlink(path)
        self.unsynced.discard(os.path.abspath(path))
        self._changed_name(path)

    def makedirs(self, path: str, *, exist_ok: bool) -> None:
        os.makedirs(path, exist_ok=exist_ok)
        self._changed_name(path)

    def _sync(self, call: str, fd: int) -> None:
        self.calls.append((call, self._paths[fd]))
        if len(self.calls) != self._skip:
            getattr(os, call)(fd)
            self.unsynced.discard(self._paths[fd])

    def _changed_name(self, path: str) -> None:
        self.unsynced.add(os.path.dirname(os.path.abspath(path)))

    def _must_be_durable(self, path: str) -> None:
        if os.path.abspath(path) in self.unsynced:
            self.too_early.append(path)
