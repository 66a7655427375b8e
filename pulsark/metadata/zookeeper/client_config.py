"""How ZooKeeper is reached, as the file with the settings of its own client has it."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pulsark.config.sources import parse_properties
from pulsark.errors import ConfigError
from pulsark.metadata.zookeeper.digest_login import DigestLogin

SECURE: Final = "zookeeper.client.secure"
LOGIN: Final = "java.security.auth.login.config"
_PREFIX: Final = "zookeeper.ssl."
_DIGEST: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
_OPTION: Final = re.compile(r'(username|password)\s*=\s*"([^"]*)"')
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


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What a file says."""

    tls: ZooKeeperTls | None = None
    """``None``: plain TCP."""
    login: DigestLogin | None = None
    """Name and password; ``None``: nobody in particular."""


PLAIN: Final = ClientConfig()
"""Neither."""


def read_client_config(path: str) -> ClientConfig:
    """What a file says; that nothing is to be done without one. ``ConfigError`` for what is not
    supported."""
    if not path:
        return PLAIN
    try:
        found = parse_properties(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"metadataStoreConfigPath: {path}: {error}") from error
    secure = found.pop(SECURE, "false").lower() == "true"
    for key in _OF_JAVA:
        found.pop(key, None)
    stores = {name: _store(path, found, name) for name in ("trustStore", "keyStore")}
    checks_name = found.pop(f"{_PREFIX}hostnameVerification", "true").lower() == "true"
    login = _login(path, found)
    if found:
        raise ConfigError(
            f"metadataStoreConfigPath: {path}: Pulsark does not know {', '.join(sorted(found))}"
        )
    if not secure:
        return ClientConfig(None, login)
    (trust, _), (own, password) = stores["trustStore"], stores["keyStore"]
    return ClientConfig(ZooKeeperTls(trust, own, password, checks_name), login)


def _login(path: str, found: dict[str, str]) -> DigestLogin | None:
    """What is below the name of this client in a file of JAAS."""
    wanted = found.pop("zookeeper.sasl.client", "true").lower() == "true"
    section = found.pop("zookeeper.sasl.clientconfig", "Client")
    file = found.pop(LOGIN, "")
    if not file or not wanted:
        return None
    try:
        text = Path(file).read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{LOGIN} in {path}: {file}: {error}") from error
    match = re.search(rf"^\s*{re.escape(section)}\s*{{(.*?)}}\s*;", text, re.M | re.S)
    options = {} if match is None else dict(_OPTION.findall(match[1]))
    if match is None or _DIGEST not in match[1] or not {"username", "password"} <= options.keys():
        raise ConfigError(
            f"{file} has no {section} with {_DIGEST}, username and password: Pulsark has no other "
            "login to ZooKeeper"
        )
    return DigestLogin(options["username"], options["password"])


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
