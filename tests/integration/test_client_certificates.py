"""Clients log in with the certificate of their connection: the official client, and over HTTPS."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator

import pulsar
import pytest

from tests.support.certificates import Authority
from tests.support.standalone import Standalone

SUPER_USER = "admin"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def standalone(home: Authority) -> Iterator[Standalone]:
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
    standalone: Standalone, home: Authority, authentication: pulsar.Authentication | None
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
def test_the_common_name_of_a_client_is_its_role(standalone: Standalone, home: Authority) -> None:
    produce(standalone, home, pulsar.AuthenticationTLS(*home.issue("client", SUPER_USER)))
    with pytest.raises(pulsar.AuthorizationError):
        produce(standalone, home, pulsar.AuthenticationTLS(*home.issue("client", "stranger")))


def test_https_knows_the_certificate_too(standalone: Standalone, home: Authority) -> None:
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
