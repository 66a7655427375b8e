"""Faults of the servers that hold a metadata store, and several processes on one of them.

What only one kind of server has is in ``test_etcd_store`` and ``test_zookeeper_store``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from pulsark.errors import (
    BadVersionError,
    CorruptMetadataError,
    MetadataError,
    MetadataRefusedError,
    OutcomeUnknownError,
)
from pulsark.metadata import settled
from pulsark.metadata.changes import Check, Put
from pulsark.metadata.settled import put_settled
from pulsark.metadata.store import ABSENT, MetadataStore, Versioned
from tests.support.metadata_servers import OnEtcd, OnZooKeeper, Servers

TOPIC = "/managed-ledgers/public/default/persistent/orders"

Run = Callable[[Callable[[Servers], Awaitable[None]]], None]


@pytest.fixture(params=["zookeeper", "etcd"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test's coroutine with stores on a real server, and closes them."""
    address = request.getfixturevalue(request.param)

    async def scenario(body: Callable[[Servers], Awaitable[None]]) -> None:
        servers: Servers = OnEtcd(address) if request.param == "etcd" else OnZooKeeper(address)
        await body(servers)
        await servers.close()

    return lambda body: asyncio.run(scenario(body))


@pytest.mark.parametrize("ephemeral", [False, True])
def test_a_version_from_before_a_deletion_is_refused_although_the_server_counts_the_same(
    run: Run, ephemeral: bool
) -> None:
    async def scenario(servers: Servers) -> None:
        one, two = await servers.open(), await servers.open()
        for path in (TOPIC, "/o/x"):
            stale = await one.put(path, b"first", ABSENT, ephemeral=ephemeral)
            assert await one.get(path) == Versioned(b"first", stale)
            await two.delete(path, stale)
            again = await two.put(path, b"second", ABSENT)
            assert again > stale
            for write in (
                one.put(path, b"stale", stale, ephemeral=ephemeral),
                one.delete(path, stale),
                one.commit((Check(path, stale), Put("/other", b""))),
            ):
                with pytest.raises(BadVersionError):
                    await write
            assert await one.get(path) == Versioned(b"second", again)
            assert await one.get("/other") is None

    run(scenario)


def test_an_ephemeral_value_that_ended_with_its_session_never_has_a_version_again(
    run: Run,
) -> None:
    async def scenario(servers: Servers) -> None:
        versions: set[int] = set()
        two = await servers.open()
        for _ in range(3):
            one = await servers.open()
            version = await one.put("/namespace/t/n/b", b"", ABSENT, ephemeral=True)
            written = {version}
            for n in range(20):
                version = await one.put("/namespace/t/n/b", b"%d" % n, version, ephemeral=True)
                written.add(version)
            with pytest.raises(MetadataRefusedError, match="is ephemeral"):
                await two.put("/namespace/t/n/b", b"mine", ephemeral=True)
            await servers.end_session(one)
            assert await two.get("/namespace/t/n/b") is None
            assert len(written) == 21
            assert not versions & written
            versions |= written

    run(scenario)


@pytest.mark.feature("F67")
def test_no_write_is_lost_or_made_twice_although_connections_break(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several writers change one value, each by writes at the version that it has read."""
    monkeypatch.setattr(settled, "_RETRY_SECONDS", 0.01)
    rng = random.Random(4)

    async def count(store: MetadataStore, who: int, times: int) -> list[int]:
        versions: list[int] = []
        while len(versions) < times:
            found = await store.get("/n")
            version = ABSENT if found is None else found.version
            try:
                value = b"%d %d" % (who, len(versions))
                versions.append(await put_settled(store, "/n", value, version))
            except BadVersionError:
                continue
        return versions

    async def scenario(servers: Servers) -> None:
        stores, cuts = zip(*[await servers.open_behind_a_network() for _ in range(3)], strict=True)
        counting = [
            asyncio.create_task(count(stores[n % 3], n, 20 if n < 3 else 5)) for n in range(6)
        ]
        ids: list[int] = []
        while not all(task.done() for task in counting):
            await asyncio.sleep(rng.random() * 0.2)
            rng.choice(cuts)()
            try:
                ids.append(await rng.choice(stores).next_id("/counters/x"))
            except OutcomeUnknownError:
                continue
        versions = [version for task in counting for version in task.result()]
        assert len(set(versions)) == len(versions) == 75, "no version was given to two"
        last = await stores[0].get("/n")
        assert last is not None
        assert last.version >= max(versions)
        assert ids == sorted(set(ids))
        assert not any(store.session.has_ended for store in stores)

    run(scenario)


def test_processes_that_create_and_delete_at_the_same_time_agree(run: Run) -> None:
    async def churn(store: MetadataStore, seed: int, seen: set[tuple[str, int]]) -> None:
        rng = random.Random(seed)
        for _ in range(30):
            path = "/" + "/".join(rng.choices("ab", k=rng.randint(1, 3)))
            found = await store.get(path)
            try:
                if found is not None and rng.random() < 0.5:
                    await store.delete(path, found.version)
                else:
                    version = ABSENT if found is None else found.version
                    written = (path, await store.put(path, b"%d" % seed, version))
                    assert written not in seen, "no version is given twice"
                    seen.add(written)
            except BadVersionError:
                continue

    async def scenario(servers: Servers) -> None:
        stores = [await servers.open() for _ in range(3)]
        seen: set[tuple[str, int]] = set()
        await asyncio.gather(*(churn(stores[n % 3], n, seen) for n in range(6)))
        for path in {path for path, _ in seen}:
            found = await stores[0].get(path)
            if found is not None:
                assert (path, found.version) in seen
                await stores[1].delete(path)
        assert await stores[1].children("/") == []

    run(scenario)


def test_what_others_wrote_or_a_newer_release_is_refused_and_not_touched(run: Run) -> None:
    async def scenario(servers: Servers) -> None:
        store = await servers.open()
        await store.put("/v/mine", b"x")
        good = await servers.stored("/v/mine")
        damaged, newer = good[:-1] + b"y", good.replace(b"1", b"2", 1)
        for data in (*servers.FOREIGN, b"{}", damaged, newer, b"1 0\n", b"\0" * 100):
            await servers.store("/v/mine", data)
            with pytest.raises(CorruptMetadataError):
                await store.get("/v/mine")
            other = await servers.open()
            for write in (other.put("/v/mine", b""), other.delete("/v/mine")):
                with pytest.raises(CorruptMetadataError):
                    await write
            await other.put("/v/other", b"")
            assert await servers.stored("/v/mine") == data
        await servers.store_instance(b'{"version": 2, "identity": "x"}')
        with pytest.raises(MetadataError, match="format 2"):
            await servers.open()
        await servers.store_instance(b"garbage")
        with pytest.raises(MetadataError, match="cannot be read"):
            await servers.open()

    run(scenario)
