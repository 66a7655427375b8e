"""What only ZooKeeper does to the metadata store; ``test_metadata_servers`` has the rest."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.errors import BadVersionError
from pulsark.metadata.changes import Delete, Put
from pulsark.metadata.store import ABSENT
from pulsark.metadata.zookeeper import change_queue
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.layout import CHANGES
from tests.support.metadata_servers import open_on_zookeeper, until


def test_after_a_lost_connection_watchers_are_told_that_they_missed_changes(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def scenario() -> None:
        one, two = await open_on_zookeeper(zookeeper), await open_on_zookeeper(zookeeper)
        heard: list[str] = []
        one.watch("/admin", heard.append, lambda: heard.append("missed"))
        await two.put("/admin/a", b"")
        await until(lambda: heard == ["/admin/a"])
        one._client._connection.drop()
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
        one, two = await open_on_zookeeper(zookeeper), await open_on_zookeeper(zookeeper)
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
        one = await open_on_zookeeper(zookeeper)
        await one.put("/loadbalance/brokers/one", b"", ephemeral=True)
        two = await open_on_zookeeper(zookeeper)
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


def test_many_commits_of_one_turn_share_a_multi_and_one_that_is_refused_stops_no_other(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def scenario() -> None:
        store, other = await open_on_zookeeper(zookeeper), await open_on_zookeeper(zookeeper)
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
