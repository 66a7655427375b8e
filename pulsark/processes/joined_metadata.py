"""The metadata store that several processes share: a file of this machine, or ZooKeeper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pulsark.config.store_urls import configuration_store_url, store_url
from pulsark.metadata.sqlite_shared import SharedSqliteMetadataStore

if TYPE_CHECKING:
    from pulsark.config.settings import Settings
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime


async def join_metadata(
    settings: Settings, path: str, runtime: Runtime, *, create: bool
) -> MetadataStore:
    """Begin a session; ``path`` is that of the file, if it is one. ``MetadataError``.

    Without ``create``, a ZooKeeper without a store is refused: it has lost its data, or is another.
    """
    url, configuration_url = store_url(settings), configuration_store_url(settings)
    if not url:
        return await SharedSqliteMetadataStore.join(
            path, runtime, timeout_seconds=settings.metadataStoreOperationTimeoutSeconds
        )
    from pulsark.metadata.zookeeper.address import parse_zookeeper  # only where it is used
    from pulsark.metadata.zookeeper.store import ZooKeeperMetadataStore
    from pulsark.metadata.zookeeper.tls import read_tls

    tls = read_tls(settings.metadataStoreConfigPath)

    join = partial(
        ZooKeeperMetadataStore.open,
        runtime=runtime,
        create=create,
        session_seconds=settings.metadataStoreSessionTimeoutMillis / 1000,
        timeout_seconds=settings.metadataStoreOperationTimeoutSeconds,
    )
    local = await join(parse_zookeeper(url, tls))
    if not configuration_url:
        return local
    from pulsark.metadata.two_stores import TwoStores

    try:
        return TwoStores(local, await join(parse_zookeeper(configuration_url, tls)))
    except BaseException:
        await local.close()
        raise
