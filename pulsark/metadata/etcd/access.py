"""How etcd is logged in to: the file of ``metadataStoreConfigPath``, whose keys are Pulsar's.

``user`` and ``password`` are our own; Pulsar has no login to etcd.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, Final

from pulsark.errors import ConfigError

_TEXTS: Final = (
    "tlsProvider", "tlsTrustCertsFilePath", "tlsKeyFilePath", "tlsCertificateFilePath", "authority",
    "user", "password",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """What a client shows, and whom it trusts."""

    tls: ssl.SSLContext | None = None
    """For servers with https; without one the machine's CAs are trusted."""
    server_name: str = ""
    """The name in the servers' certificates, if it is not their host's."""
    user: str = ""
    password: str = field(default="", repr=False)


def read_access(path: str) -> EtcdAccess:
    """What the file says; nothing without one. ``ConfigError``."""
    if not path:
        return EtcdAccess()
    found = _document(path)
    texts = {key: found.get(key) or "" for key in _TEXTS}
    unknown = sorted(set(found) - {*_TEXTS, "useTls"})
    if unknown or not all(isinstance(text, str) for text in texts.values()):
        problem = f"{unknown[0]} is no key for etcd" if unknown else "its values must be texts"
        raise ConfigError(f"metadataStoreConfigPath: {path}: {problem}")
    tls = None
    if found.get("useTls"):
        try:
            tls = ssl.create_default_context(cafile=texts["tlsTrustCertsFilePath"] or None)
            if texts["tlsCertificateFilePath"]:
                key = texts["tlsKeyFilePath"] or None
                tls.load_cert_chain(texts["tlsCertificateFilePath"], key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"metadataStoreConfigPath: TLS in {path}: {error}") from error
    return EtcdAccess(tls, texts["authority"], texts["user"], texts["password"])


def _document(path: str) -> dict[str, Any]:
    import yaml  # only where it is used

    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"metadataStoreConfigPath: {path} cannot be read: {error}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"metadataStoreConfigPath: {path} has no keys and values")
    return found
