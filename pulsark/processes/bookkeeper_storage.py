"""A broker's ledgers in Apache BookKeeper: how the parts of the client are put together."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pulsark.config.store_urls import is_etcd, store_url
from pulsark.errors import ConfigError
from pulsark.limits import BOOKIE_FRAME_OVERHEAD_BYTES
from pulsark.metadata.zookeeper.address import ZooKeeperAddress, is_zookeeper, parse_zookeeper
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.client_config import read_client_config
from pulsark.metadata.zookeeper.guard_nodes import GuardNodes
from pulsark.metadata.zookeeper.lasting import LastingNodes
from pulsark.processes.rack_source import RackSource
from pulsark.storage.bookkeeper.encoder import LedgerKeys
from pulsark.storage.bookkeeper.ids import LedgerIds
from pulsark.storage.bookkeeper.ledger_store import BookKeeperCluster, BookKeeperLedgerStore
from pulsark.storage.bookkeeper.limits import ClientSettings
from pulsark.storage.bookkeeper.paths import CLUSTER
from pulsark.storage.bookkeeper.registry import BookieRegistry
from pulsark.storage.bookkeeper.same_cluster import check_same_cluster
from pulsark.storage.bookkeeper.went_back import check_not_older

if TYPE_CHECKING:
    import contextlib

    from pulsark.config.settings import Settings
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime
    from pulsark.storage.ledger.store import LedgerStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BookKeeperStorage:
    """The bookies of a cluster, and the metadata of ledgers on them."""

    bookies: BookieRegistry
    ledgers: LedgerStore


def address_of(settings: Settings) -> ZooKeeperAddress:
    """Where the cluster of bookies is; ``ConfigError`` if the settings name no ZooKeeper.

    Without ``bookkeeperMetadataServiceUri`` it is below the metadata store's root, as in Pulsar.
    """
    in_etcd = is_etcd(settings.metadataStoreUrl)
    config = read_client_config("" if in_etcd else settings.metadataStoreConfigPath)
    if settings.bookkeeperMetadataServiceUri:
        return parse_zookeeper(settings.bookkeeperMetadataServiceUri, config)
    if in_etcd:
        raise ConfigError(
            "bookkeeperMetadataServiceUri (--bookkeeper-metadata-service-uri) is not set: with "
            "metadata in etcd, BookKeeper's own are still in ZooKeeper (zk://HOST:PORT/ledgers)"
        )
    store = parse_zookeeper(settings.metadataStoreUrl, config)
    return replace(store, root=f"{store.root}/{CLUSTER}")


def client_settings(settings: Settings) -> ClientSettings:
    """How bookies are treated. What fits a frame of a client's fits one of theirs."""
    seconds = float(settings.bookkeeperClientTimeoutInSeconds)
    # Not less than usual where messages are to be smaller: there may be larger ones already.
    usual = ClientSettings().frame_bytes_max
    frame_bytes_max = max(usual, settings.maxMessageSize + BOOKIE_FRAME_OVERHEAD_BYTES)
    return ClientSettings(
        add_seconds=seconds, read_seconds=seconds, frame_bytes_max=frame_bytes_max
    )


def too_few(settings: Settings, writable: int) -> str:
    """What is to be said of so many bookies that take entries; empty if they are enough."""
    wanted = settings.managedLedgerDefaultEnsembleSize
    needed = settings.managedLedgerDefaultAckQuorum
    if writable >= wanted:
        return ""
    there = f"{writable} {'bookie takes' if writable == 1 else 'bookies take'} entries now"
    cure = "Start more bookies, or lower"
    if writable >= needed:
        key = "managedLedgerDefaultEnsembleSize"
        return f"{key}={wanted}, and {there}: new ledgers have fewer copies. {cure} {key}"
    key = "managedLedgerDefaultAckQuorum"
    return f"{key}={needed}, and {there}: nothing can be published. {cure} {key}"


async def open_bookkeeper(
    settings: Settings,
    metadata: MetadataStore,
    runtime: Runtime,
    cleanup: contextlib.AsyncExitStack,
) -> BookKeeperStorage:
    """Connect; ``cleanup`` closes what was opened. ``MetadataError``, also if ZooKeeper is older
    than the bookies; ``ConfigError`` if these are not the cluster that ``metadata`` knows."""
    address = address_of(settings)
    # Its own session: BookKeeper may be in another ensemble than the metadata store.
    zookeeper = await LastingNodes.connect(
        lambda: ZooKeeperClient.connect(
            replace(address, root=""),
            runtime.clock,
            session_seconds=settings.metadataStoreSessionTimeoutMillis / 1000,
            operation_seconds=settings.metadataStoreOperationTimeoutSeconds,
        )
    )
    cleanup.push_async_callback(zookeeper.close)
    await check_same_cluster(metadata, zookeeper, address.root, str(address))
    keys = LedgerKeys()
    bookies = BookieRegistry(zookeeper, address.root, keys, client_settings(settings))
    cleanup.push_async_callback(bookies.close)
    await bookies.start()
    few = too_few(settings, sum(map(bookies.is_writable, bookies)))
    if few:
        log.warning("%s", few)
    racks = RackSource(metadata, bookies.set_racks)
    cleanup.callback(racks.close)
    await racks.start()
    ids = LedgerIds(zookeeper, address.root)
    guards = None
    if is_zookeeper(store_url(settings)):
        root = parse_zookeeper(store_url(settings)).root
        guards = await GuardNodes.find(zookeeper, root, metadata.identity)
    cluster = BookKeeperCluster(zookeeper, address.root, ids, keys, guards)
    ledgers = BookKeeperLedgerStore(cluster, metadata)
    await check_not_older(ids, ledgers, bookies.values())
    return BookKeeperStorage(bookies, ledgers)
