"""A cluster's metadata are made once, whole, and by no broker."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.errors import ConfigError
from pulsark.metadata.bookie_racks import BookieRacks
from pulsark.metadata.initialisation import check_initialized, initialize_metadata
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.resources import Resources, Tenant
from pulsark.runtime import Runtime

URLS = {"serviceUrl": "http://h:8080", "brokerServiceUrl": "pulsar://h:6650"}


@pytest.mark.feature("F60")
def test_all_is_made_once_and_said() -> None:
    async def scenario() -> None:
        store, runtime = MemoryMetadataStore(), Runtime()
        with pytest.raises(
            ConfigError, match=r"it is empty.*initialize-cluster-metadata --cluster c"
        ):
            await check_initialized(store, "c", "zk:z:2181")
        assert await initialize_metadata(store, runtime, "c", URLS) == [
            "cluster c",
            "tenant public",
            "namespace public/default with 16 bundles",
            "tenant pulsar",
            "namespace pulsar/system with 16 bundles",
            "racks of bookies: none",
        ]
        await check_initialized(store, "c", "zk:z:2181")
        await BookieRacks(store).put("b", "default", {"rack": "/r"})
        other = {"serviceUrl": "http://other:8080"}
        assert await initialize_metadata(store, runtime, "c", other, 4) == []
        resources = Resources(store, runtime)
        assert await resources.clusters.get("c") == URLS
        default = await resources.namespaces.get("public/default")
        assert default is not None
        assert len(default.bundles) == 16
        assert await BookieRacks(store).get() != {}

    asyncio.run(scenario())


def test_what_is_missing_is_added_wherever_an_earlier_run_ended() -> None:
    async def scenario() -> None:
        runtime = Runtime()
        for done in range(7):
            tree = MemoryTree()
            store = MemoryMetadataStore(tree)

            class Dies(MemoryMetadataStore):
                left = done

                async def commit(self, changes):  # type: ignore[no-untyped-def]
                    if not self.left:
                        raise asyncio.CancelledError
                    self.left -= 1
                    return await super().commit(changes)

            try:
                await initialize_metadata(Dies(tree), runtime, "c", URLS)
            except asyncio.CancelledError:
                assert done < 6
            said = await initialize_metadata(store, runtime, "c", URLS)
            assert len(said) == max(0, 6 - done)
            assert len(await store.children("/admin/policies/pulsar")) == 1

    asyncio.run(scenario())


def test_a_second_cluster_gets_the_tenants_that_are_there() -> None:
    async def scenario() -> None:
        store, runtime = MemoryMetadataStore(), Runtime()
        await initialize_metadata(store, runtime, "one", URLS)
        assert await initialize_metadata(store, runtime, "two", URLS) == [
            "cluster two",
            "tenant public in cluster two",
            "namespace public/default in cluster two",
            "tenant pulsar in cluster two",
            "namespace pulsar/system in cluster two",
        ]
        resources = Resources(store, runtime)
        assert await resources.tenants.get("public") == Tenant((), ("one", "two"))
        default = await resources.namespaces.get("public/default")
        assert default is not None
        assert default.replication_clusters == ("one", "two")
        with pytest.raises(ConfigError, match="no cluster three; it has one, two"):
            await check_initialized(store, "three", "zk:z:2181")

    asyncio.run(scenario())


def test_two_commands_at_the_same_time_make_all_of_it_once() -> None:
    async def scenario() -> None:
        tree, runtime = MemoryTree(), Runtime()
        said = await asyncio.gather(
            *(initialize_metadata(MemoryMetadataStore(tree), runtime, "c", URLS) for _ in range(5))
        )
        assert sorted(len(each) for each in said)[-1] <= 6
        assert sum(len(each) for each in said) == 6

    asyncio.run(scenario())
