"""Faults of ZooKeeper, and several processes on it, as the metadata store meets them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from pulsark.errors import (
    BadVersionError,
    CorruptMetadataError,
    MetadataError,
    MetadataRefusedError,
    OutcomeUnknownError,
)
from pulsark.metadata import settled
from pulsark.metadata.changes import Check, Delete, Put
from pulsark.metadata.settled import put_settled
from pulsark.metadata.store import ABSENT, Versioned
from pulsark.metadata.zookeeper import change_queue
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.layout import CHANGES, INSTANCE, TREE
from pulsark.metadata.zookeeper.store import ZooKeeperMetadataStore
from pulsark.runtime import Runtime
from tests.support.zookeeper import connected

TOPIC = "/managed-ledgers/public/default/persistent/orders"


async def opened(address: ZooKeeperAddress) -> ZooKeeperMetadataStore:
    return await ZooKeeperMetadataStore.open(address, Runtime(), timeout_seconds=10)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.01)


def cut(store: ZooKeeperMetadataStore) -> None:
    store._client._connection.drop()


def test_a_version_from_before_a_deletion_is_refused_although_the_nodes_version_is_the_same(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def scenario() -> None:
        one, two = await opened(zookeeper), await opened(zookeeper)
        for ephemeral in (False, True):
            stale = await one.put(TOPIC, b"first", ABSENT, ephemeral=ephemeral)
            assert await one.get(TOPIC) == Versioned(b"first", stale)
            await two.delete(TOPIC, stale)
            again = await two.put(TOPIC, b"second", ABSENT)
            assert again > stale
            for write in (
                one.put(TOPIC, b"stale", stale, ephemeral=ephemeral),
                one.delete(TOPIC, stale),
                one.commit((Check(TOPIC, stale), Put("/other", b""))),
            ):
                with pytest.raises(BadVersionError):
                    await write
            assert await one.get(TOPIC) == Versioned(b"second", again)
            assert await one.get("/other") is None
            await one.delete(TOPIC, again)
        await one.close()
        await two.close()

    asyncio.run(scenario())


def test_an_ephemeral_value_that_ended_with_its_session_never_has_a_version_again(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def scenario() -> None:
        versions: set[int] = set()
        two = await opened(zookeeper)
        for _ in range(3):
            one = await opened(zookeeper)
            version = await one.put("/namespace/t/n/b", b"", ABSENT, ephemeral=True)
            version = await one.put("/namespace/t/n/b", b"2", version, ephemeral=True)
            with pytest.raises(MetadataRefusedError, match="is ephemeral"):
                await two.put("/namespace/t/n/b", b"mine", ephemeral=True)
            await one.close()
            assert not versions & {version - 1, version}
            versions |= {version - 1, version}
        await two.close()

    asyncio.run(scenario())


def test_after_a_lost_connection_watchers_are_told_that_they_missed_changes(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def scenario() -> None:
        one, two = await opened(zookeeper), await opened(zookeeper)
        heard: list[str] = []
        one.watch("/admin", heard.append, lambda: heard.append("missed"))
        await two.put("/admin/a", b"")
        await until(lambda: heard == ["/admin/a"])
        cut(one)
        await until(lambda: "missed" in heard)
        await two.put("/admin/b", b"")
        await until(lambda: heard[-1] == "/admin/b")
        await one.close()
        await two.close()

    asyncio.run(scenario())


def test_who_is_far_behind_is_told_so_and_old_changes_are_deleted(
    zookeeper: ZooKeeperAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_queue, "METADATA_CHANGES_KEPT", 10)
    monkeypatch.setattr(change_queue, "_TRIM_EACH", 10)
    monkeypatch.setattr(change_queue, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(change_queue, "TOLD_BYTES_MAX", 1000)

    async def scenario() -> None:
        one, two = await opened(zookeeper), await opened(zookeeper)
        heard: list[str] = []
        one.watch("/w", heard.append, lambda: heard.append("missed"))
        assert one._queue._task is not None
        one._queue._task.cancel()  # it does not look for a while
        for n in range(50):
            await two.put(f"/w/{n}", b"")
        one._queue._task = asyncio.create_task(one._queue._follow())
        await until(lambda: "missed" in heard)
        assert "/w/0" not in heard
        await two.put("/w/x", b"")
        await until(lambda: heard[-1] == "/w/x")
        assert len(await two._client.children(CHANGES)) < 40
        heard.clear()
        await asyncio.gather(*(two.put(f"/w/{n:0100d}", b"") for n in range(20)))
        await until(lambda: heard == ["missed"])  # too many to be named
        await one.close()
        await two.close()

    asyncio.run(scenario())


def test_a_value_that_vanishes_with_its_session_is_told_to_who_has_read_it(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def scenario() -> None:
        one = await opened(zookeeper)
        await one.put("/loadbalance/brokers/one", b"", ephemeral=True)
        two = await opened(zookeeper)
        heard: list[str] = []
        two.watch("/loadbalance/brokers", heard.append, lambda: heard.append("missed"))
        assert await two.get("/loadbalance/brokers/one") is not None
        await one.put("/loadbalance/brokers/one", b"2", ephemeral=True)
        await until(lambda: heard)
        heard.clear()
        await one.close()
        await until(lambda: heard)
        assert set(heard) == {"/loadbalance/brokers/one"}
        assert await two.get("/loadbalance/brokers/one") is None
        await two.close()

    asyncio.run(scenario())


@pytest.mark.feature("F67")
def test_no_write_is_lost_or_made_twice_although_connections_break(
    zookeeper: ZooKeeperAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several writers change one value, each by writes at the version that it has read."""
    monkeypatch.setattr(settled, "_RETRY_SECONDS", 0.01)
    rng = random.Random(4)

    async def count(store: ZooKeeperMetadataStore, who: int, times: int) -> list[int]:
        versions = []
        while len(versions) < times:
            found = await store.get("/n")
            version = ABSENT if found is None else found.version
            try:
                value = b"%d %d" % (who, len(versions))
                versions.append(await put_settled(store, "/n", value, version))
            except BadVersionError:
                continue
        return versions

    async def scenario() -> None:
        stores = [await opened(zookeeper) for _ in range(3)]
        counting = [
            asyncio.create_task(count(stores[n % 3], n, 20 if n < 3 else 5)) for n in range(6)
        ]
        ids: list[int] = []
        while not all(task.done() for task in counting):
            await asyncio.sleep(rng.random() * 0.2)
            cut(rng.choice(stores))
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
        for store in stores:
            await store.close()

    asyncio.run(scenario())


