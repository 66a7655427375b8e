"""The metadata store that several processes share: a file of this machine, ZooKeeper or etcd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.config.store_urls import configuration_store_url, is_etcd, store_url
from pulsark.errors import MetadataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from pulsark.config.settings import Settings
    from pulsark.errors import PulsarkError
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime


async def join_metadata(
    settings: Settings, path: str, runtime: Runtime, *, create: bool
) -> MetadataStore:
    """Begin a session; ``path`` is that of the file, if it is one. ``MetadataError``.

    Without ``create``, a server without a store is refused: it has lost its data, or is another.
    """
    url, configuration_url = store_url(settings), configuration_store_url(settings)
    if not url:
        from pulsark.metadata.sqlite_shared import SharedSqliteMetadataStore

        return await SharedSqliteMetadataStore.join(
            path, runtime, timeout_seconds=settings.metadataStoreOperationTimeoutSeconds
        )
    local = await _open(url, settings, runtime, create=create)
    if not configuration_url:
        return local
    from pulsark.metadata.two_stores import TwoStores

    try:
        shared = await _open(configuration_url, settings, runtime, create=create)
        return TwoStores(local, shared)
    except BaseException:
        await local.close()
        raise


def live_by(
    metadata: MetadataStore, cleanup: AsyncExitStack, failed: Callable[[PulsarkError], None]
) -> None:
    """Close the store at the end, and end with its session.

    Others may own then what this process had: only a new process can start over.
    """
    cleanup.push_async_callback(metadata.close)
    ended = MetadataError("the session of the metadata store has ended")
    metadata.session.on_end(lambda: failed(ended))


async def _open(url: str, settings: Settings, runtime: Runtime, *, create: bool) -> MetadataStore:
    session_seconds = settings.metadataStoreSessionTimeoutMillis / 1000
    timeout_seconds = float(settings.metadataStoreOperationTimeoutSeconds)
    # The file is one for the kind of store that ``metadataStoreUrl`` names.
    same = is_etcd(url) == is_etcd(settings.metadataStoreUrl)
    file = settings.metadataStoreConfigPath if same else ""
    # Only what is used is imported.
    if is_etcd(url):
        from pulsark.metadata.etcd.access import read_access
        from pulsark.metadata.etcd.address import parse_etcd
        from pulsark.metadata.etcd.store import EtcdMetadataStore

        return await EtcdMetadataStore.open(
            parse_etcd(url),
            runtime,
            create=create,
            access=read_access(file),
            session_seconds=session_seconds,
            timeout_seconds=timeout_seconds,
        )
    from pulsark.metadata.zookeeper.address import parse_zookeeper
    from pulsark.metadata.zookeeper.client_config import read_client_config
    from pulsark.metadata.zookeeper.store import ZooKeeperMetadataStore

    return await ZooKeeperMetadataStore.open(
        parse_zookeeper(url, read_client_config(file)),
        runtime,
        create=create,
        session_seconds=session_seconds,
        timeout_seconds=timeout_seconds,
    )
