"""What is said if the file of a metadata store cannot be opened."""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pulsark.errors import MetadataError
from pulsark.metadata import sqlite_file
from pulsark.metadata.sqlite_file import open_file
from pulsark.runtime import SystemClock

RESTORE, MAKE_ROOM = "Restore a backup", "make room"


def opened(path: Path) -> None:
    open_file(str(path), "0" * 32, SystemClock(), accept_loss=False).close()


def refused(path: Path) -> str:
    with pytest.raises(MetadataError, match="cannot open the metadata store") as found:
        opened(path)
    return str(found.value)


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file gets longer."""
    none = SimpleNamespace(f_bavail=0, f_favail=0, f_frsize=4096, f_blocks=1000, f_files=1000)
    monkeypatch.setattr(os, "statvfs", lambda _: none)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_nobody_is_told_to_restore_a_backup_because_the_disk_is_full(
    tmp_path: Path, no_room: None
) -> None:
    said = refused(tmp_path / "metadata.db")
    assert MAKE_ROOM in said
    assert RESTORE not in said


class Filling(sqlite3.Connection):
    """Its disk gets full while the tables are made: SQLite ends the transaction itself."""

    def execute(self, statement: str, *given: Any) -> sqlite3.Cursor:
        if statement.startswith("PRAGMA application_id ="):
            super().execute("ROLLBACK")
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return super().execute(statement, *given)


def test_a_disk_that_gets_full_while_the_tables_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(path: str) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, factory=Filling)

    monkeypatch.setattr(sqlite_file, "connect", connect)
    said = refused(tmp_path / "metadata.db")
    assert "database or disk is full" in said
    assert MAKE_ROOM in said


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"junk" * 10_000)
    assert RESTORE in refused(path)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    said = refused(tmp_path / "nowhere" / "metadata.db")
    assert "ulimit -n" in said
    assert RESTORE not in said
