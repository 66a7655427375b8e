"""A cluster of one machine that is stopped while it starts."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from pulsark.config.settings import Settings
from pulsark.processes import local_cluster
from pulsark.processes.local_cluster import LocalCluster, settings_of_brokers


def test_who_stops_it_does_not_wait_for_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, ended = threading.Event(), threading.Event()

    async def main() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def fetch(*_: object) -> str:
            loop.call_soon_threadsafe(begun.set)
            may_end.wait(10)
            ended.set()
            return ""

        monkeypatch.setattr(local_cluster, "class_path", fetch)
        cluster = LocalCluster(Settings(dataDir=str(tmp_path)), tmp_path, lambda _: None)
        starting = asyncio.create_task(cluster.start())
        await begun.wait()
        starting.cancel()
        await asyncio.wait({starting})
        await cluster.stop()

    asyncio.run(main())
    assert not ended.is_set()
    may_end.set()


def test_no_store_of_another_cluster_is_touched(tmp_path: Path) -> None:
    # As with the file of a cluster's brokers, which also says how to log in there.
    others = Settings(
        metadataStoreUrl="zk:zk1:2181",
        configurationMetadataStoreUrl="zk:shared:2181",
        metadataStoreConfigPath="/etc/pulsark/zookeeper-client.properties",
        bookkeeperMetadataServiceUri="zk://zk1:2181/ledgers",
    )
    found = settings_of_brokers(others, "127.0.0.1:4711", tmp_path)
    assert found.metadataStoreUrl == "zk:127.0.0.1:4711/pulsark"
    assert found.configurationMetadataStoreUrl == ""
    assert found.metadataStoreConfigPath == ""
    assert found.bookkeeperMetadataServiceUri.startswith("zk://127.0.0.1:4711/")
    assert found.tableRoots == (str(tmp_path / "tables"),)
