"""Clients log in with the certificate of their connection: the official client, and over HTTPS."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
import trustme

from tests.support.standalone import Standalone

SUPER_USER = "admin"


class Home:
    """A CA, and certificates from it, as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = trustme.CA()
        self.trust = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.trust))

    def issue(self, name: str, common_name: str | None = None) -> tuple[str, str]:
        """The files of a certificate and its key."""
        issued = self._authority.issue_cert(name, common_name=common_name)
        certificate = self.folder / f"{common_name or name}.pem"
        key = certificate.with_suffix(".key")
        key.touch(mode=0o600)
        key.write_bytes(issued.private_key_pem.bytes())
        certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return str(certificate), str(key)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def standalone(home: Home) -> Iterator[Standalone]:
    certificate, key = home.issue("localhost")
    settings = {
        "brokerServicePortTls": "0",
        "webServicePortTls": "0",
        "tlsCertificateFilePath": certificate,
        "tlsKeyFilePath": key,
        "tlsTrustCertsFilePath": str(home.trust),
        "authenticationEnabled": "true",
        "authenticationProviders": "tls",
        "authorizationEnabled": "true",
        "superUserRoles": SUPER_USER,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    found = Standalone(home.folder / "data", *words).start()
    yield found
    found.stop()


def produce(
    standalone: Standalone, home: Home, authentication: pulsar.Authentication | None
) -> None:
    client = pulsar.Client(
        standalone.info["brokerServiceUrlTls"],
        authentication=authentication,
        tls_trust_certs_file_path=str(home.trust),
        tls_validate_hostname=True,
        operation_timeout_seconds=10,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        client.create_producer("persistent://public/default/certificates").send(b"x")
    finally:
        client.close()


@pytest.mark.feature("F81")
def test_the_common_name_of_a_client_is_its_role(standalone: Standalone, home: Home) -> None:
    produce(standalone, home, pulsar.AuthenticationTLS(*home.issue("client", SUPER_USER)))
    with pytest.raises(pulsar.AuthorizationError):
        produce(standalone, home, pulsar.AuthenticationTLS(*home.issue("client", "stranger")))


def test_https_knows_the_certificate_too(standalone: Standalone, home: Home) -> None:
    def ask(*files: str) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(home.trust))
        if files:
            context.load_cert_chain(*files)
        url = standalone.info["webServiceUrlTls"] + "/admin/v2/tenants"
        try:
            with urllib.request.urlopen(url, timeout=10, context=context) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["reason"]

    assert ask(*home.issue("client", SUPER_USER)) == (200, "")
    assert ask(*home.issue("client", "stranger"))[0] == 401
    assert ask() == (401, "Authentication required")
