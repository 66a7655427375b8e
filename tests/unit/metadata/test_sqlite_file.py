"""What is said if the file of a metadata store cannot be opened."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pulsark.errors import MetadataError, MetadataRefusedError
from pulsark.metadata import sqlite_file
from pulsark.metadata.changes import Put
from pulsark.metadata.paths import LEDGERS, MANAGED_LEDGERS, POLICIES, SCHEMAS
from pulsark.metadata.sqlite import SqliteMetadataStore
from pulsark.metadata.sqlite_file import (
    GROWTH_RESERVE_BYTES_MAX,
    RESERVE_SUFFIX,
    keep_reserve,
    open_file,
    release_reserve,
)
from pulsark.metadata.sqlite_writes import commit, transaction
from pulsark.metadata.store import ABSENT, ANY_VERSION
from pulsark.runtime import OsDisk, Runtime, SystemClock

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


def test_a_write_on_a_full_disk_uses_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metadata.db"
    connection = open_file(str(path), "id", SystemClock(), accept_loss=False)
    keep_reserve(str(path))
    reserve = tmp_path / f"metadata.db{RESERVE_SUFFIX}"
    assert reserve.stat().st_mode & 0o777 == 0o600
    assert reserve.stat().st_blocks * 512 >= 1 << 20
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")

    def release(_: str) -> bool:
        connection.execute("PRAGMA max_page_count = 1000000")
        return release_reserve(str(path))

    monkeypatch.setattr(sqlite_file, "release_reserve", release)
    monkeypatch.setattr(sqlite_file, "_is_full", lambda _: True)
    large = Put("/a/b", bytes(200_000), ABSENT)
    assert transaction(connection, [lambda c: commit(c, [large], 0)]) == [[0]]
    assert not reserve.exists()
    connection.close()


def test_without_a_reserve_the_write_fails_and_says_that_nothing_was_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metadata.db"
    connection = open_file(str(path), "id", SystemClock(), accept_loss=False)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    large = Put("/a/b", bytes(200_000), ABSENT)
    with pytest.raises(MetadataRefusedError, match="full"):
        transaction(connection, [lambda c: commit(c, [large], 0)])
    connection.close()


def test_a_store_on_a_full_disk_closes_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(str(tmp_path / "metadata.db"), Runtime())
        await store.put("/a", b"1", ABSENT)

        def fails(_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        store._end = fails
        await store.close()

    asyncio.run(main())
    assert "cannot end the session" in caplog.text


def test_the_reserve_is_not_made_on_a_disk_with_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OsDisk, "space", lambda *_: (5 << 20, 200 << 20))
    keep_reserve(str(tmp_path / "metadata.db"))
    assert list(tmp_path.iterdir()) == []


def test_what_clients_create_leaves_room_for_acknowledgements_and_deletions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = await SqliteMetadataStore.open(str(tmp_path / "m.db"), Runtime())
        schema, policies = f"{SCHEMAS}/t/n/a", f"{POLICIES}/t/n"
        await store.put(policies, b"{}")
        await store.put(schema, b"[]")
        gibibyte = 1 << 30
        for free, total, is_full in (
            (GROWTH_RESERVE_BYTES_MAX, 100 * gibibyte, False),
            (GROWTH_RESERVE_BYTES_MAX - 1, 100 * gibibyte, True),
            (24 << 20, gibibyte // 2, False),
            (12 << 20, gibibyte // 2, True),
        ):
            monkeypatch.setattr(OsDisk, "space", lambda *_, f=free, t=total: (f, t))
            for path, value in (
                (f"{SCHEMAS}/t/n/{free}", b""),
                (f"{MANAGED_LEDGERS}/t/n/persistent/{free}", b"{}"),
                (policies, bytes(2000)),
            ):
                if is_full:
                    with pytest.raises(MetadataRefusedError, match="free space"):
                        await store.put(path, value, ANY_VERSION)
                else:
                    await store.put(path, value, ANY_VERSION)
            await store.put(policies, bytes(900), ANY_VERSION)
            await store.put(f"{LEDGERS}/{free}", bytes(9000), ANY_VERSION)
        await store.delete(schema, ANY_VERSION)
        await store.close()

    asyncio.run(scenario())
