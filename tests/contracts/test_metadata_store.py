"""The contract of a metadata store, for every implementation.

An implementation joins with a ``Backend``: something that opens sessions on the same tree, one
after the other or, if ``shares`` says so, several at a time.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from pulsark.errors import BadVersionError, MetadataError
from pulsark.limits import METADATA_COMMIT_BYTES_MAX, METADATA_COMMIT_CHANGES_MAX, METADATA_PAGE_MAX
from pulsark.metadata.changes import Change, Check, Delete, Put
from pulsark.metadata.etcd.address import EtcdAddress
from pulsark.metadata.etcd.store import EtcdMetadataStore
from pulsark.metadata.history import NO_MARK, NONCE_BITS, mark_of
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.pages import names_below
from pulsark.metadata.sqlite import _CHILDREN_AT_ONCE, SqliteMetadataStore
from pulsark.metadata.sqlite_shared import SharedSqliteMetadataStore
from pulsark.metadata.store import ABSENT, MAX_VALUE_BYTES, MetadataStore, Versioned
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.layout import Layout
from pulsark.metadata.zookeeper.store import ZooKeeperMetadataStore
from pulsark.runtime import Runtime
from tests.support import etcd as etcd_server
from tests.support.faulty_metadata import FaultyStore
from tests.support.zookeeper import expire


class Backend(Protocol):
    shares: bool

    async def open(self) -> MetadataStore: ...

    async def kill(self, store: MetadataStore) -> None:
        """End a session without closing it, as the death of its process does."""


class MemoryBackend:
    shares = True

    def __init__(self, path: Path) -> None:
        self._tree = MemoryTree()

    async def open(self) -> MetadataStore:
        return MemoryMetadataStore(self._tree)

    async def kill(self, store: MetadataStore) -> None:
        assert isinstance(store, MemoryMetadataStore)
        store.expire()


class FaultyBackend(MemoryBackend):
    """Without a fault it is a store as any other; ``test_metadata_outcomes`` has the faults."""

    async def open(self) -> MetadataStore:
        return FaultyStore(self._tree)


class SqliteBackend:
    shares = False

    def __init__(self, path: Path) -> None:
        self._path = str(path / "metadata.db")
        self._dead: list[MetadataStore] = []

    async def open(self) -> MetadataStore:
        return await SqliteMetadataStore.open(self._path, Runtime())

    async def kill(self, store: MetadataStore) -> None:
        # What is left of a killed process is its file; its connections just stay unused.
        self._dead.append(store)


class SharedBackend:
    """SQLite for several processes; each session of it could be another one's."""

    shares = True

    def __init__(self, path: Path) -> None:
        self._path = str(path / "metadata.db")

    async def open(self) -> MetadataStore:
        return await SharedSqliteMetadataStore.join(self._path, Runtime())

    async def kill(self, store: MetadataStore) -> None:
        assert isinstance(store, SharedSqliteMetadataStore)
        for timer in store._timers:
            timer.cancel()
        os.close(store._lock)  # as the kernel does


BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "memory": MemoryBackend,
    "faulty": FaultyBackend,
    "sqlite": SqliteBackend,
    "shared": SharedBackend,
}
Scenario = Callable[[Backend], Awaitable[None]]
Run = Callable[[Scenario], None]


class ZooKeeperBackend:
    """ZooKeeper, with the paths of these tests in directories as those of topics are."""

    shares = True

    def __init__(self, address: ZooKeeperAddress) -> None:
        self._address = address

    async def open(self) -> MetadataStore:
        return await ZooKeeperMetadataStore.open(
            self._address, Runtime(), layout=Layout(16, {"/t": 0})
        )

    async def kill(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperMetadataStore)
        await expire(store._client)  # what the server does after a time


class EtcdBackend:
    """etcd."""

    shares = True

    def __init__(self, address: EtcdAddress) -> None:
        self._address = address

    async def open(self) -> MetadataStore:
        return await EtcdMetadataStore.open(self._address, Runtime())

    async def kill(self, store: MetadataStore) -> None:
        assert isinstance(store, EtcdMetadataStore)
        await etcd_server.expire(store)


SERVERS: dict[str, Callable[..., Backend]] = {"zookeeper": ZooKeeperBackend, "etcd": EtcdBackend}
"""By the fixture that says where the server is."""


