"""A metadata store whose file is damaged, old, or somebody else's."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pulsark.errors import MetadataError
from pulsark.metadata.sqlite import SqliteMetadataStore
from pulsark.metadata.sqlite_file import SCHEMA_VERSION
from pulsark.metadata.sqlite_reading import read_store
from pulsark.metadata.store import Versioned
from pulsark.runtime import Runtime

PLACE = b'{"entries":1999}'


async def open_store(path: Path, *, accept_loss: bool = False) -> SqliteMetadataStore:
    return await SqliteMetadataStore.open(str(path), Runtime(), accept_loss=accept_loss)


def left_by_a_kill(path: Path, writes: int = 40) -> Path:
    """The files of a process that was killed after so many writes, each of its own transaction."""

    async def scenario() -> None:
        store = await open_store(path)
        for number in range(writes):
            await store.put(f"/ledgers/{number}", PLACE)
        for name in (path.name, f"{path.name}-wal"):
            shutil.copy(path.with_name(name), path.with_name(f"killed-{name}"))
        await store.close()

    asyncio.run(scenario())
    return path.with_name(f"killed-{path.name}")


def ledgers(path: Path, *, accept_loss: bool = False) -> int:
    async def scenario() -> int:
        store = await open_store(path, accept_loss=accept_loss)
        found = await store.children("/ledgers")
        await store.close()
        return len(found)

    return asyncio.run(scenario())


def edit(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def test_after_a_kill_everything_is_there_and_the_log_is_short(tmp_path: Path) -> None:
    path = left_by_a_kill(tmp_path / "m.db")
    assert ledgers(path) == 40
    assert not path.with_name(path.name + "-wal").exists()


def test_a_bit_in_the_log_takes_nothing_back_in_silence(tmp_path: Path) -> None:
    path = left_by_a_kill(tmp_path / "m.db")
    log = path.with_name(path.name + "-wal")
    sound = log.read_bytes()
    rng = random.Random(1)
    last_transaction = len(sound) - 8 * 4120
    for place in [0, 9, 17, 33, 44, *(rng.randrange(32, last_transaction) for _ in range(12))]:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << rng.randrange(8)
        trial = tmp_path / f"trial-{place}.db"
        shutil.copy(path, trial)
        trial.with_name(trial.name + "-wal").write_bytes(damaged)
        with pytest.raises(MetadataError, match="-wal is damaged at byte"):
            ledgers(trial)


def test_a_log_without_the_end_of_its_last_transaction_is_no_damage(tmp_path: Path) -> None:
    path = left_by_a_kill(tmp_path / "m.db")
    log = path.with_name(path.name + "-wal")
    sound = log.read_bytes()
    for cut in (1, 100, 4119, 4120):
        trial = tmp_path / f"trial-{cut}.db"
        shutil.copy(path, trial)
        trial.with_name(trial.name + "-wal").write_bytes(sound[:-cut])
        assert ledgers(trial) == 39


def test_a_damaged_log_can_be_accepted_and_is_kept(tmp_path: Path) -> None:
    path = left_by_a_kill(tmp_path / "m.db")
    log = path.with_name(path.name + "-wal")
    damaged = bytearray(log.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    log.write_bytes(damaged)
    assert 0 < ledgers(path, accept_loss=True) < 40
    assert path.with_name(log.name + ".damaged").read_bytes() == damaged
    assert ledgers(path) < 40


@pytest.mark.parametrize("content", [None, b""])
def test_a_log_whose_file_is_away_is_left_as_it_is(tmp_path: Path, content: bytes | None) -> None:
    path = left_by_a_kill(tmp_path / "m.db")
    log = path.with_name(path.name + "-wal")
    changes = log.read_bytes()
    moved = path.rename(tmp_path / "moved.db")
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MetadataError, match=r"put the file back.*--adopt"):
        ledgers(path)
    assert log.read_bytes() == changes
    shutil.copy(moved, path)
    assert ledgers(path) == 40


def test_without_its_file_a_log_is_kept_when_that_is_accepted(tmp_path: Path) -> None:
    path = left_by_a_kill(tmp_path / "m.db")
    log = path.with_name(path.name + "-wal")
    changes = log.read_bytes()
    path.unlink()
    assert ledgers(path, accept_loss=True) == 0
    assert path.with_name(log.name + ".damaged").read_bytes() == changes


@pytest.mark.parametrize(
    ("old", "new"), [(PLACE, PLACE.replace(b"1999", b"1899")), (b"ledgers3", b"ledgers~")]
)
def test_a_bit_in_the_file_is_found_at_the_start(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "m.db"
    left_by_a_kill(path)
    edit(path, old, new)
    with pytest.raises(MetadataError, match=r"damaged.*pulsark restore"):
        ledgers(path)
    reading = read_store(str(path))
    assert reading.damaged or reading.trouble


def test_a_value_that_changed_since_is_never_given_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await open_store(tmp_path / "m.db")
        for path in ("/a", "/b", "/counters/x"):
            await store.put(path, b"1999")
        with closing(sqlite3.connect(tmp_path / "m.db", isolation_level=None)) as other:
            other.execute("UPDATE node SET value = X'31383939' WHERE name != 'b'")
        assert await store.get("/b") == Versioned(b"1999", 0)
        for path in ("/a", "/counters/x"):
            with pytest.raises(MetadataError, match=f"{path} is damaged"):
                await store.get(path)
        with pytest.raises(MetadataError, match="/counters/x is damaged"):
            await store.next_id("/counters/x")
        assert await store.put("/a", b"mended") == 1
        assert await store.get("/a") == Versioned(b"mended", 1)
        await store.close()

    asyncio.run(scenario())


def test_a_value_under_another_path_is_no_value(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await open_store(tmp_path / "m.db")
        await store.put("/a", b"1")
        with closing(sqlite3.connect(tmp_path / "m.db", isolation_level=None)) as other:
            other.execute("UPDATE node SET name = 'b' WHERE name = 'a'")
        with pytest.raises(MetadataError, match="/b is damaged"):
            await store.get("/b")
        await store.close()

    asyncio.run(scenario())


OF_FORMAT_1 = """
CREATE TABLE node (
  parent TEXT NOT NULL,
  name TEXT NOT NULL,
  value BLOB,
  version INTEGER NOT NULL,
  ephemeral INTEGER NOT NULL,
  PRIMARY KEY (parent, name)
) WITHOUT ROWID;
CREATE INDEX ephemeral_node ON node (parent, name) WHERE ephemeral;
INSERT INTO node VALUES ('/', 'a', X'31', 4, 0), ('/', 'e', X'32', 0, 1), ('/', 'p', NULL, 0, 0),
  ('/p', 'c', X'33', 7, 0);
