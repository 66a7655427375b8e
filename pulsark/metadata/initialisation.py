"""What the brokers of a cluster find in its metadata store before the first of them starts.

Pulsar's ``initialize-cluster-metadata`` makes it. A broker of a cluster does not: with a wrong
address it would found a second cluster, whose topics are empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pulsark.errors import BadVersionError, ConfigError
from pulsark.metadata.paths import BOOKIES, CLUSTERS
from pulsark.metadata.resources import Resources
from pulsark.metadata.settled import put_settled
from pulsark.metadata.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime

CLUSTER_BUNDLES: Final = 16
"""Bundles of the namespaces of a new cluster, as in Pulsar."""

COMMAND: Final = "pulsark initialize-cluster-metadata"


async def initialize_metadata(
    store: MetadataStore,
    runtime: Runtime,
    cluster: str,
    urls: Mapping[str, str],
    bundles: int = CLUSTER_BUNDLES,
) -> list[str]:
    """Make what is missing; returns what was made, in words. What is there stays as it is.

    ``urls``: the addresses by which clients and other clusters reach this one, by the names of the
    admin API.
    """
    said = await Resources(store, runtime).initialize(cluster, urls, bundles, renew=False)
    if await store.get(BOOKIES) is None:
        try:
            await put_settled(store, BOOKIES, b"{}", ABSENT)
        except BadVersionError:
            return said  # another command was faster
        said.append("racks of bookies: none")
    return said


async def check_initialized(store: MetadataStore, cluster: str, url: str) -> None:
    """``ConfigError`` that says what to do, if the store at ``url`` has no such cluster."""
    clusters = await store.children(CLUSTERS)
    if cluster in clusters:
        return
    known = f"it has {', '.join(clusters)[:200]}" if clusters else "it is empty"
    raise ConfigError(
        f"clusterName: the metadata store {url} has no cluster {cluster}; {known}. Check both "
        f"settings. For a new cluster run this once: {COMMAND} --cluster {cluster} "
        f"--metadata-store {url} --web-service-url URL --broker-service-url URL"
    )
