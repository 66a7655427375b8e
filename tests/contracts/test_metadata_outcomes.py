"""Writes of the metadata store whose outcome nobody hears, and that are refused."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsark.errors import BadVersionError, MetadataRefusedError, OutcomeUnknownError
from pulsark.metadata import settled
from pulsark.metadata.changes import Check, Delete, Put
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.settled import put_settled
from pulsark.metadata.sqlite import SqliteMetadataStore
from pulsark.metadata.sqlite_file import connect, open_file
from pulsark.metadata.sqlite_writes import transaction
from pulsark.metadata.store import ABSENT, Versioned
from pulsark.runtime import Done, Runtime, SystemClock, ThreadWorker
from tests.support.faulty_metadata import TURNS_LATE, Fate, FaultyStore

UNHEARD = (Fate.NEVER, Fate.UNHEARD, Fate.LATE)


async def long_enough() -> None:
    for _ in range(2 * TURNS_LATE):
        await asyncio.sleep(0)


@pytest.mark.parametrize("fate", UNHEARD)
def test_an_unheard_commit_is_made_as_a_whole_or_not_at_all(fate: Fate) -> None:
    async def scenario() -> None:
        store = FaultyStore(MemoryTree())
        await store.put("/old", b"")
        store.fates.append(fate)
        with pytest.raises(OutcomeUnknownError):
            await store.commit((Put("/a", b"1"), Delete("/old"), Check("/none", ABSENT)))
        before = await store.children("/")
        await long_enough()
        after = await store.children("/")
        assert before == (["a"] if fate is Fate.UNHEARD else ["old"])
        assert after == (["old"] if fate is Fate.NEVER else ["a"])

    asyncio.run(scenario())


@pytest.mark.parametrize("fate", UNHEARD)
def test_an_id_is_given_once_although_an_answer_was_lost(fate: Fate) -> None:
    async def scenario() -> None:
        store = FaultyStore(MemoryTree())
        first = await store.next_id("/c")
        store.fates.append(fate)
        with pytest.raises(OutcomeUnknownError):
            await store.next_id("/c")
        ids = [first, await store.next_id("/c")]
        await long_enough()
        ids.append(await store.next_id("/c"))
        assert ids == sorted(set(ids))

    asyncio.run(scenario())


@pytest.mark.parametrize("fates", list(itertools.product(UNHEARD, repeat=3)), ids=str)
@pytest.mark.parametrize("version", [ABSENT, 0])
def test_a_settled_write_is_made_once_whatever_is_heard(
    monkeypatch: pytest.MonkeyPatch, fates: tuple[Fate, ...], version: int
) -> None:
    monkeypatch.setattr(settled, "_RETRY_SECONDS", 0)

    async def scenario() -> None:
        store = FaultyStore(MemoryTree())
        if version != ABSENT:
            await store.put("/v", b"before")
        store.fates.extend(fates)
        assert await put_settled(store, "/v", b"mine", version) == version + 1
        await long_enough()
        assert await store.get("/v") == Versioned(b"mine", version + 1), "and no late one counts"

    asyncio.run(scenario())


@pytest.mark.parametrize("fate", UNHEARD)
def test_a_settled_write_never_replaces_what_another_wrote(
    monkeypatch: pytest.MonkeyPatch, fate: Fate
) -> None:
    monkeypatch.setattr(settled, "_RETRY_SECONDS", 0.01)

    async def scenario() -> None:
        tree = MemoryTree()
        store, other = FaultyStore(tree), MemoryMetadataStore(tree)
        store.fates.append(fate)
        task = asyncio.create_task(put_settled(store, "/v", b"mine", ABSENT))
        await long_enough()
        await other.put("/v", b"another")
        with pytest.raises(BadVersionError):
            await task
        found = await store.get("/v")
        assert found is not None
        assert found.value == b"another"

    asyncio.run(scenario())


def test_a_write_that_stays_unheard_ends_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled, "_RETRY_SECONDS", 0)

    async def scenario() -> None:
        store = FaultyStore(MemoryTree())
        store.fates.extend([Fate.NEVER] * 1000)
        with pytest.raises(OutcomeUnknownError):
            await put_settled(store, "/v", b"", ABSENT)
        store.fates.clear()
        store.fates.append(Fate.NEVER)
        task = asyncio.create_task(put_settled(store, "/v", b"", ABSENT))
        await asyncio.sleep(0)
        store.expire()
        with pytest.raises(OutcomeUnknownError):  # the first attempt may have been made
            await task
        with pytest.raises(MetadataRefusedError):
            await put_settled(store, "/v", b"", ABSENT)

    asyncio.run(scenario())


def test_who_missed_changes_is_told_so_and_hears_the_next_ones() -> None:
    async def scenario() -> None:
        store = FaultyStore(MemoryTree())
        heard: list[str] = []
        end = store.watch("/w", heard.append, lambda: heard.append("missed"))
        await store.put("/w/1", b"")
        await long_enough()
        store.lose_watches()
        await store.put("/w/2", b"")
        await long_enough()
        assert heard == ["/w/1"]
        store.watch_again()
        await long_enough()
        assert heard == ["/w/1", "missed"]
        await store.put("/w/3", b"")
        await long_enough()
        assert heard == ["/w/1", "missed", "/w/3"]
        end()
        store.watch_again()
        await long_enough()
        assert heard == ["/w/1", "missed", "/w/3"]

    asyncio.run(scenario())


class Gated:
    """A worker that does nothing while its gate is closed."""

    gate = threading.Event()

    def __init__(self, name: str) -> None:
        self._inner = ThreadWorker(name)

    def submit(self, job: Callable[[], object], done: Done) -> None:
        self._inner.submit(lambda: (self.gate.wait(), job())[1], done)

    def close(self) -> None:
        self._inner.close()


def test_nobody_waits_for_ever_for_a_disk_that_hangs(tmp_path: Path) -> None:
    async def scenario() -> None:
        Gated.gate.set()
        store = await SqliteMetadataStore.open(
            str(tmp_path / "m.db"), Runtime(new_worker=Gated), timeout_seconds=0.05
        )
        Gated.gate.clear()
        begun = asyncio.ensure_future(store.put("/begun", b""))
        waiting = asyncio.ensure_future(store.put("/waiting", b""))
        with pytest.raises(OutcomeUnknownError, match="has not answered"):
            await begun
        with pytest.raises(MetadataRefusedError, match="nothing was written"):
            await waiting
        Gated.gate.set()
        await store.put("/after", b"")
        assert await store.children("/") == ["after", "begun"], "what was refused is not made"
        await store.close()

    asyncio.run(scenario())


class Failing:
    """A connection that fails at one statement."""

    def __init__(self, connection: sqlite3.Connection, statement: str) -> None:
        self._connection = connection
        self._statement = statement

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, statement: str, *parameters: object) -> sqlite3.Cursor:
        if statement.startswith(self._statement):
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("BEGIN", MetadataRefusedError),
        ("UPDATE store", MetadataRefusedError),
        ("INSERT", MetadataRefusedError),
        ("COMMIT", OutcomeUnknownError),
    ],
)
def test_only_a_commit_that_fails_leaves_the_outcome_open(
    tmp_path: Path, statement: str, error: type[Exception]
) -> None:
    path = str(tmp_path / "m.db")
    connection = open_file(path, "0" * 32, SystemClock(), accept_loss=False)
    insert = lambda c: c.execute("INSERT INTO session VALUES (1, 1)")  # noqa: E731
    with pytest.raises(error, match="disk I/O error"):
        transaction(Failing(connection, statement), [insert])  # type: ignore[arg-type]
    assert not connection.in_transaction
    assert connect(path).execute("SELECT count(*) FROM session").fetchone() == (0,)
    connection.close()
