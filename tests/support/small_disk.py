"""A real disk of a few megabytes: a tmpfs, where the machine lets tests mount one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[Path]:
    """Mount a disk of that size at a directory, or skip the test."""
    directory.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a small disk")
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine mounts no tmpfs")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def free_bytes(directory: Path) -> int:
    """Bytes that a program may still write there."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def take_all_room(file: Path) -> None:
    """Fill the disk to its last byte, as another program would."""
    with file.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(1 << 16))
        except OSError:
            return