PRAGMA application_id = 0x504C534B;
PRAGMA user_version = 1;
"""


def test_a_store_of_format_1_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(OF_FORMAT_1)
    assert set(read_store(str(path)).nodes) == {"/a", "/e", "/p/c"}

    async def scenario() -> str:
        store = await open_store(path)
        assert await store.get("/a") == Versioned(b"1", 4)
        assert await store.get("/p/c") == Versioned(b"3", 7)
        assert await store.get("/e") is None
        assert await store.children("/") == ["a", "p"]
        await store.close()
        return store.identity

    identity = asyncio.run(scenario())
    assert asyncio.run(scenario()) == identity
    with closing(sqlite3.connect(path)) as new:
        assert new.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_a_store_of_format_2_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    left_by_a_kill(path)
    with closing(sqlite3.connect(path)) as old:
        old.executescript(
            "ALTER TABLE store DROP COLUMN first_version; PRAGMA user_version = 2; VACUUM;"
        )
    before = read_store(str(path))
    assert len(before.nodes) == 40

    async def scenario() -> None:
        store = await open_store(path)
        assert store.identity == before.identity
        assert store.knows(before.history.mark)
        found = await store.get("/ledgers/7")
        assert found == Versioned(PLACE, 0)
        await store.delete("/ledgers/7", 0)
        assert await store.put("/ledgers/7", b"") == 1
        await store.close()

    asyncio.run(scenario())
    assert ledgers(path) == 40


def test_every_commit_is_synced(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await open_store(tmp_path / "m.db")
        assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,)
        assert store._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        await store.close()

    asyncio.run(scenario())