@pytest.fixture(params=[*sorted(BACKENDS), *SERVERS])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Run a scenario on one backend."""

    def run_scenario(scenario: Scenario) -> None:
        if make := SERVERS.get(request.param):
            backend = make(request.getfixturevalue(request.param))
        else:
            backend = BACKENDS[request.param](tmp_path)
        asyncio.run(_awaited(scenario(backend)))

    return run_scenario


async def _awaited(scenario: Awaitable[None]) -> None:
    await scenario


def none_missed() -> None:
    raise AssertionError("nothing was missed")


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_value_is_there_after_put_and_gone_after_delete(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        assert await store.get("/a/b") is None
        assert await store.put("/a/b", b"one") == 0
        assert await store.get("/a/b") == Versioned(b"one", 0)
        assert await store.get("/a") is None
        await store.delete("/a/b")
        assert await store.get("/a/b") is None
        await store.close()

    run(scenario)


def test_versions_rise_and_never_repeat_even_after_a_delete(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        assert [await store.put("/v", b"%d" % n) for n in range(3)] == [0, 1, 2]
        await store.delete("/v", 2)
        again = await store.put("/v", b"", ABSENT)
        assert again > 2
        assert await store.get("/v") == Versioned(b"", again)
        await store.delete("/v")
        await backend.kill(store)
        store = await backend.open()
        after_a_start, _, newest = await asyncio.gather(  # in SQLite in one transaction
            store.put("/v", b"", ABSENT), store.delete("/v"), store.put("/v", b"", ABSENT)
        )
        assert again < after_a_start < newest
        for stale in range(newest):
            with pytest.raises(BadVersionError):
                await store.put("/v", b"stale", stale)
        await store.close()

    run(scenario)


def test_a_version_from_before_a_deletion_changes_nothing_of_the_successor(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        for ephemeral in (False, True):
            stale = await store.put("/t", b"first", ABSENT, ephemeral=ephemeral)
            await store.delete("/t")
            await store.put("/t", b"second", ABSENT, ephemeral=ephemeral)
            with pytest.raises(BadVersionError):
                await store.put("/t", b"stale", stale, ephemeral=ephemeral)
            with pytest.raises(BadVersionError):
                await store.delete("/t", stale)
            found = await store.get("/t")
            assert found is not None
            assert found.value == b"second"
            await store.delete("/t", found.version)
        await store.close()

    run(scenario)


def test_a_write_at_another_version_changes_nothing(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        with pytest.raises(BadVersionError, match="does not exist"):
            await store.put("/v", b"x", 0)
        with pytest.raises(BadVersionError, match="does not exist"):
            await store.delete("/v")
        await store.put("/v", b"x", ABSENT)
        for wrong in (ABSENT, 1, 7):
            with pytest.raises(BadVersionError, match="is at version 0"):
                await store.put("/v", b"y", wrong)
            with pytest.raises(BadVersionError, match="is at version 0"):
                await store.delete("/v", wrong)
        assert await store.get("/v") == Versioned(b"x", 0)
        assert await store.put("/v", b"y", 0) == 1
        await store.close()

    run(scenario)


def test_a_commit_makes_all_changes_or_none(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        heard: list[str] = []
        store.watch("/", heard.append, none_missed)
        guard = await store.put("/guard", b"1")
        await store.put("/old", b"old")
        versions = await store.commit(
            (
                Check("/guard", guard),
                Check("/none", ABSENT),
                Put("/a/b", b"a", ABSENT),
                Put("/e", b"e", ABSENT, ephemeral=True),
                Delete("/old", 0),
            )
        )
        assert list(versions[:2]) == [guard, ABSENT]
        assert versions[4] == ABSENT
        assert await store.get("/a/b") == Versioned(b"a", versions[2])
        assert await store.get("/e") == Versioned(b"e", versions[3])
        assert await store.get("/old") is None
        await turns()
        assert set(heard) == {"/guard", "/old", "/a/b", "/e"}
        assert heard.count("/guard") == 1, "a check is no change"
        await backend.kill(store)
        store = await backend.open()
        assert await store.children("/") == ["a", "guard"]
        await store.close()

    run(scenario)


REFUSED = [
    Check("/there", 7),
    Check("/there", ABSENT),
    Check("/none", 0),
    Put("/there", b"", 7),
    Put("/there", b"", ABSENT),
    Put("/none", b"", 0),
    Delete("/there", 7),
    Delete("/none"),
]


@pytest.mark.parametrize("refused", REFUSED, ids=str)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_condition_that_does_not_hold_refuses_the_whole_commit(
    run: Run, refused: Change, place: int
) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.put("/there", b"0")
        await store.put("/gone?", b"0")
        changes: list[Change] = [Put("/new", b"1", ABSENT), Delete("/gone?", 0)]
        changes.insert(place, refused)
        with pytest.raises(BadVersionError) as error:
            await store.commit(changes)
        assert error.value.path == refused.path
        assert await store.children("/") == ["gone?", "there"]
        assert await store.get("/there") == Versioned(b"0", 0)
        assert await store.get("/gone?") == Versioned(b"0", 0)
        await store.close()

    run(scenario)


def test_commits_that_check_what_others_change_never_both_count(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await asyncio.gather(store.put("/a", b""), store.put("/b", b""))
        results = await asyncio.gather(
            store.commit((Check("/a", 0), Put("/b", b"one"))),
            store.commit((Check("/b", 0), Put("/a", b"two"))),
            return_exceptions=True,
        )
        assert sum(isinstance(result, BadVersionError) for result in results) == 1
        await store.close()

    run(scenario)


def test_a_commit_is_bounded_and_names_no_path_twice(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        largest: list[Change] = [Put("/big", bytes(MAX_VALUE_BYTES))]
        largest += [Check(f"/none/{n}", ABSENT) for n in range(METADATA_COMMIT_CHANGES_MAX - 1)]
        await store.commit(largest)
        over = METADATA_COMMIT_BYTES_MAX // 2 + 1
        for wrong in (
            [],
            [*largest, Check("/none", ABSENT)],
            [Put("/x", bytes(over)), Put("/y", bytes(over))],
            [Put("/x", bytes(MAX_VALUE_BYTES + 1))],
            [Put("/x", b""), Check("no/path", 0)],
            [Put("/x", b""), Check("/x", ABSENT)],
        ):
            with pytest.raises(MetadataError):
                await store.commit(wrong)
        assert await store.children("/") == ["big"]
        await store.close()

    run(scenario)


@pytest.mark.feature("F67")
def test_of_many_concurrent_writes_at_one_version_exactly_one_wins(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.put("/v", b"start")
        results = await asyncio.gather(
            *(store.put("/v", b"%d" % n, 0) for n in range(20)), return_exceptions=True
        )
        winners = [n for n, result in enumerate(results) if result == 1]
        assert len(winners) == 1
        assert sum(isinstance(r, BadVersionError) for r in results) == 19
        assert await store.get("/v") == Versioned(b"%d" % winners[0], 1)
        await store.close()

    run(scenario)


def test_children_are_direct_sorted_and_include_those_without_a_value(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        for path in ("/t/n", "/t/n-x", "/t/n/y/z", "/t/m%2Fq", "/t/é", "/tt/other", "/t/a b"):
            await store.put(path, b"")
        assert await store.children("/t") == ["a b", "m%2Fq", "n", "n-x", "é"]
        assert await store.children("/t/n") == ["y"]
        assert await store.children("/") == ["t", "tt"]
        assert await store.children("/none") == []
        await store.close()

    run(scenario)


def test_pages_go_through_all_children_once_in_one_order(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        names = [f"{n:03d}" for n in range(25)] + ["%2Fq", "é", "\uffff", "\U0001f600"]
        await asyncio.gather(*(store.put(f"/t/{name}/below", b"") for name in names))
        await store.put("/tt", b"")
        seen = [await paged(store, "/t", limit) for limit in (1, 2, 29, 30)]
        assert all(pages == seen[0] for pages in seen), "the limit does not change the order"
        assert sorted(seen[0]) == await store.children("/t")
        assert await store.page("/t", seen[0][11], 3) == seen[0][12:15]
        assert await store.page("/none") == []
        assert await store.page("/") == ["t", "tt"]
        for limit in (0, -1, METADATA_PAGE_MAX + 1):
            with pytest.raises(MetadataError):
                await store.page("/t", "", limit)
        await store.close()

    run(scenario)


async def paged(store: MetadataStore, path: str, limit: int) -> list[str]:
    return [name async for name in names_below(store, path, limit)]


def test_pages_meet_what_stays_although_others_come_and_go(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        stay = {f"{n:03d}" for n in range(0, 60, 3)}
        go = {f"{n:03d}" for n in range(1, 60, 3)}
        for name in stay | go:
            await store.put(f"/t/{name}", b"")
        met: list[str] = []
        async for name in names_below(store, "/t", 4):
            met.append(name)
            if name in go:
                await store.delete(f"/t/{name}")  # the next page goes on behind it
            if len(met) % 5 == 0 and len(met) < 60:
                await store.put(f"/t/{name}-new", b"")
                await store.put(f"/t/-{name}", b"")
        assert len(met) == len(set(met))
        assert stay <= set(met)
        await store.close()

    run(scenario)


def test_a_deleted_parent_keeps_its_children_and_an_emptied_one_vanishes(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.put("/a/b", b"1")
        await store.put("/a/b/c", b"2")
        await store.delete("/a/b")
        assert await store.get("/a/b/c") == Versioned(b"2", 0)
        assert await store.children("/a") == ["b"]
        assert await store.put("/a/b", b"again", ABSENT) > 0
        await store.delete("/a/b/c")
        assert await store.children("/a/b") == []
        await store.delete("/a/b")
        assert await store.children("/") == []
        await store.close()

    run(scenario)


def test_a_value_comes_together_with_one_below_it(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        one, two = await asyncio.gather(
            store.put("/a/b", b"", ABSENT), store.put("/a", b"a", ABSENT)
        )
        assert await store.get("/a") == Versioned(b"a", two)
        assert await store.put("/a", b"more", two) == two + 1
        assert await store.commit((Check("/c/d", ABSENT), Put("/c", b"c", ABSENT)))
        await store.delete("/a/b", one)
        assert await store.children("/") == ["a", "c"]
        assert await store.get("/a") == Versioned(b"more", two + 1)
        await store.close()

    run(scenario)


def test_values_and_versions_survive_the_session(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        for n in range(3):
            store = await backend.open()
            assert await store.put("/keep", b"%d" % n, n - 1) == n
            if n == 1:
                await backend.kill(store)
            else:
                await store.close()
        store = await backend.open()
        assert await store.get("/keep") == Versioned(b"2", 2)
        await store.close()

    run(scenario)


@pytest.mark.parametrize("how", ["close", "kill"])
def test_ephemeral_values_end_with_their_session(run: Run, how: str) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.put("/owner/x", b"me", ABSENT, ephemeral=True)
        await store.put("/owner/y", b"kept")
        assert await store.put("/owner/x", b"me again", 0, ephemeral=True) == 1
        await (store.close() if how == "close" else backend.kill(store))
        store = await backend.open()
        assert await store.get("/owner/x") is None
        assert await store.children("/owner") == ["y"]
        assert await store.put("/owner/x", b"other", ABSENT, ephemeral=True) > 1
        await store.close()

    run(scenario)


def test_a_put_cannot_turn_an_ephemeral_value_into_a_lasting_one_or_back(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.put("/e", b"", ephemeral=True)
        await store.put("/d", b"")
        with pytest.raises(MetadataError):
            await store.put("/e", b"x")
        with pytest.raises(MetadataError):
            await store.put("/d", b"x", ephemeral=True)
        await store.close()

    run(scenario)


def test_ids_rise_over_concurrency_and_sessions(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        ids = await asyncio.gather(*(store.next_id("/counters/x") for _ in range(10)))
        assert ids[0] == 0
        await backend.kill(store)
        store = await backend.open()
        ids += [await store.next_id("/counters/x") for _ in range(3)]
        assert ids == sorted(set(ids))
        assert await store.next_id("/counters/other") == 0
        await store.close()

    run(scenario)


def test_a_watch_hears_changes_at_and_below_its_prefix_until_it_ends(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        heard: list[str] = []
        end = store.watch("/w", heard.append, none_missed)
        everything: list[str] = []
        store.watch("/", everything.append, none_missed)
        await store.put("/w/a/b", b"")
        await store.put("/w", b"")
        await store.put("/ww", b"")
        with pytest.raises(BadVersionError):
            await store.put("/w", b"", 9)
        await store.delete("/w/a/b")
        await turns()
        assert list(dict.fromkeys(heard)) == ["/w/a/b", "/w"]
        assert set(everything) == {"/w/a/b", "/w", "/ww"}
        count = len(heard)
        end()
        end()
        await store.put("/w", b"")
        await turns()
        assert len(heard) == count
        await store.close()

    run(scenario)


def test_a_change_is_heard_although_nobody_waits_for_its_outcome(run: Run) -> None:
    """A caller that goes takes the answer with it, and what it wrote stays."""

    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        heard: set[str] = set()
        store.watch("/w", heard.add, lambda: None)
        for after in range(10):
            writing = asyncio.create_task(store.put(f"/w/{after}", b"", ABSENT))
            await turns(after)
            writing.cancel()
            await asyncio.wait([writing])
        await store.put("/w/last", b"", ABSENT)  # after which nothing is on its way
        there = {f"/w/{name}" for name in await store.children("/w")}
        for _ in range(1000):
            if heard >= there:
                break
            await asyncio.sleep(0.005)
        assert heard >= there
        await store.close()

    run(scenario)


def test_a_change_made_in_a_watch_is_heard_too(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        tasks: list[asyncio.Task[int]] = []

        def changed(path: str) -> None:
            if path == "/w/1":
                tasks.append(asyncio.ensure_future(store.put("/w/2", b"")))

        heard: list[str] = []
        store.watch("/w", changed, none_missed)
        store.watch("/w", heard.append, none_missed)
        await store.put("/w/1", b"")
        await turns()
        await asyncio.gather(*tasks)
        await turns()
        assert set(heard) == {"/w/1", "/w/2"}
        await store.close()

    run(scenario)


@pytest.mark.parametrize(
    "path", ["", "a", "/", "/a/", "//a", "/a//b", "/a/../b", "/./a", "/a\0b", "/\ud800"]
)
def test_what_is_not_a_path_is_refused(run: Run, path: str) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        for call in (store.get(path), store.put(path, b""), store.delete(path)):
            with pytest.raises(MetadataError):
                await call
        await store.close()

    run(scenario)


def test_a_value_has_at_most_a_mebibyte(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.put("/big", bytes(MAX_VALUE_BYTES))
        with pytest.raises(MetadataError, match="/big"):
            await store.put("/big", bytes(MAX_VALUE_BYTES + 1))
        found = await store.get("/big")
        assert found is not None
        assert len(found.value) == MAX_VALUE_BYTES
        await store.close()

    run(scenario)


@pytest.mark.parametrize("run", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(50_000, id="fifty"),  # a parent has more than is read of SQLite at once
        pytest.param(100_000, id="hundred", marks=pytest.mark.chaos),
    ],
)
def test_thousands_of_values(run: Run, count: int) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        topics = [f"/t/{n % 10}/{n:06d}" for n in range(count)]
        for start in range(0, len(topics), 10_000):
            await asyncio.gather(
                *(store.put(path, b"x") for path in topics[start : start + 10_000])
            )
        assert len(await store.children("/t/7")) == count // 10 > _CHILDREN_AT_ONCE
        await backend.kill(store)
        store = await backend.open()
        assert await store.children("/t/3") == [path[5:] for path in topics[3::10]]
        assert await store.get(topics[-1]) == Versioned(b"x", 0)
        await store.close()

    run(scenario)


def test_values_at_the_limit_side_by_side(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        values = [bytes([n]) * MAX_VALUE_BYTES for n in range(8)]
        await asyncio.gather(*(store.put(f"/big/{n}", v) for n, v in enumerate(values)))
        await backend.kill(store)
        store = await backend.open()
        for n, value in enumerate(values):
            assert await store.get(f"/big/{n}") == Versioned(value, 0)
        await store.close()

    run(scenario)


def test_the_identity_stays_and_marks_of_the_past_are_known(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        identity, marks = store.identity, [NO_MARK, store.mark]
        for n in range(3):
            await store.put("/a", b"%d" % n)
            marks.append(store.mark)
        await backend.kill(store)
        store = await backend.open()
        assert store.identity == identity
        assert marks == sorted(set(marks))
        assert all(store.knows(mark) for mark in marks)
        assert store.mark >= marks[-1]
        assert not store.knows(mark_of((store.mark >> NONCE_BITS) + 1, 0))
        await store.close()

    run(scenario)


def test_a_commit_is_told_before_the_write_returns(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        told: list[int] = []
        store.on_commit(told.append)
        for path in ("/a", "/b"):
            before = len(told)
            await store.put(path, b"")
            assert len(told) > before
        await store.next_id("/c")
        await store.delete("/a")
        assert told == sorted(told)
        assert told[-1] == store.mark
        await store.close()

    run(scenario)


def test_what_was_adopted_is_known_from_then_on(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        strange = mark_of((store.mark >> NONCE_BITS) + 1000, 5)
        assert not store.knows(strange)
        await store.adopt([NO_MARK, strange])
        assert store.mark > strange
        await store.put("/a", b"")
        mark = store.mark
        await backend.kill(store)
        store = await backend.open()
        assert store.mark >= mark
        assert store.knows(mark)
        await store.close()

    run(scenario)


def test_after_the_close_every_call_is_refused(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.close()
        await store.close()
        for call in (store.get("/a"), store.put("/a", b""), store.next_id("/c")):
            with pytest.raises(MetadataError):
                await call

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_agree_with_a_dictionary(run: Run, seed: int) -> None:
    """The model: paths to (value, version); children are the next parts of longer paths."""
    rng = random.Random(seed)
    paths = ["/" + "/".join(rng.choices("abc", k=rng.randint(1, 3))) for _ in range(12)]

    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        model: dict[str, Versioned] = {}
        deleted: dict[str, int] = {}
        for step in range(60):
            path = rng.choice(paths)
            version = model[path].version if path in model else ABSENT
            expected = rng.choice([version, version, version + 1])
            delete = rng.random() < 0.4
            try:
                if delete:
                    await store.delete(path, expected)
                else:
                    new = await store.put(path, b"%d" % step, expected)
            except BadVersionError:
                assert expected != version or (delete and path not in model)
            else:
                assert expected == version
                if delete:
                    deleted[path] = model.pop(path).version
                else:
                    assert new == version + 1 if version != ABSENT else new > deleted.get(path, -1)
                    model[path] = Versioned(b"%d" % step, new)
        for path in paths:
            assert await store.get(path) == model.get(path)
        for parent in {"/", *paths}:
            prefix = parent.rstrip("/") + "/"
            expected_names = {p[len(prefix) :].split("/")[0] for p in model if p.startswith(prefix)}
            assert await store.children(parent) == sorted(expected_names)
        await store.close()

    run(scenario)


@pytest.mark.feature("F68")
def test_sqlite_refuses_other_files_and_newer_formats(tmp_path: Path) -> None:
    import sqlite3

    async def refused(path: Path, text: str) -> None:
        with pytest.raises(MetadataError, match=text):
            await SqliteMetadataStore.open(str(path), Runtime())

    async def scenario() -> None:
        garbage = tmp_path / "garbage.db"
        garbage.write_bytes(b"not a database, certainly not" * 100)
        await refused(garbage, "not a database")
        foreign = tmp_path / "foreign.db"
        with sqlite3.connect(foreign) as connection:
            connection.execute("CREATE TABLE t (x)")
        await refused(foreign, "not a metadata store")
        newer = tmp_path / "newer.db"
        store = await SqliteMetadataStore.open(str(newer), Runtime())
        await store.close()
        with sqlite3.connect(newer) as connection:
            connection.execute("PRAGMA user_version = 99")
        await refused(newer, "format 99")
        await refused(tmp_path / "no" / "such" / "directory.db", "cannot open")

    asyncio.run(scenario())


def test_sqlite_never_syncs_on_the_event_loop(tmp_path: Path) -> None:
    """While the worker is held up, reads are served and writes wait, then share a transaction."""
    import threading

    class HeldWorker:
        def __init__(self, name: str) -> None:
            from pulsark.runtime import ThreadWorker

            self.inner = ThreadWorker(name)
            self.jobs = 0

        def submit(self, job, done) -> None:  # type: ignore[no-untyped-def]
            self.jobs += 1
            self.inner.submit(job, done)

        def close(self) -> None:
            self.inner.close()

    async def scenario() -> None:
        workers: list[HeldWorker] = []

        def new_worker(name: str) -> HeldWorker:
            workers.append(HeldWorker(name))
            return workers[-1]

        store = await SqliteMetadataStore.open(
            str(tmp_path / "m.db"), Runtime(new_worker=new_worker)
        )
        await store.put("/a", b"old")
        gate = threading.Event()
        workers[0].inner.submit(gate.wait, lambda *_: None)
        before = workers[0].jobs
        writes = [asyncio.ensure_future(store.put(f"/x/{n}", b"")) for n in range(50)]
        await turns()
        assert await store.get("/a") == Versioned(b"old", 0)
        assert not any(w.done() for w in writes)
        gate.set()
        await asyncio.gather(*writes)
        assert workers[0].jobs - before <= 2
        assert len(await store.children("/x")) == 50
        await store.close()

    asyncio.run(scenario())
