"""The doctor never waits for a pipe or reads a device that lies where a file should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pulsark.cli.doctor.data_dir import examine
from pulsark.cli.doctor.finding import FAILURE
from pulsark.cli.doctor.stopped import Stopped
from pulsark.runtime import OsDisk
from tests.unit.cli.test_doctor_data import findings, settings, used

__all__ = ["used"]

FILES = [
    "bookies/bookie-1/journal/*.journal",
    "bookies/bookie-1/journal/BOOKIE",
    "bookies/bookie-1/ledgers/BOOKIE",
    "bookies/bookie-1/ledgers/table/STORAGE_ROOT",
    "metadata.db",
]


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
@pytest.mark.parametrize("pattern", FILES)
def test_a_special_file_is_a_finding(used: Path, pattern: str, kind: str) -> None:
    found = list(used.glob(pattern))
    assert found, pattern
    for path in found:
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
    stopped = Stopped(settings(used))
    assert FAILURE in {each.status for each in examine(stopped)}


def test_the_roots_of_a_moved_directory_are_checked(used: Path) -> None:
    moved = used.with_name("moved")
    used.rename(moved)
    root = findings(moved)["root"]
    assert "before" in root.found
    assert (root.status == FAILURE) is False
    marker = moved / "bookies/bookie-2/ledgers/table/STORAGE_ROOT"
    marker.write_text('{"version": 1, "rootId": "another"}')
    root = findings(moved)["root"]
    assert (root.status, "does not know" in root.found) == (FAILURE, True)
    marker.unlink()
    assert findings(moved)["root"].status == FAILURE


@pytest.mark.parametrize("do", ["open", "truncate", "write_again", "write_hint"])
def test_a_pipe_keeps_nobody_waiting(tmp_path: Path, do: str) -> None:
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    disk = OsDisk()
    calls = {
        "open": lambda: disk.open(path),
        "truncate": lambda: disk.truncate(path, 0),
        "write_again": lambda: disk.write_again(path, 0),
        "write_hint": lambda: disk.write_hint(path, b"x"),
    }
    with pytest.raises(OSError, match="not a plain file"):
        calls[do]()
