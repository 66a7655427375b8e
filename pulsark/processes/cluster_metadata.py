"""Makes what a cluster needs in its metadata stores before its bookies and brokers start."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pulsark.errors import ConfigError
from pulsark.metadata.initialisation import CLUSTER_BUNDLES, initialize_metadata
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.processes.bookkeeper_storage import address_of
from pulsark.processes.joined_metadata import join_metadata
from pulsark.processes.known_hosts import check_hosts
from pulsark.runtime import Runtime
from pulsark.storage.bookkeeper.cluster import new_cluster
from pulsark.storage.bookkeeper.paths import INSTANCE_ID
from pulsark.storage.bookkeeper.same_cluster import check_same_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.config.settings import Settings
    from pulsark.metadata.zookeeper.address import ZooKeeperAddress


async def initialize_cluster(
    settings: Settings,
    urls: Mapping[str, str],
    bundles: int = CLUSTER_BUNDLES,
    *,
    existing_bookkeeper: bool = False,
    tell: Callable[[str], None] | None = None,
) -> list[str]:
    """Make what is missing where settings say; returns what was made, in words.

    ``existing_bookkeeper``: it must be there, else ``ConfigError``. ``tell`` gets what is waited
    for, and hosts whose names are not known are not waited for.
    """
    runtime, address = Runtime(), address_of(settings)
    if tell is not None:
        await check_hosts(settings, tell)
    zookeeper = await ZooKeeperClient.connect(replace(address, root=""), runtime.clock)
    try:
        said = await _bookkeeper(zookeeper, address, existing=existing_bookkeeper)
        store = await join_metadata(settings, "", runtime, create=True)
        try:
            await check_same_cluster(store, zookeeper, address.root, str(address))
            cluster = settings.clusterName
            return said + await initialize_metadata(store, runtime, cluster, urls, bundles)
        finally:
            await store.close()
    finally:
        await zookeeper.close()


async def _bookkeeper(
    zookeeper: ZooKeeperClient, address: ZooKeeperAddress, *, existing: bool
) -> list[str]:
    if await zookeeper.get(f"{address.root}/{INSTANCE_ID}") is not None:
        return []
    if existing:
        raise ConfigError(
            f"there is no BookKeeper at {address}. With --bookkeeper-metadata-service-uri "
            "instead of --existing-bk-metadata-service-uri it is made there"
        )
    await new_cluster(zookeeper, address.root)
    return [f"BookKeeper's nodes below {address}"]
