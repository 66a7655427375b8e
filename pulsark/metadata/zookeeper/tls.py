"""TLS to ZooKeeper, as the file with the settings of ZooKeeper's own client has it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pulsark.config.sources import parse_properties
from pulsark.errors import ConfigError

SECURE: Final = "zookeeper.client.secure"
_PREFIX: Final = "zookeeper.ssl."
_OF_JAVA: Final = (
    "zookeeper.clientCnxnSocket",
    "zookeeper.ssl.protocol",
    "zookeeper.ssl.enabledProtocols",
    "zookeeper.ssl.ciphersuites",
    "zookeeper.ssl.handshakeDetectionTimeoutMillis",
)
"""What matters to Java's client alone, or is left to Python's defaults."""


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """Whom this process trusts, and what it shows."""

    trust: str = ""
    """Certificates of CAs in PEM; empty: the CAs of the machine."""
    own: str = ""
    """Certificate, chain and key in PEM; empty: none."""
    password: str = field(default="", repr=False)
    """Of the key."""
    checks_name: bool = True
    """Whether the certificate has to name the server as the address does."""

    def context(self) -> ssl.SSLContext:
        """What sockets need. ``ConfigError`` if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.trust or None)
            context.check_hostname = self.checks_name
            if self.own:
                context.load_cert_chain(self.own, password=self.password)
        except OSError as error:
            raise ConfigError(f"TLS to ZooKeeper: {self.trust} {self.own}: {error}") from error
        return context


def read_tls(path: str) -> ZooKeeperTls | None:
    """What a file says, if it asks for TLS. ``ConfigError`` for what is not supported."""
    if not path:
        return None
    try:
        found = parse_properties(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"metadataStoreConfigPath: {path}: {error}") from error
    secure = found.pop(SECURE, "false").lower() == "true"
    for key in _OF_JAVA:
        found.pop(key, None)
    stores = {name: _store(path, found, name) for name in ("trustStore", "keyStore")}
    checks_name = found.pop(f"{_PREFIX}hostnameVerification", "true").lower() == "true"
    if found:
        raise ConfigError(
            f"metadataStoreConfigPath: {path}: Pulsark does not know {', '.join(sorted(found))}"
        )
    if not secure:
        return None
    (trust, _), (own, password) = stores["trustStore"], stores["keyStore"]
    return ZooKeeperTls(trust, own, password, checks_name)


def _store(path: str, found: dict[str, str], name: str) -> tuple[str, str]:
    """The place of a store and its password."""
    keys = {key: f"{_PREFIX}{name}.{key}" for key in ("location", "type", "password")}
    where, kind, password = (found.pop(key, "") for key in keys.values())
    password_file = found.pop(f"{keys['password']}Path", "")
    if where and (kind.upper() or Path(where).suffix[1:].upper()) != "PEM":
        raise ConfigError(
            f"metadataStoreConfigPath: {path}: {keys['location']} has to be in PEM, which "
            "ZooKeeper's own client and servers read, too"
        )
    if password_file:
        try:
            password = Path(password_file).read_text().strip()
        except OSError as error:
            raise ConfigError(f"{keys['password']}Path: {error}") from error
    return where, password
