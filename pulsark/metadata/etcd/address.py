"""URLs of etcd: ``etcd:http://host:2379,http://host2:2379/chroot``, as Pulsar has them. Pure.

Pulsar's have no path. A server without a scheme has that of the one before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pulsark.errors import ConfigError

PORT: Final = 2379
_SCHEME: Final = "etcd:"
_SERVER: Final = re.compile(
    r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?"
)


@dataclass(frozen=True, slots=True)
class Server:
    """One member of the etcd cluster, as clients reach it."""

    host: str
    port: int = PORT
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """The servers, and the path below which everything is."""

    servers: tuple[Server, ...]
    root: str = ""
    """Empty, or a path that starts with a slash and does not end with one."""

    def __str__(self) -> str:
        return f"{_SCHEME}{','.join(map(str, self.servers))}{self.root}"


def parse_etcd(url: str) -> EtcdAddress:
    """The address in a URL. ``ConfigError``."""
    if not url.startswith(_SCHEME):
        raise ConfigError(f"{url!r} is not a URL of etcd, such as etcd:http://host:2379/chroot")
    named, rest = url[len(_SCHEME) :].split(","), ""
    scheme, separator, last = named[-1].rpartition("://")
    last, _, rest = last.partition("/")
    named[-1] = f"{scheme}{separator}{last}"
    servers: list[Server] = []
    tls = False
    for each in named:
        match = _SERVER.fullmatch(each)
        if match is None:
            raise ConfigError(f"{url!r} does not name etcd's servers as http://host:port")
        tls = match[1] == "https" if match[1] else tls
        servers.append(Server(match[2].strip("[]"), int(match[3] or PORT), tls))
    path = rest.rstrip("/")
    if path and any(part in ("", ".", "..") for part in path.split("/")):
        raise ConfigError(f"{url!r} has an invalid path")
    return EtcdAddress(tuple(servers), f"/{path}" if path else "")
