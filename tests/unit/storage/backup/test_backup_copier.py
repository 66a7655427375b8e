"""Copying the files of a backup."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pulsark.runtime import AppendFile, OsDisk
from pulsark.storage.backup.copier import Copier


class FullFile:
    """As a file of the operating system, whose errors of writing name no file."""

    def writev(self, buffers: Sequence[bytes]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        raise AssertionError("nothing was written")

    def close(self) -> None:
        pass


class FullDisk(OsDisk):
    def create(self, path: str) -> AppendFile:
        return FullFile()


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"bytes")

    target = tmp_path / "target"
    with pytest.raises(OSError, match="No space left") as caught:
        Copier(FullDisk(), str(target), lambda size: None).copy(str(tmp_path), "source", "file")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, f"{target}/file")
