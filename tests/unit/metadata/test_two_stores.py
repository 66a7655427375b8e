"""The configuration metadata store beside the one of a cluster."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.config.sources import load_settings
from pulsark.config.store_urls import configuration_store_url, store_url
from pulsark.errors import ConfigError, MetadataRefusedError
from pulsark.metadata.changes import Check, Put
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.store import ABSENT
from pulsark.metadata.two_stores import TwoStores

SHARED = ("/admin/clusters/c", "/admin/policies/t/n", "/admin/partitioned-topics/t/n/p/o")
OWN = ("/admin/topic-policies/t/n/p/o", "/managed-ledgers/t/n/p/o", "/admin/configuration")


def test_what_clusters_share_is_in_one_store_and_the_rest_in_the_other() -> None:
    async def scenario() -> None:
        local, shared = MemoryMetadataStore(), MemoryMetadataStore()
        both = TwoStores(local, shared)
        assert (both.identity, both.session) == (local.identity, local.session)
        heard: list[str] = []
        end = both.watch("/admin", heard.append, lambda: None)
        for path in (*SHARED, *OWN):
            await both.put(path, path.encode(), ABSENT)
        for path in SHARED:
            assert await shared.get(path) == await both.get(path) != await local.get(path)
        for path in OWN:
            assert await local.get(path) == await both.get(path) != await shared.get(path)
        names = ["clusters", "configuration", "partitioned-topics", "policies", "topic-policies"]
        assert await both.children("/admin") == names
        assert await both.page("/admin", names[1], 2) == names[2:4]
        assert await both.children("/") == ["admin", "managed-ledgers"]
        assert await both.page("/admin/policies") == ["t"]
        await asyncio.sleep(0)
        assert set(heard) == {path for path in (*SHARED, *OWN) if path.startswith("/admin")}
        end()
        heard.clear()
        await both.delete(SHARED[1])
        await both.delete(OWN[0])
        await asyncio.sleep(0)
        assert heard == []
        assert [await both.next_id("/counters/x") for _ in range(2)] == [0, 1]
        await both.close()
        assert local.session.has_ended
        assert shared.session.has_ended

    asyncio.run(scenario())


def test_a_commit_in_two_stores_is_refused_and_one_in_each_is_made() -> None:
    async def scenario() -> None:
        local, shared = MemoryMetadataStore(), MemoryMetadataStore()
        both = TwoStores(local, shared)
        with pytest.raises(MetadataRefusedError, match="two stores"):
            await both.commit((Check(OWN[1], ABSENT), Put(SHARED[0], b"")))
        assert await both.children("/") == []
        assert await both.commit([Put(path, b"") for path in SHARED]) == [0, 0, 0]
        assert await both.commit([Put(path, b"") for path in OWN]) == [0, 0, 0]
        with pytest.raises(MetadataRefusedError):
            await both.commit(())
        await both.close()

    asyncio.run(scenario())


def test_the_end_of_either_session_is_the_end() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        both = TwoStores(MemoryMetadataStore(), shared := MemoryMetadataStore(tree))
        ended: list[bool] = []
        both.session.on_end(lambda: ended.append(True))
        shared.expire()
        assert ended == [True]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "configuration", "stores"),
    [
        ("", "", ("", "")),
        ("rocksdb:///data/metadata", "rocksdb:///data/metadata", ("", "")),
        ("zk:one/a", "", ("zk:one/a", "")),
        ("zk:one/a", "zk:one/a", ("zk:one/a", "")),
        ("zk:one/a", "zk:two", ("zk:one/a", "zk:two")),
    ],
)
def test_where_metadata_are(url: str, configuration: str, stores: tuple[str, str]) -> None:
    flags = {"metadataStoreUrl": url, "configurationMetadataStoreUrl": configuration}
    settings = load_settings(flags=flags).settings
    assert (store_url(settings), configuration_store_url(settings)) == stores


@pytest.mark.parametrize(
    ("url", "configuration"), [("oxia://a", ""), ("", "zk:a"), ("zk:a", "oxia://b")]
)
def test_stores_that_there_are_not_are_refused(url: str, configuration: str) -> None:
    flags = {"metadataStoreUrl": url, "configurationMetadataStoreUrl": configuration}
    with pytest.raises(ConfigError, match="etadataStoreUrl"):
        load_settings(flags=flags)
