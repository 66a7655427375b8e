"""``pulsark initialize-cluster-metadata`` against a real ZooKeeper, and etcd."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from pulsark.config.settings import Settings
from pulsark.errors import MetadataError
from pulsark.metadata.etcd.address import EtcdAddress
from pulsark.metadata.initialisation import check_initialized
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.store import ZooKeeperMetadataStore
from pulsark.processes.bookkeeper_storage import open_bookkeeper
from pulsark.processes.joined_metadata import join_metadata
from pulsark.runtime import Runtime, SystemClock
from tests.support.initialize_command import COMMAND, URLS, RunCommand, command


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    return command(monkeypatch, capsys)


@pytest.mark.feature("F60", "F68")
def test_a_cluster_is_made_once_and_its_brokers_find_it(
    zookeeper: ZooKeeperAddress, run: RunCommand
) -> None:
    options = ("--cluster", "c", "--metadata-store", str(zookeeper), *URLS)

    async def brokers_start() -> None:
        store = await ZooKeeperMetadataStore.open(zookeeper, Runtime(), create=False)
        try:
            await check_initialized(store, "c", str(zookeeper))
        finally:
            await store.close()

    async def bookies() -> list[str]:
        client = await ZooKeeperClient.connect(zookeeper, SystemClock())
        try:
            return sorted(await client.children("/ledgers"))
        finally:
            await client.close()

    with pytest.raises(MetadataError, match=COMMAND):
        asyncio.run(brokers_start())
    existing = ("--existing-bk-metadata-service-uri", f"zk://{zookeeper.hosts}/none/ledgers")
    code, said = run(*options, *existing)
    assert (code, "there is no BookKeeper" in said) == (1, True)
    code, said = run(*options, "-bn", "8", "--json")
    assert code == 0
    made = json.loads(said)["made"]
    assert made == [
        f"BookKeeper's nodes below {zookeeper}/ledgers",
        "cluster c",
        "tenant public",
        "namespace public/default with 8 bundles",
        "tenant pulsar",
        "namespace pulsar/system with 8 bundles",
        "racks of bookies: none",
    ]
    asyncio.run(brokers_start())
    assert asyncio.run(bookies()) == ["INSTANCEID", "LAYOUT", "available"]
    existing = ("--existing-bk-metadata-service-uri", f"zk+null://{zookeeper.hosts}")
    existing = (existing[0], f"{existing[1]}{zookeeper.root}/ledgers")
    assert run(*options, *existing) == (0, "Everything was there for cluster c\n")
    code, said = run("-c", "d", "-md", str(zookeeper), *URLS)
    assert (code, said.splitlines()[:2]) == (0, ["Made for cluster d:", "  cluster d"])


def test_a_broker_that_finds_too_few_bookies_says_so(
    zookeeper: ZooKeeperAddress, run: RunCommand, caplog: pytest.LogCaptureFixture
) -> None:
    code, said = run("--cluster", "c", "--metadata-store", str(zookeeper), *URLS)
    assert code == 0, said

    async def broker_starts() -> None:
        settings, runtime = Settings(metadataStoreUrl=str(zookeeper)), Runtime()
        async with contextlib.AsyncExitStack() as cleanup:
            metadata = await join_metadata(settings, "", runtime, create=False)
            cleanup.push_async_callback(metadata.close)
            await open_bookkeeper(settings, metadata, runtime, cleanup)

    asyncio.run(broker_starts())
    assert "managedLedgerDefaultAckQuorum=2, and 0 bookies take entries now" in caplog.text


@pytest.mark.feature("F69")
def test_what_clusters_share_is_made_in_the_configuration_store(
    zookeeper: ZooKeeperAddress, run: RunCommand
) -> None:
    shared = ZooKeeperAddress(zookeeper.hosts, f"{zookeeper.root}/shared")
    for name in ("one", "two"):
        local = ZooKeeperAddress(zookeeper.hosts, f"{zookeeper.root}/{name}")
        options = ("-c", name, "-md", str(local), "-cms", str(shared), *URLS)
        code, said = run(*options, "--json")
        assert code == 0, said
        made = json.loads(said)["made"]
        assert f"BookKeeper's nodes below {local}/ledgers" in made
        assert ("tenant public" in made) == (name == "one")
        assert ("tenant public in cluster two" in made) == (name == "two")
        assert run(*options) == (0, f"Everything was there for cluster {name}\n")


@pytest.mark.feature("F60", "F68")
def test_metadata_may_be_in_etcd_and_those_of_bookkeeper_are_in_zookeeper(
    etcd: EtcdAddress, zookeeper: ZooKeeperAddress, run: RunCommand
) -> None:
    ledgers = f"zk+hierarchical://{zookeeper.hosts}{zookeeper.root}/ledgers"
    where = ("-md", str(etcd), "--bookkeeper-metadata-service-uri", ledgers)
    code, said = run("-c", "c", *where, *URLS, "--json")
    assert code == 0, said
    made = json.loads(said)["made"]
    assert f"BookKeeper's nodes below {zookeeper}/ledgers" in made
    assert "cluster c" in made
    assert run("-c", "c", *where, *URLS) == (0, "Everything was there for cluster c\n")

    async def brokers_start() -> None:
        settings = Settings(metadataStoreUrl=str(etcd))
        store = await join_metadata(settings, "", Runtime(), create=False)
        try:
            await check_initialized(store, "c", str(etcd))
        finally:
            await store.close()

    asyncio.run(brokers_start())
