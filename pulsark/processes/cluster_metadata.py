"""Makes what a cluster needs in ZooKeeper before its bookies and brokers start."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from pulsark.errors import ConfigError
from pulsark.metadata.initialisation import CLUSTER_BUNDLES, initialize_metadata
from pulsark.metadata.zookeeper.address import ZooKeeperAddress, parse_zookeeper
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.store import ZooKeeperMetadataStore
from pulsark.runtime import Runtime
from pulsark.storage.bookkeeper.cluster import new_cluster
from pulsark.storage.bookkeeper.paths import INSTANCE_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEDGERS: Final = "/ledgers"


async def initialize_cluster(
    cluster: str,
    urls: Mapping[str, str],
    metadata_store: str,
    bookkeeper: str = "",
    bundles: int = CLUSTER_BUNDLES,
    *,
    existing_bookkeeper: bool = False,
) -> list[str]:
    """Make what is missing; returns what was made, in words.

    ``bookkeeper``: the URI of its root; empty: ``ledgers`` below the metadata store, as in Pulsar.
    ``existing_bookkeeper``: it must be there, else ``ConfigError``.
    """
    runtime, address = Runtime(), parse_zookeeper(metadata_store)
    ledgers = ZooKeeperAddress(address.hosts, address.root + _LEDGERS)
    async with contextlib.AsyncExitStack() as cleanup:
        said = await _bookkeeper(
            parse_zookeeper(bookkeeper) if bookkeeper else ledgers,
            runtime,
            cleanup,
            existing=existing_bookkeeper,
        )
        store = await ZooKeeperMetadataStore.open(address, runtime)
        cleanup.push_async_callback(store.close)
        return said + await initialize_metadata(store, runtime, cluster, urls, bundles)


async def _bookkeeper(
    address: ZooKeeperAddress,
    runtime: Runtime,
    cleanup: contextlib.AsyncExitStack,
    *,
    existing: bool,
) -> list[str]:
    zookeeper = await ZooKeeperClient.connect(ZooKeeperAddress(address.hosts), runtime.clock)
    cleanup.push_async_callback(zookeeper.close)
    if await zookeeper.get(f"{address.root}/{INSTANCE_ID}") is not None:
        return []
    if existing:
        raise ConfigError(
            f"there is no BookKeeper at {address}. With --bookkeeper-metadata-service-uri instead "
            "of --existing-bk-metadata-service-uri it is made there"
        )
    await new_cluster(zookeeper, address.root)
    return [f"BookKeeper's nodes below {address}"]
