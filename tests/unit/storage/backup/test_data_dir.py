"""The locks that keep two processes out of one directory."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from pulsark.config.settings import Settings
from pulsark.errors import ConfigError
from pulsark.storage.backup.data_dir import DataDir, locked_itself


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has_none(lock: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", has_none)
    data = DataDir.of(Settings(dataDir=str(tmp_path)))
    before = os.listdir("/proc/self/fd")
    with (
        pytest.raises(ConfigError, match=f"dataDir: the file system of {tmp_path} has no locks"),
        locked_itself(data),
    ):
        pass
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_directory_that_is_not_there_has_no_lock(tmp_path: Path) -> None:
    with locked_itself(DataDir.of(Settings(dataDir=str(tmp_path / "missing")))) as locks:
        assert not locks.held
