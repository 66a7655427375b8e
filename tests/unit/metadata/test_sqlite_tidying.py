"""What the files of the embedded metadata store keep after values were replaced or deleted."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from pulsark.metadata import sqlite, sqlite_tidying
from pulsark.metadata.changes import Delete, Put
from pulsark.metadata.sqlite import SqliteMetadataStore
from pulsark.metadata.sqlite_file import BUSY_MILLISECONDS, connect, open_file
from pulsark.metadata.sqlite_shared import SharedSqliteMetadataStore
from pulsark.metadata.sqlite_tidying import FREE_PAGES_KEPT, STEP_PAGES, tidy
from pulsark.metadata.store import ABSENT, ANY_VERSION, Versioned
from pulsark.runtime import Runtime, SystemClock

Opening = Callable[[str, Runtime], Awaitable[SqliteMetadataStore]]

OPENINGS = [SqliteMetadataStore.open, SharedSqliteMetadataStore.join]
KEY = b"someone@example.com"
PAGE = 4096


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "TIDY_SECONDS", 0.05)
    monkeypatch.setattr(sqlite, "STEP_SECONDS", 0.001)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not what():  # noqa: ASYNC110 - a thread tidies
            await asyncio.sleep(0.02)


def kept(path: Path) -> int:
    """How often the key is in the files."""
    return sum(file.read_bytes().count(KEY) for file in path.parent.glob("m.db*") if file.is_file())


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("size", [len(KEY), 1000, 50_000])
def test_replaced_and_deleted_values_are_soon_in_no_file(
    tmp_path: Path, opening: Opening, size: int
) -> None:
    path = tmp_path / "m.db"

    async def scenario() -> None:
        store = await opening(str(path), Runtime())
        value = KEY * (size // len(KEY))
        for name in ("/replaced", "/deleted"):
            await store.put(name, value, ABSENT)
        await store.put("/stays", b"1", ABSENT)
        await until(lambda: (tmp_path / "m.db-wal").stat().st_size == 0)
        assert kept(path) > 0
        await store.put("/replaced", b"", ANY_VERSION)
        await store.delete("/deleted", ANY_VERSION)
        assert (tmp_path / "m.db-wal").stat().st_size > 0
        await until(lambda: kept(path) == 0)
        assert await store.get("/stays") == Versioned(b"1", 0)
        await store.close()

    asyncio.run(scenario())


def test_every_connection_overwrites_what_it_deletes(tmp_path: Path) -> None:
    with closing(connect(str(tmp_path / "m.db"))) as connection:
        assert connection.execute("PRAGMA secure_delete").fetchone() == (1,)


@pytest.mark.parametrize("opening", OPENINGS)
def test_the_file_shrinks_after_deletions(tmp_path: Path, opening: Opening) -> None:
    path = tmp_path / "m.db"

    async def scenario() -> None:
        store = await opening(str(path), Runtime())
        names = [f"/schemas/{number}" for number in range(3000)]
        for start in range(0, len(names), 100):
            part = names[start : start + 100]
            await store.commit([Put(name, bytes(5000), ABSENT) for name in part])
        await until(lambda: path.stat().st_size > 10 << 20)
        for start in range(0, len(names), 100):
            part = names[start : start + 100]
            await store.commit([Delete(name, ANY_VERSION) for name in part])
        await until(lambda: path.stat().st_size <= (FREE_PAGES_KEPT + 20) * PAGE)
        await store.close()

    asyncio.run(scenario())


def test_one_step_gives_back_few_pages(tmp_path: Path) -> None:
    path = str(tmp_path / "m.db")
    with closing(open_file(path, "id", SystemClock(), accept_loss=False)) as connection:
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE large (value BLOB)")
        for _ in range(2 * STEP_PAGES + FREE_PAGES_KEPT):
            connection.execute("INSERT INTO large VALUES (zeroblob(4000))")
        connection.execute("DELETE FROM large")
        connection.execute("COMMIT")
        (before,) = connection.execute("PRAGMA page_count").fetchone()
        assert not tidy(connection, BUSY_MILLISECONDS)
        (after,) = connection.execute("PRAGMA page_count").fetchone()
        assert STEP_PAGES <= before - after <= STEP_PAGES + 2
        while not tidy(connection, BUSY_MILLISECONDS):
            pass
        assert (tmp_path / "m.db-wal").stat().st_size == 0
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (BUSY_MILLISECONDS,)


def test_a_reader_elsewhere_makes_tidying_wait_no_longer_than_a_moment(tmp_path: Path) -> None:
    path = str(tmp_path / "m.db")
    with (
        closing(open_file(path, "id", SystemClock(), accept_loss=False)) as connection,
        closing(connect(path)) as reader,
    ):
        connection.execute("CREATE TABLE some (value BLOB)")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM some").fetchall()
        connection.execute("INSERT INTO some VALUES (1)")
        start = SystemClock().monotonic()
        assert not tidy(connection, BUSY_MILLISECONDS)
        assert SystemClock().monotonic() - start < BUSY_MILLISECONDS / 2000
        reader.execute("COMMIT")
        assert tidy(connection, BUSY_MILLISECONDS)


def left_by_an_earlier_release(path: Path) -> None:
    open_file(str(path), "id", SystemClock(), accept_loss=False).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.execute("PRAGMA secure_delete = OFF")
        old.execute("PRAGMA auto_vacuum = NONE")
        old.execute("VACUUM")
        old.execute("CREATE TABLE large (value BLOB)")
        for _ in range(200):
            old.execute("INSERT INTO large VALUES (?)", (KEY * 200,))
        old.execute("DROP TABLE large")
    assert kept(path) > 0


def test_a_file_of_an_earlier_release_is_rewritten_at_a_start(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    left_by_an_earlier_release(path)
    with closing(open_file(str(path), "id", SystemClock(), accept_loss=False)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert kept(path) == 0
    assert path.stat().st_size < 20 * PAGE


def test_a_large_file_of_an_earlier_release_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_tidying, "REWRITTEN_BYTES_MAX", PAGE)
    path = tmp_path / "m.db"
    left_by_an_earlier_release(path)
    size = path.stat().st_size
    with closing(open_file(str(path), "id", SystemClock(), accept_loss=False)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (0,)
        assert tidy(connection, BUSY_MILLISECONDS)
    assert path.stat().st_size == size