def test_processes_that_create_and_delete_at_the_same_time_agree(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def churn(store: ZooKeeperMetadataStore, seed: int, seen: set[tuple[str, int]]) -> None:
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

    async def scenario() -> None:
        stores = [await opened(zookeeper) for _ in range(3)]
        seen: set[tuple[str, int]] = set()
        await asyncio.gather(*(churn(stores[n % 3], n, seen) for n in range(6)))
        paths = {path for path, _ in seen}
        for path in paths:
            found = await stores[0].get(path)
            if found is not None:
                assert (path, found.version) in seen
                await stores[1].delete(path)
        assert await stores[1].children("/") == []
        for store in stores:
            await store.close()

    asyncio.run(scenario())


def test_many_commits_of_one_turn_share_a_multi_and_one_that_is_refused_stops_no_other(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def scenario() -> None:
        store, other = await opened(zookeeper), await opened(zookeeper)
        await asyncio.gather(*(store.put(f"/v/{n}", b"0", ABSENT) for n in range(100)))
        await other.put("/v/7", b"1", 0)
        multis: list[int] = []
        multi = store._client.multi

        async def counted(operations):  # type: ignore[no-untyped-def]
            multis.append(len(operations))
            return await multi(operations)

        store._client.multi = counted  # type: ignore[method-assign]
        results = await asyncio.gather(
            *(store.put(f"/v/{n}", b"2", 0) for n in range(100)),
            store.commit((Put("/v/new", b"", ABSENT), Delete("/v/none"))),
            return_exceptions=True,
        )
        refused = [n for n, result in enumerate(results) if isinstance(result, BadVersionError)]
        assert refused == [7, 100]
        assert len(multis) <= 3
        assert await store.get("/v/new") is None
        await store.close()
        await other.close()

    asyncio.run(scenario())


def test_what_others_wrote_or_a_newer_release_is_refused_and_not_touched(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def scenario() -> None:
        store = await opened(zookeeper)
        raw = await connected(zookeeper)
        await store.put("/v/mine", b"x")
        found = await raw.get(f"{TREE}/v/mine")
        assert found is not None
        damaged = found.data[:-1] + b"y"
        newer = found.data.replace(b"1", b"2", 1)
        for data in (b"{}", damaged, newer, b"1 0\n", b"\0" * 100):
            await raw.set(f"{TREE}/v/mine", data)
            with pytest.raises(CorruptMetadataError):
                await store.get("/v/mine")
            other = await opened(zookeeper)
            for write in (other.put("/v/mine", b""), other.delete("/v/mine")):
                with pytest.raises(CorruptMetadataError):
                    await write
            await other.put("/v/other", b"")
            await other.close()
            left = await raw.get(f"{TREE}/v/mine")
            assert left is not None
            assert left.data == data
        await raw.set(INSTANCE, b'{"version": 2, "identity": "x"}')
        with pytest.raises(MetadataError, match="format 2"):
            await opened(zookeeper)
        await raw.set(INSTANCE, b"garbage")
        with pytest.raises(MetadataError, match="cannot be read"):
            await opened(zookeeper)
        await raw.close()
        await store.close()

    asyncio.run(scenario())
