"""``pulsark initialize-cluster-metadata``: once for a cluster, and harmless to repeat."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.cli.terminal.errors import CommandError
from pulsark.cli.terminal.output import print_json
from pulsark.config.settings import Settings
from pulsark.metadata.initialisation import CLUSTER_BUNDLES
from pulsark.metadata.namespaces import even_boundaries
from pulsark.wire.topic_name import check_name_part

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEMES = {
    "serviceUrl": "http://",
    "serviceUrlTls": "https://",
    "brokerServiceUrl": "pulsar://",
    "brokerServiceUrlTls": "pulsar+ssl://",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of the command."""

    cluster: str
    metadata_store: str
    configuration_store: str
    store_config: str
    bookkeeper: str
    existing_bookkeeper: str
    bundles: int


def run_initialize(wanted: Wanted, urls: Mapping[str, str], *, as_json: bool) -> None:
    """Make what is missing, and print it."""
    check_name_part("cluster", wanted.cluster)
    bundles = wanted.bundles or CLUSTER_BUNDLES
    even_boundaries(bundles)
    given = {key: url for key, url in urls.items() if url}
    for key, url in given.items():
        if not url.startswith(_SCHEMES[key]):
            raise CommandError(f"{url}: this address must begin with {_SCHEMES[key]}")
    if wanted.bookkeeper and wanted.existing_bookkeeper not in ("", wanted.bookkeeper):
        raise CommandError("BookKeeper's metadata cannot be in two places: give one URI")
    settings = Settings(
        clusterName=wanted.cluster,
        metadataStoreUrl=wanted.metadata_store,
        configurationMetadataStoreUrl=wanted.configuration_store,
        metadataStoreConfigPath=wanted.store_config,
        bookkeeperMetadataServiceUri=wanted.existing_bookkeeper or wanted.bookkeeper,
    )
    from pulsark.processes.cluster_metadata import initialize_cluster

    made = asyncio.run(
        initialize_cluster(
            settings,
            given,
            bundles,
            existing_bookkeeper=bool(wanted.existing_bookkeeper),
            tell=lambda text: print(f"pulsark: {text}", file=sys.stderr, flush=True),
        )
    )
    if as_json:
        print_json({"cluster": wanted.cluster, "made": made})
    elif made:
        print("\n".join([f"Made for cluster {wanted.cluster}:", *(f"  {each}" for each in made)]))
    else:
        print(f"Everything was there for cluster {wanted.cluster}")
