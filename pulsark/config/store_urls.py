"""Settings that say where metadata are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pulsark.errors import ConfigError

if TYPE_CHECKING:
    from pulsark.config.settings import Settings

STORES: Final = (
    "metadataStoreUrl",
    "configurationMetadataStoreUrl",
    "metadataStoreConfigPath",
    "bookkeeperMetadataServiceUri",
)
"""Settings that say where the metadata of a cluster are, and how they are reached."""

_ZOOKEEPER: Final = "zk:"
_ETCD: Final = "etcd:"
ETCD_SESSION_MILLIS_MIN: Final = 5_000
"""A session must leave room for an election among etcd's servers, which takes a second or two."""
_ON_THIS_MACHINE: Final = ("rocksdb:", "file:")
"""What Pulsar's standalone has here: a store on the machine's own disk, which is SQLite here."""


def store_url(settings: Settings) -> str:
    """Where metadata are; empty is a file in the data directory."""
    url = settings.metadataStoreUrl
    return "" if url.startswith(_ON_THIS_MACHINE) else url


def configuration_store_url(settings: Settings) -> str:
    """Where clusters, tenants and namespaces are; empty if with everything else."""
    url = settings.configurationMetadataStoreUrl
    same = url == settings.metadataStoreUrl or url.startswith(_ON_THIS_MACHINE)
    return "" if same else url


def is_etcd(url: str) -> bool:
    """Whether a store is etcd."""
    return url.startswith(_ETCD)


def check_own_file(settings: Settings, command: str) -> None:
    """``ConfigError`` if metadata are not in the file of a standalone, which a command reads."""
    url = store_url(settings)
    if url:
        raise ConfigError(
            f"metadataStoreUrl={url}: `pulsark {command}` reads only metadata in a file of "
            "dataDir. Those of ZooKeeper and etcd are looked after and backed up there: "
            "docs/cluster.md"
        )


def check_store_urls(settings: Settings) -> None:
    """``ConfigError`` for a store that there is not."""
    for key, url in (
        ("metadataStoreUrl", store_url(settings)),
        ("configurationMetadataStoreUrl", configuration_store_url(settings)),
    ):
        if url and not url.startswith((_ZOOKEEPER, _ETCD)):
            raise ConfigError(
                f"{key}={url}: only ZooKeeper (zk:HOST:PORT/PATH), etcd (etcd:http://HOST:PORT) "
                "and a file in dataDir (empty) are possible"
            )
        millis = settings.metadataStoreSessionTimeoutMillis
        if is_etcd(url) and millis < ETCD_SESSION_MILLIS_MIN:
            raise ConfigError(
                f"metadataStoreSessionTimeoutMillis={millis}: with metadata in etcd, at least "
                f"{ETCD_SESSION_MILLIS_MIN} is needed"
            )
    if configuration_store_url(settings) and not store_url(settings):
        raise ConfigError(
            "configurationMetadataStoreUrl without metadataStoreUrl: give the metadata of this "
            "cluster a store, too, or leave both empty"
        )
