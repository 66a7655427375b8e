"""A standalone with everything switched on that keeps strangers out, and how clients get in.

It listens with and without TLS on all three ports; tokens are its logins; roles have rights.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

import jwt
import trustme

from pulsark.admin_client.client import TIMEOUT_SECONDS, AdminClient
from pulsark.admin_client.credentials import Credentials
from tests.support.standalone import Standalone

SECRET = bytes(range(32))
SUPER_USER = "root"
PORTS_TLS = ("brokerServicePortTls", "webServicePortTls", "flightServicePortTls")


def token(role: str) -> str:
    """What a role shows."""
    return jwt.encode({"sub": role}, SECRET, "HS256")


class Secured(Standalone):
    """Such a process. ``folder`` gets its data, keys and certificates."""

    def __init__(self, folder: Path, *args: str, env: dict[str, str] | None = None) -> None:
        self.authority = trustme.CA()
        self.trust_path = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.trust_path))
        issued = self.authority.issue_cert("localhost", "127.0.0.1")
        certificate, key = folder / "broker.pem", folder / "broker.key"
        certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        key.touch(mode=0o600)
        key.write_bytes(issued.private_key_pem.bytes())
        secret = folder / "secret.key"
        secret.touch(mode=0o600)
        secret.write_bytes(SECRET)
        settings: Mapping[str, object] = {
            "authenticationEnabled": "true",
            "authenticationProviders": "token",
            "authorizationEnabled": "true",
            "superUserRoles": SUPER_USER,
            "tokenSecretKey": f"file://{secret}",
            "maxFailedLoginsPerSecondPerIp": 0,  # all come from one address, some to be refused
            "tlsCertificateFilePath": certificate,
            "tlsKeyFilePath": key,
            "tlsTrustCertsFilePath": self.trust_path,
            **dict.fromkeys(PORTS_TLS, 0),
        }
        words = [f"--set={name}={value}" for name, value in settings.items()]
        super().__init__(folder / "data", *words, *args, env=env)

    def admin(self, role: str = SUPER_USER, timeout_s: float = TIMEOUT_SECONDS) -> AdminClient:
        """The admin API for one role."""
        credentials = self.credentials(role)
        return AdminClient(self.web_url, credentials=credentials, timeout_s=timeout_s)

    def credentials(self, role: str = SUPER_USER) -> Credentials:
        """What one role needs, on each port."""
        return Credentials("token", {"token": token(role)}, str(self.trust_path))

    def over_tls(self, url: str, context: ssl.SSLContext | None = None) -> socket.socket:
        """A connection to a port of ``info``, such as ``webServiceUrlTls``."""
        host, port = self.info[url].rsplit("/", 1)[1].split(":")
        plain = socket.create_connection((host, int(port)), timeout=30)
        return (context or self.context()).wrap_socket(plain, server_hostname=host)

    def context(self) -> ssl.SSLContext:
        """Clients trust its CA."""
        return ssl.create_default_context(cafile=str(self.trust_path))
