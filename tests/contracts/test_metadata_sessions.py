"""Several sessions at a time on one metadata store, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from pulsark.errors import BadVersionError, MetadataError, MetadataRefusedError
from pulsark.metadata import sqlite_sessions, sqlite_shared
from pulsark.metadata.etcd.address import EtcdAddress
from pulsark.metadata.etcd.store import EtcdMetadataStore
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.sqlite import SqliteMetadataStore
from pulsark.metadata.sqlite_sessions import OPENING, WRITING, sessions_directory
from pulsark.metadata.sqlite_shared import SharedSqliteMetadataStore
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.store import ZooKeeperMetadataStore
from pulsark.runtime import Runtime, SystemClock
from tests.contracts.test_metadata_store import none_missed

SECONDS = 1.5
"""After so much silence the sessions of these tests are over."""


class Memory:
    def __init__(self, path: Path) -> None:
        self._tree = MemoryTree()

    async def open(self) -> MetadataStore:
        return MemoryMetadataStore(self._tree, SystemClock(), SECONDS)

    def silence(self, store: MetadataStore) -> None:
        """Its process stands still."""
        assert isinstance(store, MemoryMetadataStore)
        store.is_silent = True


class Shared:
    def __init__(self, path: Path) -> None:
        self.path = str(path / "m.db")

    async def open(self) -> MetadataStore:
        return await SharedSqliteMetadataStore.join(self.path, Runtime(), session_seconds=SECONDS)

    def silence(self, store: MetadataStore) -> None:
        assert isinstance(store, SharedSqliteMetadataStore)
        for timer in store._timers:
            timer.cancel()


class ZooKeeper:
    def __init__(self, address: ZooKeeperAddress) -> None:
        self._address = address
        self._silent: threading.Event | None = None

    async def open(self) -> MetadataStore:
        return await ZooKeeperMetadataStore.open(self._address, Runtime(), session_seconds=SECONDS)

    def silence(self, store: MetadataStore) -> None:
        """Kazoo's thread stands still: nothing is sent or heard."""
        assert isinstance(store, ZooKeeperMetadataStore)
        handler = store._client._connection._client.handler
        self._silent, select = threading.Event(), handler.select

        def wait(*arguments: object) -> object:
            assert self._silent is not None
            self._silent.wait()
            handler.select = select
            return select(*arguments)

        handler.select = wait

    def speak(self) -> None:
        """It goes on."""
        assert self._silent is not None
        self._silent.set()


class Etcd:
    def __init__(self, address: EtcdAddress) -> None:
        self._address = address

    async def open(self) -> MetadataStore:
        return await EtcdMetadataStore.open(self._address, Runtime(), session_seconds=SECONDS)

    def silence(self, store: MetadataStore) -> None:
        """Its lease is not kept alive any more."""
        assert isinstance(store, EtcdMetadataStore)
        store._lease.stop()


