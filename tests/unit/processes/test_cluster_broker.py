"""A broker of a cluster that finds no metadata store."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from pulsark.config.settings import Settings
from pulsark.errors import ConfigError, MetadataError
from pulsark.processes import cluster_broker
from pulsark.processes.cluster_broker import ClusterBroker
from pulsark.runtime import Runtime


@pytest.mark.parametrize("is_known", [False, True])
def test_a_host_of_no_known_name_is_named(monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
    async def unreachable(*_: Any, **__: Any) -> Any:
        raise MetadataError("ZooKeeper cannot be reached at zk1:2181")

    async def main() -> None:
        async def look_up(name: str, _: object) -> list[object]:
            if not is_known:
                raise socket.gaierror(-2, "Name or service not known")
            return []

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
        settings = Settings(metadataStoreUrl="zk:zk1:2181/one", tableRoots=("/tables",))
        broker = ClusterBroker(settings, Runtime(), lambda error: None)
        await broker.start()

    monkeypatch.setattr(cluster_broker, "join_metadata", unreachable)
    kind, said = (
        (MetadataError, "ZooKeeper cannot be reached at zk1:2181")
        if is_known
        else (ConfigError, "no address of zk1 is known")
    )
    with pytest.raises(kind, match=said):
        asyncio.run(main())


@pytest.mark.parametrize("url", ["", "rocksdb:/var/lib/pulsar", "file:/x"])
def test_a_store_of_one_machine_is_none_of_a_cluster(url: str) -> None:
    async def main() -> None:
        settings = Settings(metadataStoreUrl=url, tableRoots=("/tables",))
        await ClusterBroker(settings, Runtime(), lambda error: None).start()

    with pytest.raises(ConfigError, match=r"metadataStoreUrl.* a broker of a cluster needs"):
        asyncio.run(main())
