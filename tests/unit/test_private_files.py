"""Files of a process are private from the start; open ones are repaired once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsark.metadata.sqlite_file import connect
from pulsark.private_files import create_privately, create_secret, make_private


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def old_data_dir(top: Path) -> Path:
    data = top / "data"
    for name in ("metadata.db", "metadata.db-wal", "LOCK", "bookies/bookie-1/journal/0.journal"):
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    os.chmod(data, 0o755)
    return data


def everything(top: Path) -> Iterator[Path]:
    yield top
    yield from top.rglob("*")


def test_an_open_data_directory_becomes_private_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = old_data_dir(tmp_path)
    assert make_private(str(data), ()) == 8
    assert {mode(p) for p in everything(data)} == {0o700, 0o600}
    (warning,) = caplog.messages
    assert "dataDirectoryAccess" in warning
    assert make_private(str(data), ()) == 0
    assert len(caplog.messages) == 1


def test_the_group_may_read_messages_but_no_secrets(tmp_path: Path) -> None:
    data = old_data_dir(tmp_path)
    make_private(str(data), (), "group")
    assert mode(data) == 0o750
    assert mode(data / "bookies/bookie-1/journal/0.journal") == 0o640
    assert mode(data / "metadata.db") == mode(data / "LOCK") == 0o600
    make_private(str(data), ())
    assert mode(data / "bookies/bookie-1/journal/0.journal") == 0o600


def test_a_directory_with_foreign_files_keeps_its_own_mode(tmp_path: Path) -> None:
    data = old_data_dir(tmp_path)
    (data / "photos").mkdir(mode=0o755)
    make_private(str(data), ())
    assert (mode(data), mode(data / "photos")) == (0o755, 0o755)
    assert mode(data / "metadata.db") == 0o600
    assert mode(data / "bookies") == 0o700


def test_sticky_directories_and_links_are_left_alone(tmp_path: Path) -> None:
    data, outside, shared = old_data_dir(tmp_path), tmp_path / "outside", tmp_path / "shared"
    outside.write_bytes(b"x")
    shared.mkdir()
    os.chmod(shared, 0o1777)
    (data / "bookies/bookie-1/link").symlink_to(outside)
    make_private(str(data), [str(shared)])
    assert mode(outside) == 0o644
    assert mode(shared) == 0o1777


def test_directories_elsewhere_are_repaired_too(tmp_path: Path) -> None:
    data, journal = old_data_dir(tmp_path), tmp_path / "fast" / "journal"
    journal.mkdir(parents=True)
    (journal / "1.journal").write_bytes(b"x")
    make_private(str(data), [str(journal)])
    assert (mode(journal), mode(journal / "1.journal")) == (0o700, 0o600)
    assert mode(tmp_path / "fast") == 0o755


def test_a_missing_directory_is_no_error(tmp_path: Path) -> None:
    assert make_private(str(tmp_path / "none"), [str(tmp_path / "neither")]) == 0


def test_the_umask_covers_later_files(tmp_path: Path) -> None:
    create_privately()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"x")
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o700, 0o600)


def test_the_metadata_store_is_secret_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    create_secret(str(path))
    connection = connect(str(path))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (a)")
    assert {mode(p) for p in tmp_path.iterdir()} == {0o600}
    connection.close()