Sessions = Memory | Shared | ZooKeeper | Etcd
Scenario = Callable[[Sessions], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture(params=[Memory, Shared, ZooKeeper, Etcd], ids=lambda backend: backend.__name__)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    async def awaited(scenario: Awaitable[None]) -> None:
        await scenario

    if request.param is ZooKeeper:
        sessions: Sessions = ZooKeeper(request.getfixturevalue("zookeeper"))
    elif request.param is Etcd:
        sessions = Etcd(request.getfixturevalue("etcd"))
    else:
        sessions = request.param(tmp_path)
    return lambda scenario: asyncio.run(awaited(scenario(sessions)))


async def until(holds: Callable[[], object]) -> None:
    for _ in range(2000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it does not come true")


async def until_gone(store: MetadataStore, path: str) -> None:
    for _ in range(2000):
        if await store.get(path) is None:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{path} stays")


def test_sessions_see_and_watch_each_other(run: Run) -> None:
    async def scenario(sessions: Sessions) -> None:
        one, two = await sessions.open(), await sessions.open()
        assert one.identity == two.identity
        heard: list[str] = []
        two.watch("/o", heard.append, none_missed)
        await one.put("/o/x", b"one", ABSENT, ephemeral=True)
        found = await two.get("/o/x")
        assert found is not None
        assert found.value == b"one"
        await until(lambda: heard)
        with pytest.raises(BadVersionError):
            await two.put("/o/x", b"two", ABSENT, ephemeral=True)
        with pytest.raises(MetadataError):
            await two.put("/o/x", b"two", ephemeral=True)
        heard.clear()
        await one.close()
        await until(lambda: heard)
        assert set(heard) == {"/o/x"}
        assert await two.get("/o/x") is None
        assert await two.put("/o/x", b"two", ABSENT, ephemeral=True) > 0
        await two.close()

    run(scenario)


def test_the_mark_is_that_of_the_last_change_whoever_made_it(run: Run) -> None:
    """What one process sees of another one's changes may lead to what must not precede them."""

    async def scenario(sessions: Sessions) -> None:
        one, two = [await sessions.open(), await sessions.open()]
        told = asyncio.Event()
        two.on_commit(lambda mark: told.set() if mark >= one.mark else None)
        before = two.mark
        await one.put("/x", b"1")
        mark = one.mark
        if isinstance(sessions, ZooKeeper | Etcd):  # it knows no more than it was told
            await two.get("/x")
        assert two.mark >= mark > before
        assert two.knows(mark)
        await asyncio.wait_for(told.wait(), 10)
        for store in (one, two):
            await store.close()

    run(scenario)


def test_one_of_two_sessions_wins_and_ids_are_given_once(run: Run) -> None:
    async def scenario(sessions: Sessions) -> None:
        stores = [await sessions.open(), await sessions.open()]
        for turn in range(10):
            won = await asyncio.gather(
                *(s.put("/v", b"%d" % n, turn - 1) for n, s in enumerate(stores)),
                return_exceptions=True,
            )
            assert sorted(isinstance(w, BadVersionError) for w in won) == [False, True]
        ids = await asyncio.gather(*(stores[n % 2].next_id("/c") for n in range(40)))
        assert sorted(ids) == list(range(40))
        for mark in [store.mark for store in stores]:
            for store in stores:
                await store.get("/v")
            assert [store.knows(mark) for store in stores] == [True, True]
        for store in stores:
            await store.close()

    run(scenario)


def test_a_session_that_speaks_goes_on(run: Run) -> None:
    async def scenario(sessions: Sessions) -> None:
        one, two = await sessions.open(), await sessions.open()
        await one.put("/e", b"", ephemeral=True)
        for _ in range(15):
            await asyncio.sleep(SECONDS / 10)
            assert one.session.is_sure
            assert not one.session.has_ended
        assert await two.get("/e") is not None
        await one.close()
        await two.close()

    run(scenario)


def test_a_silent_session_stops_being_sure_before_it_is_ended(run: Run) -> None:
    async def scenario(sessions: Sessions) -> None:
        one, two = await sessions.open(), await sessions.open()
        told: list[bool] = []
        one.session.on_end(lambda: told.append(True))
        await one.put("/e", b"", ephemeral=True)
        await one.put("/kept", b"")
        sessions.silence(one)
        while one.session.is_sure:
            assert await two.get("/e") is not None
            await asyncio.sleep(0.005)
        await until_gone(two, "/e")
        refused: type[Exception] = MetadataRefusedError
        if isinstance(sessions, ZooKeeper):
            sessions.speak()
            refused = MetadataError  # it may be sent before the end is known
        with pytest.raises(refused):
            await one.put("/kept", b"late", 0)
        await until(lambda: told)
        assert one.session.has_ended
        assert not one.session.is_sure
        with pytest.raises(MetadataRefusedError):
            await one.get("/kept")
        found = await two.get("/kept")
        assert found is not None
        assert found.value == b""
        assert told == [True]
        await one.close()
        await two.close()

    run(scenario)


def test_a_sign_that_comes_late_makes_nobody_sure_of_a_session_that_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        sessions = Shared(tmp_path)
        one, two = await sessions.open(), await sessions.open()
        assert isinstance(one, SharedSqliteMetadataStore)
        await one.put("/e", b"", ephemeral=True)
        sessions.silence(one)
        await until_gone(two, "/e")
        one._give_sign()
        assert not one.session.is_sure
        await until(lambda: one.session.has_ended)
        await one.close()
        await two.close()

    asyncio.run(scenario())


def test_a_sign_that_comes_late_but_not_too_late_saves_the_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        sessions = Shared(tmp_path)
        one = await sessions.open()
        assert isinstance(one, SharedSqliteMetadataStore)
        sessions.silence(one)
        await until(lambda: not one.session.is_sure)
        one._give_sign()
        await until(lambda: one.session.is_sure)
        await one.close()

    asyncio.run(scenario())


def test_who_is_far_behind_is_told_that_it_missed_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_sessions, "METADATA_CHANGES_KEPT", 10)
    monkeypatch.setattr(sqlite_sessions, "_TRIM_EACH", 5)

    async def scenario() -> None:
        sessions = Shared(tmp_path)
        one, two = await sessions.open(), await sessions.open()
        heard: list[str] = []
        two.watch("/w", heard.append, lambda: heard.append("missed"))
        assert isinstance(two, SharedSqliteMetadataStore)
        two._timers[0].cancel()  # it does not look for a while
        await asyncio.gather(*(one.put(f"/w/{n}", b"") for n in range(50)))
        two._look_at_others()
        await until(lambda: "/w/49" in heard)
        assert heard[0] == "missed"
        await one.put("/w/x", b"")
        await until(lambda: "/w/x" in heard)
        assert heard.count("missed") == 1
        await one.close()
        await two.close()

    asyncio.run(scenario())


def test_a_file_that_others_use_is_not_taken_by_one_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        sessions = Shared(tmp_path)
        one = await sessions.open()
        await one.put("/e", b"", ephemeral=True)
        await one.put("/kept", b"1")
        with pytest.raises(MetadataError, match="used by 1 other processes"):
            await SqliteMetadataStore.open(sessions.path, Runtime())
        assert await one.get("/e") is not None
        await one.close()
        alone = await SqliteMetadataStore.open(sessions.path, Runtime())
        assert await alone.children("/") == ["kept"]
        await alone.put("/kept", b"2", 0)
        await alone.close()
        again = await sessions.open()
        found = await again.get("/kept")
        assert found is not None
        assert found.value == b"2"
        await again.close()

    asyncio.run(scenario())


PROCESS = """
import asyncio, fcntl, sys
from pulsark.errors import MetadataRefusedError
from pulsark.metadata.sqlite_shared import SharedSqliteMetadataStore
from pulsark.runtime import Runtime

async def main():
    store = await SharedSqliteMetadataStore.join(sys.argv[1], Runtime(), session_seconds=1.0)
    await store.put("/e", b"", ephemeral=True)
    def begin():
        fcntl.flock(store._writing_lock, fcntl.LOCK_EX)
        store._writer.execute("BEGIN IMMEDIATE")
    ended = asyncio.Event()
    store.session.on_end(ended.set)
    if sys.argv[2] == "within":
        store._worker.submit(begin, lambda *_: None)
        await asyncio.sleep(0.1)
    print("ready", flush=True)
    try:
        while True:
            await asyncio.sleep(0.2)
            if not store.session.is_sure:
                await store.put("/late", b"")
    except MetadataRefusedError:
        await asyncio.wait_for(ended.wait(), 5)
        print("ended", store.session.is_sure, flush=True)

asyncio.run(main())
"""


@contextlib.contextmanager
def started(path: str, how: str = "outside") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, path, how], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.feature("F68")
def test_a_process_that_is_killed_loses_its_session_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = str(tmp_path / "m.db")
        mine = await SharedSqliteMetadataStore.join(path, Runtime(), session_seconds=600)
        with started(path) as process:
            assert await mine.get("/e") is not None
            process.kill()
            await until_gone(mine, "/e")
        await mine.close()
        await until(lambda: sorted(os.listdir(sessions_directory(path))) == [OPENING, WRITING])

    asyncio.run(scenario())


def test_a_process_that_was_stopped_for_too_long_writes_nothing_any_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = str(tmp_path / "m.db")
        mine = await SharedSqliteMetadataStore.join(path, Runtime(), session_seconds=1.0)
        with started(path) as process:
            os.kill(process.pid, signal.SIGSTOP)
            await until_gone(mine, "/e")
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout is not None
            assert process.stdout.readline() == "ended False\n"
        assert await mine.get("/late") is None
        assert mine.session.is_sure
        await mine.close()

    asyncio.run(scenario())


def test_a_process_that_is_stopped_within_a_transaction_holds_nobody_up_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_shared, "IN_THE_WAY_SECONDS", 0.2)

    async def scenario() -> None:
        path = str(tmp_path / "m.db")
        mine = await SharedSqliteMetadataStore.join(path, Runtime(), session_seconds=3.0)
        with started(path, "within") as process:
            os.kill(process.pid, signal.SIGSTOP)
            await mine.put("/mine", b"")  # it waits until then
            assert process.wait(5) == -signal.SIGKILL
            await until_gone(mine, "/e")
        await mine.close()

    asyncio.run(scenario())
