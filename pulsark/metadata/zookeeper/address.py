"""URLs of ZooKeeper: ``zk:host:2181,host2:2181/chroot``, with or without ``//``. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pulsark.errors import ConfigError
from pulsark.metadata.zookeeper.client_config import PLAIN, ClientConfig

PORT: Final = 2181
SCHEMES: Final = ("zk", "zk+null", "zk+hierarchical", "zk+longhierarchical")
"""``zk`` and the ones of BookKeeper's service URIs, which also name the ledgers' layout."""

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """The servers of an ensemble, and the node below which everything is."""

    hosts: str
    """``host:port``, separated by commas."""
    root: str = ""
    """Empty, or a path that starts with a slash and does not end with one."""
    config: ClientConfig = PLAIN
    """TLS and login."""

    def __str__(self) -> str:
        return f"zk:{self.hosts}{self.root}"


def is_zookeeper(url: str) -> bool:
    """Whether a URL is one of ZooKeeper."""
    return url.partition(":")[0] in SCHEMES


def parse_zookeeper(url: str, config: ClientConfig = PLAIN) -> ZooKeeperAddress:
    """The address in a URL; servers are separated by commas or semicolons. ``ConfigError``."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in SCHEMES:
        raise ConfigError(f"{url!r} is not a URL of ZooKeeper, such as zk:host:2181/chroot")
    servers, _, path = rest.removeprefix("//").partition("/")
    found = [_HOST.fullmatch(server) for server in re.split("[,;]", servers)]
    hosts = [f"{match[1]}:{match[2] or PORT}" for match in found if match is not None]
    if len(hosts) < len(found):
        raise ConfigError(f"{url!r} does not name ZooKeeper servers as host:port")
    path = path.rstrip("/")
    root = f"/{path}" if path else ""
    if root and any(part in ("", ".", "..") for part in path.split("/")):
        raise ConfigError(f"{url!r} has an invalid path")
    return ZooKeeperAddress(",".join(hosts), root, config)
