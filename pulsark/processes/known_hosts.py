"""Whether servers that are waited for can be there at all: whether their names are known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.config.store_urls import configuration_store_url, is_etcd, store_url
from pulsark.errors import ConfigError
from pulsark.metadata.etcd.address import parse_etcd
from pulsark.metadata.zookeeper.address import parse_zookeeper
from pulsark.processes.bookkeeper_storage import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.config.settings import Settings


async def check_hosts(settings: Settings, tell: Callable[[str], None]) -> None:
    """``tell`` what a cluster's metadata need; ``ConfigError`` if none of its hosts is known.

    Hosts that are known and do not answer are for the callers to wait for.
    """
    urls = (str(address_of(settings)), store_url(settings), configuration_store_url(settings))
    servers: dict[str, Sequence[str]] = {}
    for url in filter(None, urls):
        if is_etcd(url):
            named = parse_etcd(url).servers
            servers[",".join(map(str, named))] = [server.host for server in named]
        else:
            hosts = parse_zookeeper(url).hosts
            servers[hosts] = [each.rpartition(":")[0].strip("[]") for each in hosts.split(",")]
    for place, names in servers.items():
        tell(f"asking the metadata store at {place}")
        await _check(place, names)


async def _check(place: str, names: Sequence[str]) -> None:
    loop = asyncio.get_running_loop()
    looks = [loop.getaddrinfo(name, None) for name in names]
    found = await asyncio.gather(*looks, return_exceptions=True)
    for name, error in zip(names, found, strict=True):
        if not isinstance(error, OSError | UnicodeError):
            return
        reason = f"no address of {name} is known ({getattr(error, 'strerror', None) or error})"
    raise ConfigError(f"{place} cannot be reached: {reason}")
