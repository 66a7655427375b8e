"""Exclusive locks of files, which keep two processes out of one directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from pulsark.private_files import SECRET_MODE

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_NAME = "LOCK"
"""The file in a directory whose lock says that a process uses it."""


def lock_directory(path: str) -> int | None:
    """Take the exclusive lock of a directory; ``None`` if another process holds it.

    The lock ends with the process or when the returned descriptor is closed. ``OSError`` if there
    is no such directory, it cannot be written, or its file system has no locks.
    """
    return lock_file(os.path.join(path, LOCK_NAME), create=True)


def lock_file(path: str, *, create: bool = False, wait: bool = False) -> int | None:
    """Take the exclusive lock of a file; ``None`` if another process holds it, or it is not there.

    The lock ends with the process or when the returned descriptor is closed. ``wait`` blocks.
    ``create`` makes the file: ``OSError`` if that cannot be done.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    try:
        fd = os.open(path, flags, SECRET_MODE)
    except FileNotFoundError:
        if create:
            raise
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return fd


@contextlib.contextmanager
def holding(lock: int) -> Iterator[None]:
    """Hold the lock of an open file; waits in turn for other processes. Blocks."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
